"""Which rank is past a limit, each scene with its silent twin."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract import ft_state
from rankwatch.contract.enums import Action, RankState, VerdictKind
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import Order, PolicyChanged, RankReport
from rankwatch_monitor.core.hang.limits import state_to_keep
from rankwatch_monitor.core.incident.lifecycle import advance, verdicts_of
from support.simulator.plan import FaultKind


def healthy(**settings: object) -> Scene:
    return Scene(**settings).run(120)  # type: ignore[arg-type]


# Sections -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launchers", [True, False], ids=["with launchers", "only watched"])
def test_a_healthy_job_raises_nothing(launchers: bool) -> None:
    scene = healthy(launchers=launchers)
    assert scene.quiet()
    assert scene.state == "running"


def test_a_rank_stuck_in_a_section_is_named() -> None:
    scene = Scene(launchers=False).run(10).hang(2)
    scene.run(10)
    assert scene.quiet(), "the limit is passed only after 10 s"
    scene.run(1)
    incident = scene.incident
    assert (incident.kind, incident.section, incident.limit) == (VerdictKind.SECTION_OVERRUN, "step", 10.0)
    assert scene.blamed == {2: "behind"}
    assert incident.elapsed == pytest.approx(11.0)
    assert incident.timeline.since == pytest.approx(scene.now - 11.0)
    assert incident.affected == (0, 1, 2, 3)
    for word in ("Rank 2", "host-0", "'step'", "10 s", "11.0 s", "3 other ranks wait"):
        assert word in incident.reason


def test_any_open_section_may_expire_not_only_the_innermost() -> None:
    scene = Scene(launchers=False, section_timeouts={"step": None, "epoch": 30.0}).run(10)
    for rank in scene.ranks:
        rank.stand(scene.now, "epoch", "step")
        rank.fault = FaultKind.STALL
    scene.run(30)
    assert scene.quiet()
    scene.run(1)
    assert scene.incident.section == "epoch"


def test_a_section_without_a_limit_may_take_its_time() -> None:
    scene = Scene(launchers=False, section_timeouts={"step": None}, heartbeat_timeout=None).run(10).hang(2).run(4000)
    assert scene.quiet()


def test_a_section_that_was_open_at_the_last_report_is_not_judged_by_the_clock() -> None:
    # A rank that speaks once in 30 s states "open for 0.5 s" each time; between two reports the section has closed.
    assert Scene(launchers=False, interval=30).run(300).quiet()


def test_a_rank_outside_all_sections_is_named() -> None:
    scene = Scene(launchers=False, out_of_section_timeout=20.0, section_timeouts={"step": None})
    scene.run(10).hang(1, outside=True).run(20)
    assert scene.quiet()
    scene.run(2)
    assert scene.incident.kind is VerdictKind.OUT_OF_SECTION_OVERRUN
    assert scene.incident.section is None
    assert scene.blamed == {1: "behind"}
    assert "outside all sections for 22.0 s, over its configured limit of 20 s" in scene.incident.reason


def test_a_job_without_sections_has_no_out_of_section_limit() -> None:
    assert healthy(launchers=False, sections=False, out_of_section_timeout=20.0).quiet()


def test_a_healthy_job_with_an_out_of_section_limit_raises_nothing() -> None:
    assert healthy(out_of_section_timeout=5.0).quiet()


# Heartbeats -----------------------------------------------------------------------------------------------------------


def test_a_heartbeat_that_stays_away_is_found() -> None:
    scene = Scene(launchers=False, sections=False, heartbeat_timeout=30.0).run(10).hang(3).run(29)
    assert scene.quiet()
    scene.run(2)
    assert scene.incident.kind is VerdictKind.HEARTBEAT_OVERRUN
    assert scene.blamed == {3: "behind"}
    for word in ("Rank 3 on host-0", "limit of 30 s", "for 30.5 s"):
        assert word in scene.incident.reason


def test_heartbeat_limits_do_not_touch_ranks_that_never_beat() -> None:
    assert healthy(launchers=False, beats=False, heartbeat_timeout=5.0, initial_heartbeat_timeout=5.0).quiet()


def silent_job(**limits: float | None) -> Scene:
    """Ranks that report, and do nothing else."""
    return Scene(launchers=False, sections=False, steps=False, beats=False, **limits)


def test_a_job_in_which_no_rank_ever_beats_is_held_to_a_configured_limit() -> None:
    scene = silent_job(initial_heartbeat_timeout=60.0).run(60)
    assert scene.quiet()
    scene.run(3)
    assert scene.incident.kind is VerdictKind.HEARTBEAT_OVERRUN
    assert scene.incident.affected == (0, 1, 2, 3)
    assert not scene.incident.found.has_beaten


def test_a_job_in_which_no_rank_ever_beats_may_be_one_without_heartbeats() -> None:
    assert silent_job().run(3600).quiet(), "the limit is the default"
    assert Scene(launchers=False, beats=False, sections=False, initial_heartbeat_timeout=60.0).run(200).quiet(), (
        "it steps"
    )


def test_the_interval_of_heartbeats_is_learned_where_there_is_nothing_else() -> None:
    scene = Scene(launchers=False, sections=False, steps=False, heartbeat_timeout=None).run(60)
    assert scene.quiet()
    scene.hang(3).run(30)
    assert scene.incident.kind is VerdictKind.HEARTBEAT_OVERRUN
    assert scene.incident.affected == (0, 1, 2, 3), "the others wait for it, and beat no more"
    assert "over its learned limit" in scene.incident.reason
    learned = ft_state.read(state_to_keep(scene.job.policy, scene.job.durations, at_end=False))
    assert learned.heartbeat == 5.0, "five times a second"
    assert learned.initial_heartbeat == scene.job.policy.learned_minimum


def test_a_rank_without_heartbeats_is_named_while_the_others_beat() -> None:
    scene = Scene(ranks=2, launchers=False, sections=False, steps=False, heartbeat_timeout=20.0)
    for second in range(60):
        now = scene.now + second
        for rank in scene.ranks:
            beats = second if rank.number == 0 else min(second, 30)
            apply(scene.job, RankReport(rank.identity, beats=1 + beats, heartbeat_age=float(second - beats)), now)
        advance(scene.job, now)
    (incident,) = scene.job.incidents
    assert [culprit.rank for culprit in incident.culprits] == [1]
    assert "it is past its limit, and the other ranks are not" in incident.reason


def test_a_heartbeat_beside_sections_teaches_no_limit() -> None:
    scene = Scene(launchers=False, reports_durations=True).run(60)
    assert ft_state.read(state_to_keep(scene.job.policy, scene.job.durations, at_end=False)).heartbeat is None


def test_a_rank_that_never_beats_while_others_do_is_found() -> None:
    limits = {"heartbeat_timeout": None, "initial_heartbeat_timeout": 60.0}
    scene = Scene(launchers=False, sections=False, steps=False, **limits)
    late = scene.ranks[3]
    for _ in range(65):
        late.at.beats = -1  # stays at zero beats after this tick's own beat
        scene.tick()
    assert scene.incident.kind is VerdictKind.HEARTBEAT_OVERRUN
    assert scene.incident.affected == (3,)
    assert scene.incident.found.rank == 3
    assert not scene.incident.found.has_beaten


def test_a_rank_that_steps_need_not_beat_because_another_does() -> None:
    limits = {"heartbeat_timeout": None, "initial_heartbeat_timeout": 60.0}
    scene = Scene(launchers=False, sections=False, **limits)
    for _ in range(100):
        scene.ranks[3].at.beats = -1
        scene.tick()
    assert scene.quiet()


def test_the_first_beat_of_one_rank_does_not_condemn_the_others() -> None:
    # All ranks take an hour to prepare; their first beats come within seconds of each other.
    scene = Scene(launchers=False, sections=False, steps=False, initial_heartbeat_timeout=1800.0)
    for _ in range(3600):
        for rank in scene.ranks:
            rank.at.beats = -1
        scene.tick()
    assert scene.quiet()
    for _ in range(3):
        for rank in scene.ranks[1:]:
            rank.at.beats = -1
        scene.tick()
    scene.run(60)
    assert scene.quiet(), scene.printed


# Never started --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launchers", [True, False])
def test_a_rank_that_never_reports_is_found_once_others_have(launchers: bool) -> None:
    scene = Scene(launchers=launchers, initial_heartbeat_timeout=60.0, section_timeouts={"step": None})
    scene.ranks[1].starts_in = 10_000
    scene.run(62)
    assert scene.quiet()
    scene.run(1)
    assert scene.incident.kind is VerdictKind.NEVER_STARTED
    assert scene.blamed == {1: "never_started"}
    for word in ("Rank 1", "60 s"):
        assert word in scene.incident.reason


def test_a_job_that_never_speaks_gets_no_verdict() -> None:
    scene = Scene(initial_heartbeat_timeout=60.0)
    for rank in scene.ranks:
        rank.starts_in = 10_000
    scene.run(300)
    assert scene.quiet()
    assert not scene.job.instrumented


def test_late_starters_within_the_limit_raise_nothing() -> None:
    scene = Scene(initial_heartbeat_timeout=60.0, section_timeouts={"step": None})
    scene.ranks[1].starts_in = 50
    assert scene.run(200).quiet()


def test_a_smaller_world_does_not_miss_the_ranks_it_no_longer_has() -> None:
    # An elastic job goes on with two ranks of four.
    scene = Scene(launchers=False, initial_heartbeat_timeout=60.0).run(10)
    scene.launch(attempt=1, size=2)
    scene.run(200)
    assert scene.quiet(), scene.printed
    assert scene.job.world_size == 2


# Silence --------------------------------------------------------------------------------------------------------------


def test_a_silent_rank_is_found_while_others_speak() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(2).run(30)
    assert scene.quiet()
    scene.run(1)
    assert scene.incident.kind is VerdictKind.SILENT
    assert scene.blamed == {2: "host_silent"}
    assert scene.rank_state(2) is RankState.SILENT
    for word in ("Rank 2", "host-0", "30 s", "31.0 s"):
        assert word in scene.incident.reason


@pytest.mark.parametrize("foreign", [True, False])
def test_another_emitter_may_export_once_a_minute_from_its_first_export_on(foreign: bool) -> None:
    other = Scene(launchers=False).run(10)
    reports = [report for rank in other.ranks if (report := other.report(rank)) is not None]
    scene, states = Scene(launchers=False, section_timeouts={"step": None}), set()
    for second in range(300):
        scene.now += 1
        for rank, report in enumerate(reports):
            if second % 70 == 14 * rank:  # a minute, and a little late
                apply(scene.job, report._replace(foreign=foreign), scene.now)
        scene.judge()
        states.add(str(scene.state))
    assert scene.quiet() is foreign, scene.printed
    if foreign:
        scene.now += 200
        assert scene.state == "running"
        scene.now += 20
        assert (scene.state, states) == ("lost", {"running"})


def test_when_no_rank_reports_the_job_is_lost_and_no_rank_is_blamed() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(0, 1, 2, 3).run(200)
    assert scene.quiet()
    assert scene.state == "lost"


@pytest.mark.parametrize("stagger", [0.3, 0.9, 5.0])
def test_reports_that_end_one_after_the_other_are_no_alarm(stagger: float) -> None:
    # The network to the monitor breaks: the last reports of the ranks lie up to an export interval apart.
    scene = Scene(launchers=False, silence_timeout=30.0, interval=max(1, round(stagger))).run(60)
    last = scene.now
    for rank in scene.ranks:
        scene.now = last + rank.number * stagger / 3
        report = scene.report(rank)
        assert report is not None
        apply(scene.job, report, scene.now)
    for tenth in range(1, 600):
        scene.now = last + stagger + tenth / 10
        scene.judge()
    assert scene.quiet(), scene.printed
    assert scene.state == "lost"


@pytest.mark.parametrize("pause", [20, 29, 30, 31, 300, 86_400])
def test_a_job_that_comes_back_after_a_pause_raises_nothing(pause: int) -> None:
    # The monitor's machine slept, or the network did: the ranks come back one by one.
    scene = Scene(launchers=False, silence_timeout=30.0).run(30)
    scene.now += pause
    scene.judge()
    for rank in scene.ranks:
        rank.stand(scene.now, "step")
        report = scene.report(rank)
        assert report is not None
        apply(scene.job, report._replace(heartbeat_age=0.1), scene.now)
        scene.judge()
        scene.now += 0.3
        scene.judge()
    scene.run(60)
    assert scene.quiet(), scene.printed


def test_a_rank_that_stays_silent_after_the_pause_is_still_found() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(30)
    scene.now += 500
    scene.cut(1).run(20)
    assert scene.quiet()
    scene.until(lambda: scene.job.incidents, within=60)
    assert scene.blamed == {1: "host_silent"}


def test_ranks_that_export_once_a_minute_are_not_silent_in_between() -> None:
    assert Scene(launchers=False, silence_timeout=30.0, interval=60).run(1200).quiet()


@pytest.mark.parametrize("interval", [20, 61, 90])
def test_a_silent_rank_is_found_among_ranks_that_export_rarely_and_together(interval: int) -> None:
    # A Collector sends the reports of all ranks at once, at an interval near or above the limit on silence.
    scene = Scene(launchers=False, silence_timeout=60.0, interval=interval).run(5 * interval).cut(3)
    scene.until(lambda: scene.job.incidents, within=8 * interval)
    assert scene.blamed == {3: "host_silent"}


def test_a_rank_that_shut_down_by_itself_may_be_silent() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10)
    report = scene.report(scene.ranks[3])
    assert report is not None
    apply(scene.job, report._replace(ended=True), scene.now)
    scene.ranks[3].over = True
    scene.run(200)
    assert scene.quiet()
    assert scene.rank_state(3) is RankState.FINISHED


@pytest.mark.parametrize("event", [Order(Action.CAPTURE, ""), None], ids=["an order", "a policy change"])
def test_what_an_operator_does_is_no_sign_of_life_of_the_job(event: Order | None) -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(0, 1, 2, 3).run(100)
    apply(scene.job, event or PolicyChanged(scene.job.policy), scene.now)
    assert scene.state == "lost"


# Processes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ({"exit_code": 3}, "exited with code 3"),
        ({"signal": "SIGKILL"}, "killed by SIGKILL"),
        ({"exit_code": -9}, "killed by SIGKILL"),
        ({"signal": "SIGSEGV"}, "killed by SIGSEGV"),
        ({"signal": "SIGTRAP"}, "SIGTRAP"),
        ({"signal": "SIGBUS", "exit_code": 135}, "killed by SIGBUS"),
        ({"signal": "signal 34"}, "killed by signal 34"),
    ],
)
def test_a_process_that_ended_badly_is_found_with_its_code_or_signal(ending: dict[str, object], words: str) -> None:
    scene = Scene().run(10).die(1, **ending)  # type: ignore[arg-type]
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.blamed == {1: "dead"}
    assert scene.rank_state(1) is RankState.DEAD
    assert words in scene.incident.reason
    assert "Rank 1 on host-0" in scene.incident.reason
    assert "likewise" not in scene.incident.reason


def test_a_process_that_others_go_on_without_is_dead_and_no_alarm() -> None:
    scene = Scene().run(10).die(1, signal="SIGKILL", spared=True).run(5)  # for longer, and its peers would wait for it
    assert scene.quiet()
    assert scene.rank_state(1) is RankState.DEAD
    scene.die(2, signal="SIGKILL")
    assert scene.blamed == {2: "dead"}


def test_a_clean_exit_is_no_alarm() -> None:
    scene = Scene().run(10)
    for rank in range(4):
        scene.die(rank, exit_code=0)
    assert scene.run(100).quiet()
    assert scene.rank_state(0) is RankState.FINISHED


def test_the_time_of_an_exit_is_when_it_happened() -> None:
    scene = Scene().run(10).die(1, exit_code=1, age=2.5)
    assert scene.incident.timeline.since == pytest.approx(scene.now - 2.5)
    assert scene.incident.timeline.detected == scene.now


def test_a_report_that_arrives_after_the_exit_revives_no_rank() -> None:
    scene = Scene().run(10)
    last_words = scene.report(scene.ranks[1])
    assert last_words is not None
    scene.die(1, exit_code=1)
    apply(scene.job, last_words, scene.now)
    assert scene.rank_state(1) is RankState.DEAD


def test_a_rank_that_shut_down_and_then_failed_is_dead() -> None:
    # An exception ends the script; its exit hook still shuts down, then the process exits with code 1.
    scene = Scene().run(10)
    goodbye = scene.report(scene.ranks[2])
    assert goodbye is not None
    apply(scene.job, goodbye._replace(ended=True), scene.now)
    scene.die(2, exit_code=1)
    assert scene.blamed == {2: "dead"}
    assert scene.rank_state(2) is RankState.DEAD


# Switched off ---------------------------------------------------------------------------------------------------------


def test_detection_switched_off_finds_nothing() -> None:
    assert Scene(detection=False).run(10).hang(2).run(4000).quiet()


def test_limits_switched_off_find_nothing() -> None:
    off = dict.fromkeys(("heartbeat_timeout", "initial_heartbeat_timeout", "silence_timeout"))
    scene = Scene(launchers=False, section_timeouts={"step": None}, **off)  # type: ignore[arg-type]
    assert scene.run(10).hang(2).cut(1).run(10_000).quiet()


def test_a_foreign_emitter_that_exports_next_to_nothing_raises_nothing() -> None:
    scene = Scene(launchers=False)
    for rank in scene.ranks:
        rank.starts_in = 10_000
    for _ in range(4000):
        scene.now += 1.0
        for rank in scene.ranks:
            apply(scene.job, RankReport(rank.identity), scene.now)
        scene.judge()
    assert scene.quiet()


def test_a_node_that_fell_silent_with_its_launcher_is_lost() -> None:
    scene = Scene(ranks=8, hosts=2, silence_timeout=5.0).run(10).cut_host(1).until_found()
    kinds = {v.rank: v.kind for v in verdicts_of(scene.job, scene.now)}
    assert kinds == dict.fromkeys((4, 5, 6, 7), VerdictKind.NODE_LOST)


def test_ranks_that_fell_silent_while_their_launcher_speaks_are_no_lost_node() -> None:
    scene = Scene(ranks=8, hosts=2, silence_timeout=5.0).run(10).cut(4, 5, 6, 7).until_found()
    kinds = {v.rank: v.kind for v in verdicts_of(scene.job, scene.now)}
    assert kinds == dict.fromkeys((4, 5, 6, 7), VerdictKind.SILENT)


def test_a_lost_node_is_lost_as_a_whole_although_its_ranks_spoke_last_at_different_times() -> None:
    scene = Scene(ranks=8, hosts=2, silence_timeout=30.0, section_timeouts={"step": None}).run(10)
    scene.cut(5).run(5)
    scene.cut_host(1).until_found()
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert sorted(scene.blamed) == [4, 5, 6, 7]
