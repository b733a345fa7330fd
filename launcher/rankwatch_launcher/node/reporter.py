"""Looks at the ranks of a node twice a second and speaks for them, on a thread of its own: ``observe`` says when."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from rankwatch.contract.intervals import LOOK_SECONDS, omits_redundant_reports
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import NodeObservation, RankObservation
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.link import Control
from rankwatch_launcher.node import observe, procfs

if TYPE_CHECKING:
    from rankwatch_launcher.node.node import Attempt, Node

MARGIN_SECONDS: Final = 0.01
"""How long after a limit the next look comes, so that it surely sees it passed."""


class Spokesman:
    """Speaks for the ranks of one node, and shows that its launcher lives."""

    def __init__(self, node: Node, control: Control) -> None:
        self._node, self._control = node, control
        self._blind = 0
        """Looks at the ranks that failed."""
        self._end = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="rankwatch-observe", daemon=True).start()

    def stop(self) -> None:
        """Look no more, soon; does not wait."""
        self._end.set()

    def tell_how_far(self, current: Attempt) -> None:
        """Post how far the ranks have come: the attempt may end before their own next word. In large jobs rank 0's."""
        if omits_redundant_reports(self._node.launchers) and all(rank.rank != 0 for rank in current.ranks):
            return
        seen, _ = self._seen(current)
        observation = NodeObservation(self._node.name, current.number, tuple(o for o, _ in seen))
        looked = time.monotonic()
        self._control.post("observations", lambda: asdict(replace(observation, age=time.monotonic() - looked)))

    def _run(self) -> None:
        node, session = self._node, self._control.session()
        speech, ahead = observe.Speech(time.monotonic()), LOOK_SECONDS
        while not self._end.wait(min(LOOK_SECONDS, ahead + MARGIN_SECONDS)):
            current = node.current
            seen, ahead = self._seen(current) if current is not None else ([], LOOK_SECONDS)
            now, role = time.monotonic(), node.role
            crowd = observe.Crowd(node.launchers, node.silence, any(o.rank == 0 for o, _ in seen))
            voices = {o.rank: voice for o, voice in seen if voice is not None}
            if not speech.turn(now, crowd, voices, role):
                continue
            # Whom we spoke for once more is told of when it has recovered, too: nobody else might say so.
            ranks = tuple(o for o, _ in seen if o.rank in voices or o.rank in speech.spoken_for)
            number = current.number if current is not None else 0
            observation = NodeObservation(node.name, number, ranks, role=role[0], role_reason=role[1])
            if self._control.try_post(session, "observations", asdict(observation)):
                speech.taken(voices, role)
            else:
                speech.lost(time.monotonic(), crowd)
            if crowd.beat == math.inf:
                session.close()  # the next word may be hours away

    def _seen(self, current: Attempt) -> tuple[list[tuple[RankObservation, observe.Voice | None]], float]:
        """What is seen of each rank, why it must be spoken for, and the seconds until one of them passes a limit."""
        try:
            return self._look(current)
        except Exception as error:  # noqa: BLE001  # a rank can write anything into its slots
            if not self._blind:
                logger.warning("the ranks cannot be observed: %r; what they send themselves still counts", error)
            self._blind += 1
            return [], LOOK_SECONDS

    def _look(self, current: Attempt) -> tuple[list[tuple[RankObservation, observe.Voice | None]], float]:
        limits, readings = RankLimits.from_settings(self._node.settings), current.slots.read()
        seen, ahead = [], LOOK_SECONDS
        for rank in current.ranks:
            if rank.code is not None:
                continue
            state, reading = procfs.process_state(rank.pid), readings.get(rank.local_rank)
            if reading is not None:
                ahead = min(ahead, limits.passed(reading.activity())[1])
            observation = observe.observation(rank.rank, rank.pid, state, reading)
            seen.append((observation, observe.needs_a_voice(state, reading, limits, self._node.launchers)))
        return seen, ahead
