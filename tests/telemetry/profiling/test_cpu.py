"""The CPU clock, against real threads and real control groups: two busy processes on one CPU, and a quota."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from rankwatch.profiling.cpu import CpuClock

BUSY = "while True: pass"

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not tell when a thread waits for a CPU"
)


class Spinner:
    """A thread of ours that does nothing but use its CPU, and can be moved to another one."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    @property
    def native(self) -> int:
        assert self._thread.native_id is not None
        return self._thread.native_id

    def _spin(self) -> None:
        while not self._stop.is_set():
            sum(range(1000))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def spinner() -> Iterator[Spinner]:
    spinner = Spinner()
    yield spinner
    spinner.stop()


@contextmanager
def busy_process(pinned_to: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        if pinned_to is not None:
            os.sched_setaffinity(process.pid, {pinned_to})
        yield process
    finally:
        process.kill()
        process.wait(60)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def collect(clock: CpuClock, used: float) -> tuple[float, float]:
    """Read until the thread has used that much CPU; returns both sums."""
    sums = [0.0, 0.0]

    def enough() -> bool:
        reading = clock.per_step(1)
        assert reading is not None
        sums[0] += reading[0]
        sums[1] += reading[1]
        return sums[0] >= used

    until(enough)
    return sums[0], sums[1]


def test_a_thread_that_shares_its_cpu_waits(spinner: Spinner) -> None:
    shared = min(os.sched_getaffinity(0))
    os.sched_setaffinity(spinner.native, {shared})
    with busy_process(pinned_to=shared):
        used, waited = collect(CpuClock(spinner.native), used=0.3)
    assert waited > 0.4 * used, "half of the CPU was its neighbour's"


def test_a_thread_that_sleeps_neither_uses_a_cpu_nor_waits_for_one() -> None:
    wake = threading.Event()
    thread = threading.Thread(target=wake.wait, daemon=True)
    thread.start()
    assert thread.native_id is not None
    try:
        clock = CpuClock(thread.native_id)
        until(lambda: clock.per_step(1) is not None)
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 0.2)
        reading = clock.per_step(1)
        assert reading is not None
        assert sum(reading) < 0.02
    finally:
        wake.set()
        thread.join(60)


def test_a_thread_alone_on_a_cpu_does_not_wait(spinner: Spinner) -> None:
    """Of a moment without a neighbour; a neighbour would have had its turn several times in these 30 ms."""
    cpus = cycle(sorted(os.sched_getaffinity(0)))

    def calm() -> bool:
        os.sched_setaffinity(spinner.native, {next(cpus)})
        used, waited = collect(CpuClock(spinner.native), used=0.03)
        return waited < 0.2 * used

    deadline = time.monotonic() + 20
    while not calm():
        if time.monotonic() > deadline:
            assert os.getloadavg()[0] >= len(os.sched_getaffinity(0)), "it waits although nothing else is there"
            pytest.skip("other work keeps every CPU of this machine busy")


def test_time_is_divided_by_the_steps_and_counted_once(spinner: Spinner) -> None:
    one, ten = CpuClock(spinner.native), CpuClock(spinner.native)
    before, _ = collect(one, used=0.1)
    assert ten.per_step(0) is None, "no step was made; the time stays for the next call"
    reading, rest = ten.per_step(10), one.per_step(1)
    assert reading is not None
    assert rest is not None
    slack = 0.05  # the two clocks are not read in one instant
    assert before - slack <= reading[0] * 10 <= before + rest[0] + slack
    again, rest = ten.per_step(10), one.per_step(1)
    assert again is not None
    assert rest is not None
    assert again[0] * 10 <= rest[0] + slack, "what was reported once is not reported again"


def test_the_main_thread_is_the_default() -> None:
    clock = CpuClock()
    until(lambda: sum(range(100_000)) > 0 and (clock.per_step(1) or (0.0, 0.0))[0] > 0.0)
    begun = time.thread_time()
    while time.thread_time() - begun < 0.05:
        pass
    reading = clock.per_step(1)
    assert reading is not None
    assert reading[0] >= 0.045


def test_a_thread_that_has_ended_has_no_reading() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    native = thread.native_id
    assert native is not None
    thread.join(60)
    until(lambda: not Path(f"/proc/self/task/{native}").exists())
    assert CpuClock(native).per_step(1) is None
