"""The graceful stop of one attempt on this node: all ranks save after the same step and stop.

A launcher or rank that wants to stop sends a request to the coordinator, which proposes a step ahead of all ranks
(:mod:`~rankwatch_launcher.coordination.coordinator`); a save-and-stop directive carries a step chosen by the monitor.
When some rank would not follow a step, all ranks get SIGTERM instead.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.enums import AckState, ProcessEventKind, RankRequestKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.agent import attempt_end
from rankwatch_launcher.agent.processes import RankProcesses
from rankwatch_launcher.agent.signals import Signals
from rankwatch_launcher.coordination.decisions import STOP, AttemptDecision, StopProposal, StopRequest
from rankwatch_launcher.coordination.membership import poll_delay
from rankwatch_launcher.coordination.rendezvous import Rendezvous
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.node import Node
from rankwatch_launcher.outcome import PREEMPTED, STOPPED

AGREEMENT_SECONDS: Final = 10.0
"""How long the launchers may take to agree on a step before the ranks here get SIGTERM."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """A graceful stop in progress."""

    reason: str
    until: float
    grace: float
    """Seconds that the ranks have."""
    state: str = STOPPED
    """The job's state once the ranks have saved: ``stopped`` or ``preempted``."""
    incident: str | None = None
    by_signal: bool = False
    """The ranks got SIGTERM, since no step was agreed on."""


