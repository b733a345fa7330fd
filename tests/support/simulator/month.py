"""A simulated month: a job in good health whose ranks report hangs and windows, with all that takes its time.

How this works
--------------
Two models of the same job run side by side. :class:`~support.simulator.scene.Scene` makes the events by which
hangs are judged: exports, observations, launches, checkpoints, evaluations. The model of stragglers' scenes makes what
the ranks' windows hold: how long each computes, waiting, kernel times. Each report of the first carries the
newest window that its rank has closed by then, of the second, and one job of the core judges both.

======================  ==============================================================================================
noise                   2 % of each rank's own work, 0.5 % between healthy devices, rare tails of 20 % of a step
compilation             the first step of each launch; in the windows up to 3 % longer on one rank than on another
checkpoint              every 500 steps; the rank that writes it has 10 % more to do on the host in the window after it
evaluation              every 1,500 steps
data stall              about every 700 steps one rank waits for its input, up to 60 s
relaunch                by a scheduler, every 14,000 steps; every second time one node is replaced by another
clock steps             at each launch the clock of each node is wrong by up to six hours, another time each time
======================  ==============================================================================================

The monitor's own clock never steps: its loop reads the wall clock once and goes by the monotonic one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwatch_monitor.core.events import JobEvent, RankReport
from rankwatch_monitor.core.job import Job
from support.simulator import scene, straggler_plan, straggler_scene
from support.simulator.actors import Rank
from support.simulator.outcome import Outcome, Simulation
from support.simulator.plan import Fault, FaultKind, Plan
from support.simulator.scene import START, Arrival

DAY = 86_400.0
STEP, WINDOW = 1.25, 8
"""Seconds of a step, and steps of a window: ten seconds, as ranks choose it by themselves."""
COMPILATION_SPREAD, WRITER = 0.03, 0.1
CLOCK_ERROR = 6 * 3600.0
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
LOOKS = 5
"""Times at which memory is read, the last one at the end."""


def healthy(world: int, days: float) -> Plan:
    """A job in good health, with everything that takes its time."""
    return Plan(
        world=world,
        nodes=max(2, world // 8),
        seconds=days * DAY,
        interval=10.0,
        step=STEP,
        setup=30.0,
        compilation=240.0,
        checkpoint_every=500,
        checkpoint=45.0,
        evaluate_every=1500,
        evaluation=310.0,
        stall_every=700,
        stall=60.0,
        relaunch_every=14_000,
        delay=0.0,
    )


class Windows(straggler_scene.StragglerScene):
    """What the windows of the job hold, with the habits of :class:`Month` in them."""

    def __init__(self, plan: Plan, slow: straggler_plan.Slowdown | None) -> None:
        self._habits = plan
        super().__init__(
            straggler_plan.StragglerPlan(
                world=plan.world,
                layout=straggler_plan.Layout(tensor=8) if plan.world >= 64 else straggler_plan.Layout(),
                ranks_a_host=plan.world // plan.nodes,
                step=STEP,
                window=WINDOW,
                windows=sys.maxsize,
                kernel_every=30,  # the default: a report of kernel timings every 300 s
                fault=slow,
                seed=plan.world,
            )
        )
        self._first = True
        self._steps_seen = 0

    def begin(self, replaced: range) -> None:
        """The next window is the first of a launch; ``replaced`` ranks have other devices."""
        self._first = True
        self._device_R[list(replaced)] = 1 + self.plan.unlike * self._rng.standard_normal(len(replaced))

    def identity(self, rank: int) -> Any:
        """A rank's place in the parallel layout, and its device."""
        return self._identity(rank)

    def _synchronised(self, fault: Any, data_RS: Any, host_RS: Any, forward_RS: Any, backward_RS: Any) -> Any:
        habits, rng = self._habits, self._rng
        world, steps = data_RS.shape
        if self._first:
            host_RS[:, 0] += habits.compilation * (1 + COMPILATION_SPREAD * rng.random(world))
        for step in (rng.random(steps) * habits.stall_every < 1).nonzero()[0]:
            data_RS[int(rng.integers(world)), step] += habits.stall * rng.uniform(0.2, 1.0)
        if self._steps_seen % habits.checkpoint_every < steps:
            host_RS[0] += WRITER * STEP
        self._first = False
        self._steps_seen += steps
        return super()._synchronised(fault, data_RS, host_RS, forward_RS, backward_RS)


