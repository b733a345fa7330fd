"""Errors of ``--auto`` itself, which must not reach the script: logged once, then counted as dropped telemetry."""

from __future__ import annotations

import logging
from typing import Final

from rankwatch.recording import sections

DROP_AUTO: Final = "auto"
"""The reason in ``rankwatch.telemetry.dropped``."""

_log = logging.getLogger("rankwatch")


def count_error() -> None:
    """Count the exception that is being handled; the first one is logged."""
    recorder = sections.attached()
    if recorder is None:
        return
    if not recorder.dropped.get(DROP_AUTO):
        _log.warning("--auto cannot follow this script; further errors are only counted", exc_info=True)
    recorder.drop(DROP_AUTO)
