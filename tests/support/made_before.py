"""Import it to have made a monitor's application once: the next ones of this process take a tenth of its time."""

from __future__ import annotations

import support.type_adapters  # noqa: F401
from rankwatch_monitor.app import create_app
from rankwatch_monitor.service.monitor import Monitor

create_app(Monitor())
