"""Scenes of stragglers are what they say: synchronous, repeatable, with known answers, and rightly judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankwatch.contract.enums import Cause, Part, StragglerVerdict
from rankwatch_monitor.core.events import RankReport
from support.simulator.straggler_outcome import StragglerOutcome, evaluate
from support.simulator.straggler_plan import NO_CULPRIT, Layout, Slow, Slowdown, StragglerPlan, random_plan
from support.simulator.straggler_scene import StragglerScene

QUIET = StragglerPlan(
    world=16, layout=Layout(tensor=2, pipeline=2), ranks_a_host=2, noise=0.0, unlike=0.0, tails=0.0, windows=3
)


def reports(plan: StragglerPlan) -> list[list[RankReport]]:
    return [some for _, some in StragglerScene(plan).windows()]


def part(plan: StragglerPlan, which: Part) -> dict[int, float]:
    """A part of the last profiled step, by rank."""
    return {r.identity.rank: r.window.parts[which] for r in reports(plan)[-1] if r.window is not None}


def slowed(slow: Slow, dose: float = 0.3, **habits: object) -> StragglerPlan:
    return replace(QUIET, fault=Slowdown(slow, dose, (5,)), **habits)  # type: ignore[arg-type]


# The model ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [None, *Slow])
def test_all_ranks_steps_take_equally_long_and_parts_add_up(slow: Slow | None) -> None:
    plan = replace(QUIET, noise=0.05, fault=None if slow is None else Slowdown(slow, 0.3, (5,)))
    for some in reports(plan):
        sums = [sum(r.window.parts.values()) for r in some if r.window is not None]
        assert len(sums) == plan.world
        assert np.ptp(sums) < 1e-9
        shown = [r.window.sections["step"].max for r in some if r.window]
        assert np.ptp(shown) < 1e-9


def test_a_healthy_step_takes_what_the_plan_states() -> None:
    for layout in (Layout(), Layout(tensor=2), Layout(pipeline=4), Layout(tensor=2, pipeline=2, expert=2)):
        (report, *_) = reports(replace(QUIET, layout=layout))[0]
        assert report.window is not None
        assert sum(report.window.parts.values()) == pytest.approx(QUIET.step)


@pytest.mark.parametrize(
    ("slow", "grown"),
    [(Slow.COMPUTE, Part.COMPUTE), (Slow.HOST, Part.HOST), (Slow.INPUT, Part.DATA), (Slow.BACKWARD, Part.COMPUTE)],
)
def test_the_dose_is_what_the_others_wait(slow: Slow, grown: Part) -> None:
    plan = slowed(slow)
    own, waiting = part(plan, grown), part(plan, Part.COMMUNICATION)
    healthy = part(plan.healthy(), Part.COMMUNICATION)
    assert own[5] - own[6] == pytest.approx(0.3 * plan.step)
    assert waiting[5] == pytest.approx(healthy[5], rel=0.02)
    others = [rank for rank in waiting if rank != 5]
    assert min(waiting[r] - healthy[r] for r in others) >= 0.29 * plan.step


def test_backward_shows_the_waiting_and_step_shows_nothing() -> None:
    some = reports(slowed(Slow.HOST))[-1]
    backward = [r.window.sections["backward"].median for r in some if r.window]
    step = [r.window.sections["step"].median for r in some if r.window]
    assert min(backward) == backward[5]
    assert np.ptp(step) < 1e-9


def test_half_of_the_calls_do_not_show_in_the_median() -> None:
    some = reports(slowed(Slow.HALF, windows=5))[-1]
    kernels = [r.kernels["kernel_0_<128,1,1>"] for r in some if r.kernels]
    assert len(kernels) == 16
    assert kernels[5].median == pytest.approx(kernels[6].median, rel=0.01)
    assert kernels[5].tail > 1.5 * kernels[6].tail


def test_a_slow_link_is_long_for_all_its_members_and_no_rank_is_late() -> None:
    plan = slowed(Slow.LINK)
    shortest: dict[str, set[float]] = {}
    for report in reports(plan)[-1]:
        assert report.window is not None
        for group, reported in report.window.collectives.items():
            if group.startswith("dp"):
                shortest.setdefault(group, set()).add(round(reported.shortest, 9))
    (slow,) = [group for group, values in shortest.items() if min(values) > 2 * min(map(min, shortest.values()))]
    assert len(shortest) == 4
    assert slow
    for each in (Part.COMPUTE, Part.HOST, Part.DATA):
        assert np.ptp(list(part(plan, each).values())) < 1e-9


def test_it_is_the_same_each_time_and_another_with_another_seed() -> None:
    plan = random_plan(Slow.COMPUTE, 0.1, 8, seed=3, windows=3)
    assert reports(plan) == reports(plan)
    assert reports(plan) != reports(replace(plan, seed=4))


def test_ranks_are_numbered_as_megatron_numbers_them() -> None:
    data_R, tensor_R, pipeline_R, expert_R = Layout(tensor=2, pipeline=2, expert=2).coordinates(8)
    assert tensor_R.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert data_R.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert pipeline_R.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert expert_R.tolist() == data_R.tolist()


def test_a_layout_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="10 ranks cannot be laid out"):
        StragglerPlan(world=10, layout=Layout(tensor=4))
    with pytest.raises(ValueError, match="several"):
        StragglerPlan(fault=Slowdown(Slow.STAGE, 0.1))


@pytest.mark.parametrize("slow", Slow)
def test_the_answer_names_ranks_only_for_their_own_fault(slow: Slow) -> None:
    answer = slowed(slow).answer()
    whole_host = slow in (Slow.HOST_COMPUTE, Slow.NODE)
    assert answer.ranks == frozenset(() if slow in NO_CULPRIT else (4, 5) if whole_host else (5,))
    assert slowed(slow).healthy().answer().verdict is StragglerVerdict.HEALTHY


# How they are judged --------------------------------------------------------------------------------------------------


def silent(outcome: StragglerOutcome) -> None:
    """Nothing was raised."""
    assert (outcome.verdict, outcome.blamed, outcome.alarms) == (StragglerVerdict.HEALTHY, frozenset(), 0), (
        outcome.reason
    )


@pytest.mark.parametrize("world", [8, 64])
@pytest.mark.parametrize("slow", Slow)
def test_each_fault_is_judged_rightly_and_its_twin_is_silent(slow: Slow, world: int) -> None:
    plan = random_plan(slow, 0.2, world, seed=3)
    answer, outcome = plan.answer(), evaluate(plan)
    assert outcome.verdict is answer.verdict, outcome.reason
    assert outcome.blamed == answer.ranks
    assert outcome.cause_right in (None, True)
    assert all(latency <= 20 for latency in outcome.latencies)
    silent(evaluate(plan.healthy()))


def test_one_rank_at_nine_tenths_among_512_is_named_in_time() -> None:
    """P17 with one seed; ``benchmarks/scoreboard.py`` has them all."""
    outcome = evaluate(random_plan(Slow.COMPUTE, 0.1, 512, seed=2, noise=0.02, windows=34))
    assert (len(outcome.right), outcome.alarms, outcome.cause_right) == (1, 0, True)
    assert max(outcome.latencies) <= 20


def test_the_cause_is_named_only_where_there_is_one() -> None:
    assert slowed(Slow.HOST).answer().cause is Cause.HOST
    assert slowed(Slow.INPUT).answer().cause is Cause.DATA
    assert slowed(Slow.LINK).answer().cause is None
