"""Limits in force, where they come from, and what ranks, files and people receive of them."""

from __future__ import annotations

import json
from typing import Any

from rankwatch.contract import ft_state
from rankwatch.contract.enums import LimitSource
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.limits import RankActivity
from rankwatch.contract.messages import read
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.events import RankIdentity, RankReport, SectionStatistics
from rankwatch_monitor.core.hang.limits import changed_noticeably, in_force, state_to_keep, table
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.core.job import Job


def policy(**changes: Any) -> Policy:
    return Policy().changed(changes)


def taught(step: float = 0.5, **longest: float) -> ObservedDurations:
    durations = ObservedDurations()
    for name, seconds in {"step": step, **longest}.items():
        durations.add_runs(name, 16)
        durations.add_longest(name, seconds, first=20 * seconds)
    return durations


def test_what_an_operator_configured_is_in_force() -> None:
    limits = in_force(policy(section_timeouts={"step": 10}, heartbeat_timeout=None))
    assert dict(limits.rank.sections) == {"step": 10.0}
    assert limits.rank.heartbeat is None
    assert limits.initial_heartbeat == 1800.0
    assert limits.silence == 60.0
    assert limits.rank.of_section("step", first=False) == (10.0, LimitSource.CONFIGURED)


def test_a_learned_limit_is_five_times_the_longest_seen() -> None:
    limits = in_force(policy(), taught(step=4.0))
    assert limits.rank.of_section("step", first=False) == (20.0, LimitSource.LEARNED)
    assert limits.rank.of_section("step", first=True) == (1800.0, LimitSource.FIRST_TIME)


def test_a_learned_limit_is_never_below_the_minimum() -> None:
    assert in_force(policy(), taught(step=0.1)).rank.learned == {"step": 2.5}
    assert in_force(policy(learned_minimum=2, learned_factor=3), taught(step=0.1)).rank.learned == {"step": 2.0}


def test_a_learned_limit_of_a_short_section_is_never_below_five_steps() -> None:
    durations = taught(step=4.0, data=0.1)
    durations.steps, durations.step_seconds = 100, 250.0
    assert in_force(policy(), durations).rank.learned == {"step": 20.0, "data": 12.5}


def test_the_step_of_a_report_counts_for_the_mean() -> None:
    durations = ObservedDurations()
    report = RankReport(RankIdentity("job", 0), finished={"step": SectionStatistics(4, 6.0, 1.0, 2.0)})
    durations.observe(report)
    assert durations.mean_step() == 1.5
    assert read(ObservedDurations, durations.to_json(), own=True).mean_step() == 1.5


def test_a_configured_limit_goes_before_a_learned_one() -> None:
    limits = in_force(policy(section_timeouts={"step": 300}), taught(step=4.0, data=3.0))
    assert limits.rank.of_section("step", first=False) == (300.0, LimitSource.CONFIGURED)
    assert dict(limits.rank.learned) == {"data": 15.0}


def test_where_timeouts_are_to_be_calculated_a_learned_limit_applies_beside_a_longer_configured_one() -> None:
    calculated = policy(section_timeouts={"step": 300, "save": 9}, calculate_timeouts=True)
    rank = in_force(calculated, taught(step=4.0, save=4.0)).rank
    assert rank.of_section("step", first=False) == (300.0, LimitSource.CONFIGURED)
    assert rank.without_progress("step", first=False) == (20.0, LimitSource.LEARNED)
    assert rank.of_section("save", first=False) == (9.0, LimitSource.CONFIGURED)
    assert rank.without_progress("save", first=False)[0] is None, "20 s would come later"
    activity = RankActivity(open_sections={"step": 301.0}, quiet=301.0)
    assert {(check.limit, check.source) for check in rank.checks(activity)} == {
        (300.0, LimitSource.CONFIGURED),
        (20.0, LimitSource.LEARNED),
    }


def test_a_loaded_limit_goes_before_a_configured_one() -> None:
    durations = ObservedDurations()
    durations.load(LearnedTimeouts({"step": 40.0, "setup": 90.0}, 25.0, 700.0, 70.0))
    limits = in_force(policy(section_timeouts={"step": 300, "other": 9}), durations)
    assert dict(limits.rank.sections) == {"other": 9.0}
    step, source = limits.rank.of_section("step", first=False)
    assert (step, limits.source_of("step", source)) == (40.0, LimitSource.LOADED)
    assert (limits.rank.out_of_section, limits.out_of_section_source) == (25.0, LimitSource.LOADED)
    assert (limits.rank.heartbeat, limits.heartbeat_source) == (70.0, LimitSource.LOADED)
    assert limits.initial_heartbeat == 700.0


