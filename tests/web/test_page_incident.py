"""An incident: its headline, what to do now, and how it is handed on, in a real Chromium."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from monitor.core.scene import LOGS, Scene
from monitor.core.views.test_node_verdict import crashed
from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.views.responses import Order
from rankwatch_monitor.web import static_folder
from support.browser import fits
from support.waiting import wait_for
from web.scene_monitor import serving_scenes
from web.scripted_monitor import Script
from web.scripted_rows import RESTART, advised

REASON = "Rank 2 on node-0 has been in section step for 14.2 s (limit 10 s); 3 ranks wait for it."
HEADLINE = "Rank 2 has not entered all_reduce #7"

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


@pytest.fixture
def hung(script: Script) -> Script:
    """A job of four ranks, of which rank 2 hangs."""
    script.add("j", ["running"] * 4)
    incident = script.hang("j", 2, REASON)
    incident |= {
        "headline": HEADLINE,
        "affected": [0, 1, 2, 3],
    }
    leave = Order(Action.RESTART_EXCLUDING_NODE, "Restart without node-0", (2,), ("node-0",))
    script.jobs["j"] |= {"headline": HEADLINE, "advice": advised("Exclude the node of rank 2", leave)}
    return script


@pytest.mark.parametrize(
    ("known", "condition", "chosen"),
    [
        (True, "", "Restart"),
        (True, "once its cause is gone", "Capture stacks"),
        (False, "", "Capture stacks"),
    ],
)
def test_the_proposed_order_is_chosen_beforehand_unless_it_waits_or_may_cost_all_steps(
    page: Page, monitor_url: str, hung: Script, known: bool, condition: str, chosen: str
) -> None:
    hung.jobs["j"]["checkpoint"] = {"step": 100, "at": time.time() - 60, "exact": True} if known else None
    hung.jobs["j"]["advice"] = advised("Restart the ranks", RESTART, condition=condition)
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    expect(page.locator(".kinds .tag")).to_have_text(f"proposed {condition}".strip())
    expect(page.get_by_role("radio", name=chosen, exact=True)).to_be_checked()
    expect(page.get_by_role("region", name="Actions").locator("button.go")).to_have_count(int(chosen == "Restart"))


def test_the_headline_is_that_of_the_monitor_with_the_reason_below(page: Page, monitor_url: str, hung: Script) -> None:
    page.goto(monitor_url)
    expect(page.locator(".jobs > li").first).to_contain_text(HEADLINE)
    page.locator(".jobs > li").first.get_by_role("link", name=HEADLINE).click()
    expect(page.get_by_role("heading", name=HEADLINE)).to_be_visible()
    expect(page.locator(".verdict .row")).to_contain_text("since ")


def test_what_to_do_opens_the_order_with_its_fields_filled_in(page: Page, monitor_url: str, hung: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j")
    todo = page.locator(".verdict")
    expect(todo).to_contain_text("Exclude the node of rank 2.")
    expect(todo.get_by_role("link", name="Runbook")).to_have_attribute("href", "/manual/runbook.html#rankwatchjobhung")
    todo.get_by_role("button", name="Restart without node-0 …").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("without the node of rank 2")
    expect(page.get_by_label("Reason")).to_have_value(HEADLINE)
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    assert hung.ordered == []
    page.get_by_label("Reason").press("Enter")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Restart without some nodes …").last.click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert hung.ordered == []
    page.get_by_role("button", name="Restart without some nodes …").last.click()
    dialog.get_by_role("button", name="Restart without some nodes").click()
    expect(page.get_by_text("Ordered.")).to_be_visible()
    assert hung.ordered == [{"action": "restart_excluding_node", "reason": HEADLINE, "ranks": [2], "nodes": []}]


def test_no_order_is_offered_where_none_is_called_for(page: Page, monitor_url: str, hung: Script) -> None:
    hung.jobs["j"]["advice"] = advised("Look at it")
    page.goto(f"{monitor_url}/#/jobs/j")
    todo = page.locator(".verdict")
    expect(todo.get_by_role("link", name="Runbook")).to_be_visible()
    expect(todo.locator(".offer")).to_have_count(0)


def test_an_incident_is_copied_and_saved(page: Page, monitor_url: str, hung: Script, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{monitor_url}/#/jobs/j/incidents/i1")
    share = page.locator(".share")
    expect(share.get_by_role("button", name="Copy stacks")).to_be_visible()  # the incident is there
    share.get_by_role("button", name="Copy link").click()
    expect(share.locator("small").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{monitor_url}/#/jobs/j/incidents/i1"
    share.get_by_role("button", name="Copy stacks").click()
    expect(share.locator("small").last).to_have_text("Copied")
    assert "rank 2 (culprit)\n  read_shard (/srv/ada/data.py:41)" in page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as saved:
        share.get_by_role("button", name="Download all").click()
    assert saved.value.suggested_filename == "i1.json"
    saved.value.save_as(tmp_path / "i1.json")
    found = json.loads((tmp_path / "i1.json").read_text())
    assert (found["incident"]["headline"], found["job"]["id"]) == (HEADLINE, "j")


def test_a_copy_needs_no_https(page: Page, monitor_url: str, hung: Script) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".share small").first).to_have_text("Copied")


def test_collectives_are_a_table(page: Page, monitor_url: str, hung: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j")
    rows = page.get_by_role("region", name="Collectives").get_by_role("row")
    expect(rows.nth(1)).to_have_text(re.compile(r"default_pg\s*0, 1, 3\s*all_reduce\s*7\s*6"))
    expect(rows.nth(2)).to_have_text(re.compile(r"default_pg\s*2\s*all_reduce\s*6\s*6"))


def test_what_nccl_answered_and_the_dumps_stand_beside_the_stacks(page: Page, monitor_url: str, hung: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j")
    answer = page.locator(".nccl")
    expect(answer).to_contain_text("asked on node-a")
    expect(answer.get_by_role("listitem")).to_have_text("communicator feed of 8 ranks")
    link = page.get_by_role("link", name="Flight recorder dumps")
    assert (link.get_attribute("href") or "").endswith("/flight-recorder")


def test_times_are_shown_in_utc_once_chosen(page: Page, monitor_url: str, hung: Script) -> None:
    hung.jobs["j"]["since"] = hung.incidents["j"][0]["opened_at"] // 86_400 * 86_400 + 1
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_label("Times:").select_option("utc")
    expect(page.locator(".verdict .row")).to_contain_text("since 00:00:01 (")
    page.reload()
    expect(page.get_by_label("Times:")).to_have_value("utc")
    expect(page.locator(".verdict .row")).to_contain_text("since 00:00:01 (")


def test_an_incident_prints_on_white(page: Page, monitor_url: str, hung: Script) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{monitor_url}/#/jobs/j/incidents/i1")
    expect(page.get_by_role("heading", name=HEADLINE)).to_be_visible()
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(page.get_by_role("heading", name=HEADLINE)).to_be_visible()
    for hidden in (".bar", ".tabs", ".share"):
        expect(page.locator(hidden)).to_be_hidden()


def test_nothing_of_an_incident_is_cut_on_paper(page: Page, monitor_url: str, hung: Script) -> None:
    page.set_viewport_size({"width": A4, "height": 900})
    page.goto(f"{monitor_url}/#/jobs/j/incidents/i1")
    folded = page.locator(".stacks details:not([open]) li")
    expect(folded.first).to_be_hidden()
    page.emulate_media(media="print")
    expect(folded.first).to_be_visible()
    fits(page, A4)
    for part in page.locator(".answers > div").all():
        expect(part).to_be_visible()
        assert part.evaluate("each => each.scrollWidth <= each.clientWidth"), part.inner_text()


def test_the_manual_is_linked(page: Page, monitor_url: str, hung: Script) -> None:
    page.goto(monitor_url)
    expect(page.get_by_role("contentinfo").get_by_role("link", name="Manual")).to_have_attribute("href", "/manual/")


def test_a_wrong_token_in_the_address_is_reported(page: Page, monitor_url: str, hung: Script) -> None:
    hung.token = "sesame"
    page.goto(f"{monitor_url}/?token=simsalabim#/jobs/j")
    expect(page.get_by_role("alert")).to_have_text("Rejected by the monitor: the token is wrong.")
    page.goto(f"{monitor_url}/?x=1#/jobs/j")
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


SPACE = "\u202f"
A4 = 688
"""Pixels between the margins of a page of paper."""


def verdict_of(page: Page, scene: Scene, *, address: str = "") -> str:
    """The text of the incident's panel, as the page shows a job of the core."""
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/{scene.job.id}{address}")
        expect(page.locator(".verdict .phases")).to_be_visible()
        expect(page.locator(".stacks")).not_to_contain_text("Loading")
        return page.locator(".verdict").inner_text().replace("\u2009", SPACE)


