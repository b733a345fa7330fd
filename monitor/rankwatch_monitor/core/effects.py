"""Effects: what leaves the core, for the service to deliver."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest


class Issue(NamedTuple):
    """Send this directive to the launchers, once it is stored."""

    directive: Directive


class Changed(NamedTuple):
    """An incident was opened, changed or closed: store and publish it."""

    incident: Incident
    message: str
    """One sentence for the log; empty: nothing to log."""


class Slowed(NamedTuple):
    """A straggler was found, acted on, or is as fast as its peers again: store and publish it."""

    straggler: Straggler | None
    """None: it is about the job as a whole."""
    message: str
    """One sentence for the log; empty: nothing to log."""


Effect = Issue | Changed | Slowed | KernelScoreRequest
