"""How rank processes are started: from the pool where it has a worker, else anew, each known as soon as it runs."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import api as multiprocessing
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from rankwatch_launcher import open_files, torch_compat
from rankwatch_launcher.prewarm.bootstrap import AUTO, HOOK, Bootstrap
from rankwatch_launcher.shell.workers import rank_handlers

SHELL = "/bin/sh"


class Pool:
    """Records what it is asked for, and hands out ``worker``."""

    def __init__(self, worker: Any = None) -> None:
        self.worker, self.asked = worker, []  # type: ignore[var-annotated]
        self.noted: list[tuple[int, int]] = []

    def take(self, local_rank: int, args: Any, env: Any, stdout: int, stderr: int) -> Any:
        self.asked.append((local_rank, args, env, stdout, stderr))
        return self.worker

    def started(self, local_rank: int, pid: int) -> None:
        self.noted.append((local_rank, pid))


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Pids in the order in which they were reported; none is left behind."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def start(
    pool: Any,
    started: list[int],
    bootstrap: Bootstrap | None = None,
    on_start: Callable[[int], None] | None = None,
    **options: Any,
) -> SubprocessHandler:
    """Start one rank as torch does, within the context."""
    given: dict[str, Any] = {
        "entrypoint": SHELL,
        "args": ("-c", "exit 3"),
        "env": {"RANK": "5"},
        "stdout": None,
        "stderr": None,
        "local_rank_id": 1,
    }
    given |= torch_compat.accepted(SubprocessHandler.__init__, numa_options=None) | options
    with rank_handlers(pool, on_start or started.append, bootstrap):
        make: Any = multiprocessing.get_subprocess_handler  # type: ignore[attr-defined]
        handler: SubprocessHandler = make(**given)
    return handler


def test_without_a_pool_a_rank_is_a_new_process_that_is_reported(started: list[int]) -> None:
    handler = start(None, started)
    assert started == [handler.proc.pid]
    assert handler.proc.wait(60) == 3


def test_a_rank_has_the_limit_of_open_files_that_the_launcher_was_started_with(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(open_files, "_inherited", (512, hard))
    handler = start(None, started, args=("-c", "exec sleep 600"))
    assert resource.prlimit(handler.proc.pid, resource.RLIMIT_NOFILE) == (512, hard)
    handler.proc.kill()
    handler.proc.wait()


def test_a_pool_without_a_matching_worker_changes_nothing(started: list[int]) -> None:
    pool = Pool()
    handler = start(pool, started)
    assert handler.proc.wait(60) == 3
    assert pool.noted == [(1, handler.proc.pid)]
    ((local_rank, args, env, stdout, stderr),) = pool.asked
    assert (local_rank, args, env["RANK"]) == (1, (SHELL, "-c", "exit 3"), "5")
    assert (stdout, stderr) == (1, 2), "without files the output goes where the launcher's goes"


def test_a_worker_of_the_pool_becomes_the_rank_and_is_reported_too(started: list[int], tmp_path: Path) -> None:
    worker = subprocess.Popen([SHELL, "-c", "exit 4"])
    pool = Pool(worker)
    handler = start(pool, started, stdout=str(tmp_path / "out"), stderr=str(tmp_path / "err"))
    assert handler.proc is worker
    assert started == [worker.pid]
    assert worker.wait(60) == 4
    ((*_, stdout, stderr),) = pool.asked
    assert handler._stdout is not None
    assert handler._stderr is not None
    assert (stdout, stderr) == (handler._stdout.fileno(), handler._stderr.fileno())
    handler._stdout.close()
    handler._stderr.close()


def test_what_runs_before_the_script_is_in_the_environment_of_both(started: list[int]) -> None:
    pool = Pool()
    start(pool, started, Bootstrap(auto=True)).proc.wait(60)
    ((_, _, env, _, _),) = pool.asked
    assert env[AUTO] == str(os.getpid())
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(HOOK)


def test_the_ranks_get_the_signals_that_torch_is_kept_from_handling_here(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(torch_compat.SIGNALS, "SIGTERM,SIGINT")
    pool, seen = Pool(), []

    def on_start(pid: int) -> None:
        started.append(pid)
        seen.append(os.environ[torch_compat.SIGNALS])

    start(pool, started, on_start=on_start).proc.wait(60)
    ((_, _, env, _, _),) = pool.asked
    assert seen == [torch_compat.UNUSED_SIGNAL]
    assert env[torch_compat.SIGNALS] == os.environ[torch_compat.SIGNALS] == "SIGTERM,SIGINT"


def test_after_the_context_torch_starts_processes_itself(started: list[int]) -> None:
    before = multiprocessing.get_subprocess_handler  # type: ignore[attr-defined]
    with pytest.raises(OSError):
        start(None, started, entrypoint="/does/not/exist")
    assert multiprocessing.get_subprocess_handler is before  # type: ignore[attr-defined]
    assert started == []