def test_of_a_hang_that_is_only_recorded_nothing_is_going_on(page: Page) -> None:
    scene = Scene(on_hang="log").run(60).hang(2).until_found().run(60)
    shown = verdict_of(page, scene)
    for words in (
        "Rank 2 on host-0 hangs in load_batch after step 58; 3 ranks wait",
        "Restart the ranks: nothing restarts them by itself.",
        "Restart …",
        "Unresolved",
        "training/train.py:41",
        f"11.0{SPACE}s when detected, configured limit 10{SPACE}s",
        "4 ranks idle",
    ):
        assert words in shown
    assert shown.count("by itself") == 1
    for untrue in ("Capturing stacks", "No stacks", "Action taken", "Capture stacks …"):
        assert untrue not in shown


@pytest.mark.parametrize(
    ("scene", "why", "todo"),
    [
        (
            Scene(on_hang="log", launchers=False),
            "Not captured: no launcher of Rankwatch runs this job, so it can only be watched.",
            "Restart the job with the tool that started it: no launcher of Rankwatch runs it.",
        ),
        (
            Scene(on_hang="log", observe_only=True),
            "Not captured: observe-only is on.",
            "Capture the stacks, then restart the ranks: nothing happens by itself.",
        ),
    ],
    ids=["no launcher", "observe-only"],
)
def test_where_no_stacks_are_taken_it_is_stated_why(page: Page, scene: Scene, why: str, todo: str) -> None:
    shown = verdict_of(page, scene.run(60).hang(2).until_found().run(60))
    assert why in shown
    assert todo in shown
    assert "hangs in its step after step 58" in shown


