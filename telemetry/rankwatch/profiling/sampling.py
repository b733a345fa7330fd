"""Decides from which source, and how often, steps are sampled, and keeps what they say. On the exporter's thread.

How this works
--------------
=========  ===========================================================================================================
wanted     the plan names a source, the rank is among those profiled, torch is imported and the warm-up is over: the
           source is made and handed to the sampler, which is made then and not before
changed    another source, or the process has begun to use a GPU: the old source is closed once no window is open
unwanted   the same, and nothing is made; the boundary goes back to "never" at the next step
failed     windows in a row went wrong: said once, and nothing more is tried until it is switched off and on again
=========  ===========================================================================================================

Sampling is kept under ``COST_LIMIT`` of the time by sampling every 2nd, 4th ... window only; the windows stay.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rankwatch.contract.enums import KernelSource, Part
from rankwatch.contract.semconv import DATA_SECTIONS
from rankwatch.profiling.choice import choose, torch_in_use, uses_gpu
from rankwatch.profiling.plan import ProfilingPlan
from rankwatch.profiling.sampler import Plan, Recording, Sampler
from rankwatch.profiling.source import NO_SOURCE, Source
from rankwatch.profiling.statistics import CollectiveStatistics, KernelStatistics, KernelTable, step_parts
from rankwatch.profiling.trace_request import Say, TraceRequests
from rankwatch.recording.recorder import Recorder, SectionRun
from rankwatch.settings import Settings

COST_LIMIT: Final = 0.003
"""Part of the time that sampling may cost, both threads together."""
CHOSEN_COST_LIMIT: Final = 0.03
"""The same where a person has set how many steps a window has, and with it how often a step is sampled."""
COST_AGAIN: Final = 0.75
"""Of the limit: below it, sampling may be as frequent as before."""
MAX_MULTIPLE: Final = 64
"""Sampled is at least every so many windows, whatever it costs: about every 10 minutes."""
FIRST_REPORT: Final = 3
"""Sampled windows before the first report of kernels, so that something is seen early."""
GOLDEN: Final = 0.6180339887
MAX_SAMPLES: Final = 8
COSTS_REMEMBERED: Final = 8
"""Samples whose costs are averaged: those with shapes cost more than the others."""
LONGEST_SAMPLE: Final = (5.0, 4.0)
"""Seconds, and times a step's median time, together: a sampled step that lasts longer is given up."""

DROP_EVENTS: Final = "kernel_events"
DROP_KERNELS: Final = "kernels"

_log = logging.getLogger("rankwatch")


class Sampled(NamedTuple):
    """What one sampled step went into, and its collectives by process group."""

    parts: Mapping[Part, float]
    collectives: Mapping[str, CollectiveStatistics]


class Pace(NamedTuple):
    """What is known of the process's steps."""

    stride: int
    """Steps in a window; 0: not known yet."""
    step_seconds: float
    warm: bool
    """The warm-up is over."""


