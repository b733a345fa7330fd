"""The CPU clock, against real threads and real control groups: two busy processes on one CPU, and a quota."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path, PurePosixPath

import pytest

from rankwatch.profiling import cpu
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
        self._thread.join(10)
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
        process.wait(10)


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
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
        thread.join(10)


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
            assert os.getloadavg()[0] >= len(os.sched_getaffinity(0)), "it waits although nobody else is there"
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
    assert again[0] * 10 <= rest[0] + slack, "what was told once is not told again"


def test_the_main_thread_is_the_default() -> None:
    clock = CpuClock()
    until(lambda: sum(range(100_000)) > 0 and (clock.per_step(1) or (0.0, 0.0))[0] > 0.0)
    begun = time.thread_time()
    while time.thread_time() - begun < 0.05:
        pass
    reading = clock.per_step(1)
    assert reading is not None
    assert reading[0] >= 0.045


def test_a_thread_that_ended_tells_nothing() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    native = thread.native_id
    assert native is not None
    thread.join(10)
    until(lambda: not Path(f"/proc/self/task/{native}").exists())
    assert CpuClock(native).per_step(1) is None


def test_a_closed_clock_tells_nothing_and_keeps_no_file_open() -> None:
    clock = CpuClock()
    opened = len(os.listdir("/proc/self/fd"))
    clock.close()
    clock.close()
    assert len(os.listdir("/proc/self/fd")) == opened - 1
    assert clock.per_step(1) is None


def is_empty(group: Path) -> bool:
    return not (group / "cgroup.procs").read_text().split()


@contextmanager
def group_with_quota(percent: int) -> Iterator[Path]:
    """A control group of our own below ours, which may use that part of one CPU; needs the rights to make one."""
    ours = cpu._our_groups(Path("/proc/self/cgroup").read_text())
    mounts = Path("/proc/self/mountinfo").read_text()
    # Only the CPU tree of v1 takes a group with processes beside groups below it, so that ours stays as it is.
    places = {unified: place for unified, place in ours.items() if not unified}
    for folder in cpu._folders(mounts, places):
        group = folder / f"rankwatch-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(percent * 1000))
        except OSError:
            continue
        try:
            yield group
        finally:
            until(partial(is_empty, group))
            group.rmdir()
        return
    pytest.skip("this test may not make a control group with a CPU quota here")


MEASURED = """
import sys, time
from rankwatch.profiling.cpu import CpuClock
sys.stdin.readline()
clock = CpuClock()
begun, throttled = time.monotonic(), 0.0
while throttled < 0.5 and time.monotonic() - begun < 40:
    sum(range(1000))
    throttled += clock.throttled()
print(*clock.per_step(1), throttled, time.monotonic() - begun)
"""


def test_a_quota_that_is_used_up_is_seen_as_throttling_and_as_waiting() -> None:
    with group_with_quota(percent=10) as group:
        process = subprocess.Popen([sys.executable, "-c", MEASURED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            output, _ = process.communicate(b"\n", timeout=60)
        finally:
            process.kill()
            process.wait(10)
    used, waited, throttled, passed = (float(word) for word in output.split())
    assert throttled >= 0.5
    assert used < 0.2 * passed + 0.1
    assert waited > 0.4, "the thread's own wait contains what its group was throttled"


def test_where_throttling_is_counted() -> None:
    """Both trees, a pod's inner view, and a mount that shows only a part of the tree."""
    ours = cpu._our_groups("4:cpu,cpuacct:/docker/abc\n3:cpuset:/elsewhere\n0::/kubepods/pod1/c2\n")
    assert ours == {False: PurePosixPath("/docker/abc"), True: PurePosixPath("/kubepods/pod1/c2")}
    v2 = "30 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    assert list(map(str, cpu._folders(v2, ours))) == [
        "/sys/fs/cgroup/kubepods/pod1/c2",
        "/sys/fs/cgroup/kubepods/pod1",
        "/sys/fs/cgroup/kubepods",
        "/sys/fs/cgroup",
    ]
    part = "31 23 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    assert list(map(str, cpu._folders(part, ours))) == ["/sys/fs/cgroup/cpu,cpuacct"]
    elsewhere = "31 23 0:28 / /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
    assert list(cpu._folders(elsewhere, ours)) == []
    outside = cpu._our_groups("0::/../other\n")
    assert list(map(str, cpu._folders(v2, outside))) == ["/sys/fs/cgroup"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n", 2.5),
        ("nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n", 1.5),
        ("usage_usec 9\nuser_usec 3\n", None),
        ("throttled_usec many\n", None),
    ],
)
def test_throttling_is_read_from_both_kinds_of_control_groups(text: str, seconds: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert cpu._throttled(tmp_path / "cpu.stat") == (None if seconds is None else pytest.approx(seconds))
    assert cpu._throttled(tmp_path / "missing") is None


def test_throttling_is_counted_once_and_the_worst_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("throttled_usec 1000000\n")
    outer.write_text("throttled_usec 5000000\n")
    monkeypatch.setattr(cpu, "_cpu_stats", lambda: [inner, outer])
    clock = CpuClock()
    assert clock.throttled() == 0.0
    inner.write_text("throttled_usec 3000000\n")
    outer.write_text("throttled_usec 5500000\n")
    assert clock.throttled() == pytest.approx(2.0)
    assert clock.throttled() == 0.0
    inner.unlink()
    outer.unlink()
    assert clock.throttled() is None
