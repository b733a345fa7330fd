"""The stage of a scene: what happens next, and what its ranks and launchers send by themselves."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from rankwatch.contract.enums import AckState
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import Directive, DirectiveAck
from rankwatch_monitor.core.events import Acknowledged, JobEvent
from rankwatch_monitor.simulator.actors import Node, Rank
from rankwatch_monitor.simulator.plan import Plan
from rankwatch_monitor.simulator.progress import Track

START: Final = 1_800_000_000.0
"""Unix seconds at which every scene begins."""
LOOK_SECONDS: Final = 0.5
BEAT_SECONDS: Final = 5.0
PULSE_SECONDS: Final = 0.25
PULSE_MARGIN: Final = 0.005
LOOK_MARGIN: Final = 0.01
EXPORT_JITTER: Final = 0.1
_ELSEWHERE: Final = -2
"""In place of an act's number, for a rank that does not go on with the others."""

Arrival = tuple[float, JobEvent]


class Stage:
    """Ranks that export at their interval and when they pass a limit, launchers that look at them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan.checked()
        self.attempt = 0
        self.over = False
        self._rng = random.Random(plan.seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._out: list[Arrival] = []
        self._limits = RankLimits()
        self._shortest = math.inf
        self._ending = False
        """The attempt is over, and the next one has not begun."""
        self._ranks: list[Rank] = []
        self._nodes: list[Node] = []
        self._track = Track(plan, self._rng, 0, START)

    # To be played -----------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float:
        """When the next thing happens, whether or not anything arrives by it; infinite when all is over."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> list[Arrival]:
        """Let the next thing happen; return what arrives by it, at that time."""
        at, _, call, arguments = heapq.heappop(self._heap)
        call(at, *arguments)
        arrived, self._out = self._out, []
        return arrived

    def events(self) -> Iterator[Arrival]:
        """Everything that arrives, when nobody gives directives."""
        while self._heap:
            yield from self.step()

    def hand_down(self, settings: Mapping[str, Any], now: float) -> None:
        """The launchers hand settings down to the ranks, who look at their new limits with their next pulse."""
        self._limits = RankLimits.from_settings(settings)
        self._shortest = _shortest(self._limits)
        self._arm_all(now)

    # What ranks and launchers send ------------------------------------------------------------------------------------

    def _export(self, now: float, rank: Rank) -> None:
        """The export at the interval."""
        if rank.over:
            return
        self._speak(now, rank)
        interval = self.plan.interval * (1.0 + self._rng.uniform(-EXPORT_JITTER, EXPORT_JITTER))
        self._at(now + interval, self._export, rank)

    def _speak(self, now: float, rank: Rank) -> None:
        if rank.over or not rank.speaks:
            return
        report = rank.report(self._track, now)
        if rank.number == 0 and self._track.runs > rank.told_runs - 1:
            self._track.forget_runs(min(each.told_runs for each in self._ranks))
        if not self.plan.delay:
            self._out.append((now, report))
            return
        rank.arrives_at = max(rank.arrives_at, now + self._rng.uniform(0.0, self.plan.delay))
        self._at(rank.arrives_at, self._arrives, report)

    def _arrives(self, now: float, event: JobEvent) -> None:
        self._out.append((now, event))

    def _trouble_begins(self, now: float) -> None:
        for node in self._nodes:
            if self.plan.launchers:
                self._hasten(node, now + self._rng.uniform(0.0, LOOK_SECONDS))

    def _hasten(self, node: Node, at: float) -> None:
        node.looks += 1
        self._at(at, self._look, node, node.looks)

    def _look(self, now: float, node: Node, number: int) -> None:
        if node.gone or number != node.looks or self.over:
            return
        trouble = not self._ending and self._in_trouble(now)
        ranks: Iterable[Rank] = self._ranks if trouble or node.spoken_for else ()
        observation = node.looks_at(ranks, self._track, self._limits, self.attempt, now)
        if observation.ranks or now - node.spoke_at >= BEAT_SECONDS:
            node.spoke_at = now
            self._out.append((now, observation))
        self._hasten(node, now + (LOOK_SECONDS if trouble or node.spoken_for else BEAT_SECONDS))

    def _in_trouble(self, now: float) -> bool:
        track = self._track
        if track.blocked or any(rank.fate is not None or rank.cut for rank in self._ranks):
            return True
        return now - track.oldest > self._shortest and bool(self._limits.passed(track.still().activity(now))[0])

    def _shows_stacks(
        self, now: float, node: Node, attempt: int, incident_id: str | None, directive: Directive | None
    ) -> None:
        if node.gone or attempt != self.attempt or self._ending:
            return
        mine = [rank for rank in self._ranks if rank.node == node.number]
        self._out.append((now, node.tells_of(mine, self._track, attempt, now)))
        number = None if directive is None else directive.id
        evidence = node.evidence(mine, self._track, attempt, incident_id=incident_id, directive=number, seconds=0.2)
        self._out.append((now, evidence))
        if directive is not None:
            self._acknowledge(now, node, directive, AckState.DONE)

    def _acknowledge(self, now: float, node: Node, directive: Directive, state: AckState) -> None:
        self._out.append((now, Acknowledged(directive.id, DirectiveAck(node.name, state))))

    # Limits -----------------------------------------------------------------------------------------------------------

    def _arm_all(self, now: float) -> None:
        if self._shortest == math.inf or self._ending:
            return
        for rank in self._ranks:
            if rank.speaks and not rank.over:
                self._arm(now, rank)

    def _arm(self, now: float, rank: Rank) -> None:
        """Have a rank speak when it passes its next limit, as its pulse thread does."""
        track = self._track
        here, place = (track.still(), track.number) if rank.still is None else (rank.still, _ELSEWHERE)
        standing, ahead = self._limits.passed(here.activity(now))
        passed = frozenset(standing)
        news = passed - rank.passed if rank.passed_in == place else passed
        rank.passed, rank.passed_in = passed, place
        rank.armed += 1
        if news:
            self._at(now + self._rng.uniform(0.0, PULSE_SECONDS), self._speak, rank)
        ends_at = track.ends_at if rank.still is None else math.inf
        if now + ahead + PULSE_MARGIN < ends_at:
            self._at(now + ahead + PULSE_MARGIN, self._passes, rank, rank.armed, place)

    def _passes(self, now: float, rank: Rank, armed: int, place: int) -> None:
        here = self._track.number if rank.still is None else _ELSEWHERE
        if rank.over or armed != rank.armed or place != here:
            return
        self._speak(now, rank)
        standing, _ = self._limits.passed((rank.still or self._track.still()).activity(now))
        rank.passed, rank.passed_in = frozenset(standing), place
        if self.plan.launchers:
            self._hasten(self._nodes[rank.node], now + LOOK_MARGIN - PULSE_MARGIN)
        self._arm(now, rank)

    def _at(self, at: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, call, arguments))


def _shortest(limits: RankLimits) -> float:
    named = (*limits.sections.values(), *limits.learned.values())
    others = (limits.heartbeat, limits.out_of_section, limits.first_time)
    return min((*named, *(each for each in others if each is not None)), default=math.inf)
