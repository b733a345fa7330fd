"""What real processes do between looks: working, sleeping, stopped, reading, and work in children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch.contract.enums import WaitKind
from rankwatch.contract.messages import Frame, RankStack, Usage, Wait
from rankwatch_launcher.stacks.usage import UsageMeter
from rankwatch_launcher.stacks.waits import Found
from support.waiting import wait_for

BUSY = "while True: pass"
SLEEP = "import time; time.sleep(1000)"


@contextmanager
def process(code: str) -> Iterator[int]:
    """A process that runs ``code`` and has begun to do so; its children end with it."""
    with subprocess.Popen(
        [sys.executable, "-c", f"print('up', flush=True)\n{code}"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "up\n"
            yield made.pid
        finally:
            os.killpg(made.pid, signal.SIGKILL)


def looked(pid: int, until: Callable[[Usage], bool], what: str) -> Usage:
    """Look at a process until its usage is as expected."""
    meter, found = UsageMeter(), Usage(0.0, 0)

    def look() -> bool:
        nonlocal found
        found = meter.sample([RankStack(0, pid, "")], time.monotonic(), {})[0]
        return until(found)

    wait_for(look, what, 90.0)
    return found


def test_a_loop_burns_cpu_of_the_main_thread() -> None:
    with process(BUSY) as pid:
        usage = looked(pid, lambda u: u.main_cpu > 0.2, "it burns CPU")
    assert usage.child_cpu == 0.0


def test_a_thread_s_work_counts_beside_the_main_thread_s() -> None:
    code = "import threading\ndef f():\n  while True: pass\nt=threading.Thread(target=f); t.start(); t.join()"
    with process(code) as pid:
        looked(pid, lambda u: u.cpu > 0.2 > u.main_cpu, "its thread burns CPU, and the main thread none any more")


def test_work_in_a_child_counts_once_whether_it_runs_or_has_ended() -> None:
    endless = f"import subprocess,sys; subprocess.run([sys.executable,'-c',{BUSY!r}])"
    with process(endless) as pid:
        looked(pid, lambda u: u.child_cpu > 0.2, "its child burns CPU")
        meter = UsageMeter()
        meter.sample([RankStack(0, pid, "")], 0.0, {})
    short = "import subprocess,sys\nwhile True: subprocess.run([sys.executable,'-c','sum(range(3000000))'])"
    with process(short) as pid:
        looked(pid, lambda u: u.child_cpu > 0.2, "its children burnt CPU before they ended")


def test_a_child_that_ends_during_a_look_is_left_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, parent in ((10, 1), (11, 10)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python) S {parent} " + "0 " * 40)
    monkeypatch.setattr(Path, "is_dir", lambda _: True)  # it has threads, and is gone when they are read
    usage = UsageMeter(tmp_path).sample([RankStack(0, 10, "")], 0.0, {})[0]
    assert usage.child_delay == 0.0


def test_on_an_overloaded_machine_waiting_for_a_cpu_counts_as_well() -> None:
    crowded = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    child = f"import subprocess,sys; subprocess.run([sys.executable,'-c',{BUSY!r}])"
    with process(crowded + BUSY) as first, process(crowded + child) as second:
        looked(first, lambda u: u.main_delay > 0.2 and u.main_cpu > 0.2, "it runs, and waits for its CPU")
        looked(second, lambda u: u.child_delay > 0.2 and u.child_cpu > 0.2, "its child does")


def test_reading_and_writing_counts_bytes() -> None:
    with process("import time\nwhile True:\n  open('/proc/self/exe','rb').read(1<<20); time.sleep(0.01)") as pid:
        looked(pid, lambda u: u.io_bytes > 5 << 20 and u.wakeups > 4, "it reads, and wakes up between")


def test_what_a_slow_receiver_takes_counts_although_the_sender_sleeps() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with process(
            f"import socket\ns=socket.create_connection(('127.0.0.1',{port}))\ns.sendall(bytes(1<<28))"
        ) as pid:
            connection, _ = server.accept()
            with connection:
                looked(pid, lambda u: u.seconds > 1.0 and u.io_bytes == 0, "its buffers are full, and it sleeps")
                connection.recv(1 << 20)

                def takes(usage: Usage) -> bool:
                    connection.recv(1 << 16)
                    return usage.io_bytes > 1 << 18

                looked(pid, takes, "the receiver takes something")


def test_a_process_that_sleeps_does_nothing() -> None:
    with process(SLEEP) as pid:
        nothing = (0.0, 0.0, 0.0, 0, 0)
        usage = looked(
            pid,
            lambda u: u.seconds > 1.0 and (u.main_cpu, u.cpu, u.child_cpu, u.io_bytes, u.wakeups) == nothing,
            "nothing moves",
        )
    assert usage.same_stack is None


def test_a_process_that_is_gone_changes_nothing() -> None:
    meter = UsageMeter()
    with process(SLEEP) as pid:
        meter.sample([RankStack(0, pid, "")], 0.0, {})
    usage = meter.sample([RankStack(0, pid, "")], 5.0, {})[0]
    assert (usage.seconds, usage.looks, usage.main_cpu, usage.io_bytes) == (5.0, 2, 0.0, 0)


A = (Frame("get", "queue.py", 10), Frame("main", "train.py", 5))
SAME_FUNCTIONS = (Frame("get", "queue.py", 12), Frame("main", "train.py", 5))
OTHER = (Frame("read", "file.py", 1), Frame("main", "train.py", 5))


@pytest.mark.parametrize(
    ("stacks", "same_stack", "same_functions"),
    [
        ((A, A, A), 4.0, 4.0),
        ((A, SAME_FUNCTIONS, SAME_FUNCTIONS), 2.0, 4.0),
        ((A, A, OTHER), 0.0, 0.0),
        ((A, (), A), 4.0, 4.0),
        (((), (), ()), None, None),
    ],
)
def test_stacks_are_compared_by_lines_and_by_functions(
    stacks: tuple[tuple[Frame, ...], ...], same_stack: float | None, same_functions: float | None
) -> None:
    meter, usage = UsageMeter(), Usage(0.0, 0)
    with process(SLEEP) as pid:
        for number, frames in enumerate(stacks):
            usage = meter.sample([RankStack(0, pid, "py-spy", frames)], 2.0 * number, {})[0]
    assert (usage.same_stack, usage.same_functions) == (same_stack, same_functions)
    assert (usage.seconds, usage.looks) == (4.0, 3)


def test_counters_are_those_of_the_last_looks() -> None:
    meter = UsageMeter()
    with process(SLEEP) as pid:
        seen = [meter.sample([RankStack(0, pid, "")], 4.0 * look, {})[0] for look in range(8)]
    assert [usage.seconds for usage in seen] == [0.0, 4.0, 8.0, 12.0, 12.0, 12.0, 12.0, 12.0]


def test_one_look_that_sees_no_end_after_others_that_did_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = iter([WaitKind.THREAD, WaitKind.CHILD, WaitKind.THREAD, WaitKind.THREAD, WaitKind.TIMED, WaitKind.STOPPED])
    monkeypatch.setattr(UsageMeter, "_waits", lambda *_: {0: Found(Wait(next(kinds)))})
    meter, seen = UsageMeter(), []
    for now in range(6):
        wait = meter.sample([RankStack(0, os.getpid(), "")], float(now), {})[0].wait
        assert wait is not None
        seen.append(wait.kind)
    unread = WaitKind.UNKNOWN
    assert seen == [WaitKind.THREAD, WaitKind.CHILD, unread, WaitKind.THREAD, WaitKind.TIMED, unread]