def test_of_a_crash_the_sentence_is_stated_once_and_no_stacks_are_promised(page: Page) -> None:
    scene = Scene().run(60).die(1, signal="SIGSEGV").run(2)
    shown = verdict_of(page, scene)
    assert "Planned action" in shown
    assert re.search(r"\bRestart\b", shown)
    assert "No traceback and no stack was received of this crash." in shown
    assert "Nothing to do: the launchers restart the ranks." in shown
    assert re.search(r"restart within \d:\d\d", shown)
    assert "If not by then, read the log of the launcher on host-0." in shown
    assert "readlink /proc/" in shown
    assert "Capturing" not in shown


def test_a_crash_has_the_exception_and_its_frames_first_and_the_living_ranks_beside_it(page: Page) -> None:
    scene = Scene().run(60).crash(2, "RuntimeError: CUDA error: device-side assert triggered").run(2)
    with serving_scenes(scene.job, now=scene.now) as served:
        page.goto(f"{served.url}/#/jobs/{scene.job.id}")
        groups = page.locator(".stacks .group")
        expect(groups).to_have_count(2)
        expect(groups.first.locator(".tag")).to_have_text("culprit")
        expect(groups.first.locator(".exception")).to_have_text(
            "RuntimeError: CUDA error: device-side assert triggered"
        )
        expect(groups.first.locator("li").first).to_contain_text("training_step")
        expect(groups.last).to_contain_text("all_reduce")
        dead = page.locator(".ranks tbody tr", has=page.get_by_role("rowheader", name="2", exact=True))
        expect(dead.locator(".time")).to_have_text(re.compile(r"^exited [\d:]+$"))


def test_of_a_failed_rank_without_a_traceback_the_way_it_ended_stands_first(page: Page) -> None:
    scene = Scene().run(60).die(2, signal="SIGKILL")
    for node in scene.nodes:
        scene.send_evidence(node)
    with serving_scenes(scene.job, now=scene.now) as served:
        page.goto(f"{served.url}/#/jobs/{scene.job.id}")
        groups = page.locator(".stacks .group")
        expect(groups).to_have_count(2)
        expect(groups.first.locator(".exception")).to_contain_text("was killed by SIGKILL")
        expect(groups.first).to_contain_text("No traceback of it was received.")


def test_a_node_that_does_not_answer_leads(page: Page) -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(60).cut_host(1).until_found()
    shown = verdict_of(page, scene.until(lambda: scene.incident.culprits))
    assert "Node host-1 is silent: neither its launcher nor its 4 ranks report" in shown
    assert "Restart without node host-1" in shown


