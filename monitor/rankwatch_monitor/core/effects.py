"""What leaves the core: the loop delivers it."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.incident.incident import Incident
from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.core.straggler.scores import Straggler


class Issue(NamedTuple):
    """Hand this directive to the launchers, once it is stored."""

    directive: Directive


class Changed(NamedTuple):
    """An incident was opened, moved along or closed: store it and show it."""

    incident: Incident
    said: str
    """One sentence for the log; empty when nothing new is to be said."""


class Slowed(NamedTuple):
    """A straggler was found, acted on, or is as fast as its peers again: store it and show it."""

    straggler: Straggler | None
    """None: it is about the job as a whole."""
    said: str
    """One sentence for the log; empty when nothing new is to be said."""


class Score(NamedTuple):
    """Score the ranks' kernels from these arrays by :func:`.kernel_scores.scored`, on any thread.

    What comes of it is given to :func:`.scoring.take_kernel_scores`. Shapes: R ranks, K kernels.
    """

    number: int
    """Of the report, so that an answer that comes late replaces nothing newer."""
    median_RK: Floats
    tail_RK: Floats
    spent_RK: Floats
    """Seconds spent in each kernel."""
    best_RK: Floats
    """Each rank's own best medians before these."""
    group_R: Ints
    relative: bool
    individual: bool


Effect = Issue | Changed | Slowed | Score
