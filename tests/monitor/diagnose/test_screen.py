"""The screen: never more than 40 lines of 100 columns, with what a person needs, and nothing that a terminal obeys."""

from __future__ import annotations

import json
from dataclasses import replace

from monitor.diagnose.scenes import JOB, at, locked, report, seen, sleeps, stands, trains, usage
from rankwatch.contract.diagnosis import Gpu, Hindrance, Obstacle
from rankwatch.contract.messages import Frame, RankLog
from rankwatch_monitor.diagnose import screen
from rankwatch_monitor.diagnose.judge import judge

OBSTACLES = [Obstacle(kind, (1, 2)) for kind in Hindrance]


def test_trouble_shows_the_rank_its_stack_beside_the_others_and_what_to_do() -> None:
    log = RankLog(1, "stderr", "n0", "/var/log/run.txt", ("epoch 3", "loading shard 7"))
    judged = judge([report(stands(0), locked(1, log=log), stands(2), stands(3))])
    lines = screen.lines(judged, [], [])
    text = "\n".join(lines)
    for part in ("rank 1", "ranks 0, 2-3", "load (train.py:12)", "all_reduce", "loading shard 7", "What to do: "):
        assert part in text, text
    assert len(lines) <= screen.LINES
    assert max(map(len, lines)) <= 100


def test_a_thousand_places_fit_on_it() -> None:
    deep = tuple(Frame(f"function_{i}" * 20, "/x/" + "y" * 200, i) for i in range(60))
    ranks = [seen(rank, (Frame(f"f{rank}", "/x.py", rank), *deep), usage(), world=64) for rank in range(64)]
    others = [replace(trains(0, world=1), job=f"job {i}") for i in range(20)]
    failed = [(f"node-{i}", "it did not answer in time" * 9) for i in range(50)]
    lines = screen.lines(judge([report(*ranks, *others)]), failed, OBSTACLES)
    assert len(lines) <= screen.LINES


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    evil = "\x1b[2J"
    log = RankLog(1, "stderr", evil, f"/x{evil}", (f"clear {evil}",))
    ranks = [stands(0), locked(1, log=log), stands(2), seen(3, at(evil), usage())]
    judged = judge([replace(report(*(replace(each, job=evil) for each in ranks)), host=evil)])
    lines = screen.lines(judged, [(evil, evil)], [Obstacle(Hindrance.NOT_TRACED, (), evil)])
    assert all(line.isprintable() for line in lines)


def test_healthy_is_short_and_says_so() -> None:
    lines = screen.lines(judge([report(*map(trains, range(4)))]), [], [])
    assert lines[1].startswith("HEALTHY: ")
    assert not any("What to do" in line for line in lines)


def test_json_holds_everything() -> None:
    judged = judge([report(stands(0), sleeps(1), stands(2), stands(3))])
    found = json.loads(json.dumps(screen.to_json(judged, [("n1", "away")], OBSTACLES)))
    (job,) = found["jobs"]
    assert (job["job"], job["verdict"], [each["rank"] for each in job["culprits"]]) == (JOB, "unknown", [1])
    assert [group["ranks"] for group in job["groups"]] == [[1], [0, 2, 3]]
    assert found["unanswered"] == [{"node": "n1", "why": "away"}]
    assert {each["kind"] for each in found["obstacles"]} == set(map(str, Hindrance))


def test_the_gpus_of_the_ranks_that_are_named_or_unlike_the_others_are_shown() -> None:
    gpu = Gpu("NVIDIA H200", 1.0, 40e9, 141e9, 600.0, 1755e6, 1980e6)
    odd = replace(gpu, clock=345e6, throttled=("hw_thermal",), xids=(79,))
    ranks = [stands(0, gpu=gpu), stands(1, gpu=gpu), locked(2, gpu=gpu), stands(3, gpu=odd)]
    (judged,) = judge([report(*ranks)])
    assert "79" in judged.reason
    shown = [line for line in screen.lines([judged], [], []) if line.startswith("  GPU of rank")]
    assert [line.split(" (")[0] for line in shown] == ["  GPU of rank 2", "  GPU of rank 3"]
    every = judge([report(*(replace(each, gpu=replace(gpu, throttled=("power_cap",))) for each in ranks[:2]))])
    assert not any(line.startswith("  GPU of rank") for line in screen.lines(every, [], [])), "all alike"
