"""A real Chromium, a page in it, and a scripted monitor that it looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import chromium
from web.scripted_monitor import Script, serving

expect.set_options(timeout=30_000)  # what is expected comes; on a busy machine it takes its time


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all tests of this folder; a page has a context of its own, which is as good as a browser of its own."""
    with chromium() as found:
        yield found


PARTS = "why share details digest named of-launchers of-jobs over gpus again whole-log"
OPEN = "" if os.environ.get("RANKWATCH_SCREENSHOTS") else f"localStorage.setItem('rankwatch.open', '{PARTS}')"
"""What a page that was looked at before has open: all that folds, but for pictures."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(OPEN)
    page = context.new_page()
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    yield page
    context.close()
    assert broken == []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def monitor_url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url
