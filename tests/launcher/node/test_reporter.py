"""Which ranks the launcher reports for, each with a silent twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rankwatch.contract.enums import NodeRole, ProcessState
from rankwatch.contract.limits import RankLimits
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import PHASE_SHUT_DOWN, Reading, Slots
from rankwatch_launcher.node.reporter import Cause, JobScale, ProxyReason, ReportSchedule, observation, proxy_reason
from rankwatch_launcher.procfs import caught_in, state_of


def healthy() -> Reading:
    slots = Slots.private()
    slots.claim(rank=1, local_rank=1, world_size=2, attempt=1)
    slots.words[layout.BEATS], slots.words[layout.ITERATION], slots.words[layout.FINISHED] = 3, 8, 8
    reading = layout.read(slots)
    assert reading is not None
    return replace(reading, pulse_age=0.1, heartbeat_age=1.0, open_sections={"step": 1.0})


HEALTHY = healthy()
LIMITS = RankLimits(heartbeat=5.0, out_of_section=6.0, sections={"step": 10.0})


def voice(reading: Reading | None, state: ProcessState = ProcessState.ALIVE, launchers: int = 1) -> ProxyReason | None:
    return proxy_reason(state, reading, LIMITS, launchers)


def test_a_healthy_rank_speaks_for_itself() -> None:
    assert voice(HEALTHY) is None
    assert voice(replace(HEALTHY, open_sections={"other": 1e6})) is None
    assert voice(replace(HEALTHY, open_sections={}, idle=5.9)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pulse_age": 2.5}, ProxyReason(Cause.NO_GIL)),
        ({"heartbeat_age": 5.1}, ProxyReason(Cause.LIMIT, ("heartbeat",))),
        ({"open_sections": {"step": 10.1}}, ProxyReason(Cause.LIMIT, ("section step",))),
        ({"open_sections": {}, "idle": 6.1}, ProxyReason(Cause.LIMIT, ("out of section",))),
    ],
)
def test_a_rank_past_a_limit_is_spoken_for(change: dict[str, object], reason: ProxyReason) -> None:
    assert voice(replace(HEALTHY, **change)) == reason  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", [layout.PHASE_RUNNING, PHASE_SHUT_DOWN])
def test_a_rank_that_is_about_to_end_is_reported_whatever_it_did(phase: int) -> None:
    ends = replace(HEALTHY, leaving=1.5, phase=phase, pulse_age=2.5, open_sections={"step": 10.1})
    found = proxy_reason(ProcessState.ALIVE, ends, LIMITS)
    assert found is not None
    assert (found.cause, found.exceeded) == (Cause.LEAVING, ())
    assert observation(1, 10, ProcessState.ALIVE, ends).leaving == 1.5
    assert proxy_reason(ProcessState.ALIVE, ends, LIMITS, 10_000) is None, "all ranks of a job end at the same time"
    assert proxy_reason(ProcessState.ALIVE, replace(ends, leaving=2.5), LIMITS, 10_000) is not None


def test_a_stopped_rank_is_spoken_for_even_without_slots() -> None:
    assert voice(None, ProcessState.STOPPED) == ProxyReason(Cause.FROZEN)
    assert voice(HEALTHY, ProcessState.UNINTERRUPTIBLE) == ProxyReason(Cause.FROZEN)
    assert voice(None) is None


def test_a_rank_whose_reports_do_not_arrive_is_spoken_for() -> None:
    assert voice(replace(HEALTHY, overdue=None)) is None
    assert voice(replace(HEALTHY, overdue=0.5)) == ProxyReason(Cause.UNDELIVERED)


def test_a_rank_that_has_shut_down_keeps_its_peace() -> None:
    assert voice(replace(HEALTHY, phase=PHASE_SHUT_DOWN, pulse_age=100.0)) is None


def test_an_observation_holds_what_the_slots_state() -> None:
    seen = observation(1, 9, ProcessState.ALIVE, HEALTHY)
    assert (seen.iteration, seen.open_sections, seen.uses_sections) == (7, {"step": 1.0}, True)
    assert observation(1, 9, ProcessState.STOPPED, None).pulse_age is None


def test_an_observation_states_for_how_long_nothing_moved_and_what_runs_for_the_first_time() -> None:
    compiling = replace(HEALTHY, quiet=7.0, first_time=frozenset({"step", "compile"}))
    seen = observation(1, 9, ProcessState.ALIVE, compiling)
    assert (seen.quiet, seen.first_time) == (7.0, ("compile", "step"))
    assert observation(1, 9, ProcessState.ALIVE, replace(HEALTHY, quiet=None)).quiet is None


def test_learned_limits_are_judged_as_the_rank_itself_does() -> None:
    limits = RankLimits(learned={"step": 5.0}, first_time=60.0)

    past = ProxyReason(Cause.LIMIT, ("section step",))

    def reason(**change: Any) -> ProxyReason | None:
        return proxy_reason(ProcessState.ALIVE, replace(HEALTHY, open_sections={"step": 9.0}, **change), limits)

    assert reason(quiet=4.0) is None
    assert reason(quiet=6.0) == past
    assert reason(quiet=6.0, first_time=frozenset({"step"})) is None
    assert reason(quiet=61.0, heartbeat_age=None, first_time=frozenset({"step"})) == past


@pytest.mark.parametrize(
    ("letter", "state"),
    [("T", "stopped"), ("t", "alive"), ("D", "uninterruptible"), ("Z", "exited"), ("R", "alive"), ("S", "alive")],
)
def test_process_states(letter: str, state: str) -> None:
    assert state_of(f"12 (a) b) {letter} 1 2 3") == state


def test_caught_signals() -> None:
    assert caught_in("Name:\tx\nSigCgt:\t0000000000000006\n", 2)
    assert caught_in("SigCgt:\t0000000000000006\n", 3)
    assert not caught_in("SigCgt:\t0000000000000006\n", 4)
    assert not caught_in("", 2)


# When to speak --------------------------------------------------------------------------------------------------------

ACTIVE = (NodeRole.ACTIVE, "")
LARGE = JobScale(12_500)


def speech(chance: float = 0.5) -> ReportSchedule:
    """One that has stated that it lives, at second 0."""
    made = ReportSchedule(0.0, lambda: chance)
    assert made.due(0.0, JobScale(), {}, ACTIVE)
    made.delivered({}, ACTIVE)
    return made


def voices(cause: Cause, *ranks: int) -> dict[int, ProxyReason]:
    return {rank: ProxyReason(cause) for rank in ranks}


def moments(made: ReportSchedule, crowd: JobScale, printed: Mapping[int, ProxyReason], until: float) -> list[float]:
    """When it speaks, looked at every half second, where every word is taken."""
    found = []
    for half in range(1, int(2 * until) + 1):
        if made.due(half / 2, crowd, printed, ACTIVE):
            found.append(half / 2)
            made.delivered(printed, ACTIVE)
    return found


def test_a_launcher_with_nothing_to_report_beats_where_they_are_few() -> None:
    assert moments(speech(), JobScale(512), {}, 20.0) == [5.0, 10.0, 15.0, 20.0]
    assert moments(speech(), JobScale(513), {}, 20.0) == []
    assert moments(speech(), JobScale(513, silence=60.0), {}, 20.0) == []
    assert moments(speech(), JobScale(513, silence=30.0), {}, 20.0) == [10.0, 20.0]
    assert moments(speech(), JobScale(12_500, has_rank_0=True), {}, 20.0) == [5.0, 10.0, 15.0, 20.0]


def test_few_launchers_speak_at_every_look() -> None:
    assert moments(speech(), JobScale(64), voices(Cause.FROZEN, 1), 2.0) == [0.5, 1.0, 1.5, 2.0]
    assert moments(speech(), JobScale(64), voices(Cause.UNDELIVERED, 1), 2.0) == [0.5, 1.0, 1.5, 2.0]


def test_of_many_launchers_each_states_at_once_what_is_new_and_rarely_what_lasts() -> None:
    made = speech()
    assert moments(made, LARGE, voices(Cause.FROZEN, 1), 30.0) == [0.5, 20.5]
    assert made.due(31.0, LARGE, voices(Cause.FROZEN, 1, 2), ACTIVE), "another one is new"
    assert made.due(31.5, LARGE, voices(Cause.NO_GIL, 1), ACTIVE), "so is another reason"
    made.delivered(voices(Cause.FROZEN, 1), ACTIVE)
    assert made.due(32.0, LARGE, {}, ACTIVE), "so is that it has recovered"
    made.delivered({}, ACTIVE)
    assert not made.due(60.0, LARGE, {}, ACTIVE)


def test_what_all_launchers_see_at_once_they_state_one_after_the_other() -> None:
    assert moments(speech(0.0), LARGE, voices(Cause.UNDELIVERED, 1), 30.0) == [0.5, 20.5]
    assert moments(speech(0.5), LARGE, voices(Cause.UNDELIVERED, 1), 30.0) == [10.5]
    assert moments(speech(0.5), JobScale(1_000), voices(Cause.UNDELIVERED, 1), 6.0) == [1.5, 3.5, 5.5]


def test_a_word_that_was_not_taken_is_reported_again_later_where_they_are_many() -> None:
    few, many = speech(), speech()
    for made, crowd, later in ((few, JobScale(64), 1.0), (many, LARGE, 10.5)):
        assert made.due(0.5, crowd, voices(Cause.FROZEN, 1), ACTIVE)
        made.failed(0.5, crowd)
        assert made.due(1.0, crowd, voices(Cause.FROZEN, 1), ACTIVE) is (crowd is not LARGE)
        assert made.due(later, crowd, voices(Cause.FROZEN, 1), ACTIVE)


def test_that_a_mute_rank_passes_its_limit_is_new() -> None:
    stopped = proxy_reason(ProcessState.STOPPED, HEALTHY, LIMITS, 12_500)
    late = proxy_reason(ProcessState.STOPPED, replace(HEALTHY, open_sections={"step": 10.1}), LIMITS, 12_500)
    assert stopped is not None
    assert late is not None
    made = speech()
    assert moments(made, LARGE, {1: stopped}, 5.0) == [0.5]
    assert made.due(5.5, LARGE, {1: late}, ACTIVE)


def test_words_fit_into_the_limit_for_silence_six_times() -> None:
    crowd = JobScale(12_500, silence=60.0)
    assert moments(speech(), crowd, voices(Cause.FROZEN, 1), 30.0) == [0.5, 10.5, 20.5]


def test_another_role_is_reported_at_once() -> None:
    assert speech().due(0.5, LARGE, {}, (NodeRole.SPARE, "a spare"))


def test_ranks_past_a_limit_speak_for_themselves_where_launchers_are_many() -> None:
    late = replace(HEALTHY, open_sections={"step": 10.1}, reports=True)
    past = ("section step",)
    assert voice(late, launchers=64) == ProxyReason(Cause.LIMIT, past)
    assert voice(late, launchers=65) is None
    mute = replace(late, reports=False)
    assert voice(mute, launchers=65) == ProxyReason(Cause.LIMIT, past), "a rank that does not report cannot"
    assert voice(replace(late, pulse_age=2.5), launchers=65) == ProxyReason(Cause.NO_GIL, past)
    assert voice(replace(late, overdue=1.0), launchers=65) == ProxyReason(Cause.UNDELIVERED)