def test_a_loaded_limit_and_one_learned_now_are_merged_half_and_half() -> None:
    durations = taught(step=4.0)
    durations.load(LearnedTimeouts({"step": 40.0}))
    limits = in_force(policy(), durations)
    step, source = limits.rank.of_section("step", first=False)
    assert (step, limits.source_of("step", source)) == (30.0, LimitSource.LEARNED)


def test_a_loaded_limit_is_raised_to_what_this_run_has_shown() -> None:
    """The file may be of a smaller model. A limit that each step passes would end the job again and again."""
    durations = ObservedDurations()
    durations.load(LearnedTimeouts({"step": 12.0, "data": 12.0}))
    durations.add_longest("step", first=95.0)
    assert in_force(policy(), durations).rank.learned == {"step": 95.0, "data": 12.0}
    durations.add_longest("step", 80.0)
    assert in_force(policy(), durations).rank.learned == {"step": 400.0, "data": 12.0}
    durations.add_runs("step", 100)
    assert in_force(policy(), durations).rank.learned == {"step": 206.0, "data": 12.0}, "the mean, once it is known"


def test_with_learning_off_only_what_was_configured_counts() -> None:
    limits = in_force(policy(section_timeouts={"data": 7}, learn_timeouts=False), taught())
    assert dict(limits.rank.learned) == {}
    assert limits.rank.first_time is None
    assert limits.rank.of_section("step", first=False)[0] is None
    durations = taught()
    durations.load(LearnedTimeouts({"step": 40.0}, 25.0, 700.0, 70.0))
    limits = in_force(policy(section_timeouts={"step": 7}, learn_timeouts=False), durations)
    assert limits.rank.of_section("step", first=False) == (7.0, LimitSource.CONFIGURED)
    assert (limits.rank.out_of_section, limits.rank.heartbeat) == (None, 300.0)


def test_a_first_run_that_is_known_to_be_long_gets_a_longer_limit() -> None:
    limits = in_force(policy(first_time_timeout=60), taught(step=4.0))  # its first run took 80 s
    assert limits.rank.of_section("step", first=True) == (400.0, LimitSource.FIRST_TIME)
    assert limits.rank.of_section("unknown", first=True) == (60.0, LimitSource.FIRST_TIME)


def test_ranks_are_sent_the_limits_that_they_can_pass_by_themselves() -> None:
    limits = in_force(policy(section_timeouts={"step": 10}, out_of_section_timeout=5), taught(data=3.0))
    assert json.loads(json.dumps(limits.rank.to_settings())) == {
        "limits": {
            "sections": {"step": 10.0},
            "heartbeat": 300.0,
            "heartbeat_outside": True,
            "out_of_section": 5.0,
            "learned": {"data": 15.0},
            "first_time": 1800.0,
            "first_times": {},
        }
    }


def test_the_default_heartbeat_limit_counts_where_no_section_has_a_limit() -> None:
    assert in_force(policy()).rank.heartbeat_outside
    assert not in_force(policy(heartbeat_timeout=20)).rank.heartbeat_outside
    assert not in_force(policy(learn_timeouts=False)).rank.heartbeat_outside
    assert not in_force(policy(first_time_timeout=None)).rank.heartbeat_outside


def test_small_changes_of_learned_limits_are_not_changed_noticeably() -> None:
    reported = in_force(policy(), taught(step=10.0)).rank
    assert not changed_noticeably(reported, in_force(policy(), taught(step=10.9)).rank)
    assert changed_noticeably(reported, in_force(policy(), taught(step=11.2)).rank)
    assert changed_noticeably(reported, in_force(policy(), taught(step=10.0, data=1.0)).rank)
    assert changed_noticeably(reported, in_force(policy(heartbeat_timeout=20), taught(step=10.0)).rank)


def job(policy: Policy, durations: ObservedDurations | None = None) -> Job:
    job = Job("j", 0.0, policy=policy)
    job.durations = durations or ObservedDurations()
    return job


def test_the_table_names_every_limit_once_with_its_value() -> None:
    rows = table(policy(section_timeouts={"step": 10, "load": 3}), ObservedDurations())
    assert [(r["what"], r["section"]) for r in rows] == [
        ("section", "load"),
        ("section", "step"),
        ("out_of_section", None),
        ("heartbeat", None),
        ("initial_heartbeat", None),
        ("silence", None),
        ("first_time", None),
    ]
    of_sections, others = rows[:2], rows[2:]
    assert all(r["in_force"] == r["configured"] and r["source"] == "configured" for r in of_sections)
    assert {(r["in_force"], r["configured"], r["source"]) for r in others if r["what"] != "out_of_section"} == {
        (300.0, None, "default"),
        (1800.0, None, "default"),
        (60.0, None, "default"),
    }


