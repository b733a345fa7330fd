"""Each state of a job as it is shown: failed, ended, recovering, suspected, with a host that is not heard."""

from __future__ import annotations

import re
from dataclasses import replace

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
    scene.run(2).finish(ProcessEventKind.FAILED, f"{cause}; {why}", cause=cause, no_restart="not_allowed", why_none=why)
    return scene.run(5)


def test_a_failure_is_stated_once_with_why_no_restart_followed(page: Page) -> None:
    why = "no restart is allowed (--max-restarts 0)"
    scene = failed(why)
    line = "cd /srv && rankwatch run --nproc-per-node 4 train.py"
    for node in scene.job.nodes.values():
        node.registration = replace(node.registration, launch=line)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        verdict = page.locator(".verdict")
        expect(verdict.locator("h2").first).to_have_text(f"failed Rank 1 on host-0 exited with code 1: {ERROR}")
        expect(verdict.locator(".attempts")).to_contain_text(f"no restart: {why}")
        expect(verdict.locator(".post-mortem").get_by_text("no restart")).to_have_count(1)
        expect(verdict.locator(".again code")).to_have_text(line)
        expect(page.locator(".details .facts")).to_contain_text("Restarts used0of ")
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
    why = "the only restart is used up (--max-restarts)"
    told = {"cause": cause, "no_restart": "used_up", "why_none": why}
    lived(scene, 2).finish(ProcessEventKind.FAILED, f"{cause}; {why}", **told)
    lived(scene, 5)
    again = job_view.summary(scene.job, scene.now)["repeated"]
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        lost = page.locator(".verdict .row span").last
        minutes = f"{again['cost'] * 8 / 60:.1f}"
        expect(lost).to_have_text(re.compile(rf"^{minutes}\sGPU-minutes lost$"))
        expect(page.locator(".verdict .do")).to_contain_text("Read what rank 1 logged around step")
        expect(page.locator(".verdict .further li")).to_contain_text(["Look at the batch after step"])
        expect(page.locator(".again p").last).to_contain_text(
            "Launch again without host-0: if rank 1 fails again, suspect data or code, and set CUDA"
        )
        expect(page.locator(".attempts a")).to_have_text(
            [re.compile(rf"^attempt {number} ✕ after step \d+$") for number in (1, 2)]
        )
        assert again["lost_steps_s"] == pytest.approx(goodput_accounting.spent(scene.job)[Bucket.LOST_STEPS])
        assert again["steps_lost"] == sum(each.steps_lost or 0 for each in scene.job.incidents) > 0


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
        expect(page.get_by_label("Coloured by").locator("option")).to_contain_text(["State", "Heartbeat age"])
        monitor.change(finished)
        page.reload()
        words = rf"up to \d+ steps \(50–{scene.job.furthest_iteration}\) have no known save"
        advice = "check where the script saves, or what rank 0 logged"
        expect(page.locator(".account b")).to_have_text(re.compile(f"^{words}: {advice}$"))
        expect(page.locator(".account + .run")).to_have_text("On host-0:tail -n 200 /logs/train.outCopy")
        expect(page.get_by_label("Grouped by").locator("option")).to_contain_text(["Node", "Data rank"])
        # Of one answer with the data ranks.
        expect(page.get_by_label("Coloured by").locator("option", has_text="Heartbeat age")).to_have_count(0)


def test_waiting_for_a_slow_rank_stands_beside_goodput(page: Page) -> None:
    job = throttled("throttled", 600)
    busy, spent = goodput_accounting.ratio(job), goodput_accounting.spent(job)
    assert busy is not None
    lost = spent[Bucket.WAITING] / sum(spent.values())
    share, loss = (rf"{100 * each:.1f}{SPACE}%" for each in (busy, lost))
    with serving_scenes(job, now=job.created_at + 600) as monitor:
        page.goto(f"{monitor.url}/#/jobs/throttled")
        expect(page.locator(".goodput h2")).to_contain_text(
            re.compile(rf"Goodput {share} {loss} lost waiting for rank {HOT}")
        )
        waiting = page.locator(".buckets li[data-bucket=waiting]")
        expect(waiting).to_contain_text(re.compile(rf"waiting for rank {HOT} 1{SPACE}min.*{loss}"))
        page.goto(f"{monitor.url}/#/jobs/throttled?tab=charts")
        goodput = page.locator(".charts section", has=page.locator(".chart[aria-label^=Goodput]"))
        expect(goodput).to_contain_text(re.compile(f"whole run{SPACE}*{share}"))
        page.goto(f"{monitor.url}/#/")
        expect(page.locator(".figure.goodput")).to_contain_text(re.compile(share))


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
        row = page.locator(".verdict .row span")
        cost = f"{(downtime.total(scene.job, incident) or 0.0) * 8 / 60:.1f}"
        expect(row).to_have_text(
            [
                re.compile(r"^\d\d:\d\d:\d\d to \d\d:\d\d:\d\d$"),
                "attempt 1",
                re.compile(rf"^{cost}\sGPU-minutes lost$"),
                f"{incident.steps_lost} steps repeated",
            ]
        )
        expect(page.locator(".stacks h2")).to_contain_text(
            re.compile(rf"of attempt 1, captured [\d:]+, 1[01]{SPACE}s after the last progress; innermost frame first")
        )
        expect(page.locator(".grid")).to_have_count(0)  # of the ranks that run now


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


