"""The Chromium that the tests look at the page with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Error, sync_playwright

from support.waiting import wait_for

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "google-chrome")
"""The first is the same engine without a desktop's windows: a new page costs it a third of the CPU time."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test skips where there is none. Playwright looks for its own where no program is installed."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium here: {error.message.splitlines()[0]}")
        try:
            yield browser
        finally:
            browser.close()


def fits(page: Any, width: int) -> None:
    """Wait until nothing of the page reaches beyond a width: grids and charts follow the window a frame later.

    ``page`` is Playwright's; its :class:`TimeoutError` states that something does.
    """
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)


def box_of(element: Any) -> dict[str, float]:
    """Where an element stands (``x``, ``y``, ``width``, ``height``): while it is drawn anew it stands nowhere."""
    return wait_for(element.bounding_box, f"{element} has a place")  # type: ignore[no-any-return]
