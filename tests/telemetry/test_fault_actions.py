from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from rankwatch import fault_actions
from rankwatch.fault_actions import InjectedFaultError, carry_out
from rankwatch.faults import parse


def in_child(fault: str) -> int:
    """Carry the fault out in a child; return its wait status, also of a stop."""
    child = os.fork()
    if child == 0:
        carry_out(parse(f"rank=0,step=0,{fault}"))
        os._exit(0)
    return os.waitpid(child, os.WUNTRACED)[1] if "stop" not in fault else _stopped(child)


def _stopped(child: int) -> int:
    status = os.waitpid(child, os.WUNTRACED)[1]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return status


def test_stop() -> None:
    status = in_child("kind=stop")
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP


def test_kill() -> None:
    assert os.WTERMSIG(in_child("kind=kill")) == signal.SIGKILL


def test_exception_and_exit() -> None:
    with pytest.raises(InjectedFaultError, match="injected on rank 0 in step 0"):
        carry_out(parse("rank=0,step=0,kind=exception"))
    with pytest.raises(SystemExit) as left:
        carry_out(parse("rank=0,step=0,kind=exit,code=17"))
    assert left.value.code == 17


def test_a_hang_leaves_other_threads_running_and_a_held_gil_does_not() -> None:
    """How often another thread runs in 0.3 s: about 300 times beside a hang, hardly ever beside a held GIL."""
    turns: dict[str, int] = {}
    for kind in ("hang", "gil"):
        done, count = threading.Event(), [0]

        def work(done: threading.Event = done, count: list[int] = count) -> None:
            while not done.wait(0.001):
                count[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            before, begin = count[0], time.monotonic()
            carry_out(parse(f"rank=0,step=0,kind={kind},seconds=0.3"))
            turns[kind] = count[0] - before
            assert time.monotonic() - begin >= 0.29
        finally:
            done.set()
            thread.join()
    assert turns["gil"] <= 2 < turns["hang"]


def test_slowness_by_seconds_and_by_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(fault_actions.time, "sleep", sleep)
    monkeypatch.setattr(fault_actions.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(fault_actions, "_last_end", None)
    carry_out(parse("rank=0,step=0,kind=slow,seconds=0.5"))
    fault = parse("rank=0,step=0,kind=slow,factor=3")
    for _ in range(2):
        now[0] += 1.0  # the step's own second
        carry_out(fault)
    assert slept == [0.5, 2.0, 2.0]
