"""Errors of ``--auto`` itself, which must not reach the script: logged once, then counted as dropped telemetry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

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


def report(event: Callable[..., None], *given: Any, **named: Any) -> None:
    """Call an event of the loop; an error of it is counted."""
    try:
        event(*given, **named)
    except Exception:  # noqa: BLE001 - boundary to training code
        count_error()


def between(begins: Callable[[], None], plain: Callable[[], Any], ended: Callable[..., None]) -> Any:
    """Return what ``plain`` returns, called between two events; ``ended`` is told whether it raised."""
    report(begins)
    done = False
    try:
        result = plain()
        done = True
        return result
    finally:
        report(ended, failed=not done)
