"""What ends a launch becomes an outcome."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.coordination.rendezvous import Interrupted, JobOver
from rankwatch_launcher.job.endings import Whereabouts, outcome_of, store_timeout_reason
from rankwatch_launcher.outcome import FAILED, FINISHED, PREEMPTED, STOPPED, Outcome
from rankwatch_launcher.torch_compat import DistError

HERE = Whereabouts("h", "store:1", standing_by=False, stop_signal=signal.SIGTERM)
STOP = Directive(id=1, kind=DirectiveKind.STOP, attempt=0, reason="ordered")


def got(number: signal.Signals) -> SignalException:
    return SignalException("got it", number)


@pytest.mark.parametrize(
    ("raised", "at", "state", "code"),
    [
        (JobOver(Outcome(FINISHED, 0)), HERE, FINISHED, 0),
        (JobOver(Outcome(FAILED, 93, "no progress")), HERE, FAILED, 93),
        (Interrupted(), replace(HERE, directive=STOP), STOPPED, 1),
        (Interrupted(), replace(HERE, directive=replace(STOP, no_restart="used_up")), FAILED, 1),
        (Interrupted(), replace(HERE, received=signal.SIGTERM), PREEMPTED, 1),
        (got(signal.SIGTERM), HERE, PREEMPTED, 1),
        (got(signal.SIGTERM), replace(HERE, standing_by=True), PREEMPTED, 0),
        (got(signal.SIGTERM), replace(HERE, stop_signal=None), STOPPED, 1),
        (got(signal.SIGINT), HERE, STOPPED, 130),
        (DistError("connection reset"), HERE, FAILED, 1),
        (RendezvousConnectionError("refused"), HERE, FAILED, 1),
        (RendezvousTimeoutError("node b is missing"), HERE, FAILED, 1),
        (TimeoutError("too late"), HERE, FAILED, 1),
    ],
)
def test_the_outcome_of_what_ends_a_launch(raised: Exception, at: Whereabouts, state: str, code: int) -> None:
    outcome, _, text = outcome_of(raised, at)
    assert (outcome.state, outcome.code) == (state, code)
    assert text.endswith(outcome.reason) or outcome.reason in text or at.directive is not None


@pytest.mark.parametrize(
    ("raised", "store"), [(DistError("connection reset"), True), (RendezvousTimeoutError("b is missing"), False)]
)
def test_a_store_that_is_lost_is_named(raised: Exception, store: bool) -> None:
    reason = outcome_of(raised, HERE)[0].reason
    assert str(raised) in reason
    assert ("store:1" in reason) == store


def test_a_link_that_is_down_is_why_the_store_does_not_respond() -> None:
    assert "eth0" in store_timeout_reason("store:1", "h", 30.0, frozenset({"eth0"}))
    assert "frozen" in store_timeout_reason("store:1", "h", 30.0, frozenset())
