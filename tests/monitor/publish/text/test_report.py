"""The text report: what a person reads at three in the morning."""

from __future__ import annotations

import re

import pytest

from monitor.core.accounted import Accounted
from rankwatch.cli.formatting import WIDTH, duration, ranks
from rankwatch.contract.enums import Action, NodeRole, ProcessEventKind
from rankwatch.contract.messages import Frame, NodeObservation, NodeRegistration, RankStack
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.publish.text.report import text


def plain(words: str) -> str:
    """Line breaks and indents aside."""
    return " ".join(words.split())


@pytest.fixture(scope="module")
def hung() -> Accounted:
    """A job that was restarted once after a hang and hangs again."""
    scene = Accounted(ranks=8, hosts=2).run(60).hang(2)
    scene.until(lambda: scene.closings).run(60)
    scene.stop(5).until(lambda: len(scene.job.incidents) == 2)
    return scene


def test_the_job_in_one_line(hung: Accounted) -> None:
    first = plain(text(hung.job, hung.now).partition("\n\n")[0])
    assert first.startswith("JOB gpt (job) is RESTARTING ")
    assert "step 116 at 0 steps/s, 8 of 8 ranks reporting, attempt 2, 1 restart of 3, began 1970-01-12 13:46" in first


def test_goodput_with_its_buckets_the_largest_first(hung: Accounted) -> None:
    first, second, *part = text(hung.job, hung.now).split("\n\n")[2].split("\n")
    kept = "GOODPUT 80.7 % of 2 min 25 s went into steps that were kept; "
    assert f"{first} {second.strip()}" == f"{kept}all steps since the start lost by this restart"
    assert [re.split(r"\s{2,}", line.strip()) for line in part[:2]] == [
        ["productive", "1 min 57 s", "80.7 %"],
        ["hang", "22.0 s", "15.2 %"],
    ]
    assert sum(float(line.split()[-2]) for line in part) == pytest.approx(100.0, abs=0.5)


def test_each_incident_with_reason_culprit_phases_and_what_was_lost(hung: Accounted) -> None:
    shown = plain(text(hung.job, hung.now).split("INCIDENTS 2, the newest first")[1])
    newest, earlier = hung.job.incidents[1], hung.job.incidents[0]
    assert shown.index(newest.id) < shown.index(earlier.id)
    for incident in (newest, earlier):
        assert plain(incident.reason) in shown
    assert "section over its limit in attempt 2 of job, OPEN, acting" in shown
    assert "open for 11.0 s" in shown
    assert "culprit: rank 5 on host-1, stopped" in shown
    assert "outcome: attempt 2 resumed at step 56; 3 steps were lost" in shown
    assert (
        "+ 11.0 s 11.0 s to find it + 12.0 s 1.0 s to restart + 13.5 s 1.5 s to the first new step "
        "15.5 s in all, of it 2.0 s of training lost (3 steps)"
    ) in shown


def test_stacks_are_grouped_the_culprits_first_and_innermost_frames_on_top(hung: Accounted) -> None:
    shown = text(hung.job, hung.now)
    block = shown[shown.index("STACKS, the innermost frame first") :].split("\n")[2:7]
    assert [line.strip() for line in block[:3]] == [
        "rank 5: culprit",
        "load_batch  /srv/training/train.py:41",
        "main  /srv/training/train.py:90",
    ]
    assert block[4].strip() == "7 ranks (0-4, 6-7): waits for peers"


def test_the_limits_in_force(hung: Accounted) -> None:
    shown = text(hung.job, hung.now).split("LIMITS in force")[1]
    assert re.search(r"section step +10 s +configured", shown)
    assert re.search(r"out of section +none$", shown, flags=re.MULTILINE)


def test_a_healthy_job_has_a_short_one() -> None:
    scene = Accounted().run(100)
    shown = text(scene.job, scene.now)
    assert "is RUNNING" in shown
    assert "INCIDENTS none" in shown
    assert "hang" not in shown
    assert shown.endswith("\n")
    assert not shown.endswith("\n\n")


