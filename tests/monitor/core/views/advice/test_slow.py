"""What to do about a slow job: where to look, what to run there, and the order that policy and launchers permit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

import pytest

from rankwatch.cli.formatting import gpu_time
from rankwatch.contract.enums import Action, Cause, JobState, NodeRole
from rankwatch.contract.messages import NodeObservation, NodeRegistration
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import DeviceReading, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import cost_rate
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.core.views.advice import playbook
from rankwatch_monitor.core.views.advice.record import Advice
from rankwatch_monitor.core.views.advice.situation import situation
from rankwatch_monitor.core.views.throttling import Throttle, throttle_of
from rankwatch_monitor.publish.text.scores_report import scores_text
from support.windows import COMPUTE, DATA, HOST, Ranks, slower

WORK = (0.002, 0.012, 0.13)


def slow_action(job: Job) -> Advice | None:
    """The advice about a job that runs."""
    return playbook.advice(situation(job, JobState.SLOW, job.last_heard))


def slowed(part: int, rank: int = 5, *, late: float = 0.06, launchers: bool = True, **policy: object) -> Ranks:
    ranks = Ranks(32, work=WORK, launchers=launchers, policy=policy).run(20)
    return ranks.run(10, slower(rank, part, late))


@pytest.mark.parametrize(
    ("part", "cause", "words", "command"),
    [
        (DATA, Cause.DATA, "what feeds rank 5 on host-0", "py-spy dump --subprocesses --pid 1005"),
        (HOST, Cause.HOST, "the CPUs of host-0", "top -b -n 1 -o %CPU | head -20"),
        (COMPUTE, Cause.COMPUTE, "the GPU of rank 5 on host-0", "nvidia-smi -q -i 5 -d ECC,"),
    ],
)
def test_one_slow_rank_is_looked_at_where_its_cause_points(part: int, cause: Cause, words: str, command: str) -> None:
    job = slowed(part, late=0.12).job
    (straggler,) = job.performance.open_stragglers
    assert straggler.cause is cause
    found = slow_action(job)
    assert found is not None
    look, then = found.steps
    assert words in look.brief
    after, now = f"{0.75:.0%}", f"{straggler.throughput:.0%}"
    assert then.text == (
        "If it stays slow, restart without host-0: 3 of 4 nodes with the same batch per rank give "
        f"{after} of full speed, the slow job {now}."
    ).replace("%", " %")
    [order] = found.orders
    assert (order.action, order.ranks, order.hosts) == (Action.RESTART_EXCLUDING_NODE, (5,), ("host-0",))
    assert (found.proposed, found.condition, look.host) == (True, "if it stays slow", "host-0")
    assert look.command.startswith(command)


def test_the_throughput_that_is_left_is_compared_with_the_one_measured_by_the_step_times() -> None:
    job = slowed(DATA).job
    (straggler,) = job.performance.open_stragglers
    samples = job.performance.history.window()
    before, since = ([each.step for each in samples if (each.at > straggler.since) is late] for late in (False, True))
    assert (straggler.step_before, straggler.step_since) == (median(before), median(since))
    waiting = 1.0 - (straggler.stated_share or 0.0)
    assert waiting < straggler.throughput == median(before) / median(since)  # as usual, ranks waited before too
    assert proposed(job) == (
        None, (), "If it stays slow, do not restart without host-0: 3 of 4 nodes with the same batch per rank give "
        "75 % of full speed, the slow job about as much; mend host-0 or add a spare first."
    )  # fmt: skip
    straggler.step_before = 2 * median(since)  # something else has made the steps shorter
    assert straggler.throughput == waiting
    straggler.step_before = 0.5 * median(since)  # something else has made them longer
    assert straggler.throughput == waiting


def test_without_steps_from_before_the_waiting_alone_counts() -> None:
    job = Ranks(32, work=WORK, launchers=True).run(30, slower(5, DATA, 0.12)).job
    (straggler,) = job.performance.open_stragglers
    assert straggler.step_before is None
    assert straggler.throughput == 1.0 - (straggler.stated_share or 0.0)


def proposed(job: Job) -> tuple[Action | None, tuple[int, ...], str]:
    found = slow_action(job)
    assert found is not None
    assert bool(found.condition) is found.proposed is bool(found.orders)
    order = found.orders[0] if found.orders else None
    return order and order.action, order.ranks if order else (), found.steps[1].text


def test_a_restart_that_gains_nothing_is_not_advised_and_its_loss_is_stated() -> None:
    job = slowed(DATA).job
    (straggler,) = job.performance.open_stragglers
    loses = (
        "If it stays slow, do not restart without host-0: 3 of 4 nodes with the same batch per rank give 75 % of full "
        "speed, the slow job {}; mend host-0 or add a spare first."
    )
    same = "about as much"
    for share, now in ((0.18, "82 %"), (0.22, "78 %"), (0.23, same), (0.2549, same), (0.27, same), (0.29, "71 %")):
        straggler.lateness, straggler.share, straggler.step_before = 0.0, share, None
        assert proposed(job) == (None, (), loses.format(now))
    straggler.share = 0.31
    assert proposed(job)[:2] == (Action.RESTART_EXCLUDING_NODE, (5,))
    straggler.share = 0.4
    assert proposed(job)[:2] == (Action.RESTART_EXCLUDING_NODE, (5,))
    assert proposed(job)[2].endswith("give 75 % of full speed, the slow job 60 %.")
    straggler.share = None  # only its kernels are known
    assert proposed(job) == (Action.RESTART_EXCLUDING_NODE, (5,), "If it stays slow, restart without host-0.")


def test_another_slow_rank_on_a_node_that_stays_counts_and_a_spare_replaces_the_node() -> None:
    job = slowed(DATA).job
    (straggler,) = job.performance.open_stragglers
    straggler.lateness, straggler.share, straggler.step_before = 0.0, 0.4, None
    job.performance.stragglers.append(replace(straggler, id="other", rank=20, host="host-2", share=0.2))
    assert proposed(job) == (
        None, (), "If it stays slow, do not restart without host-0: 3 of 4 nodes with the same batch per rank give "
        "60 % of full speed, the slow job about as much; mend host-0 or add a spare first."
    )  # fmt: skip
    apply(job, NodeRegistration("spare", "spare", 1, 8), job.last_heard)
    apply(job, NodeObservation("spare", 0, role=NodeRole.SPARE, role_reason="enough nodes"), job.last_heard)
    assert proposed(job) == (Action.RESTART_EXCLUDING_NODE, (5,), "If it stays slow, restart without host-0.")


def test_where_too_few_nodes_would_remain_another_launcher_comes_first() -> None:
    job = slowed(DATA).job
    job.performance.open_stragglers[0].share = 0.9
    for node in job.nodes.values():
        node.registration = replace(node.registration, min_nodes=4)
    assert proposed(job) == (
        None, (), "If it stays slow, first start a launcher on another node, or start the job again with fewer: "
        "without host-0, 3 of 4 nodes remain, and no spare; the job needs at least 4 (--nnodes)."
    )  # fmt: skip


def read(ranks: Ranks, hot: Iterable[int], *reasons: str) -> None:
    """All ranks report their devices, of which those of some are throttled."""
    for rank in range(ranks.ranks):
        reading = DeviceReading(
            temperature=88.0, clock=1.2e9, clock_limit=1.98e9, throttled=reasons if rank in hot else ()
        )
        apply(ranks.job, RankReport(ranks.identity(rank), device=reading), ranks.now)


def test_a_throttled_gpu_is_named_as_the_cause_with_its_readings() -> None:
    ranks = slowed(COMPUTE)
    read(ranks, [5], "power_cap", "hw_thermal_slowdown")
    since = ranks.now
    ranks.run(1, slower(5, COMPUTE, 0.06))
    read(ranks, [5], "power_cap", "hw_thermal_slowdown")
    found = slow_action(ranks.job)
    assert found is not None
    [straggler] = ranks.job.performance.open_stragglers
    assert throttle_of(ranks.job, straggler) == Throttle(
        5, 5, ("hw_thermal_slowdown",), since, "88 °C, 1.20 of 1.98 GHz"
    )
    assert found.steps[0].text == (
        "Check the cooling of GPU 5 on host-0: it is throttled (thermal slowdown by the hardware), at 88 °C, "
        "1.20 of 1.98 GHz."
    )
    assert rankings.score_table(ranks.job, ranks.now)["throttled"]["gpu"] == "GPU 5"
    shown = job_view.summary(ranks.job, ranks.now)
    assert shown["headline"] == "Rank 5 on host-0 is slow: GPU 5 throttled; 31 ranks wait 26 % of each step"
    assert shown["advice"]["text"] == "Check the cooling of GPU 5 on host-0"


def test_what_a_slow_rank_costs_by_the_hour_is_its_share_of_the_time_of_all_ranks() -> None:
    job = slowed(COMPUTE).job
    (straggler,) = job.performance.open_stragglers
    share = straggler.stated_share
    assert share is not None
    rate = gpu_time(3600 * 32 * share)
    words = f"{rate} each hour: {share:.0%}".replace("%", " %") + " of each step of all 32 ranks"
    assert cost_rate(straggler) == rankings.score_table(job, job.created_at)["cost_rate"] == words
    assert f"GPU-minutes so far, {words}" in " ".join(scores_text(job, job.created_at).split())
    straggler.share = None  # only its kernels are known
    assert cost_rate(straggler) == ""
    assert rankings.score_table(Ranks(4, work=WORK).run(3).job, 0.0)["cost_rate"] == ""


@pytest.mark.parametrize(
    ("part", "hot", "reasons"),
    [
        (COMPUTE, [5], ["power_cap"]),
        (COMPUTE, [5], ["gpu_idle"]),
        (COMPUTE, [6], ["hw_thermal"]),
        (COMPUTE, range(32), ["hw_thermal"]),
        (DATA, [5], ["hw_thermal"]),
    ],
)
def test_throttling_that_does_not_explain_the_slow_rank_is_no_cause(
    part: int, hot: Iterable[int], reasons: list[str]
) -> None:
    ranks = slowed(part)
    read(ranks, hot, *reasons)
    found = slow_action(ranks.job)
    assert found is not None
    assert rankings.score_table(ranks.job, ranks.now)["throttled"] is None
    assert found.steps[0].brief.startswith("Look at ")
    assert "throttled" not in job_view.summary(ranks.job, ranks.now)["headline"]


def test_throttling_that_has_ended_is_no_cause() -> None:
    ranks = slowed(COMPUTE)
    read(ranks, [5], "hw_thermal")
    read(ranks, [])
    assert rankings.score_table(ranks.job, ranks.now)["throttled"] is None
    assert ranks.job.performance.throttled_since == {}


@pytest.mark.parametrize(
    ("launchers", "policy"), [(False, {}), (True, {"observe_only": True}), (True, {"max_restarts": 0})]
)
def test_no_node_is_left_out_where_policy_or_launchers_do_not_permit_it(
    launchers: bool, policy: dict[str, object]
) -> None:
    found = slow_action(slowed(COMPUTE, launchers=launchers, **policy).job)
    assert found is not None
    assert (found.orders, len(found.steps)) == ((), 1)


def test_a_healthy_job_an_ended_one_and_one_of_many_slow_ranks() -> None:
    assert slow_action(Ranks(32, work=WORK).run(20).job) is None
    ranks = Ranks(32, work=WORK, launchers=True).run(20)

    def several(_: int, work_RP: object) -> None:
        work_RP[[1, 9, 17, 25], COMPUTE] += 0.06  # type: ignore[index]

    many = slow_action(ranks.run(10, several).job)
    assert many is not None
    assert (many.rule, many.orders, many.steps[0].command) == ("slow_ranks", (), "")


def test_slow_kernels_beside_another_cause_are_a_fact_and_no_second_cause() -> None:
    ranks = Ranks(32, work=WORK).run(20)
    ranks.kernels({5: 0.7})
    ranks.run(10, slower(5, DATA, 0.06))
    (straggler,) = ranks.performance.open_stragglers
    assert straggler.cause is Cause.DATA
    assert straggler.score == pytest.approx(0.7, abs=0.03)
    assert "(section 'data'); its kernels are slower than its peers' too (GPU score 0.70)" in straggler.reason
    assert "of it." in straggler.reason
    plain = slowed(DATA).performance.open_stragglers[0]
    assert "kernels" not in plain.reason
    assert (plain.section, round(plain.own, 2), round(plain.peers, 3)) == ("data", 0.06, 0.002)
