"""A save-and-stop on this node: who asked for it, what the ranks are told, and when it has taken too long.

A request of a launcher or a rank goes to the coordinator, which names a step ahead of all ranks
(:mod:`~rankwatch_launcher.coordination.service`); a person's order comes from the monitor, which has named the step
itself. Ranks that would not follow a step get SIGTERM instead.
"""

from __future__ import annotations

import signal
import time
from typing import Final

from rankwatch.contract.enums import AckState, ProcessEventKind, RankRequestKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.agent import attempt_end, reasons
from rankwatch_launcher.agent.attempt_end import End, Stopping
from rankwatch_launcher.agent.processes import RankProcesses
from rankwatch_launcher.agent.signals import Signals
from rankwatch_launcher.coordination import decisions
from rankwatch_launcher.coordination.decisions import Proposal, StopRequest
from rankwatch_launcher.coordination.rendezvous import Rendezvous
from rankwatch_launcher.job.outcome import PREEMPTED, STOPPED
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.node import Node

AGREE_SECONDS: Final = 10.0
"""How long the launchers may take to agree on a step, before the ranks here are sent SIGTERM."""


class Saving:
    """The save-and-stop of one attempt, if there is one; ``stopping`` says so."""

    def __init__(
        self, node: Node, rendezvous: Rendezvous, signals: Signals, ranks: RankProcesses, grace: float
    ) -> None:
        self.stopping: Stopping | None = None
        self._node, self._meeting, self._signals, self._ranks = node, rendezvous, signals, ranks
        self._grace = grace
        self._answered = -1
        """Number of the last proposed step that was answered."""
        self._asked: tuple[StopRequest, float] | None = None
        """What was asked of the coordinator, and when."""

    def listen(self, *, elsewhere: bool) -> End | None:
        """Hear what ranks here ask for and what signals do; an end when a rank wants its node left out.

        ``elsewhere`` says whether the job has another node.
        """
        node, readings = self._node, self._node.readings()
        requests = node.requests()
        if self.stopping is not None:
            return None
        for request in requests:
            if request.action == RankRequestKind.EXCLUDE_NODE:
                return attempt_end.by_request(request, node.name, node.host, elsewhere=elsewhere)
            self._ask(reasons.rank_asks(request.rank, node.host, "for the job to stop", request.reason), STOPPED)
        stop, asked = self._signals.stop, self._signals.asked
        signalled = [reading.rank for reading in readings.values() if reading.stop_signalled]
        if stop is not None and signalled:
            self._ask(reasons.rank_preempted(signalled[0], node.place, stop.name), PREEMPTED)
        if asked is not None:
            self._ask(reasons.preempted(node.place, asked.name), PREEMPTED)
        return None

    def follow(self) -> None:
        """Do what the coordinator has proposed, if anything is new."""
        proposal = self._meeting.ledger.proposal(self._meeting.attempt)
        if proposal is not None and proposal.number > self._answered:
            self._answered = proposal.number
            if proposal.number == 0:
                self._meeting.members.answer(0, True, None)
            else:
                self._take(proposal)

    def by_order(self, order: Directive) -> None:
        """A person's order, or the policy's."""
        if order.stop_step is None:
            logger.info("saving and stopping: %s; the ranks are sent SIGTERM", order.reason)
            self._ranks.signal(signal.SIGTERM)
        else:
            agreed, furthest = self._node.set_stop_step(order.stop_step)
            if not agreed:
                why, passed = "a rank here has no slots: it did not call rankwatch.init()", None
                if furthest is not None and furthest >= order.stop_step:
                    why, passed = f"a rank here has completed step {furthest}", furthest
                self._node.orders.ack(order, AckState.REFUSED, why, passed)
                return
            logger.info("saving and stopping after step %d: %s", order.stop_step, order.reason)
        until, by_signal = time.monotonic() + order.deadline, order.stop_step is None
        self.stopping = Stopping(order.reason, until, order.deadline, STOPPED, order.incident_id, by_signal)
        self._node.orders.ack(order, AckState.DONE)

    def overdue(self) -> End | None:
        """The end of the attempt, when it is no use to wait for the ranks any longer."""
        stopping = self.stopping
        if stopping is None:
            if self._asked is not None and time.monotonic() - self._asked[1] > AGREE_SECONDS:
                logger.warning("no step was agreed on within %g s", AGREE_SECONDS)
                self._take(Proposal(max(1, self._answered), None, self._asked[0]))
            return None
        if time.monotonic() > stopping.until:
            why = f"the ranks did not end within {stopping.grace:g} s of being asked to save and stop"
        elif stopping.by_signal and self.only_noted():
            why = "the ranks take SIGTERM for a request to save, and never ask rankwatch.should_stop()"
        else:
            return None
        reason = f"{stopping.reason}; {why}"
        return End(decisions.STOP, reason, fault=False, incident=stopping.incident, state=stopping.state)

    def only_noted(self) -> bool:
        """Whether the ranks that are left have only taken a note of SIGTERM (:mod:`rankwatch.liveness.stop_signal`)."""
        readings = self._node.readings()
        left = [readings.get(process.local_rank) for process in self._ranks.alive()]
        return self._signals.stop is signal.SIGTERM and all(r is not None and r.stop_signalled for r in left)

    def _ask(self, reason: str, state: str) -> None:
        if self._asked is not None:
            return
        logger.warning("%s; all ranks of the job are to save and stop", reason)
        self._asked = StopRequest(reason, self._node.name, state), time.monotonic()
        self._meeting.ledger.ask_to_stop(self._meeting.attempt, self._asked[0])
        self._meeting.members.nudge()

    def _take(self, proposal: Proposal) -> None:
        request, step, grace = proposal.request, proposal.step, self._grace
        if step is None:
            logger.warning(
                "%s; the ranks are sent SIGTERM, since the script does not ask rankwatch.should_stop() on every rank, "
                "or has made no step yet",
                request.reason,
            )
            self._ranks.signal(signal.SIGTERM)
        else:
            agreed, furthest = self._node.set_stop_step(step, preempts=request.state == PREEMPTED)
            self._meeting.members.answer(proposal.number, agreed, furthest)
            if not agreed:
                return
            logger.warning("%s; all ranks save and stop after step %d, within %g s", request.reason, step, grace)
        if self.stopping is None:
            self._node.report(ProcessEventKind.STOPPING, request.reason)
        self.stopping = Stopping(request.reason, time.monotonic() + grace, grace, request.state, by_signal=step is None)