class GracefulStop:
    """Collects requests to stop, follows the agreed step, and bounds the time it takes."""

    def __init__(
        self,
        node: Node,
        rendezvous: Rendezvous,
        signals: Signals,
        ranks: RankProcesses,
        grace: float,
        shutdown_timeout: float | None = None,
    ) -> None:
        """``grace``: seconds for the ranks to save; ``shutdown_timeout``: torchrun's, from SIGTERM on, if given."""
        self.stopping: Stopping | None = None
        """None while no stop is in progress."""
        self._node, self._rendezvous, self._signals, self._ranks = node, rendezvous, signals, ranks
        self._grace, self._shutdown_timeout = grace, shutdown_timeout
        self._answered = -1
        """Number of the last answered proposal."""
        self._requested: tuple[StopRequest, float] | None = None
        """The request sent to the coordinator, and when."""

    def collect_requests(self, *, elsewhere: bool) -> AttemptDecision | None:
        """Take the ranks' requests and received signals; a decision when a rank requests its node's exclusion.

        ``elsewhere``: whether the job has another node.
        """
        node, readings = self._node, self._node.readings()
        requests = node.requests()
        if self.stopping is not None:
            return None
        for request in requests:
            if request.action == RankRequestKind.EXCLUDE_NODE:
                return attempt_end.on_exclusion_request(request, node.name, node.hostname, elsewhere=elsewhere)
            reason = attempt_end.describe_request(request.rank, node.hostname, "the job to stop", request.reason)
            self._request(reason, STOPPED)
        stop, received = self._signals.stop, self._signals.stop_received
        signalled = [reading.rank for reading in readings.values() if reading.stop_signalled]
        if stop is not None and signalled:
            self._request(attempt_end.describe_preemption(node.host, stop.name, signalled[0]), PREEMPTED)
        if received is not None:
            self._request(attempt_end.describe_preemption(node.host, received.name), PREEMPTED)
        return None

    def follow_proposal(self) -> None:
        """Answer and follow the coordinator's newest proposal."""
        proposal = self._rendezvous.store.stop_proposal(self._rendezvous.attempt)
        if proposal is not None and proposal.number > self._answered:
            self._answered = proposal.number
            if proposal.number == 0:
                self._rendezvous.members.answer_stop(0, True, None)
            else:
                self._follow(proposal)

    def on_directive(self, directive: Directive) -> None:
        """Carry out a save-and-stop directive, or refuse it."""
        if directive.stop_step is None:
            logger.info("graceful stop: %s; sending SIGTERM to the ranks", directive.reason)
            self._ranks.signal(signal.SIGTERM)
        else:
            agreed, furthest = self._node.set_stop_step(directive.stop_step)
            if not agreed:
                why, passed = "a rank here has no slots: it did not call rankwatch.init()", None
                if furthest is not None and furthest >= directive.stop_step:
                    why, passed = f"a rank here has completed step {furthest}", furthest
                self._node.directives.ack(directive, AckState.REFUSED, why, passed)
                return
            logger.info("graceful stop after step %d: %s", directive.stop_step, directive.reason)
        until, by_signal = time.monotonic() + directive.deadline, directive.stop_step is None
        self.stopping = Stopping(directive.reason, until, directive.deadline, STOPPED, directive.incident_id, by_signal)
        self._node.directives.ack(directive, AckState.DONE)

    @property
    def _agreement_seconds(self) -> float:
        return AGREEMENT_SECONDS + 3 * poll_delay(self._rendezvous.world_size)

    def check_timeout(self) -> AttemptDecision | None:
        """A decision to end the attempt once waiting for the ranks is futile."""
        stopping = self.stopping
        if stopping is None:
            if self._requested is not None and time.monotonic() - self._requested[1] > self._agreement_seconds:
                logger.warning("no stop step was agreed on within %g s", self._agreement_seconds)
                self._follow(StopProposal(max(1, self._answered), None, self._requested[0]))
            return None
        if time.monotonic() > stopping.until:
            why = f"the ranks did not end within the grace period of {stopping.grace:g} s"
        elif stopping.by_signal and self.sigterm_ignored():
            why = "the ranks only record SIGTERM as a stop request, and never call rankwatch.should_stop()"
        else:
            return None
        reason = f"{stopping.reason}; {why}"
        return AttemptDecision(STOP, reason, fault=False, incident=stopping.incident, state=stopping.state)

    def sigterm_ignored(self) -> bool:
        """Whether every live rank only recorded SIGTERM (:mod:`rankwatch.liveness.stop_signal`)."""
        readings = self._node.readings()
        left = [readings.get(process.local_rank) for process in self._ranks.alive()]
        return self._signals.stop is signal.SIGTERM and all(r is not None and r.stop_signalled for r in left)

    def term_seconds(self, default: float) -> float:
        """How long ranks that are ended may take after SIGTERM; those that got it for this stop have had their time."""
        if self._shutdown_timeout is None:
            return default
        return 0.0 if self.stopping is not None and self.stopping.by_signal else self._shutdown_timeout

    def _request(self, reason: str, state: str) -> None:
        if self._requested is not None:
            return
        logger.warning("%s; requesting a graceful stop of all ranks", reason)
        self._requested = StopRequest(reason, self._node.name, state), time.monotonic()
        self._rendezvous.store.request_stop(self._rendezvous.attempt, self._requested[0])
        self._rendezvous.members.wake()

    def _follow(self, proposal: StopProposal) -> None:
        request, step, grace = proposal.request, proposal.step, self._grace
        if step is None:
            grace = grace if self._shutdown_timeout is None else self._shutdown_timeout
            logger.warning(
                "%s; sending SIGTERM to the ranks, since the script does not call rankwatch.should_stop() on every "
                "rank, or has completed no step yet",
                request.reason,
            )
            self._ranks.signal(signal.SIGTERM)
        else:
            agreed, furthest = self._node.set_stop_step(step, preempts=request.state == PREEMPTED)
            self._rendezvous.members.answer_stop(proposal.number, agreed, furthest)
            if not agreed:
                return
            logger.warning("%s; all ranks save and stop after step %d, within %g s", request.reason, step, grace)
        if self.stopping is None:
            self._node.report(ProcessEventKind.STOPPING, request.reason)
        self.stopping = Stopping(request.reason, time.monotonic() + grace, grace, request.state, by_signal=step is None)
