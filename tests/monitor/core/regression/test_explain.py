"""Why steps take another time: one scene for each reason, each with its twin in which nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.core.steps import PERIOD, START, Steps
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.regression.change_points import LEAST
from rankwatch_monitor.core.regression.comparison import Evidence
from rankwatch_monitor.core.regression.explain import Explanation, KnownSlow, explain
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import policy_changes

BEFORE, AFTER = 90, 60
CHANGED = START + BEFORE * PERIOD
THERMAL = "thermal slowdown by the hardware"
SLOWED = ("hw_thermal_slowdown",)


def judged(change: Callable[[Steps], None], steps: Steps | None = None, at: float | None = None) -> Explanation:
    """The explanation after ``change`` was made to a job that ran steadily."""
    history, steps = History(), steps or Steps()
    steps.go(history, BEFORE)
    change(steps)
    steps.go(history, AFTER)
    return explain(history, at)


def silent(change: Callable[[Steps], None], steps: Steps | None = None) -> None:
    """The silent twin: a change without effect on the steps gives no explanation."""
    found = judged(change, steps)
    assert (found.kind, found.parts, found.contributors, found.circumstances) == ("steady", (), (), ())
    assert found.compared is not None
    claims = found.compared.evidence is Evidence.SAME
    assert found.sentence.startswith("Nothing changed since the first step: ") is claims
    assert claims is (found.compared.visible <= LEAST), "it is stated only where a change would have been seen"
    assert found.since == pytest.approx(START, abs=1)
    assert found.factor == 1.0


def shares(found: Explanation) -> dict[str, float]:
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)
    return {part.part: part.share for part in found.parts}


def named(found: Explanation) -> tuple[str, str, int | None]:
    """The contributor that the sentence names."""
    (stated,) = (each for each in found.contributors if each.stated)
    return stated.key


def kinds(found: Explanation) -> set[str]:
    return {each.kind for each in found.circumstances}


def test_data_slows_on_all_ranks() -> None:
    def slow(steps: Steps) -> None:
        steps.data = 0.45

    found = judged(slow)
    assert (found.kind, found.cause) == ("change", "data")
    assert found.since == pytest.approx(CHANGED, abs=PERIOD)
    assert found.factor == pytest.approx(2.0, rel=0.1)
    assert shares(found)["data"] > 0.9
    assert found.contributors[0].name == "load_batch"
    assert "is data (40 ms -> 451 ms), most of all section 'load_batch' (40 ms -> 451 ms)" in found.sentence
    assert found.circumstances == ()


def test_its_twin_data_slows_by_a_hundredth_of_a_step() -> None:
    silent(lambda steps: setattr(steps, "data", 0.044))


def test_data_is_quick_again() -> None:
    found = judged(lambda steps: setattr(steps, "data", 0.04), Steps(data=0.45))
    assert (found.kind, found.cause) == ("change", "data")
    assert found.factor == pytest.approx(0.5, rel=0.1)
    assert shares(found)["data"] > 0.9


def test_one_rank_throttles_and_all_others_wait_for_it() -> None:
    def throttle(steps: Steps) -> None:
        steps.slower[5, "compute"] = 0.3
        steps.clocks[5] = 990e6
        steps.throttled = {"hw_thermal_slowdown": 1}

    found = judged(throttle)
    assert found.cause == "communication"
    assert shares(found)["communication"] > 0.9
    assert named(found) == ("rank", "rank 5", None)
    assert "waiting for rank 5 on node-b" in found.sentence
    throttling = found.circumstances[0]
    assert (throttling.code, throttling.before, throttling.after) == ("hw_thermal_slowdown", 0, 1)
    assert kinds(found) == {"throttling", "clock", "slowest"}
    assert not any(each.kind == "kernel" for each in found.contributors)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (KnownSlow(CHANGED, "GPU 1", SLOWED, CHANGED - PERIOD), f"; its GPU 1 is throttled since then ({THERMAL})."),
        (KnownSlow(CHANGED), f"; at the same time devices throttled ({THERMAL}): 0 -> 1 of 8 ranks."),
        (KnownSlow(CHANGED, "GPU 1", ("sw_power_cap",), CHANGED), f"devices throttled ({THERMAL}): 0 -> 1 of 8 ranks."),
        (KnownSlow(CHANGED, "GPU 1", SLOWED, CHANGED + 300), f"devices throttled ({THERMAL}): 0 -> 1 of 8 ranks."),
    ],
)
def test_the_throttling_of_the_straggler_alone_is_its_own(known: KnownSlow, words: str) -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    steps.slower[5, "compute"], steps.throttled = 0.3, {"hw_thermal_slowdown": 1}
    steps.go(history, AFTER)
    assert explain(history, None, (), {5: known}).sentence.endswith(words)


def test_its_twin_the_straggler_and_another_rank_are_throttled() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    steps.slower[5, "compute"], steps.throttled = 0.3, {"hw_thermal_slowdown": 2}
    steps.go(history, AFTER)
    known = {5: KnownSlow(CHANGED, "GPU 1", SLOWED, CHANGED)}
    assert explain(history, None, (), known).sentence.endswith(f"devices throttled ({THERMAL}): 0 -> 2 of 8 ranks.")


def test_its_twin_one_rank_throttles_where_it_costs_nothing() -> None:
    def throttle(steps: Steps) -> None:
        steps.clocks[5] = 990e6
        steps.throttled = {"hw_thermal_slowdown": 1}

    silent(throttle)


def test_ranks_that_take_turns_are_not_named() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    for window in range(AFTER):
        steps.slower = {(window % steps.world, "compute"): 0.3}
        steps.go(history, 1)
    found = explain(history)
    assert named(found) == ("rank", "ranks that take turns", None)
    assert "slowest" not in kinds(found)


def test_clocks_drop_on_all_ranks() -> None:
    def drop(steps: Steps) -> None:
        steps.compute, steps.clock, steps.throttled = 0.45, 1320e6, {"sw_power_cap": 8}

    found = judged(drop)
    assert found.cause == "compute"
    clock = next(each for each in found.circumstances if each.kind == "clock")
    assert (clock.before, clock.after) == (1980e6, 1320e6)
    kernels = {each.name: each.share for each in found.contributors if each.kind == "kernel"}
    assert kernels["gemm"] == pytest.approx(0.75, abs=0.1)
    assert kernels["attention"] == pytest.approx(0.25, abs=0.1)


def test_its_twin_clocks_drop_while_the_job_waits_for_its_input_anyhow() -> None:
    silent(lambda steps: setattr(steps, "clock", 1320e6))


def test_one_kernel_became_slow() -> None:
    found = judged(lambda steps: (setattr(steps, "compute", 0.6), setattr(steps, "attention", 0.625))[0])
    assert found.cause == "compute"
    assert named(found) == ("kernel", "attention", None)
    assert [each.name for each in found.contributors if each.kind == "kernel"] == ["attention"]


def test_the_words_of_what_else_changed() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    steps.world, steps.hosts, steps.attempt, steps.compute, steps.waited = 4, ("node-a", "node-c"), 1, 0.6, 0.16
    steps.clock, steps.temperature, steps.throttled = 1320e6, 75.0, {"sw_power_cap": 4}
    history.add(steps.sample(policy_changes(Policy(), Policy().changed({"profiling_interval": 1}))))
    steps.go(history, AFTER)
    assert [each.sentence for each in explain(history).circumstances] == [
        "the policy's profiling_interval was changed from 0 to 1",
        "the world shrank from 8 to 4 ranks",
        "other hosts: node-b left and node-c joined",
        "devices throttled (sw power cap): 0 -> 4 of 4 ranks",
        "the median clock of the devices fell from 1980 to 1320 MHz",
        "training threads wait longer for a CPU: 1 ms -> 160 ms a step",
        "attempt 1 began (before it: 0)",
        "the hottest device rose from 61 to 75 °C",
    ]


def test_a_node_was_replaced_by_a_slower_one() -> None:
    def replace(steps: Steps) -> None:
        steps.hosts, steps.attempt = ("node-a", "node-c"), 1
        for rank in range(4, 8):
            steps.slower[rank, "host"] = 0.2

    found = judged(replace)
    hosts = next(each for each in found.circumstances if each.kind == "hosts")
    assert (hosts.before, hosts.after) == (["node-b"], ["node-c"])
    assert "attempt" in kinds(found)


def test_its_twin_a_node_was_replaced_by_one_like_it() -> None:
    def replace(steps: Steps) -> None:
        steps.hosts, steps.attempt = ("node-a", "node-c"), 1

    silent(replace)


def test_profiling_was_switched_on() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    steps.host = 0.15
    history.add(steps.sample(policy_changes(Policy(), Policy().changed({"profiling_interval": 1}))))
    steps.go(history, AFTER)
    found = explain(history)
    assert found.cause == "host"
    assert [(each.before, each.after) for each in found.circumstances if each.kind == "policy"] == [(0, 1)]


def test_its_twin_the_policy_was_changed_long_before() -> None:
    history, steps = History(), Steps()
    history.add(steps.sample(policy_changes(Policy(), Policy().changed({"profiling_interval": 1}))))
    steps.go(history, BEFORE)
    steps.host = 0.15
    steps.go(history, AFTER)
    assert "policy" not in kinds(explain(history))


@pytest.mark.parametrize("compute", [0.6, 0.3])
def test_the_world_was_halved(compute: float) -> None:
    def halve(steps: Steps) -> None:
        steps.world, steps.hosts, steps.attempt, steps.compute = 4, ("node-a",), 1, compute

    if compute == 0.3:  # the twin: as much work for each rank as before
        silent(halve)
        return
    found = judged(halve)
    assert found.cause == "compute"
    world = found.circumstances[0]
    assert (world.kind, world.before, world.after) == ("world_size", 8, 4)
    assert {"world_size", "hosts", "attempt"} <= kinds(found)


def test_the_network_became_slow() -> None:
    found = judged(lambda steps: setattr(steps, "transfer", 0.4))
    assert found.cause == "communication"
    collective = next(each for each in found.contributors if each.kind == "collective")
    assert "which points to the network rather than to a late rank" in collective.sentence
    assert not any(each.kind == "rank" for each in found.contributors)


def test_a_cpu_shared_with_another_process() -> None:
    def crowd(steps: Steps) -> None:
        steps.host, steps.waited = 0.2, 0.16

    found = judged(crowd)
    assert found.cause == "host"
    assert found.contributors[0].kind == "cpu"
    waits = next(each for each in found.circumstances if each.kind == "cpu")
    assert (waits.before, waits.after) == (0.001, 0.16)


def test_when_only_sections_are_known_the_shares_are_theirs() -> None:
    found = judged(lambda steps: setattr(steps, "data", 0.45), Steps(profiled=False))
    assert found.parts == ()
    assert found.cause == "data"
    assert named(found) == ("section", "load_batch", None)


def test_when_only_sections_are_known_the_rank_in_which_one_grew_comes_first() -> None:
    found = judged(lambda steps: steps.slower.update({(3, "data"): 0.4}), Steps(profiled=False))
    assert found.contributors[0].key == ("section", "load_batch", 3)
    assert named(found) == ("section", "load_batch", 3)
    assert {(each.name, each.rank) for each in found.contributors} == {("load_batch", 3), ("backward", None)}


def test_a_section_in_which_the_others_wait_is_called_so_and_that_of_the_slow_rank_is_not() -> None:
    found = judged(lambda steps: steps.slower.update({(3, "data"): 0.4}))
    sections = {each.name: each for each in found.contributors if each.kind == "section"}
    assert sections["backward"].sentence.startswith("section 'backward' on the median rank, which waits in it (")
    assert sections["load_batch"].sentence.startswith("section 'load_batch' on rank 3 (")


def test_of_the_same_seconds_the_sections_of_the_slow_rank_come_before_those_in_which_the_others_wait() -> None:
    found = judged(lambda steps: steps.slower.update({(3, "compute"): 0.3}))
    sections = [each for each in found.contributors if each.kind == "section"]
    assert [(each.name, each.rank) for each in sections] == [("forward", 3), ("backward", None)]


def test_of_the_seconds_of_the_slow_rank_a_section_has_those_by_which_it_grew() -> None:
    found = judged(lambda steps: steps.slower.update({(3, "compute"): 0.3}), Steps(noise=0.0))
    assert found.seen == (
        "Against its own time before, rank 3 takes 100 ms more in section 'forward' (100 ms -> 200 ms)"
        "; the rest is in sections in which waiting hides it: the section timeline shows it.",
        "The median rank waits in section 'backward' (240 ms -> 540 ms).",
    )


def test_its_twin_a_section_that_grew_by_all_of_them_is_the_same_time() -> None:
    found = judged(lambda steps: steps.slower.update({(3, "data"): 0.4}), Steps(noise=0.0))
    assert found.seen == (
        "The same time is seen in section 'load_batch' on rank 3 (40 ms -> 440 ms).",
        "The median rank waits in section 'backward' (240 ms -> 640 ms).",
    )


def test_without_a_slow_rank_sections_are_parts_of_the_whole_change() -> None:
    found = judged(lambda steps: setattr(steps, "compute", 0.9), Steps(noise=0.0))
    assert found.seen == (
        "Of the 600 ms, 400 ms is seen in section 'backward' (240 ms -> 640 ms) and "
        "200 ms in section 'forward' (100 ms -> 300 ms).",
    )


def test_nothing_else_is_seen_where_nothing_changed() -> None:
    assert judged(lambda steps: None).seen == ()


def test_its_twin_a_section_that_is_slow_on_all_ranks_waits_for_none() -> None:
    found = judged(lambda steps: setattr(steps, "compute", 0.9))
    assert not any("which waits" in each.sentence for each in found.contributors)


def test_nothing_is_claimed_that_explains_less_than_half() -> None:
    def slow(steps: Steps) -> None:
        steps.data, steps.host, steps.compute = 0.14, 0.13, 0.41

    found = judged(slow)
    assert found.cause == "unexplained"
    assert max(shares(found).values()) < 0.5
    assert "unexplained, as no part makes up more than half of it (" in found.sentence


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
def test_noise_alone(noise: float, seed: int) -> None:
    if noise < 0.1:
        silent(lambda steps: None, Steps(noise=noise, seed=seed))
        return
    found = judged(lambda steps: None, Steps(noise=noise, seed=seed))
    assert found.compared is not None
    assert (found.kind, found.compared.evidence) == ("steady", Evidence.UNSEEN)
    assert found.sentence.startswith("No change of ")


@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("after", [0, AFTER])
def test_a_single_spike(windows: int, after: int) -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    for _ in range(windows):
        history.add(steps.sample(factor=6.0))
    steps.go(history, after)
    assert explain(history).kind == "steady"


def test_a_slow_drift_has_no_moment() -> None:
    history, steps = History(), Steps()
    for _ in range(300):
        steps.data += 0.001
        steps.go(history, 1)
    found = explain(history)
    assert (found.kind, found.cause) == ("drift", "data")
    assert found.factor == pytest.approx(1.6, abs=0.1)
    assert shares(found)["data"] > 0.9


def test_a_change_that_lasts_goes_before_a_short_episode() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    steps.host = 2.0
    steps.go(history, 5)
    steps.host = 0.03
    steps.go(history, BEFORE)
    steps.data = 0.45
    steps.go(history, AFTER)
    assert explain(history).cause == "data"
    assert explain(history, CHANGED).cause == "host"


@pytest.mark.parametrize("off", [-110.0, 0.0, 110.0])
def test_a_moment_about_which_it_changed(off: float) -> None:
    found = judged(lambda steps: setattr(steps, "data", 0.45), at=CHANGED + off)
    assert found.since == pytest.approx(CHANGED, abs=PERIOD)
    assert found.cause == "data"


def test_a_moment_at_which_nothing_changed() -> None:
    found = judged(lambda steps: setattr(steps, "data", 0.45), at=CHANGED - 400)
    assert found.kind == "steady"
    assert found.sentence.startswith("Nothing changed at 09:01:40: steps took 4")


def test_a_moment_of_yesterday_is_given_with_its_date() -> None:
    evening = 13 * 3600.0
    history, steps = History(), Steps(at=START + evening)
    steps.go(history, BEFORE)
    steps.data = 0.45
    steps.go(history, 800)  # to half past midnight
    found = explain(history, CHANGED + evening)
    assert found.cause == "data"
    assert "since 2025-10-09 22:0" in found.sentence
    assert explain(history).kind == "steady"
    assert explain(history).since == pytest.approx(CHANGED + evening, abs=60)


@pytest.mark.parametrize("off", [-3600.0, 7200.0])
def test_a_moment_of_which_nothing_is_kept(off: float) -> None:
    with pytest.raises(ValueError, match=r"does not cover .* reaches from 08:53:20 to"):
        judged(lambda steps: None, at=CHANGED + off)


def test_too_little_is_known() -> None:
    history, steps = History(), Steps()
    assert explain(history).sentence.startswith("Nothing is known yet")
    steps.go(history, 4)
    assert explain(history).sentence.startswith("Too little is known yet: 4 windows")
    assert explain(history, steps.at).sentence.startswith("Too little is known around")


USUAL_STEP = 0.41
"""Seconds of a step that nothing was done to."""


@settings(max_examples=60, deadline=None)
@given(
    data=st.floats(0.001, 1.0),
    host=st.floats(0.001, 1.0),
    compute=st.floats(0.001, 1.0),
    transfer=st.floats(0.001, 1.0),
    rank=st.none() | st.integers(0, 7),
    seed=st.integers(0, 1000),
)
def test_shares_of_the_parts_add_up_to_the_whole_change(
    data: float, host: float, compute: float, transfer: float, rank: int | None, seed: int
) -> None:
    history, steps = History(), Steps(seed=seed)
    steps.go(history, 12)
    steps.data, steps.host, steps.compute, steps.transfer = data, host, compute, transfer
    if rank is not None:
        steps.slower[rank, "compute"] = 0.5
    steps.go(history, 12)
    found = explain(history)
    if found.kind == "change":
        shared = shares(found)
        if found.cause != "unexplained":
            assert shared[found.cause] > 0.5
        else:
            assert max(share for part, share in shared.items() if part != "unexplained") <= 0.5
    else:
        # A step that took a few per cent more or less from one moment on may pass for one that did so gradually.
        few = abs(sum((data, host, compute, transfer)) / USUAL_STEP - 1.0) < 0.1
        assert found.kind == "steady" or (found.kind == "drift" and few)
    assert found.sentence.endswith(".")
    assert found.to_json()["factor"] == found.factor


def test_nothing_changed_is_not_stated_where_a_few_steps_took_twice_as_long() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    steps.data = 0.9
    steps.go(history, 2)
    steps.data = 0.04
    steps.go(history, AFTER)
    found = explain(history)
    assert found.kind == "steady"
    assert found.sentence.startswith("No lasting change since the first step: steps have taken a median of 4")
    assert "but 2 of" in found.sentence


def test_no_change_is_denied_beside_spikes_of_steps_that_vary_too_much_to_tell() -> None:
    history, steps = History(), Steps()
    for data in (0.02, 0.3, 0.1, 0.35, 0.02, 0.25, 1.2, 0.2, 0.02, 1.1):
        steps.data = data
        steps.go(history, 1)
    found = explain(history)
    assert (found.kind, found.compared and found.compared.evidence) == ("steady", Evidence.UNSEEN)
    assert not found.sentence.startswith("No lasting change since"), found.sentence


def test_nothing_changed_is_not_stated_beside_an_incident_or_a_lost_job() -> None:
    history = History()
    Steps().go(history, BEFORE)
    quiet = explain(history).sentence
    told = explain(history, None, ["1 incident in that time", "the job is lost"])
    assert quiet.startswith("Nothing changed since the first step: steps have taken a median of ")
    assert told.sentence.startswith("The step time did not change since the first step")
    assert told.sentence.endswith("; 1 incident in that time; the job is lost.")


def test_the_last_hour_is_named_only_where_the_history_reaches_back_so_far() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    short = explain(history).sentence
    assert re.fullmatch(r"Nothing changed since the first step: steps have taken a median of 4\d\d ms\.", short)
    steps.go(history, int(3600 / PERIOD))
    long = explain(history).sentence
    words = r"Nothing changed in the last hour: steps have taken a median of 4\d\d ms since [\d:]{8}\."
    assert re.fullmatch(words, long)


def test_the_stated_percentage_can_be_computed_from_the_stated_times() -> None:
    def slow(steps: Steps) -> None:
        steps.host += 0.1377

    sentence = judged(slow).sentence
    found = re.search(r"Steps take (\d+) % longer since \S+ \((\d+) ms -> (\d+) ms\)", sentence)
    assert found is not None, sentence
    percent, before, after = map(int, found.groups())
    assert 100 * (after / before - 1) == pytest.approx(percent, abs=0.7)


@pytest.mark.parametrize(("before", "after"), [(1, 9), (2, 4), (2, 20)])
def test_few_windows_before_a_doubling_are_too_few_to_tell_and_it_is_not_denied(before: int, after: int) -> None:
    history = History()
    for number in range(before + after):
        step = 0.06 if number < before else 0.12
        history.add(Steps().sample()._replace(at=START + 10.0 * (number + 1), step=step))
    found = explain(history)
    assert found.compared is not None
    assert (found.kind, found.compared.evidence, found.compared.windows) == ("unsure", Evidence.UNSURE, (before, after))
    assert not found.states_slow
    assert found.compared.factor == pytest.approx(2.0)


def test_an_open_and_a_past_straggler_are_part_of_every_answer() -> None:
    history, steps = History(), Steps()
    steps.go(history, BEFORE)
    since = history.window(0.0)[-9].at
    now, past = KnownSlow(since, host="host-1", step_before=0.06), KnownSlow(since - 20.0, ended=since, host="host-0")
    found = explain(history, None, (), {3: now, 1: past})
    assert [(each.rank, each.since, each.ended) for each in found.slow] == [(3, since, None), (1, since - 20.0, since)]
    assert found.slow[0].step_before == 0.06
    assert found.states_slow
    assert all(each.sentence in found.sentence for each in found.slow)
    assert not found.sentence.startswith("Nothing changed")
