"""The launcher's logger; its lines go to the terminal."""

from __future__ import annotations

import logging
import sys
from typing import Final

from rankwatch.contract import text

logger: Final = logging.getLogger("rankwatch")
TIME: Final = "%H:%M:%S"


def to_stderr() -> None:
    """Send the launcher's log lines to stderr, prefixed with ``[rankwatch]`` and the time. Idempotent."""
    if any(getattr(handler, "rankwatch", False) for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(text.SafeFormatter("[rankwatch] %(asctime)s %(message)s", TIME))
    handler.rankwatch = True  # type: ignore[attr-defined]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