def test_after_a_restart_what_is_waited_for_has_a_clock(page: Page) -> None:
    scene = Scene(8, hosts=2).run(60).hang(5)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.RECOVERING)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        verdict = page.locator(".verdict.waits")
        expect(verdict.locator(".do")).to_have_text(
            "Nothing to do: the ranks were started again, and none has reported yet."
        )
        expect(verdict.locator(".row")).to_contain_text(re.compile(r"first report within \d:\d\d"))
        expect(verdict.locator(".clock")).to_be_visible()
        expect(verdict.locator(".further")).to_contain_text("If not by then, read the logs of attempt 2")
        expect(verdict.locator(".offer button")).to_have_text(["Restart again …", "Restart without host-1 …"])
        expect(page.locator(".details .facts")).to_contain_text(f"Step{scene.incident.furthest_iteration}of attempt 1")
        expect(verdict.locator("h2").first).to_contain_text("Rank 5 on host-1 hung in load_batch")
        expect(page.locator(".stacks h2")).to_contain_text("of attempt 1")


def test_a_suspicion_is_stated_as_one_everywhere(page: Page) -> None:
    scene = Scene(8, hosts=2, reports_durations=True).run(60).hang(5).until_found()
    scene.until(lambda: scene.incident.phase is Phase.CONFIRMING)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        verdict = page.locator(".verdict.waits")
        expect(verdict.locator(".state")).to_have_text("suspected")
        expect(verdict.locator("h2").first).to_contain_text("Rank 5 on host-1 may be hung in load_batch")
        expect(verdict.locator(".row")).to_contain_text(re.compile(r"restart in \d+:\d\d"))
        after = r"^Nothing to do: Rankwatch restarts the ranks unless they make progress; a restart loses "
        expect(verdict.locator(".do")).to_have_text(re.compile(after))
        expect(verdict.locator(".offer button")).to_have_text(
            ["Restart now …", "Restart without host-1 …", "Capture stacks …"]
        )
        expect(verdict.locator(".do button")).to_have_count(0)
        expect(page.locator(".legend button").first).to_have_text("suspected 1")
        expect(page.locator(".ranks tbody tr").first.get_by_role("cell").nth(1)).to_have_text("suspected")


def test_a_host_that_is_not_heard_leads_before_its_silence_is_certain(page: Page) -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(60).cut_host(1).run(25)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        page.goto(f"{monitor.url}/#/jobs/job")
        verdict = page.locator(".verdict.bad")
        words = "Node host-1 has not been heard; its 4 ranks and its launcher are silent"
        expect(verdict.locator("h2").first).to_contain_text(words)
        expect(verdict.locator(".do")).to_contain_text(
            "Check whether node host-1 is up. If it is not, restart without it."
        )
        expect(verdict.locator(".do code")).to_have_text("ping -c 3 -- host-1")
        expect(verdict.locator(".do button")).to_have_text(["Copy", "Restart without host-1 …"])
        expect(verdict.locator(".answers")).to_contain_text(re.compile(r"Not heardhost-14 ranks, since \d\d:\d\d:\d\d"))
        expect(page.locator(".details .facts")).to_contain_text("Ranks reporting4of 8")
        expect(page.locator(".legend button")).to_have_text(["silent 4", "waiting 4"])
        page.goto(f"{monitor.url}/#/")
        expect(page.locator(".jobs > li").first).to_contain_text(words)


def test_a_slow_job_has_what_to_do_and_what_hands_it_on(page: Page) -> None:
    slow, crash = slow_input("slow", 600), Scene(4, hosts=2, job_id="crash").run(30).die(1, exit_code=1).run(60)
    with serving_scenes(slow, crash.job, now=slow.created_at + 600) as monitor:
        page.goto(f"{monitor.url}/#/jobs/slow")
        verdict = page.locator(".verdict.warns")
        expect(verdict.locator(".further li").last).to_contain_text("If it stays slow, do not restart without host-0: ")
        expect(verdict.locator(".further .ways a")).to_have_text(["Other actions", "Runbook"])
        expect(page.locator(".share button")).to_have_text(["Copy link", "Download all"])
