"""The Chromium that the tests look at the page with."""

from __future__ import annotations

import os
import shutil
from typing import Final

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "google-chrome")
"""The first is the same engine without a desktop's windows: a new page costs it a third of the CPU time."""


def installed_browser() -> str | None:
    """The program to start; None where there is none, and Playwright looks for its own."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