class Sampling:
    """The sampling of one session."""

    def __init__(self, recorder: Recorder, settings: Settings, say: Say) -> None:
        self._recorder = recorder
        self._settings = settings
        self._say = say
        self.sampler: Sampler | None = None
        self._source: Source | None = None
        self._chosen: tuple[KernelSource, bool] | None = None
        """What was asked for, and whether a GPU was in use then."""
        self._reason = "no steps were made yet"
        self._multiple = 1
        self._costs: deque[float] = deque(maxlen=COSTS_REMEMBERED)
        self._table: KernelTable | None = None
        self._sampled = 0
        self._report_due: float | None = None
        self._results: dict[int, Sampled] = {}
        self._traces = TraceRequests(settings, say)

    @property
    def told(self) -> tuple[str, str]:
        """The source in use, and why it is not another."""
        return (self._source.name if self._source is not None else NO_SOURCE), self._reason

    def steer(self, plan: ProfilingPlan, pace: Pace, *, closing: bool = False) -> None:
        """Make, keep or give up what the plan, the process and its pace now ask for."""
        sampler = self.sampler
        if sampler is not None and sampler.busy_for() > LONGEST_SAMPLE[0] + LONGEST_SAMPLE[1] * pace.step_seconds:
            sampler.order_end()
        if self._source is not None and sampler is not None and sampler.failure:
            self._reason = sampler.failure
            self._say(f"kernel timings are switched off: {sampler.failure}; all else goes on")
            self._release()
            return
        unwanted = self._unwanted(plan)
        if unwanted or (self._chosen is not None and self._source is None):
            self._traces.refuse(plan, unwanted or self._reason)
        torch = torch_in_use()
        choice = None if unwanted or closing or torch is None else (plan.source, uses_gpu(torch))
        if self._chosen is not None and choice != self._chosen:
            if not self._release(keep_results=closing):
                return
            self._chosen = None
        if closing:
            return
        if unwanted or torch is None:
            self._reason = unwanted or "the script has not imported torch"
            return
        if not pace.warm or not pace.stride:
            return
        if self._chosen is None and choice is not None:
            self._chosen = choice
            sampler = self.sampler = self.sampler or Sampler(self._recorder)
            self._source, self._reason = choose(plan.source, torch, sampler.interrupt)
            if self._source is None:
                self._say(f"there are no kernel timings: {self._reason}; all else goes on", of_node=True)
            self._table, self._sampled, self._report_due, self._multiple = KernelTable(), 0, None, 1
        if self._source is not None and sampler is not None:
            # Somebody waits for a trace: the next window is sampled, whatever it costs.
            multiple = 1 if self._traces.open(plan) else self._multiple
            sampler.set(Plan(self._source, pace.stride * multiple))

    def read(self, recording: Recording, sections: Sequence[SectionRun], plan: ProfilingPlan, pace: Pace) -> None:
        """Read a recording; ``sections`` are those finished lately, in nanoseconds on the monotonic clock."""
        sample = self.sampler.read(recording) if self.sampler is not None else None
        if sample is None or self._table is None:
            return
        began = time.thread_time_ns()
        trace = sample.trace
        self._recorder.drop(DROP_EVENTS, trace.truncated)
        self._recorder.drop(DROP_KERNELS, self._table.take(trace.kernels))
        # Both clocks were read one right after the other when the window began.
        shift = sample.step[0] - sample.monotonic[0]
        begin, end = sample.monotonic
        within = [
            (run.section, run.start_ns + shift, run.end_ns + shift)
            for run in sections
            if run.end_ns > begin and run.start_ns < end
        ]
        if not trace.truncated:
            data = [(start, stop) for name, start, stop in within if name in DATA_SECTIONS]
            self._results[sample.iteration] = Sampled(*step_parts(trace, sample.step, data))
            while len(self._results) > MAX_SAMPLES:
                del self._results[next(iter(self._results))]
        self._sampled += 1
        self._weigh((sample.cost_ns + time.thread_time_ns() - began) / 1e9, pace, chosen=plan.interval > 0)
        self._traces.answer(plan, sample, within)

    def awaits(self, iteration: int) -> bool:
        """Whether the sample of a step may still come."""
        return iteration not in self._results and self.sampler is not None and self.sampler.awaits(iteration)

    def result(self, iteration: int) -> Sampled | None:
        """What the step went into, once; None: it was not sampled."""
        return self._results.pop(iteration, None)

    def report(self, now: float, interval: float, *, ending: bool) -> Mapping[str, KernelStatistics]:
        """The kernels since the last report, when one is due; empty when not, or when there is nothing to tell yet.

        The first is due early. The second follows after half an interval to one and a half, by the rank's number, and
        the others at intervals from there: the kernels of ten thousand ranks are not to come in the same second.
        """
        if self._table is None or not (ending or self._sampled >= FIRST_REPORT):
            return {}
        if not ending and self._report_due is not None and now < self._report_due:
            return {}
        kernels = self._table.report()
        if kernels:
            first = self._report_due is None
            # Multiples of the golden ratio lie evenly, however many ranks there are (Weyl).
            self._report_due = now + interval * (0.5 + self._settings.rank * GOLDEN % 1 if first else 1.0)
        return kernels

    def _unwanted(self, plan: ProfilingPlan) -> str:
        if plan.source is KernelSource.OFF:
            return "kernel_timings is off"
        if self._settings.rank not in plan.ranks:
            return f"profiled_ranks is {plan.ranks}, which leaves this rank out"
        return ""

    def _release(self, *, keep_results: bool = False) -> bool:
        """Give back what sampling holds; False while a window is still open or unread, to be asked again."""
        sampler = self.sampler
        if sampler is not None:
            sampler.set(None)
            if sampler.busy_for():
                sampler.order_end()
                return False
            if sampler.collect() is not None:
                return False
        source, self._source = self._source, None
        if not keep_results:
            self._table = None
            self._results.clear()
        if source is not None:
            source.close()
        return True

    def _weigh(self, cost: float, pace: Pace, *, chosen: bool) -> None:
        """Sample so seldom that it costs what it may; more often again once even that would cost clearly less."""
        window = pace.stride * pace.step_seconds
        if window <= 0:
            return
        self._costs.append(cost)
        # Those not known yet count as nothing, for the first sample, with shapes, is none of the cheap ones.
        part = sum(self._costs) / COSTS_REMEMBERED / (window * self._multiple)
        limit = CHOSEN_COST_LIMIT if chosen else COST_LIMIT
        if part > limit and self._multiple < MAX_MULTIPLE:
            self._multiple *= 2
        elif part * 2 < COST_AGAIN * limit and self._multiple > 1 and len(self._costs) == COSTS_REMEMBERED:
            self._multiple //= 2
