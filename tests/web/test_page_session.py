"""The page, and the description of the API, in Chromium at a real monitor with tokens and without the internet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import rank_report


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    folder = tmp_path_factory.mktemp("guarded")
    with running_monitor(folder, "--token", "sesame", "--read-token", "looking-glass") as monitor:
        yield monitor


@pytest.fixture
def job(guarded: RunningMonitor) -> str:
    with Api(guarded.url, "sesame") as api:
        api.report(rank_report("guarded", 0))
    return "guarded"


@pytest.fixture(autouse=True)
def offline(page: Page, guarded: RunningMonitor) -> Iterator[None]:
    """Requests to other servers fail, and the test with them; so do violations of the content security policy."""
    foreign: list[str] = []

    def pass_on(route: Route) -> None:
        if route.request.url.startswith((guarded.url, "data:")):
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    page.route("**/*", pass_on)
    page.on("console", lambda line: foreign.append(line.text) if "Content Security Policy" in line.text else None)
    yield
    assert foreign == []


def test_orders_are_made_with_a_cookie_that_scripts_cannot_read_and_are_shown_with_the_token(
    page: Page, guarded: RunningMonitor, job: str
) -> None:
    page.goto(f"{guarded.url}/#/jobs/{job}?tab=control")
    page.get_by_label("Token").fill("looking-glass")
    page.get_by_role("button", name="Open the page").click()
    page.get_by_label("Control token").fill("sesame")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text("recorded with the token control")).to_be_visible()
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    stored = page.evaluate("JSON.stringify([sessionStorage, localStorage, document.cookie])")
    assert "sesame" not in stored
    assert cookie["value"] not in stored

    page.get_by_label("observe_only").select_option("on")
    page.get_by_role("button", name="Apply 1 change").click()
    log = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="By token"))
    expect(log.get_by_role("row").nth(1)).to_contain_text("Policy: observe_only true")
    expect(log.get_by_role("row").nth(1)).to_contain_text("control")
    expect(log.get_by_role("row").nth(1)).to_contain_text("127.0.0.1")

    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/audit.png", full_page=True)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []


def test_the_description_of_the_api_needs_no_other_server(page: Page, guarded: RunningMonitor) -> None:
    page.goto(f"{guarded.url}/docs")
    expect(page.get_by_text("Which ranks hang, why, since when, and what was done about it.")).to_be_visible()
    page.get_by_text("/api/v1/jobs/{job_id}/incidents", exact=True).click()
    expect(page.get_by_role("button", name="Try it out")).to_be_visible()