class Month(scene.Scene):
    """The job's events, each report with the newest window of its rank."""

    def __init__(self, plan: Plan, slow: straggler_plan.Slowdown | None = None) -> None:
        self._reported = Windows(plan, slow)
        self._windows = self._reported.windows()
        self._closed: dict[int, list[RankReport]] = {}
        """The reports of windows that some ranks have yet to report, by number since the job began."""
        self._given = [0] * plan.world
        self._made = self._launches = 0
        self._ahead = 0
        """Windows begun before this launch: steps that are done again make windows again."""
        self._clocks = [0.0] * plan.nodes
        super().__init__(plan)

    def step(self) -> list[Arrival]:
        """Let the next thing happen; return what arrives by it, windows included."""
        return [(at, self._with_window(event)) for at, event in super().step()]

    def _launch(self, now: float) -> None:
        replaced = range(0)
        if self._launches and self._launches % 2 == 0:
            node = self._nodes[self._launches // 2 % len(self._nodes)]
            node.gone = True  # the launch puts another one in its place
            replaced = range(node.number * node.ranks, (node.number + 1) * node.ranks)
        self._launches += 1
        self._clocks = [self._rng.uniform(-CLOCK_ERROR, CLOCK_ERROR) for _ in self._nodes]
        self._ahead = self._made
        self._given = [self._made] * self.plan.world
        self._closed.clear()
        self._reported.begin(replaced)
        super()._launch(now)

    def _process(self, number: int, now: float) -> Rank:
        rank = super()._process(number, now)
        place, identity = self._reported.identity(number), rank.identity
        rank.identity = identity._replace(
            started_at=now + self._clocks[rank.node],
            device=f"{identity.host}-{identity.local_rank}",
            data_parallel=place.data_parallel,
            tensor_parallel=place.tensor_parallel,
            pipeline_parallel=place.pipeline_parallel,
        )
        return rank

    def _with_window(self, event: JobEvent) -> JobEvent:
        if not isinstance(event, RankReport) or event.iteration is None or event.ended:
            return event
        first = event.first_iteration or 0
        rank, closed = event.identity.rank, self._ahead + (event.iteration + 1 - first) // WINDOW
        if closed <= self._given[rank]:
            return event
        while self._made < closed:
            self._closed[self._made] = next(self._windows)[1]
            self._made += 1
        reported = self._closed[closed - 1][rank]
        assert reported.window is not None
        self._given[rank] = closed
        self._forget()
        at_step = first + (closed - self._ahead) * WINDOW - 1
        return event._replace(
            window=reported.window._replace(iteration=at_step),
            kernels=reported.kernels,
            kernel_source=reported.kernel_source,
        )

    def _forget(self) -> None:
        """Drop the windows that every rank has reported, or has passed over."""
        done = min(self._given)
        for number in [each for each in self._closed if each < done]:
            del self._closed[number]


@dataclass
class Judged:
    """How a month was judged."""

    outcome: Outcome
    windows: int
    """Judged."""
    stragglers: int
    """Ranks that were called stragglers, each time that it began."""
    budget: float
    """How many false ones the policy allows for this time: ``straggler_alarms_per_day``."""
    memory: list[float] = field(default_factory=list)
    """MB of the whole process, scene included, at equal distances of time; the last one at the end."""
    cpu: float = 0.0
    launches: int = 0
    named: frozenset[int] = frozenset()


def play(plan: Plan, slow: straggler_plan.Slowdown | None = None, policy: Mapping[str, Any] | None = None) -> Judged:
    """Play a month, or a part of one, through the core; ``policy``: settings that differ from the defaults."""
    month, looks = Month(plan, slow), _looks(plan)
    memory: list[float] = []
    named: set[int] = set()
    due = [next(looks), 0]

    def look(now: float, job: Job, _: JobEvent) -> None:
        if job.performance.last_straggler != due[1]:
            due[1] = job.performance.last_straggler
            named.update(straggler.rank for straggler in job.performance.open_stragglers)
        if now >= due[0]:
            memory.append(resident())
            due[0] = next(looks)

    used = time.process_time()
    performance = Simulation(month, policy, on_event=look)
    outcome = performance.run()
    reported = performance.job.performance
    return Judged(
        outcome=outcome,
        windows=sum(reported.verdicts.values()),
        stragglers=reported.last_straggler,
        budget=performance.job.policy.straggler_alarms_per_day * plan.seconds / DAY,
        memory=[*memory, resident()],
        cpu=time.process_time() - used,
        launches=month.attempt,
        named=frozenset(named),
    )


def sick(plan: Plan, rank: int, dose: float, policy: Mapping[str, Any] | None = None) -> Judged:
    """The same with a rank that is slow from some time on, and another that hangs once: both are to be found."""
    windows = int(plan.seconds / STEP / WINDOW)
    slow = straggler_plan.Slowdown(straggler_plan.Slow.COMPUTE, dose, (rank,), since=windows // 4)
    # In the first launch, before somebody relaunches it from outside.
    hang = Fault(FaultKind.HANG, (1,), step=min(windows * WINDOW, plan.relaunch_every) // 2)
    return play(replace(plan, faults=(hang,)), slow, policy)


def _looks(plan: Plan) -> Iterator[float]:
    for number in range(1, LOOKS):
        yield START + number * plan.seconds / LOOKS
    while True:
        yield float("inf")


def resident() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB
