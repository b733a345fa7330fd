"""Pages of a node and of a parallel group, the ways to them, and the map of all nodes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from monitor.core.scene import Scene
from rankwatch.contract.enums import Cause, ScoreReference
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import node_view
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.web import static_folder
from support.browser import box_of
from support.waiting import wait_for
from web.scripted_monitor import CLOCK, Script
from web.staged import stage

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)

FITS = "[...document.querySelectorAll('.scroll')].every((each) => each.scrollWidth <= each.clientWidth)"
"""No table is wider than its place."""


@pytest.fixture
def staged(script: Script) -> Script:
    """Rank 2 of ``one`` hangs on host-1; ``two`` runs on host-0 too. Two stages of two ranks."""
    one = Scene(4, hosts=2, job_id="one", on_hang="log").run(20)
    performance = one.job.performance
    performance._grow(4)
    for rank in range(4):
        performance.layout.data_R[rank], performance.layout.pipeline_R[rank] = rank % 2, rank // 2
    performance.readings[2] = DeviceReading(temperature=81.0, utilization=0.0, throttled=("thermal",))
    one.hang(2).until_found()
    one.run(2)
    two = Scene(2, hosts=1, job_id="two")
    two.run(20).now = one.now
    stage(script, [one, two])
    script.pipeline = 2
    return script


def test_a_node_is_reached_from_the_rank_table_and_shows_what_runs_there(
    page: Page, monitor_url: str, staged: Script
) -> None:
    page.goto(f"{monitor_url}/#/jobs/one")
    page.get_by_role("region", name="Ranks, worst first").get_by_role("link", name="host-1").first.press("Enter")
    expect(page).to_have_url(re.compile("#/nodes/host-1$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Node host-1")
    expect(page.locator(".standing")).to_have_text(
        "host-1 was named in 1 incident of 1 job in 24\u202fh: one job alone is no sign of a fault of the node."
    )
    expect(page.locator(".place h2")).to_have_text(re.compile("^Jobs here"))
    expect(page.locator(".place .gpus > summary")).to_contain_text("GPUs")
    rows = page.get_by_role("region", name=re.compile("^Ranks of")).get_by_role("row")
    expect(rows.nth(1)).to_contain_text("hung")
    expect(rows.nth(1)).to_contain_text("81 °C, 0 % busy, throttled: thermal")
    expect(page.locator(".of-job .what")).to_have_text(
        re.compile(r"one: Restart the ranks: nothing restarts them by itself\. If it hangs again, restart without")
    )
    expect(page.locator(".of-job .what a")).to_have_attribute("href", "#/jobs/one")
    expect(page.get_by_text("Launcher node-1, process 10: active; last message")).to_be_visible()
    incidents = page.locator(".named")
    incidents.get_by_role("link", name=re.compile("Rank 2")).click()
    expect(page).to_have_url(re.compile("#/jobs/one/incidents/"))
    page.get_by_role("definition").get_by_role("link", name="host-1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Node host-1")


def test_a_silent_launcher_a_job_that_ended_and_ranks_that_are_alike_are_stated_in_a_line_each(
    page: Page, monitor_url: str, script: Script
) -> None:
    hung = Scene(16, hosts=2, job_id="hung", on_hang="log").run(20)
    for rank in range(8, 16):
        hung.job.performance.readings[rank] = DeviceReading(temperature=60.0 + rank % 3, power=640.0)
    hung.hang(13).until_found()
    silent = Scene(16, hosts=2, job_id="silent", on_hang="log").run(20)
    silent.cut_host(1).run(25)
    over = Scene(16, hosts=2, job_id="over").run(20)
    over.finish()
    hung.now = over.now = silent.now
    stage(script, [silent, hung, over])
    page.goto(f"{monitor_url}/#/nodes/host-1")
    jobs = page.locator(".node-jobs tbody tr")

    def of(job: str) -> Locator:
        return jobs.filter(has=page.locator(".job .code", has_text=re.compile(f"^{job}$")))

    expect(jobs).to_have_count(3)
    expect(of("silent").locator(".why p")).to_have_text(
        "Node host-1 has not been heard; its 8 ranks and its launcher are silent"
    )
    expect(page.locator(".of-launchers .gone")).to_have_text(
        re.compile(r"^Launcher node-1, process 10: last state active, not heard for 2\d\u202fs \(since .*\)\.$")
    )
    expect(of("hung").locator(".standing-of")).to_have_text([re.compile("hung 13$"), re.compile("7 waiting$")])
    expect(of("hung")).to_contain_text(re.compile("60–62.°C, 640.W"))
    expect(page.locator(".node-jobs h2")).to_have_text("Jobs here 2")
    expect(page.locator(".node-jobs [data-over]")).to_contain_text(re.compile("(\\d+\u202fs|just now).*8 finished"))
    expect(page.get_by_text("Launcher node-1, process 10: active; ended: finished.")).to_be_visible()


def test_a_bad_gpu_is_named_with_what_to_run_and_stands_before_those_that_are_alike(
    page: Page, monitor_url: str, script: Script
) -> None:
    scenes = [Scene(16, hosts=2, job_id=job).run(20) for job in ("one", "two")]
    for scene in scenes:
        for rank in range(8, 16):
            scene.job.performance.readings[rank] = DeviceReading(temperature=60.0 + rank % 3)
        scene.die(13, exit_code=1, message="CUDA error").run(1)
    stage(script, scenes)
    page.goto(f"{monitor_url}/#/nodes/host-1")
    expect(page.locator(".standing")).to_have_text(
        "GPU 5 of host-1, rank 13: 2 crashes in 2 jobs. The error is the same each time."
    )
    expect(page.get_by_text("Ranks report in 2 of 2 jobs.")).to_be_visible()
    gpu = "nvidia-smi -q -i 5 -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE,TEMPERATURE"
    expect(page.locator(".todo code")).to_have_text([gpu, "dmesg -T | grep -i xid"])
    rows = page.get_by_role("region", name="GPUs of host-1").locator("tbody tr")
    expect(rows.locator("th")).to_have_text(["GPU 5", "GPUs 0–4, 6, 7show 7"])
    expect(rows.first).to_contain_text(re.compile("2 crashes in 2 jobs.*dead rank 13 of one process \\d+.*61.°C"))
    expect(rows.last).to_contain_text(re.compile("no fault.*waiting in one, two.*60–62.°C"))
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".gpus thead")).to_be_hidden()
    expect(rows.last.locator(".on")).to_have_css("display", "block")
    page.wait_for_function(FITS)
    rows.last.get_by_role("button", name="7 alike: show each").click()
    expect(rows).to_have_count(8)
    rows.first.get_by_role("link", name="rank 13 of two").click()
    expect(page).to_have_url(re.compile(r"#/jobs/two\?rank=13$"))


def test_a_slow_rank_on_a_gpu_and_the_age_of_its_reading_are_shown(
    page: Page, monitor_url: str, script: Script
) -> None:
    scene = Scene(4, hosts=2, job_id="one").run(20)
    performance = scene.job.performance
    performance._grow(4)
    slow = Straggler("s", 3, "host-1", "0", Cause.DATA, ScoreReference.ROBUST, "Slow input.", scene.now, 0, share=0.4)
    performance.stragglers.append(slow)
    for rank in range(4):
        performance.readings[rank], performance.read_at[rank] = DeviceReading(temperature=60.0), scene.now - 90
    stage(script, [scene])
    page.goto(f"{monitor_url}/#/nodes/host-1")
    row = page.get_by_role("region", name="GPUs of host-1").locator("tr", has_text="GPU 1")
    expect(row.locator(".faults")).to_have_text(
        re.compile(rf"^no faultin one, rank 3 is slow in its input \(not the GPU\) since {CLOCK}$")
    )
    expect(row.locator(".device")).to_have_text(re.compile("^60.°C, 1.min ago$"))


def test_what_to_do_on_a_node_names_job_and_process_and_fills_the_button_that_its_text_recommends(
    page: Page, monitor_url: str, script: Script
) -> None:
    hung = [Scene(4, hosts=2, job_id=name, on_hang="log").run(20).hang(3).until_found() for name in ("one", "two")]
    for scene in hung:
        scene.run(5)  # until the stacks are there
    again = Scene(4, hosts=2, job_id="again")
    again.run(int(hung[0].now - again.now) - 1).die(2, exit_code=1).run(1)
    stage(script, [*hung, again])
    now = hung[0].now
    jobs = [scene.job for scene in (*hung, again)]
    activity = HostActivity({job.id: job for job in jobs})
    script.answers["/nodes/host-1"] = plain(node_view.one_node(jobs, "host-1", now, activity))
    page.goto(f"{monitor_url}/#/nodes/host-1")
    expect(page.locator(".job-state")).to_have_text(re.compile("^suspect Ranks report in 3 of 3 jobs"))
    todo = page.get_by_role("region", name="What to do about this node")
    expect(todo.locator(".run", has_text="py-spy")).to_contain_text("rank 3 of one")
    of_jobs = page.locator("details", has_text="What to do in 3 jobs").first
    expect(of_jobs.get_by_role("button", name="Restart without host-1 … (one)")).to_have_class("go")
    waits = of_jobs.locator("details .of-job")
    expect(waits).to_be_hidden()
    of_jobs.get_by_text("Nothing to do yet in job again").click()
    expect(waits).to_contain_text("Nothing to do: the launchers restart the ranks")
    expect(of_jobs.get_by_role("link", name="Runbook")).to_have_attribute("href", "/manual/runbook.html")


def test_a_node_uses_the_width_of_the_screen(page: Page, monitor_url: str, staged: Script) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{monitor_url}/#/nodes/host-1")
    wait_for(lambda: box_of(page.locator(".node-jobs .scroll"))["width"] > 1300, "the table is wide")
    page.wait_for_function(FITS)


def test_the_map_has_a_cell_for_every_node_and_leads_to_its_page(page: Page, monitor_url: str, staged: Script) -> None:
    page.goto(monitor_url)
    field = page.get_by_role("application", name="2 nodes by the worst rank: 1 hung, 1 waiting")
    expect(field.locator("canvas")).to_be_visible()
    expect(page.get_by_text("incidents 1")).to_be_visible()
    field.focus()
    page.keyboard.press("n")
    expect(page.locator("#heat-keys")).to_contain_text("host-1")
    expect(page.locator("#heat-keys")).to_contain_text("2 ranks, the worst hung")
    expect(page.locator("#heat-keys")).to_contain_text("named by 1 incident")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Node host-1")


def test_two_thousand_nodes_make_no_elements(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8)
    hosts = [[f"node-{number:05}", 1 if number % 90 else 3, 8, int(number % 300 == 0), [0]] for number in range(2048)]
    script.answers["/nodes"] = {
        "legend": node_view.LEGEND, "jobs": [{"id": "j", "name": "j"}], "total": 2048, "hosts": hosts,
    }  # fmt: skip
    page.goto(monitor_url)
    expect(page.get_by_role("application", name=re.compile("2,048 nodes by the worst rank: 23 hung"))).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < 500


def test_the_digest_tells_the_time_in_the_address_and_leads_to_incidents(
    page: Page, monitor_url: str, staged: Script
) -> None:
    page.goto(monitor_url)
    section = page.locator(".digest")
    expect(section.locator("summary")).to_contain_text("The last 12 h: 1 incident in 1 job")
    expect(section.get_by_text("The monitor was started later; what happened while none ran")).to_be_visible()
    with page.expect_request(re.compile(r"/digest\?last=86400$")):
        section.get_by_label("Digest of").select_option("24")
    expect(page).to_have_url(re.compile(r"#/\?hours=24$"))
    page.reload()
    section.get_by_role("link", name=re.compile("Rank 2")).first.click()
    expect(page).to_have_url(re.compile("#/jobs/one/incidents/"))


@pytest.mark.parametrize("jobs", [8, 200])
def test_the_counts_of_last_night_stand_on_the_first_screen(
    page: Page, monitor_url: str, staged: Script, jobs: int
) -> None:
    for number in range(jobs):
        staged.add(f"run-{number}", ["running"] * 8)
    page.goto(monitor_url)
    expect(page.locator(".fleet .jobs > li")).to_have_count(jobs + 2)
    summary = page.locator(".digest summary")
    expect(summary).to_be_in_viewport()
    assert box_of(summary)["height"] < 60
    expect(page.locator('.jobs li[data-state="hung"]')).to_be_in_viewport()
