"""Each state of a job as it is shown: failed, ended, recovering, suspected, with a host that is not heard."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from monitor.core.scene import Scene
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.views import downtime, job_view
from web.scene_monitor import serving_scenes
from web.slow_scenes import HOT, account, slow_input, throttled

SPACE = "[\u2009\u202f ]"
WITHIN = "place => (({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector(place))"
ERROR = "RuntimeError: CUDA error: device-side assert triggered"


def failed(why: str) -> Scene:
    scene = Scene(4, max_restarts=0).run(60).die(1, exit_code=1, message=ERROR)
    cause = f"rank 1 on host-0 exited with code 1: {ERROR}"
    scene.run(2).finish(ProcessEventKind.FAILED, f"{cause}; {why}", cause=cause, no_restart="not_allowed")
    return scene.run(5)


def test_a_failure_is_stated_once_with_why_no_restart_followed(page: Page) -> None:
    why = "no restart is allowed (--max-restarts 0)"
    scene = failed(why)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".now")).to_have_text(f"Rank 1 on host-0 exited with code 1: {ERROR}")
        expect(page.get_by_text(f"No restart followed: {why}.")).to_be_visible()
        expect(page.get_by_role("region", name="What to do now")).to_contain_text("its launcher allows no restart")
        expect(page.locator(".head .facts")).to_contain_text("Restarts used0none allowed")
        expect(page.locator(".verdict h2")).to_have_count(0)
        expect(page.locator(".answers")).to_have_count(1)
        expect(page.locator(".lead .answers")).to_contain_text(f"Actionno restart{why}")
        expect(page.locator(".legend button")).to_have_text(["dead 1", "ended 3"])
        expect(page.locator(".ranks tr[data-alike]")).to_contain_text("ended3 alike")


def lived(scene: Scene, seconds: int) -> Scene:
    for _ in range(seconds):
        account(scene.run(1).job, scene.now)
    return scene


def test_a_crash_that_came_again_is_stated_with_its_whole_cost(page: Page) -> None:
    scene = lived(Scene(8, hosts=2, max_restarts=1), 60).die(1, exit_code=1, message=ERROR)
    lived(scene, 1).event(ProcessEventKind.RESTARTING, attempt=2)
    scene.launch(attempt=2)
    lived(scene, 30).die(1, exit_code=1, message=ERROR)
    cause = f"rank 1 on host-0 exited with code 1: {ERROR}"
    why = f"{cause}; the only restart is used up (--max-restarts)"
    lived(scene, 2).finish(ProcessEventKind.FAILED, why, cause=cause, no_restart="used_up")
    lived(scene, 5)
    again = job_view.summary(scene.job, scene.now)["repeated"]
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".again")).to_have_text(
            re.compile(r"2nd crash of rank 1 on host-0 with the same error in \d+.s\.")
        )
        steps = page.get_by_role("region", name="What to do now").get_by_role("listitem")
        expect(steps).to_contain_text(
            [
                "Read what rank 1 logged around step",
                "Look at the batch after step",
                "Launch again without host-0: if rank 1 fails again, suspect data or code, and set CUDA",
            ]
        )
        expect(steps.get_by_role("button", name="Copy nvidia-smi")).to_have_count(0)
        listed = page.locator(".ledger li")
        expect(listed).to_contain_text(["2 times, "])
        expect(listed.get_by_role("link")).to_have_text(
            [re.compile("no action · .*attempt 2, "), re.compile("restart · ")]
        )
        assert again["lost_steps_s"] > 0
        assert again["lost_steps_s"] == pytest.approx(goodput_accounting.spent(scene.job)[Bucket.LOST_STEPS])
        assert again["steps_lost"] == sum(each.steps_lost or 0 for each in scene.job.incidents) > 0
        part = rf"of it {again['lost_steps_s']:.1f}{SPACE}s of training lost \({again['steps_lost']} steps\)"
        cost = re.compile(rf"Cost of 2 crashes{again['cost']:.1f}{SPACE}s{part} · the last one .* · ")
        expect(page.locator(".answers")).to_contain_text(cost)
        expect(page.locator(".buckets")).not_to_contain_text("handling incidents")
        table = page.get_by_role("region", name="Time by incident")
        rows, names = table.locator("tbody tr"), table.locator("thead th").all_inner_texts()
        for stage in ("Restart", "Stop"):
            column = 1 + [name.casefold() for name in names].index(stage.casefold())
            bar = page.locator(".buckets li", has_text=stage).locator("b")
            # One cell: of the crash that was restarted, and of the one with which the job ended.
            cell = rows.locator(f"td:nth-child({column})").filter(has_not_text=re.compile("^–$"))
            expect(cell).to_have_count(1)
            shown = [float(re.sub(SPACE + "s", "", each.inner_text())) for each in (cell, bar)]
            assert shown[0] == pytest.approx(shown[1], abs=0.15)


def test_steps_that_are_never_done_again_are_no_goodput(page: Page) -> None:
    scene = lived(Scene(8, hosts=2, max_restarts=1, checkpoint=50, saves=True), 92).die(1, exit_code=1, message=ERROR)
    lived(scene, 1).event(ProcessEventKind.RESTARTING, attempt=2)
    scene.launch(attempt=2)
    lived(scene, 15).die(1, exit_code=1, message=ERROR)
    lived(scene, 2).finish(ProcessEventKind.FAILED, f"rank 1 on host-0 exited with code 1: {ERROR}; none is left")
    lived(scene, 5)
    lost, at_risk = goodput_accounting.lost_steps(scene.job), goodput_accounting.steps_at_risk(scene.job)
    resumed, thrown = int(scene.job.columns.first_iteration_R.min()), scene.job.incidents[0].steps_lost
    assert at_risk is not None
    assert lost > 20
    seconds = goodput_accounting.spent(scene.job)[Bucket.LOST_STEPS]
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.get_by_role("region", name="What to do now")).to_contain_text(
            f"at step {resumed - 1}. A restart repeats steps {resumed}–{resumed + at_risk - 1} ({at_risk} steps); "
            f"the run had reached step {resumed + at_risk - 1 + lost}; restarts have thrown away {thrown} steps in all."
        )
        ratio = goodput_accounting.ratio(scene.job)
        assert ratio is not None
        expect(page.locator(".head .facts")).to_contain_text(
            re.compile(rf"Goodput{100 * ratio:.1f}{SPACE}%{at_risk} steps unsaved")
        )
        expect(page.locator(".buckets")).to_contain_text(re.compile(rf"lost steps {seconds:.1f}{SPACE}s"))
        rows = page.get_by_role("region", name="Time by incident").locator("tbody tr")
        expect(rows.first).to_contain_text(f"{at_risk} unsaved")
        expect(rows.filter(has_text="unsaved")).to_have_count(1)


def test_a_finished_job_warns_of_steps_without_a_known_save(page: Page) -> None:
    scene = lived(Scene(8, hosts=2, checkpoint=50, saves=True, facts={"log": "/logs/train.out"}), 92)
    scene.job.performance._grow(8)
    scene.job.performance.layout.data_R[:8] = np.arange(8) // 4

    def finished() -> float:
        scene.finish()
        account(scene.job, scene.now)
        return scene.now

    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".account")).to_contain_text("A step takes 1.00")
        expect(page.locator(".account b")).to_have_count(0)
        expect(page.get_by_role("radio", name="Heartbeat age")).to_be_visible()
        monitor.change(finished)
        page.reload()
        words = rf"up to \d+ steps \(50–{scene.job.furthest_iteration}\) have no known save since that of [\d:]+"
        advice = "check where the script saves, or what rank 0 logged"
        expect(page.locator(".account b")).to_have_text(re.compile(f"^{words}: {advice}$"))
        expect(page.locator(".account + .run")).to_have_text("On host-0:tail -n 200 /logs/train.outCopy")
        expect(page.get_by_text("known save")).to_have_count(1)
        expect(page.get_by_role("radio", name="Data rank")).to_be_visible()
        expect(page.get_by_role("radio", name="Heartbeat age")).to_have_count(0)  # of one answer with the data ranks


def test_waiting_for_a_slow_rank_stands_beside_goodput(page: Page) -> None:
    job = throttled("throttled", 600)
    busy, spent = goodput_accounting.ratio(job), goodput_accounting.spent(job)
    assert busy is not None
    lost = spent[Bucket.WAITING] / sum(spent.values())
    share, loss = (rf"{100 * each:.1f}{SPACE}%" for each in (busy, lost))
    with serving_scenes(job, now=job.created_at + 600) as monitor:
        page.goto(f"{monitor.url}/#/jobs/throttled")
        expect(page.locator(".head .facts")).to_contain_text(
            re.compile(rf"Goodput{share}{loss} lost waiting for rank {HOT}")
        )
        waiting = page.locator(".buckets li[data-bucket=waiting]")
        expect(waiting).to_contain_text(re.compile(rf"waiting for rank {HOT} 1{SPACE}min.*{loss}"))
        expect(page.locator(".goodput h2")).to_contain_text("waiting for slow ranks and restarts are the rest")
        page.goto(f"{monitor.url}/#/jobs/throttled?tab=charts")
        goodput = page.locator(".charts section", has=page.locator(".chart[aria-label^=Goodput]"))
        expect(goodput).to_contain_text(re.compile(f"whole run{SPACE}*{share}"))
        page.goto(f"{monitor.url}/#/")
        words = re.compile(rf"{share}.*{loss} lost\s+waiting for rank {HOT}")
        expect(page.locator(".figure.goodput")).to_contain_text(words)


def test_a_past_incident_is_shown_in_its_own_time(page: Page) -> None:
    scene = Scene(8, hosts=2).run(90)
    for _ in range(90):
        account(scene.run(1).job, scene.now)
    scene.hang(3)
    for _ in range(240):
        account(scene.run(1).job, scene.now)
    incident = scene.job.incidents[0]
    assert incident.timeline.first_step is not None
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job/incidents/{incident.id}")
        expect(page.locator(".answers")).to_contain_text(re.compile(r"From\d\d:\d\d:\d\d to \d\d:\d\d:\d\d"))
        lost_steps_s = downtime.of_lost_steps(scene.job, incident)
        part = rf"of it {lost_steps_s:.1f}{SPACE}s of training lost \({incident.steps_lost} steps\)"
        cost = rf"{downtime.total(scene.job, incident):.1f}{SPACE}s"
        expect(page.locator(".answers")).to_contain_text(re.compile(f"Cost{cost}{part}"))
        table = page.get_by_role("region", name="Time by incident")
        expect(table.locator("td.force")).to_have_text(re.compile(f"^{cost}$"))
        expect(table.locator("td small")).to_have_count(0)
        steps = page.get_by_text("Of the steps done again the first counts as Recover.")
        expect(steps).to_have_count(1)
        expect(page.locator(".ledger")).to_contain_text(re.compile(rf"restart · detected [\d:]+ · {cost} · "))
        expect(page.locator(".stacks h2")).to_contain_text(
            re.compile(rf"of attempt 1, captured [\d:]+, 1[01]{SPACE}s after the last progress; innermost frame first")
        )
        then = page.locator(".ranks.then")
        expect(then.locator("h2")).to_contain_text(f"in attempt 1, after step {incident.furthest_iteration}")
        expect(then.locator("tbody tr td:last-child")).to_have_text(["load_batch, section step", "all_reduce"])
        page.set_viewport_size({"width": 390, "height": 844})
        page.locator(".goodput > summary").click()
        page.wait_for_function(WITHIN, arg=".goodput .scroll")
        page.wait_for_function(WITHIN, arg=".then .scroll")
        expect(table.locator("thead")).to_be_hidden()
        page.set_viewport_size({"width": 1280, "height": 900})
        chart = page.get_by_role("img", name=re.compile("^Speed then"))
        expect(chart).to_have_attribute("aria-label", re.compile(rf"\d\d:\d\d:\d\d speed 0\.00{SPACE}steps/s"))
        expect(page.locator(".course .key").first).not_to_contain_text("now")
        expect(page.locator(".verdict .kicker")).not_to_contain_text("over since")


def test_what_the_cost_of_an_open_incident_may_grow_by_is_stated_beside_it(page: Page) -> None:
    scene = lived(Scene(8, hosts=2, on_hang="log", checkpoint=50, saves=True), 92)
    lived(scene.hang(1), 20)
    steps = job_view.summary(scene.job, scene.now)["steps_at_risk"]
    assert steps > 20
    more = rf"up to {steps} steps \({steps}{SPACE}s\) more if restarted"
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".answers")).to_contain_text(re.compile(f"Cost.* so far.* · {more}$"))
        expect(page.locator(".head .facts")).to_contain_text(re.compile(f"Goodput.*%up to {steps} steps at risk"))


@pytest.mark.parametrize("stored", [False, True])
def test_ranks_of_a_finished_job_are_shown_as_finished(page: Page, stored: bool) -> None:
    scene = Scene(4).run(60)
    scene.finish()
    scene = scene.reload() if stored else scene
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".legend button")).to_have_text(["finished 4"])
        expect(page.locator(".ranks h2")).to_contain_text("all finished")
        page.goto(f"{monitor.url}/#/nodes/host-0")
        expect(page.locator("article.place")).to_contain_text("finished")
        expect(page.locator("article.place tbody")).not_to_contain_text(re.compile("running|unseen"))


def test_after_a_restart_what_is_waited_for_is_stated_and_the_culprit_is_of_the_attempt_before(page: Page) -> None:
    scene = Scene(8, hosts=2).run(60).hang(5)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.RECOVERING)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        todo = page.get_by_role("region", name="What to do now")
        expect(todo).to_contain_text(
            re.compile(
                r"until [\d:]+: the ranks were started again at [\d:]+, and none has reported yet\.\s*"
                r"If not by then, read the logs of attempt 2"
            )
        )
        expect(todo.get_by_role("button")).to_have_text(["Restart again …", "Restart without host-1 …"])
        expect(page.locator(".head .facts")).to_contain_text(f"Step{scene.incident.furthest_iteration}of attempt 1")
        expect(page.get_by_role("heading", name="Rank 5 on host-1 hung in load_batch")).to_be_visible()
        then = page.locator(".ranks.then tbody tr")
        expect(then).to_have_text([re.compile("^5host-1.*hung.*culprit"), re.compile("^0–4, 6, 7.*waited")])
        expect(page.get_by_text("No rank of attempt 2 has reported yet")).to_be_visible()
        expect(page.locator(".stacks h2")).to_contain_text("of attempt 1")
        expect(page.locator(".grid")).to_be_hidden()
        expect(page.get_by_role("region", name="Limits")).to_be_hidden()


def test_a_suspicion_is_stated_as_one_everywhere(page: Page) -> None:
    scene = Scene(8, hosts=2, reports_durations=True).run(60).hang(5).until_found()
    scene.until(lambda: scene.incident.phase is Phase.CONFIRMING)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".head .state")).to_have_text("suspected")
        expect(page.get_by_role("heading", name="Rank 5 on host-1 may be hung in load_batch")).to_be_visible()
        todo = page.get_by_role("region", name="What to do now")
        after = r"until [\d:]+: Rankwatch restarts the ranks unless they make progress; a restart loses "
        expect(todo).to_contain_text(re.compile(after))
        expect(todo.get_by_role("button")).to_have_text(
            ["Restart now …", "Restart without host-1 …", "Capture stacks …"]
        )
        expect(page.locator(".verdict .sequel")).to_have_count(0)
        expect(page.locator(".legend button").first).to_have_text("suspected 1")
        expect(page.locator(".ranks tbody tr").first.get_by_role("cell").nth(1)).to_have_text("suspected")


def test_a_host_that_is_not_heard_leads_before_its_silence_is_certain(page: Page) -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(60).cut_host(1).run(25)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        expect(page.locator(".verdict h2")).to_have_text(
            re.compile(r"Node host-1 has not been heard since \d\d:\d\d:\d\d; its 4 ranks and its launcher are silent")
        )
        for place in (".ledger .why", ".goodput tbody"):
            expect(page.locator(place)).to_contain_text(re.compile("Node host-1 has not been heard since "))
        expect(page.locator(".verdict")).not_to_contain_text("different points")
        expect(page.locator(".answers")).to_contain_text(re.compile(rf"\d\.\d{SPACE}GPU-minutes of all 8 ranks"))
        todo = page.get_by_role("region", name="What to do now")
        expect(todo).to_contain_text("Check whether node host-1 is up. If it is not, restart without it.")
        expect(todo.locator("code")).to_have_text("ping -c 3 -- host-1")
        expect(todo.get_by_role("button")).to_have_text(["Copy", "Restart without host-1 …"])
        expect(page.locator(".ranks tbody tr").first).to_contain_text(
            re.compile(rf"silent.*step when last heardunknown since \d\d:\d\d:\d\d2\d{SPACE}s")
        )
        expect(page.locator(".head .facts")).to_contain_text("Ranks reporting4of 8")
        expect(page.locator(".legend button")).to_have_text(["silent 4", "waiting 4"])
        page.goto(f"{monitor.url}/#/")
        expect(page.get_by_role("listitem").first).to_contain_text(re.compile("Node host-1 has not been heard since "))


def test_a_slow_job_has_what_a_restart_loses_what_is_known_of_its_host_and_what_hands_it_on(page: Page) -> None:
    slow, crash = slow_input("slow", 600), Scene(4, hosts=2, job_id="crash").run(30).die(1, exit_code=1).run(60)
    lost = re.compile(
        rf"No checkpoint is known: if there is none, training restarts from step 0: [\d,]+{SPACE}steps \("
    )
    with serving_scenes(slow, crash.job, now=slow.created_at + 600) as monitor:
        page.goto(f"{monitor.url}/#/jobs/slow")
        band = page.get_by_role("region", name="Slow rank", exact=True)
        expect(band.locator(".sequel")).to_have_text("host-0 was named in 1 incident of 1 job in 24 h.")
        todo = band.get_by_role("region", name="What to do now")
        expect(todo.get_by_role("listitem").last).to_contain_text("If it stays slow, do not restart without host-0: ")
        expect(todo).to_contain_text(lost)
        expect(todo.locator(".ways a")).to_have_text(["Section timeline", "Other actions", "Runbook"])
        share = band.get_by_role("group", name="Share this job")
        share.get_by_text("Share", exact=True).click()
        expect(share.get_by_role("button")).to_have_text(["Copy link", "Download .json", "Download .txt"])
        page.goto(f"{monitor.url}/#/nodes/host-0")
        of_job = page.get_by_role("region", name="What to do about its jobs").get_by_role("listitem")
        expect(of_job.filter(has_text="do not restart without host-0")).to_contain_text(lost)
