"""torch's control plane, offered to the launcher by real processes that end in every way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rankwatch.liveness import torch_control_plane
from support.gloo_ranks import ROOT

ALONE = """
import os, sys, threading
from pathlib import Path
import torch, torch.distributed as dist
from rankwatch.liveness import torch_control_plane as control_plane
path = Path(sys.argv[1])
assert not control_plane.offer(path), "there is no process group yet"
assert not path.exists()
dist.init_process_group("gloo", init_method=f"file://{path.parent}/store", rank=0, world_size=1)

def asked(path):
    import time
    from rankwatch_launcher.stacks import collectives
    return collectives.query(path, collectives.FLIGHT_RECORDER, time.monotonic() + 5)

def offered():
    assert control_plane.offer(path)
    assert b"entries" in asked(path) or b"pg_status" in asked(path)
"""


def run(path: Path, body: str, **variables: str) -> subprocess.CompletedProcess[str]:
    sources = os.pathsep.join(str(ROOT / name) for name in ("telemetry", "launcher"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "TORCH"))}
    return subprocess.run(
        [sys.executable, "-c", ALONE + body, str(path)],
        env=clean | {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ENDINGS = {
    "at the end of the script": ("dist.destroy_process_group()", 0),
    "by sys.exit": ("dist.destroy_process_group(); sys.exit(3)", 3),
    "by an exception": ("dist.destroy_process_group(); raise ValueError('mine')", 1),
    "by os._exit": ("os._exit(4)", 4),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rank_ends_as_it_would_without(tmp_path: Path, ending: str) -> None:
    body, code = ENDINGS[ending]
    done = run(tmp_path / "0.sock", f"offered()\nprint('offered', flush=True)\n{body}\n")
    assert (done.returncode, done.stdout) == (code, "offered\n"), done.stderr
    assert "terminate called" not in done.stderr


def test_a_forked_child_that_exits_through_its_interpreter_does_no_harm(tmp_path: Path) -> None:
    # torch's own destructor would shut down the parent's listening socket here, and the parent would abort.
    body = """
offered()
dist.destroy_process_group()  # gloo has threads of its own, whose destructors do not survive a fork
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert asked(path)
print("lives", flush=True)
os._exit(0)
"""
    done = run(tmp_path / "0.sock", body)
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_a_server_that_the_script_started_is_used(tmp_path: Path) -> None:
    body = """
from torch.distributed.elastic.control_plane import worker_main
with worker_main():
    offered()
    assert path.is_symlink() and os.readlink(path) == os.environ["TORCH_WORKER_SERVER_SOCKET"]
    servers = sum(Path(t, "comm").read_text().startswith("pt_workerserver") for t in Path("/proc/self/task").iterdir())
    print(servers < 12, flush=True)
os._exit(0)
"""
    done = run(tmp_path / "0.sock", body, TORCH_WORKER_SERVER_SOCKET=str(tmp_path / "scripts.sock"))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_another_processes_server_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as strangers:
        strangers.bind(str(tmp_path / "shared.sock"))
        strangers.listen()
        body = "offered()\nprint(path.is_symlink(), flush=True)\nos._exit(0)\n"
        done = run(tmp_path / "0.sock", body, TORCH_WORKER_SERVER_SOCKET=str(tmp_path / "shared.sock"))
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_second_session_uses_the_server_of_the_first(tmp_path: Path) -> None:
    body = """
offered()
inode = path.stat().st_ino
offered()
assert path.stat().st_ino == inode and not path.is_symlink()
path = path.with_name("next.sock")
offered()
print(path.is_symlink(), flush=True)
os._exit(0)
"""
    done = run(tmp_path / "0.sock", body)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_path_that_is_too_long_is_reported_once_and_does_no_harm(tmp_path: Path) -> None:
    body = """
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
failed, told = [], threading.Event()
def note(reason):
    failed.append(reason); told.set()
control_plane.ControlPlane(path.with_name("x" * 150), note).start()
assert told.wait(20)
print(failed, flush=True)
os._exit(0)
"""
    done = run(tmp_path / "0.sock", body)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("the launcher cannot ask torch how far its collectives have come:")
    assert second == "['control_plane_error']"


def test_torch_is_not_imported_and_the_thread_ends_on_request(tmp_path: Path) -> None:
    body = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from rankwatch.liveness.torch_control_plane import ControlPlane, offer\n"
        "assert not offer(Path(sys.argv[1]))\n"
        "plane = ControlPlane(Path(sys.argv[1]), print)\nplane.start()\nplane.stop()\n"
        "[t.join(10) for t in threading.enumerate() if t.name == 'rankwatch-control-plane']\n"
        "assert len(threading.enumerate()) == 1\nassert not any(m.split('.')[0] == 'torch' for m in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", body, str(tmp_path / "0.sock")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "telemetry")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_torch_without_a_control_plane_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Distributed:
        is_initialized = staticmethod(lambda: True)

    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", object())  # type: ignore[arg-type]
    reported = threading.Event()
    failed: list[str] = []

    def note(reason: str) -> None:
        failed.append(reason)
        reported.set()

    torch_control_plane.ControlPlane(tmp_path / "0.sock", note).start()
    assert reported.wait(10)
    assert failed == ["control_plane_error"]
