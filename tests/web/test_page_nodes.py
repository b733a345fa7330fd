"""The page's list of nodes that run no ranks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from rankwatch_monitor.web import static_folder
from web.scripted_monitor import Script

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


def test_nodes_that_run_no_ranks_are_listed_with_the_reason(page: Page, monitor_url: str, script: Script) -> None:
    def launcher(name: str, role: str, reason: str = "", lost: str | None = None) -> dict[str, object]:
        facts = {"role": role, "role_reason": reason, "lost": lost, "ended": None, "last_seen_age": 1.0}
        return {"node": f"{name}-17", "host": name, "ranks": []} | facts

    aside = [
        launcher("n1", "spare", "1 node is enough"),
        launcher("n2", "parked", "excluded: bad memory"),
        launcher("n3", "active", lost="it has sent no report for 15 s"),
    ]
    script.add("train", ["running"] * 4, nodes=[launcher("n0", "active"), *aside])
    script.add("plain", ["running"] * 4, nodes=[launcher("n0", "active")])
    page.goto(f"{monitor_url}/#/jobs/train")
    section = page.locator("section.launchers")
    expect(section.get_by_role("heading")).to_have_text("Nodes 1 active, 1 spare, 1 parked, 1 lost")
    expect(section.locator("dt")).to_have_text(["n3 lost", "n2 parked", "n1 spare"])
    expect(section.locator("dd")).to_have_text(
        ["it has sent no report for 15 s", "excluded: bad memory", "1 node is enough"]
    )
    page.goto(f"{monitor_url}/#/jobs/plain")
    expect(page.get_by_role("heading", name="plain-name")).to_be_visible()
    expect(section).to_have_count(0)
