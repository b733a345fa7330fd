"""How a process ends is its own affair: exit codes and signals are those of a rank without Rankwatch, looked at or not.

A launcher looks at ranks that are suspected, and captures their stacks. Here it does so all the time, and by the ways
that enter the process: faulthandler's signal, and questions to torch's control plane.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankwatch.contract.env import STACK_SIGNAL as STACK_SIGNAL_NUMBER
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_launcher.node.slots import NodeSlots
from rankwatch_launcher.stacks.capture import STACK_SIGNAL, StackReader
from support import endings
from support.gloo_ranks import ROOT

EXPECTED = {name: code for name, (_, code) in endings.ENDINGS.items()}
FEW = (
    *("return", "exit 17", "exception", "interrupt", "SIGTERM, handled"),
    *("thread outlives main", "daemon threads", "slow at exit", "shut down before"),
)


class Looker:
    """Captures the stacks of ranks, without py-spy, from their beginning until they are gone."""

    def __init__(self) -> None:
        self._reader = StackReader(refusal="not tried")
        self._reader._probed.set()
        self.looks: Counter[str] = Counter()
        """Stacks and positions that were read, by rank."""
        self._gone: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def began(self, folder: Path, pid: int) -> None:
        self._gone[folder.name] = gone = threading.Event()
        self._threads.append(threading.Thread(target=self._look, args=(folder, pid, gone), daemon=True))
        self._threads[-1].start()

    def ended(self, name: str) -> None:
        self._gone[name].set()

    def close(self) -> None:
        for gone in self._gone.values():
            gone.set()
        for thread in self._threads:
            thread.join(60)

    def _look(self, folder: Path, pid: int, gone: threading.Event) -> None:
        slots = NodeSlots(folder, 1)
        target = Attempt(1, slots, RequestInbox(folder)).target(RankProcess(0, 0, pid))
        while not gone.wait(0.05):
            (stack,) = self._reader.capture([target], 1.0, last=False)
            self.looks[folder.name] += bool(stack.method) + bool(stack.collectives)
        slots.close()


def exit_codes(
    folder: Path, ways: Iterable[str] = EXPECTED, *, looker: Looker | None = None, plain: bool = False
) -> tuple[dict[str, int], str]:
    """How ranks that end in every way have ended, by the name of the way, and what they printed."""
    folder.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "TORCH"))}
    sources = os.pathsep.join(str(ROOT / name) for name in ("telemetry", "launcher"))
    env |= {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1", STACK_SIGNAL_NUMBER: str(int(STACK_SIGNAL))}
    command = [sys.executable, endings.__file__, str(folder), "plain" if plain else "watched", *ways]
    codes: dict[str, int] = {}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                what, _, rest = line.strip().partition(" ")
                name, _, number = rest.rpartition(" ")
                if what == "ended":
                    codes[name] = int(number)
                if looker is not None:
                    looker.began(folder / name, int(number)) if what == "began" else looker.ended(name)
            process.wait(60)
        finally:
            if looker is not None:
                looker.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
            process.stdout.close()
    return codes, (folder / "log").read_text(errors="replace")


def are_looked_at(tmp_path: Path, ways: Iterable[str]) -> None:
    left = list(ways)
    for folder in ("looked", "second", "third"):  # a busy machine may have had no time for a look at some of them
        looker = Looker()
        codes, printed = exit_codes(tmp_path / folder, left, looker=looker)
        assert codes == {name: EXPECTED[name] for name in left}, printed[-4000:]
        assert "not rethrown" not in printed
        left = [name for name in left if not looker.looks[name]]
        if not left:
            return
    raise AssertionError(f"never looked at: {', '.join(left)}")


def test_ranks_that_are_looked_at_end_as_they_would_without(tmp_path: Path) -> None:
    are_looked_at(tmp_path, FEW)


@pytest.mark.long
@pytest.mark.skipif(
    "ENDINGS_ROUNDS" not in os.environ, reason="ENDINGS_ROUNDS, the rounds for an idle machine, is not set"
)
@pytest.mark.parametrize("round_", range(int(os.environ.get("ENDINGS_ROUNDS", "1"))))
def test_so_they_do_always_and_where_nobody_looks(round_: int) -> None:
    del round_
    # The path of a unix socket has 107 bytes at most, and that of a test's own folder takes most of them.
    with tempfile.TemporaryDirectory(prefix="ends") as name:
        folder = Path(name)
        assert exit_codes(folder / "plain", plain=True)[0] == EXPECTED, "as CPython and torch have it"
        assert exit_codes(folder / "watched")[0] == EXPECTED
        are_looked_at(folder, EXPECTED)
