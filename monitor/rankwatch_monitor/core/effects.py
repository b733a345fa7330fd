"""What leaves the core: the loop delivers it."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch.wire.control import Directive
from rankwatch_monitor.core.incident import Incident


class Issue(NamedTuple):
    """Hand this directive to the launchers, once it is stored."""

    directive: Directive


class Changed(NamedTuple):
    """An incident was opened, moved along or closed: store it and show it."""

    incident: Incident
    said: str
    """One sentence for the log; empty when nothing new is to be said."""


Effect = Issue | Changed