def test_a_job_without_a_report_has_one_too() -> None:
    shown = text(Job("job", 100.0), 105.0)
    assert "JOB job is STARTING" in shown
    assert "GOODPUT" not in shown


def test_a_job_without_steps_reports_it_in_place_of_a_ratio() -> None:
    scene = Accounted(steps=False).run(40)
    assert "GOODPUT is not known yet, 40.0 s into the job" in text(scene.job, scene.now)


def test_nothing_in_it_can_steer_a_terminal_or_forge_a_line() -> None:
    scene = Accounted().run(20)
    scene.order(Action.CAPTURE, "look \x1b[2Jhere\nINCIDENTS none")
    scene.run(2)
    evil = Frame("f\nLIMITS in force\x9b", "a\r.py", 3)
    scene.job.incidents[0].stacks.add(RankStack(0, 1, "py-spy", (evil,)))
    shown = text(scene.job, scene.now)
    assert not set(shown) & {"\x1b", "\x9b", "\r"}
    assert shown.count("\nLIMITS in force") == 1
    assert "\nINCIDENTS none" not in shown


def test_ranks_whose_stacks_could_not_be_had_are_named_with_the_reason() -> None:
    scene = Accounted(on_hang="capture").run(20).hang(1).until_found().run(1)
    for rank in (0, 2, 3):
        scene.incident.stacks.add(RankStack(rank, 1, "", error="no permission"))
    assert "3 ranks (0, 2-3): no stack, no permission" in text(scene.job, scene.now)


def test_many_incidents_do_not_make_it_endless() -> None:
    scene = Accounted().run(10)
    for _ in range(30):
        scene.order(Action.CAPTURE)
        scene.run(2)
    shown = text(scene.job, scene.now)
    assert "INCIDENTS 30, the newest first" in shown
    assert "and 10 before these" in shown
    assert shown.count("  action: capture") == 20
    assert "culprit: none" not in shown, "what a person ordered has none"


def test_sentences_fit_the_terminal(hung: Accounted) -> None:
    lines = text(hung.job, hung.now).split("\n")
    assert [line for line in lines if len(line) > WIDTH and ".py:" not in line] == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (99.9, "99.9 s"),
        (125.4, "2 min 05 s"),
        (3599.0, "59 min 59 s"),
        (3599.7, "1 h 00 min"),
        (86_399.0, "23 h 59 min"),
        (200_000.0, "2 d 07 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_ranks_as_runs() -> None:
    assert ranks([3]) == "3"
    assert ranks([5, 0, 1, 2, 8]) == "0-2, 5, 8"
    assert ranks(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 8 more"


def test_nodes_are_listed_with_role_and_reason_and_cannot_steer_a_terminal() -> None:
    scene = Accounted(hosts=2).run(10)
    for name, role, why in (("9", NodeRole.SPARE, "2 nodes are enough"), ("8", NodeRole.PARKED, "excluded: \x1b[2J")):
        scene.submit(NodeRegistration(f"node-{name}", f"host-{name}", 10, 2, "gpt"))
        scene.submit(NodeObservation(f"node-{name}", 0, role=role, role_reason=why))
    scene.event(ProcessEventKind.NODE_LOST, lost_node="node-1", reason="it has sent no report for 15 s")
    head, *rows = text(scene.job, scene.now).split("\n\n")[1].split("\n")
    assert head.split() == ["NODES", "ROLE", "RANKS", "SEEN", "NOTE"]
    assert [re.split(r"\s{2,}", row.rstrip()) for row in rows] == [
        ["host-1 (node-1)", "lost", "2-3", "0.0 s ago", "it has sent no report for 15 s"],
        ["host-0 (node-0)", "active", "0-1", "0.0 s ago"],
        ["host-8 (node-8)", "parked", "0.0 s ago", "excluded: \N{REPLACEMENT CHARACTER}[2J"],
        ["host-9 (node-9)", "spare", "0.0 s ago", "2 nodes are enough"],
    ]
