"""torchrun's --shutdown-timeout: how long ranks live after SIGTERM, where it is given."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from rankwatch_launcher.coordination.decisions import STOP, AttemptDecision, StopProposal, StopRequest
from rankwatch_launcher.core import ending, graceful_stop
from rankwatch_launcher.core.effects import SignalRanks
from rankwatch_launcher.core.ending import TERM_SECONDS
from rankwatch_launcher.core.events import Proposed
from rankwatch_launcher.core.state import AttemptState, Site, Stopping, Terminating
from rankwatch_launcher.outcome import PREEMPTED

SITE = Site("n", "h", "h", 1, (0, 1), 0.0, stop_grace=50.0)


def state(given: float | None, *, by_signal: bool | None = None) -> AttemptState:
    begun = AttemptState(replace(SITE, shutdown_timeout=given))
    if by_signal is None:
        return begun
    return replace(begun, stopping=Stopping("a stop", 50.0, 50.0, PREEMPTED, by_signal=by_signal))


@pytest.mark.parametrize(("given", "grace"), [(None, 50.0), (3.0, 3.0), (0.0, 0.0)])
def test_it_bounds_a_stop_by_sigterm(given: float | None, grace: float) -> None:
    proposal = StopProposal(1, None, StopRequest("preempted", "n", PREEMPTED))
    followed, effects = graceful_stop.on_proposal(state(given), Proposed(100.0, proposal))
    assert [each for each in effects if isinstance(each, SignalRanks)] == [SignalRanks(signal.SIGTERM)]
    assert followed.stopping is not None
    assert (followed.stopping.until, followed.stopping.by_signal) == (100.0 + grace, True)


@pytest.mark.parametrize(
    ("given", "by_signal", "seconds"),
    [(None, None, TERM_SECONDS), (None, True, TERM_SECONDS), (3.0, None, 3.0), (3.0, False, 3.0), (3.0, True, 0.0)],
)
def test_it_bounds_the_end_of_ranks_which_get_it_once(
    given: float | None, by_signal: bool | None, seconds: float
) -> None:
    stop = AttemptDecision(STOP, "a stop", fault=False)
    ended, _ = ending.end_ranks(state(given, by_signal=by_signal), stop, stop, 100.0)
    assert isinstance(ended.phase, Terminating)
    assert ended.phase.until == 100.0 + seconds
