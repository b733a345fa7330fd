"""The page at 8, 512 and 16,384 ranks, healthy and in trouble: what is seen first, in both themes.

With ``RANKWATCH_SCREENSHOTS=FOLDER`` every scene is kept as a picture; those in ``docs/screenshots`` were made so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rankwatch_monitor.web import static_folder
from support.browser import fits
from support.waiting import wait_for
from web.scripted_monitor import Script
from web.scripted_rows import advised

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)

SIZES = (8, 512, 16_384)
HUNG = "Rank 5 on node-0 has been in section step for 14.2 s (limit 10 s); {others} ranks wait for it."
HEADLINE = "Rank 5 on node-0 has not entered all_reduce #7"
SLOW = "Rank 5 on node-0 is slow in its input; {others} ranks wait 40 % of each step"


def keep(page: Page, name: str) -> None:
    folder = os.environ.get("RANKWATCH_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def scene(script: Script, ranks: int, kind: str) -> None:
    script.pipeline = 4
    script.add("j", ["running"] * ranks, name="llama-8b pretraining")
    script.account("j", 0.97, productive=3490.0, checkpointing=80.0, startup=30.0)
    if kind == "slow":
        why = SLOW.format(others=f"{ranks - 1:,}")
        script.score("j", slow=(5,), verdict="worker", reason=why)
        cost = 0.4 * ranks * 10 / 60  # hours, of the ten minutes that it has been slow for
        script.performance["j"]["stragglers"][0]["cost_gpu_hours"] = script.performance["j"]["cost_gpu_hours"] = cost
        script.slow_since["j"] = 1200
        script.jobs["j"] |= {"reason": why, "verdict": "worker", "iterations_per_second": 1.26}
    else:
        script.score("j")
    if kind == "hung":
        incident = script.hang("j", 5, HUNG.format(others=f"{ranks - 1:,}"))
        incident |= {"headline": HEADLINE}
        waits = advised("Look", awaited="Rankwatch captures stacks and acts")
        script.jobs["j"] |= {"advice": waits, "headline": HEADLINE, "iterations_per_second": 0.0}


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("kind", ["healthy", "hung", "slow"])
@pytest.mark.parametrize("ranks", SIZES)
def test_what_matters_stands_on_the_first_screen(
    page: Page, monitor_url: str, script: Script, ranks: int, kind: str, theme: str
) -> None:
    scene(script, ranks, kind)
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.add_init_script("localStorage.removeItem('rankwatch.open')")  # what folds is folded at first
    page.goto(f"{monitor_url}/#/jobs/j")
    reported = {
        "healthy": f"All {ranks:,} ranks make progress",
        "hung": HEADLINE,
        "slow": SLOW.format(others=f"{ranks - 1:,}"),
    }[kind]
    expect(page.get_by_text(reported).first).to_be_in_viewport()
    field = page.get_by_role("application", name=re.compile(f"^{ranks:,} ranks"))
    expect(field).to_be_in_viewport(ratio=0.2 if kind == "healthy" else 0.01)
    if kind == "hung":
        expect(page.locator(".verdict .row")).to_be_in_viewport()
        expect(page.locator(".ring")).not_to_have_count(0)
    expect(page.locator(".grid canvas").first).to_be_visible()
    keep(page, f"job-{kind}-{ranks}-{theme}")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("tab", ["timeline", "kernels", "charts", "control"])
def test_the_other_parts_are_there_in_both_themes(
    page: Page, monitor_url: str, script: Script, tab: str, theme: str
) -> None:
    scene(script, 512, "slow")
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto(f"{monitor_url}/#/jobs/j?tab={tab}")
    ready = {"timeline": ".lanes .step", "kernels": ".spark", "charts": ".u-wrap canvas", "control": ".policy summary"}
    expect(page.locator(ready[tab]).first).to_be_visible()
    if tab == "timeline":
        page.get_by_label("Only steps with known waiting").check()
        expect(page.locator(".lanes .step").first).to_contain_text("step 1,120")
        page.get_by_role("application").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".readout")).to_contain_text("Rank")
    if tab == "control":
        page.get_by_label("silence_timeout").fill("30")
        page.get_by_role("radio", name="Restart", exact=True).check()
        page.get_by_label("Reason").fill("loss is stuck")
        page.get_by_role("button", name="Restart …").click()
        expect(page.get_by_role("alertdialog")).to_be_visible()
    keep(page, f"tab-{tab}-{theme}")


@pytest.mark.parametrize("width", [1200, 1440, 1920])
@pytest.mark.parametrize("kind", ["hung", "slow"])
def test_a_headline_of_90_characters_takes_one_line(
    page: Page, monitor_url: str, script: Script, kind: str, width: int
) -> None:
    scene(script, 512, kind)
    headline = "Rank 5 on node-0 has not entered all_reduce #7 after step 1,234,567; 511 other ranks wait."
    assert len(headline) == 90
    script.jobs["j"]["headline"] = headline
    if kind == "hung":
        script.incidents["j"][0]["headline"] = headline
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{monitor_url}/#/jobs/j")
    heading = page.locator(".verdict > h2")
    expect(heading).to_contain_text(headline)
    one_line = "(each) => each.offsetHeight < 1.5 * parseFloat(getComputedStyle(each).lineHeight)"
    wait_for(lambda: heading.evaluate(one_line), "the headline takes one line")
    fits(page, width)


def test_a_phone_shows_the_incident_first(page: Page, monitor_url: str, script: Script) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    scene(script, 512, "hung")
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_role("heading", name=HEADLINE)).to_be_in_viewport()
    fits(page, 390)
    keep(page, "phone-hung")


def test_the_largest_job_grouped_and_coloured(page: Page, monitor_url: str, script: Script) -> None:
    scene(script, 16_384, "slow")
    page.goto(f"{monitor_url}/#/jobs/j?look=lateness&group=pipeline&rank=5")
    expect(page.get_by_role("heading", name="Ranks 16,384 in 4 pipeline groups")).to_be_visible()
    expect(page.get_by_label("Coloured by")).to_have_value("lateness")
    expect(page.locator(".readout")).to_contain_text("Rank 5")
    keep(page, "grid-pipeline-16384")


@pytest.mark.parametrize("width", [390, 1440])
def test_a_slow_rank_of_the_largest_job_is_found_at_once(
    page: Page, monitor_url: str, script: Script, width: int
) -> None:
    scene(script, 16_384, "slow")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".grid .ring.slow em")).to_have_text(re.compile("^rank 5 slow 40.%$"))
    expect(page.locator(".ranks tbody tr").first.locator(".tag.slow")).to_be_visible()
    fits(page, width)


def test_sixteen_thousand_ranks_are_drawn_and_make_no_elements(page: Page, monitor_url: str, script: Script) -> None:
    """An element for each rank is what would make the page stand still at every change."""
    scene(script, 16_384, "healthy")
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_role("application", name=re.compile("16,384 running"))).to_be_visible(timeout=20_000)
    script.hang("j", 5, HUNG.format(others="16,383"))
    expect(page.get_by_role("application", name=re.compile("16,383 waiting"))).to_be_visible(timeout=20_000)
    assert page.evaluate("document.querySelectorAll('*').length") < 2_000
