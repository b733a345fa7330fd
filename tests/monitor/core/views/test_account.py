"""What "healthy" rests on, and the account of a run that finished; nothing of a job in trouble."""

from __future__ import annotations

from monitor.core.accounted import account
from monitor.core.scene import Scene
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import DeviceReading, RankReport
from rankwatch_monitor.core.views import rankings
from support.windows import COMPUTE, Ranks, slower


def test_a_healthy_job_states_its_step_its_slowest_rank_and_its_devices() -> None:
    ranks = Ranks(8, work=(0.002, 0.012, 0.13)).run(6)
    for rank in range(8):
        reading = DeviceReading(memory_used=60e9 + rank * 1e9, memory_total=80e9, clock=1.98e9)
        apply(ranks.job, RankReport(ranks.identity(rank), device=reading), ranks.now)
    found = account(ranks.job, ranks.now)
    assert found[0].startswith("a step takes 1")
    assert found[0].endswith(" ms, as usual")
    assert found[1].startswith("the others wait at most ")
    assert rankings.score_table(ranks.job, ranks.now)["finding"].reason == f"No straggler: {found[1]}."
    assert found[1].endswith(" (a straggler from 5 % on)")
    assert found[2:4] == ["at most 83.8 % of a GPU's memory is used", "no GPU is throttled"]


def test_one_step_that_takes_longer_is_not_as_usual_and_a_throttled_gpu_is_counted() -> None:
    ranks = Ranks(8, work=(0.002, 0.012, 0.13)).run(8)
    ranks.work = (0.002, 0.012, 0.16)
    ranks.run(1)
    reading = DeviceReading(clock=1.2e9, throttled=("hw_thermal_slowdown",))
    apply(ranks.job, RankReport(ranks.identity(0), device=reading), ranks.now)
    found = account(ranks.job, ranks.now)
    assert found[0].endswith(" ms")
    assert "1 GPU throttled" in found


def test_steps_that_take_longer_are_compared_with_those_before_however_few() -> None:
    ranks = Ranks(8, work=(0.002, 0.012, 0.06)).run(2)
    ranks.work = (0.002, 0.012, 0.16)
    ranks.run(12)
    assert "times as long as before" in account(ranks.job, ranks.now)[0]


def test_a_job_in_trouble_has_no_such_account() -> None:
    ranks = Ranks(16, work=(0.002, 0.012, 0.13)).run(5)
    ranks.run(6, slower(5, COMPUTE, 0.06))
    assert ranks.job.performance.open_stragglers
    assert account(ranks.job, ranks.now) == []
    assert "No straggler" not in rankings.score_table(ranks.job, ranks.now)["finding"].reason
    hung = Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found()
    assert account(hung.job, hung.now) == []


def test_a_rank_that_stops_is_found_after_the_limit_in_force_unless_detection_is_off() -> None:
    scene = Scene(4, hosts=2).run(20)
    assert account(scene.job, scene.now) == [
        "a step takes 1.00 s",
        "a rank that stops in a step passes a limit after 10 s at the latest",
    ]
    scene.job.policy = scene.job.policy.changed({"detection": False})
    assert account(scene.job, scene.now) == ["a step takes 1.00 s"]


def test_a_run_that_finished_has_steps_time_cost_goodput_and_incidents() -> None:
    calm = Scene(4, hosts=2).run(100)
    calm.finish()
    steps, *rest = account(calm.job, calm.now)
    assert steps.endswith(" on 4 ranks (6.7 GPU-minutes)")
    assert f"{calm.job.furthest_iteration} steps in 1 min 4" in steps
    assert rest[-1] == "no incident, no restart"
    struck = Scene(4, hosts=2).run(30).hang(2)
    struck.until(lambda: struck.state == "restarting")
    struck.run(60).finish()
    survived = account(struck.job, struck.now)[-1]
    assert survived.startswith("1 incident survived at a cost of ")
    assert survived.endswith(" s, 1 restart")


def test_ranks_that_shut_down_without_a_launcher_have_finished_too() -> None:
    ranks = Ranks(4, work=(0.002, 0.012, 0.13)).run(3)
    for rank in range(4):
        apply(ranks.job, RankReport(ranks.identity(rank), ended=True), ranks.now)
    [steps, *_, last] = account(ranks.job, ranks.now)
    assert ranks.job.ended is None
    assert " on 4 ranks (" in steps
    assert last == "no incident, no restart"
