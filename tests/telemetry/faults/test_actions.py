from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.export.transport import OtlpClient, SendStatus
from rankwatch.faults import actions
from rankwatch.faults.actions import (
    FaultUnavailableError,
    InjectedAsyncError,
    InjectedFaultError,
    carry_out,
    cut_telemetry,
)
from rankwatch.faults.spec import Fault, Kind, parse
from rankwatch.settings import Settings
from support.waiting import wait_for


def in_child(fault: str) -> int:
    """Carry the fault out in a child; return its wait status, also of a stop."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGINT, signal.SIGSEGV, signal.SIGABRT):
            signal.signal(number, signal.SIG_DFL)  # pytest has handlers of its own
        carry_out(parse(f"rank=0,step=0,{fault}"))
        os._exit(0)
    status = os.waitpid(child, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return status


def test_stop() -> None:
    status = in_child("kind=stop")
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("kill", signal.SIGKILL),
        ("int", signal.SIGINT),
        ("term", signal.SIGTERM),
        ("abort", signal.SIGABRT),
        ("segfault", signal.SIGSEGV),
    ],
)
def test_what_ends_the_process(kind: str, number: signal.Signals) -> None:
    assert os.WTERMSIG(in_child(f"kind={kind}")) == number


def test_exception_and_exit() -> None:
    with pytest.raises(InjectedFaultError, match="injected on rank 0 in step 0"):
        carry_out(parse("rank=0,step=0,kind=exception"))
    with pytest.raises(SystemExit) as left:
        carry_out(parse("rank=0,step=0,kind=exit,code=17"))
    assert left.value.code == 17


def test_an_exception_from_another_thread_is_itself_however_long_that_thread_takes_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading._start_new_thread  # type: ignore[attr-defined]

    def slowly(*args: Any) -> Any:
        ident = start(*args)
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        return ident

    monkeypatch.setattr(threading, "_start_new_thread", slowly)
    until = time.monotonic() + 30
    with pytest.raises(InjectedAsyncError):  # noqa: PT012
        carry_out(parse("rank=0,step=0,kind=async_exception"))
        while time.monotonic() < until:
            pass


def test_an_exception_from_another_thread_reaches_the_main_thread_wherever_it_is() -> None:
    until = time.monotonic() + 30
    with pytest.raises(InjectedAsyncError, match="injected into the main thread by another one"):  # noqa: PT012
        carry_out(parse("rank=0,step=0,kind=async_exception"))
        while time.monotonic() < until:
            pass


def test_a_hang_leaves_other_threads_running_and_a_held_gil_does_not() -> None:
    """How often another thread runs in 0.5 s: a few hundred times beside a hang, hardly ever beside a held GIL."""
    turns: dict[str, int] = {}
    assert ctypes, "imported already: while it is imported, other threads run"
    for kind in ("hang", "gil"):
        done, count = threading.Event(), [0]

        def work(done: threading.Event = done, count: list[int] = count) -> None:
            while not done.wait(0.001):
                count[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            before, begin = count[0], time.monotonic()
            carry_out(parse(f"rank=0,step=0,kind={kind},seconds=0.5"))
            turns[kind] = count[0] - before
            assert time.monotonic() - begin >= 0.49
        finally:
            done.set()
            thread.join()
    assert 5 * turns["gil"] < turns["hang"], turns


def test_slowness_by_seconds_and_by_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(actions.time, "sleep", sleep)
    monkeypatch.setattr(actions.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(actions, "_last_end", None)
    carry_out(parse("rank=0,step=0,kind=slow,seconds=0.5"))
    fault = parse("rank=0,step=0,kind=slow,factor=3")
    for _ in range(2):
        now[0] += 1.0  # the step's own second
        carry_out(fault)
    assert slept == [0.5, 2.0, 2.0]


def test_cut_telemetry_is_like_an_outage_and_passes() -> None:
    transport = OtlpClient("http://127.0.0.1:9", Settings())
    before = OtlpClient.post
    mend = cut_telemetry(0.2)
    try:
        answer = transport.post(b"")
        assert (answer.status, answer.reason) == (SendStatus.RETRY_LATER, "cut off by an injected fault")
        wait_for(lambda: "cut off" not in transport.post(b"").reason, "the cut is over")
    finally:
        mend()
    assert OtlpClient.post is before


def test_a_gpu_fault_without_a_gpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("gpu_error", "gpu_sleep"):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(FaultUnavailableError, match=f"fault {kind} needs torch, which this script"):
            carry_out(parse(f"rank=0,step=0,kind={kind}"))
        without = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
        monkeypatch.setitem(sys.modules, "torch", without)
        with pytest.raises(FaultUnavailableError, match=f"fault {kind} needs a CUDA device"):
            carry_out(parse(f"rank=0,step=0,kind={kind}"))


def test_a_kind_that_was_not_drawn_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="drawn"):
        carry_out(Fault(0, 0, Kind.RANDOM))
