"""Ranks without slots work while their processes take CPU time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launcher.here import Here
from rankwatch.contract import env
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.cpu_work import LOOK_SECONDS, WORK, CpuWork

TICK = os.sysconf("SC_CLK_TCK")


class Machine:
    """Two processes in a time of its own."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder = 0.0, folder
        self.used = {7: 3.0, 8: 5.0}
        self.work = CpuWork(clock=lambda: self.now, proc=folder)

    def after(self, seconds: float, **used: float) -> int:
        self.now += seconds
        for name, more in used.items():
            self.used[int(name[1:])] += more
        for pid, total in self.used.items():
            (self.folder / str(pid)).mkdir(exist_ok=True)
            text = f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {round(total * TICK)} 0 0 0 20 0 1 0 100"
            (self.folder / str(pid) / "stat").write_text(text)
        return self.work.count([7, 8])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_process_that_computes_works_and_one_that_only_wakes_up_does_not(machine: Machine) -> None:
    assert machine.after(1.0) == 0, "nothing is known yet"
    assert machine.after(1.0, p8=0.5) == 1
    assert machine.after(10.0, p7=0.5 * WORK * 10.0) == 1
    assert machine.after(10.0, p7=2.0 * WORK * 10.0) == 2


def test_looks_in_quick_succession_are_one(machine: Machine) -> None:
    machine.after(1.0)
    assert machine.after(LOOK_SECONDS / 2, p7=1.0) == 0
    assert machine.after(LOOK_SECONDS / 2) == 1


def test_a_process_that_has_ended_does_not_work(tmp_path: Path) -> None:
    now = [0.0]
    work = CpuWork(clock=lambda: now[0], proc=tmp_path)
    for _ in range(3):
        now[0] += 1.0
        assert work.count([9]) == 0


def test_a_script_that_shows_nothing_makes_progress_while_it_computes_and_one_that_steps_by_its_steps() -> None:
    with Here() as node:
        folder = node.files.prepare(1)
        node.files.started([RankProcess(0, 0, os.getpid())], 1)
        until = time.monotonic() + 60.0
        first = node.files.progress().work
        while node.files.progress().work == first:
            assert time.monotonic() < until, "it computes all the time"
        slots = Slots.create(folder / env.slots_file(0))
        slots.claim(rank=0, local_rank=0, world_size=1, attempt=1)
        slots.words[layout.BEATS] = 1
        seen, until = node.files.progress().work, time.monotonic() + 2 * LOOK_SECONDS
        while time.monotonic() < until:
            assert node.files.progress().work == seen, "it is busy, and completes nothing"