def test_no_rank_is_another_one_where_no_culprit_is_named(page: Page) -> None:
    shown = verdict_of(page, Scene(on_hang="log").run(60).stall().until_found().run(5))
    assert "4 ranks idle" in shown
    assert "Culprit" not in shown


def test_an_action_is_called_taken_once_it_was(page: Page) -> None:
    scene = Scene().run(60).hang(2)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.CLOSED)
    shown = verdict_of(page, scene, address=f"/incidents/{scene.incident.id}")
    assert "Action taken" in shown
    assert "Attempt 2 resumed at step" in shown
    assert "load_batch" in shown
    resumed = Scene(reports_durations=True, job_id="k").run(60).hang(2).until_found().run(5).resume().run(10)
    shown = verdict_of(page, resumed, address=f"/incidents/{resumed.incident.id}")
    assert "Action not taken" in shown


def test_its_twin_faults_of_another_gpu_stand_apart_from_the_incident_that_is_over(page: Page) -> None:
    scene = Scene(4, hosts=2, job_id="a").run(60).hang(2)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.CLOSED)
    others = [crashed("b", 3, 2), crashed("c", 3, 1)]
    with serving_scenes(scene.job, *(each.job for each in others), now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/a/incidents/{scene.incident.id}")
        beside = page.locator(".verdict .sequel", has_text="Apart from this hang, check GPU 1 of host-1 for errors.")
        expect(beside.get_by_role("link", name="host-1")).to_have_attribute("href", "#/nodes/host-1")


def test_a_lost_job_shows_when_it_was_last_heard_and_what_to_do(page: Page) -> None:
    scene = Scene(8, hosts=2).run(60).cut_host(0).cut_host(1).run(190)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        verdict = page.locator(".verdict")
        expect(verdict.locator("h2").first).to_have_text("lost Nothing is received from any rank or launcher")
        expect(verdict.locator(".row")).to_have_text(re.compile(rf"^since .*\d\d:\d\d \(3{SPACE}min 1\d{SPACE}s\)$"))
        expect(page.locator(".details .facts")).to_contain_text("Speedunknown")
        expect(page.get_by_role("button", name=re.compile("^silent since then"))).to_be_visible()
        expect(verdict.get_by_role("link", name="Runbook")).to_have_attribute(
            "href", "/manual/runbook.html#rankwatchjoblost"
        )
        expect(verdict.locator(".answers")).to_contain_text("Last heard")
        expect(page.locator(".course")).not_to_contain_text("0.00")
        with page.expect_download() as saved:
            page.locator(".share").get_by_role("button", name="Download all").click()
        known = json.loads(Path(saved.value.path()).read_text())
        assert known["job"]["advice"]["steps"][0]["command"]


def test_a_failed_job_has_a_next_step(page: Page) -> None:
    scene = Scene(max_restarts=0).run(60).die(1, signal="SIGSEGV")
    scene.event(ProcessEventKind.FAILED, reason="rank 1 was killed by SIGSEGV")
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        todo = page.locator(".verdict")
        expect(todo).to_contain_text("Remove the cause")
        page.get_by_role("link", name="Charts", exact=True).click()
        expect(todo).to_have_text("failed Rank 1 on host-0 was killed by SIGSEGV")
        todo.get_by_role("link").click()
        expect(todo).to_contain_text("Remove the cause")


def test_settings_of_the_policy_are_in_groups_with_the_rare_ones_folded(
    page: Page, monitor_url: str, hung: Script
) -> None:
    assert hung.jobs
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    policy = page.get_by_role("region", name="Policy")
    expect(policy.get_by_role("heading", level=3)).to_have_text(
        ["What the monitor does", "Hangs", "Stragglers", "Profiling and reports"]
    )
    expect(policy.get_by_label("on_hang")).to_be_visible()
    expect(policy.get_by_label("learned_factor")).to_be_hidden()
    policy.get_by_label("Find").fill("learned")
    expect(policy.get_by_label("learned_factor")).to_be_visible()


@pytest.mark.parametrize("logged", [True, False])
def test_the_last_lines_of_a_rank_that_crashed_stand_below_its_exception(page: Page, logged: bool) -> None:
    error, facts = "RuntimeError: device-side assert", {} if logged else {"log": "/logs/gpt.log"}
    scene = Scene(4, facts=facts).run(20)
    scene = scene.crash(2, error) if logged else scene.die(2, exit_code=1, message=error)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        log = page.locator(".ranklog", has_text="Log of rank 2")
        command = f"tail -n 200 {LOGS}/gpt_x7k2/attempt_0/2/stderr.log" if logged else "tail -n 200 /logs/gpt.log"
        expect(log.get_by_role("button", name=f"Copy {command}")).to_be_visible()
        if not logged:
            expect(log).to_contain_text("No line of its output was received.")
            expect(log.get_by_role("button", name="Copy log")).to_have_count(0)
            return
        expect(log.locator("pre")).to_contain_text(re.compile(f"step \\d+ loss .*Traceback .*{error}$", re.DOTALL))
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        log.get_by_role("button", name="Copy log").click()
        expect(log.get_by_text("Copied", exact=True)).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == log.locator("pre").inner_text()


def test_after_a_restart_the_logs_of_the_new_ranks_can_be_read(page: Page) -> None:
    scene = Scene(4, hosts=2, facts={"rank_logs": LOGS}).run(20).hang(2)
    scene.startup = 60
    scene.until_found().until(lambda: scene.incident.phase is Phase.RECOVERING)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        todo = page.locator(".verdict")
        expect(todo).to_contain_text("If not by then, read the logs of attempt 2 and restart again.")
        expect(todo.locator(".further .run")).to_contain_text(
            f'On host-1:tail -n 200 "$(ls -td {LOGS}/*/attempt_*/ | head -1)"*/std*.log'
        )
        expect(todo.locator(".further .run")).to_contain_text(
            "The newest run in this folder: check that it is this job's."
        )


def test_a_crash_shows_those_of_its_gpu_over_all_jobs_and_what_follows_another_one(page: Page) -> None:
    scenes = [Scene(4, hosts=2, job_id=job).run(30) for job in ("a", "b")]
    for scene in scenes:
        scene.crash(3, "RuntimeError: CUDA error: device-side assert triggered").run(2)
    with serving_scenes(*(scene.job for scene in scenes), now=scenes[0].now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/a")
        history = page.locator(".verdict .sequel").filter(has_text="crashes")
        expect(history).to_have_text(
            "host-1 was named in 2 incidents of 2 jobs in 24\u202fh, this one included. "
            "GPU 1 of host-1, rank 3: 2 crashes in 2 jobs. The error is the same each time. Node host-1"
        )
        expect(history.get_by_role("link", name="host-1")).to_have_attribute("href", "#/nodes/host-1")
        todo = page.locator(".verdict")
        expect(todo).to_contain_text("Nothing to do: ")
        expect(todo).to_contain_text("CUDA_LAUNCH_BLOCKING=1")
        expect(todo.locator("code")).to_contain_text(["readlink /proc/"])
        expect(todo).to_contain_text(
            "After a restart without host-1: the same error on any rank left points to data or code."
        )
        expect(todo.get_by_role("button", name="Restart without host-1 …")).to_be_visible()
        expect(todo.locator("button.go")).to_have_count(0)
        page.goto(f"{monitor.url}/#/")
        expect(page.get_by_role("heading", level=1)).to_have_text("2 recovering")
        expect(page.locator(".jobs .why").first).to_contain_text(re.compile(r"· restart within \d:\d\d$"))


def test_where_hangs_repeat_on_a_host_job_and_node_propose_to_leave_it_out(page: Page) -> None:
    scenes = [Scene(4, hosts=2, job_id=job, on_hang="log").run(30).hang(3).until_found() for job in ("a", "b")]
    fact = "host-1 was named in 2 incidents of 2 jobs in 24\u202fh"
    with serving_scenes(*(scene.job for scene in scenes), now=scenes[0].now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/a")
        expect(page.locator(".verdict .sequel").filter(has_text=f"{fact}, this one included.")).to_be_visible()
        todo = page.locator(".verdict")
        expect(todo.locator(".offer button")).to_have_text(["Restart without host-1 …", "Restart …"])
        expect(todo.locator("button.go")).to_have_text("Restart without host-1 …")
        expect(todo).to_contain_text(
            "After a restart without host-1: a hang in load_batch on any rank left points to data or code."
        )
        page.locator(".verdict .sequel").get_by_role("link", name="host-1").click()
        expect(page.locator(".standing")).to_have_text("Rank 3 on host-1 hangs in load_batch: 2 hangs in 2 jobs.")
        expect(page.locator(".named summary")).to_contain_text("2 incidents")
        of_jobs = page.locator(".of-jobs")
        expect(of_jobs).to_contain_text("a: Restart without host-1, where incidents repeat: nothing restarts the ranks")
        of_jobs.get_by_role("button", name="Restart without host-1 … (a)").click()
        expect(page).to_have_url(re.compile("#/jobs/a.*control"))


def test_a_first_hang_offers_to_leave_its_host_out_after_the_plain_restart(page: Page) -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(30).hang(3).until_found()
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        todo = page.locator(".verdict")
        expect(todo.locator(".offer button")).to_have_text(["Restart …", "Restart without host-1 …"])
        expect(todo.locator("button.go")).to_have_text("Restart …")
        expect(todo.locator(".no-spare")).to_have_text(re.compile("^1 of 2 nodes remain, and no spare: "))
        todo.get_by_role("button", name="Restart without host-1 …").click()
        expect(page.get_by_role("alertdialog")).to_contain_text("restarted as attempt 2 without host-1")


def test_on_a_node_that_is_up_leaving_it_out_comes_last_once_stacks_were_captured(page: Page) -> None:
    silent = Scene(8, hosts=2, job_id="silent", on_hang="log").run(60).cut_host(1).run(25)
    other = Scene(8, hosts=2, job_id="other").run(85)
    with serving_scenes(silent.job, other.job, now=silent.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/silent")
        todo = page.locator(".verdict")
        expect(todo.locator(".do > p").first).to_have_text(re.compile("which is up.$"))
        expect(todo.locator(".alternatives li")).to_have_text(
            [
                re.compile(f"^{each}")
                for each in (
                    r"The launcher \(PID \d+\) is gone: ",
                    "The launcher is there, its ranks are gone or in state Z: ",
                    "One is in state D: ",
                    "One is in state T: ",
                    "All are in state S or R: ",
                )
            ]
        )
        expect(todo.locator(".offer button")).to_have_text(["Restart …", "Restart without host-1 …"])
        expect(todo.locator("button.go")).to_have_count(0)


def test_a_command_breaks_at_its_spaces_and_is_copied_whole(page: Page) -> None:
    facts = {"scheduler": "slurm", "slurm_node": "{host}"}
    scene = Scene(8, hosts=2, on_hang="log", facts=facts).run(60).cut_host(1).run(25)
    command = "ping -c 3 -- host-1; sinfo -n host-1"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        shown = page.locator(".do code")
        expect(shown).to_have_text(command)
        lines = "(words) => Object.values(Object.groupBy(words, (word) => word.offsetTop)).map((line) => line.length)"
        words = shown.locator("span")
        wait_for(lambda: words.evaluate_all(lines) == [5, 3], "each part of the command has a line")
        broken = """(words) => {
          words[0].parentNode.style.width = "7ch";
          return words.filter((word) => word.clientHeight > 30).map((word) => word.textContent);
        }"""
        wait_for(lambda: not {"-c", "--", "-n"} & set(words.evaluate_all(broken)), "options are whole in a narrow box")
        assert len(words.evaluate_all(lines)) > 2, "the box is narrow"
        page.get_by_role("button", name=f"Copy {command}").click()
        expect(page.locator(".do .run")).to_contain_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == command


def test_the_host_that_is_silent_in_one_job_has_its_history_and_its_ranks_are_the_suspects(page: Page) -> None:
    silent = Scene(8, hosts=2, job_id="silent", on_hang="log").run(60).cut_host(1).run(25)
    hung = Scene(8, hosts=2, job_id="hung", on_hang="log").run(60).hang(5).until_found()
    hung.run(int(silent.now - hung.now))
    with serving_scenes(silent.job, hung.job, now=silent.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/silent")
        expect(page.locator(".verdict .sequel").filter(has_text="host-1 was named in ")).to_contain_text(
            "host-1 was named in 2 incidents (1 hang, 1 silent) of 2 jobs in 24\u202fh, this one included."
        )
        todo = page.locator(".verdict")
        expect(todo.locator(".offer button")).to_have_text(["Restart without host-1 …", "Restart …"])
        expect(page.locator(".ranks tr.suspect")).to_contain_text(["4–7"])
        expect(page.locator(".ranks tr.suspect .tag")).to_have_text("suspect")
        expect(page.locator(".ranks tr.culprit")).to_have_count(0)
