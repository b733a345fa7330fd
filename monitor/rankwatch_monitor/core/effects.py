"""What leaves the core: the loop delivers it."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.incident.incident import Incident
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest


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


Effect = Issue | Changed | Slowed | KernelScoreRequest
