"""When a rank begins to end, as its launcher reads it, and that it waits for a launcher that has entered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankwatch.contract import env as environment
from rankwatch.liveness import leaving, stack_dump
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots, read
from support import forked
from support.waiting import wait_for


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Slots:
    made = Slots.private()
    made.claim(rank=0, local_rank=0, world_size=1, attempt=1)
    for name, value in {"_words": made.words, "_pid": os.getpid(), "_hooked": True}.items():
        monkeypatch.setattr(leaving, name, value)
    return made


def since(slots: Slots) -> float | None:
    reading = read(slots)
    assert reading is not None
    return reading.leaving


def test_the_beginning_counts_and_progress_after_it_makes_it_void(slots: Slots) -> None:
    assert since(slots) is None
    leaving.begin()
    first = slots.words[layout.LEAVING]
    leaving.begin()
    assert slots.words[layout.LEAVING] == first
    assert since(slots) is not None
    slots.words[layout.OPEN], slots.words[layout.OPEN + 1] = 1, time.monotonic_ns()
    assert since(slots) is None, "another thread trains on"
    leaving.finish()
    assert since(slots) is not None
    assert slots.words[layout.LEAVING] > first


def test_a_rank_ends_after_the_launcher_has_left(slots: Slots) -> None:
    slots.words[layout.ENTERED] = 1
    ended = threading.Thread(target=leaving.finish, daemon=True)
    ended.start()
    wait_for(lambda: since(slots) is not None, "it says that it ends")
    assert ended.is_alive()
    slots.words[layout.ENTERED] = 0
    ended.join(60)
    assert not ended.is_alive()


def test_it_does_not_wait_for_ever(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LAUNCHER_LEAVES", 0.01)
    slots.words[layout.ENTERED] = 1
    leaving.finish()


def test_a_forked_child_says_nothing_of_its_parent(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_pid", os.getpid() + 1)
    leaving.begin()
    leaving.finish()
    assert slots.words[layout.LEAVING] == 0


SEEN = """
import atexit, os, sys, threading
import rankwatch
from rankwatch.recording.shared_slots import Slots, read
def tell(where):
    seen = read(Slots.open(os.environ["RANKWATCH_SLOTS_DIR"] + "/0.slots"))
    print(where, seen.leaving is not None, flush=True)
rankwatch.init()
with rankwatch.step():
    pass
tell("running")
"""
ENDINGS = {
    "return": ("pass", ["running False"], 0),
    "exception": (
        "sys.excepthook, plain = (lambda *e: (plain(*e), tell('hook'))), sys.excepthook\n1 / 0",
        ["running False", "hook True"],
        1,
    ),
    "thread": (
        "def late():\n    threading.main_thread().join()\n    tell('thread')\n"
        "threading.Thread(target=late).start()\nsys.exit(3)",
        ["running False", "thread True"],
        3,
    ),
    "atexit": ("atexit.register(tell, 'atexit')\nsys.exit(16)", ["running False", "atexit True"], 16),
    "os._exit": ("os._exit(17)", ["running False"], 17),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_says_that_it_ends_as_soon_as_it_is_known(tmp_path: Path, ending: str) -> None:
    body, printed, code = ENDINGS[ending]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "TORCH"))}
    env = clean | {environment.SLOTS_DIR: str(tmp_path)}
    done = forked.run([sys.executable, "-c", SEEN + body], env=env)
    assert (done.returncode, done.stdout.splitlines()) == (code, printed), done.stderr
    seen = read(Slots.open(tmp_path / "0.slots"))
    assert seen is not None
    assert (seen.leaving is None) is (ending == "os._exit")


def test_the_stack_signal_cannot_kill_once_faulthandler_has_let_go_of_it(tmp_path: Path) -> None:
    body = (
        "import faulthandler, os, sys\nfrom pathlib import Path\n"
        "from rankwatch.liveness import stack_dump\n"
        f"stack_dump.write_stack_on({signal.SIGRTMIN + 6}, Path(sys.argv[1]))\n"
        f"os.kill(os.getpid(), {signal.SIGRTMIN + 6})\n"
        f"faulthandler.unregister({signal.SIGRTMIN + 6})\n"  # as the interpreter does when it ends
        f"os.kill(os.getpid(), {signal.SIGRTMIN + 6})\n"
    )
    assert stack_dump.__file__
    file = tmp_path / "0.stack"
    env = os.environ | {"PYTHONPATH": str(Path(stack_dump.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", body, str(file)], env=env, timeout=60, check=False)
    assert done.returncode == 0
    assert file.read_text().count("most recent call first") == 1