def test_a_limit_that_was_set_is_configured_and_one_of_an_earlier_run_is_loaded() -> None:
    durations = ObservedDurations()
    durations.load(LearnedTimeouts(initial_heartbeat=40.0, heartbeat=20.0))
    given = {"silence_timeout": 61.0, "out_of_section_timeout": 5.0, "first_time_timeout": 90.0}
    rows = {row["what"]: row for row in table(policy(**given), durations)}
    assert all(
        (rows[what]["source"], rows[what]["configured"]) == ("configured", given[f"{what}_timeout"])
        for what in ("silence", "out_of_section", "first_time")
    )
    assert (rows["initial_heartbeat"]["source"], rows["initial_heartbeat"]["in_force"]) == ("loaded", 40.0)
    assert (rows["heartbeat"]["source"], rows["heartbeat"]["in_force"]) == ("loaded", 20.0)


def test_the_table_reports_configured_learned_loaded_and_which_is_in_force() -> None:
    durations = taught(step=4.0, data=3.0)
    durations.load(LearnedTimeouts({"data": 25.0}))
    durations.add_longest("evaluation", first=9.0)
    rows = {r["section"]: r for r in table(policy(section_timeouts={"step": 300}), durations) if r["section"]}
    picked = ("configured", "learned", "loaded", "in_force", "source")
    assert tuple(rows["step"][key] for key in picked) == (300.0, 20.0, None, 300.0, "configured")
    assert tuple(rows["data"][key] for key in picked) == (None, 15.0, 25.0, 20.0, "learned")
    assert tuple(rows["evaluation"][key] for key in picked) == (None, None, None, 1800.0, "first_time")


def test_nothing_is_kept_before_anything_was_learned() -> None:
    assert state_to_keep(policy(section_timeouts={"step": 10}), ObservedDurations(), at_end=True) == {}


def test_what_is_kept_reads_back_as_it_was() -> None:
    durations = taught(step=4.0)
    durations.add_longest("setup", first=30.0)
    durations.add_idle(6.0)
    during = state_to_keep(policy(section_timeouts={"load": 8}), durations, at_end=False)
    assert ft_state.read(json.loads(json.dumps(during))) == LearnedTimeouts({"step": 20.0})
    assert during["current_timeouts"]["section"]["section"]["load"] == 8.0
    at_end = ft_state.read(state_to_keep(policy(), durations, at_end=True))
    assert at_end.out_of_section == 30.0, "learned only from a whole run"
    assert "setup" not in at_end.sections, "this run did not load a checkpoint"


def test_setup_is_kept_when_it_has_loaded_a_checkpoint() -> None:
    durations = taught(step=4.0)
    durations.add_longest("setup", first=30.0)
    durations.resumed = True
    assert ft_state.read(state_to_keep(policy(), durations, at_end=False)).sections["setup"] == 150.0


def test_the_time_outside_is_not_kept_of_a_run_without_setup_or_steps() -> None:
    durations = taught(step=4.0)
    durations.add_idle(6.0)
    assert ft_state.read(state_to_keep(policy(), durations, at_end=True)).out_of_section is None


def test_the_time_outside_is_not_kept_when_no_rank_reported_it() -> None:
    """Other emitters send finished sections, and nothing of the time between them."""
    durations = taught()
    durations.add_runs("setup", 4)
    assert state_to_keep(policy(), durations, at_end=True)["current_timeouts"]["section"]["out_of_section"] is None
    durations.add_idle(3.0)
    assert state_to_keep(policy(), durations, at_end=True)["current_timeouts"]["section"]["out_of_section"] == 15.0


def test_what_was_loaded_is_kept_also_when_this_run_learned_nothing_of_it() -> None:
    durations = ObservedDurations()
    durations.load(LearnedTimeouts({"evaluation": 77.0}, 25.0))
    kept = ft_state.read(state_to_keep(policy(), durations, at_end=True))
    assert kept == LearnedTimeouts({"evaluation": 77.0}, 25.0)


def test_limits_are_made_again_when_the_policy_or_the_learned_durations_change() -> None:
    watched = job(policy(), taught(step=4.0))
    assert watched.limits is watched.limits
    watched.durations.add_longest("step", 8.0)
    assert watched.limits.rank.learned == {"step": 40.0}
    watched.policy = policy(learned_factor=2)
    assert watched.limits.rank.learned == {"step": 16.0}
