"""The Chromium that the tests look at the page with."""

from __future__ import annotations

import os
import shutil
from typing import Any, Final

from support.waiting import wait_for

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "google-chrome")
"""The first is the same engine without a desktop's windows: a new page costs it a third of the CPU time."""


def installed_browser() -> str | None:
    """The program to start; None where there is none, and Playwright looks for its own."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


def fits(page: Any, width: int) -> None:
    """Wait until nothing of the page reaches beyond a width: grids and charts follow the window a frame later.

    ``page`` is Playwright's; its :class:`TimeoutError` states that something does.
    """
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)


def box_of(element: Any) -> dict[str, float]:
    """Where an element stands (``x``, ``y``, ``width``, ``height``): while it is drawn anew it stands nowhere."""
    return wait_for(element.bounding_box, f"{element} has a place")  # type: ignore[no-any-return]
