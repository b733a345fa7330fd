"""Answers of NCCL's RAS in the forms of several versions become one record."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwatch.contract.messages import read
from rankwatch.contract.nccl_ras import MAX_COMMUNICATORS, MAX_MEMBERS, RasProcess, RasReport
from rankwatch_launcher.stacks.ras_answer import MAX_KINDS, MAX_LINES, MAX_VALUES, report, steady
from support.fake_ras import (
    HEALTHY,
    TEXT_2_24,
    TEXT_2_24_DEAD,
    TEXT_2_27,
    json_answer,
    json_rank,
    missing_rank,
)


def test_a_rank_that_launched_less_is_told_from_the_others_in_the_text_of_2_24() -> None:
    found = report(TEXT_2_24)
    assert (found.version, found.total, found.timeouts, found.missing) == ("2.24.3", 5, 0, ())
    (each,) = found.communicators
    assert (each.name, each.size, each.missing) == ("27a079b828ff1a75", 8, ())
    most, behind = each.progress
    assert (most.counts, most.ranks, most.members) == ({"collective": 6650}, 7, ())
    assert (behind.counts, behind.ranks) == ({"collective": 6649}, 1)
    assert behind.members == (RasProcess("10.0.0.2", 4242, 5),)


def test_a_dead_process_and_its_rank_are_read_from_the_text_of_2_24() -> None:
    found = report(TEXT_2_24_DEAD)
    assert found.missing == (RasProcess("10.0.0.2", 4242, dead=True),)
    (each,) = found.communicators
    assert each.missing == (RasProcess("", member=5),)
    assert each.progress == ()


def test_kinds_that_are_counted_apart_are_joined_for_each_rank() -> None:
    found = report(TEXT_2_27)
    assert (found.version, found.timeouts, found.missing) == ("2.27.3", 1, (RasProcess("10.0.0.2", 4249),))
    (each,) = found.communicators
    assert each.missing == (RasProcess("10.0.0.2", 4249, 7),)
    assert [(p.counts, p.ranks, [m.member for m in p.members]) for p in each.progress] == [
        ({"AllGather": 640, "AllReduce": 12}, 5, []),
        ({"AllGather": 639, "AllReduce": 12}, 1, [1]),
        ({"AllGather": 639, "AllReduce": 0}, 1, [4]),
    ]
    assert [(f.what, f.ranks, [m.member for m in f.members]) for f in each.failures] == [
        ("Remote process error", 1, [2])
    ]


def test_of_ranks_that_are_equally_far_nothing_is_listed() -> None:
    assert report(HEALTHY) == RasReport("2.24.3", total=5)
    found = report(json_answer([json_rank(r, 100 + r) for r in range(4)]))
    assert found == RasReport("2.28.9", total=1), "messages between two ranks need not be equally many"


def test_json_lists_every_rank() -> None:
    ranks = [json_rank(0, 100, AllReduce=8), json_rank(1, 101, AllReduce=8), json_rank(2, 102)]
    ranks[0]["status"]["async_error"] = 6
    found = report(json_answer(ranks, [missing_rank(3, 103, dead=True)]))
    assert found.missing == (RasProcess("127.0.0.1", 103, dead=True),)
    (each,) = found.communicators
    assert (each.name, each.size, each.missing) == ("feed", 4, (RasProcess("127.0.0.1", 103, 3, dead=True),))
    assert [(p.counts, [m.pid for m in p.members]) for p in each.progress] == [
        ({"AllReduce": 8}, [100, 101]),
        ({"AllReduce": 7}, [102]),
    ]
    assert [(f.what, [m.member for m in f.members]) for f in each.failures] == [("Remote process error", [0])]


def test_a_process_that_answers_and_is_not_in_the_communicator_is_not_missing() -> None:
    gone = missing_rank(1, 101)
    gone["status"]["unresponsive"] = False
    assert report(json_answer([json_rank(0, 100)], [gone])).communicators == ()


def test_a_banner_before_json_is_passed_over() -> None:
    banner = "RCCL version 2.28.3 compiled with ROCm 7.0\nHIP runtime version 70051831\n\n"
    assert report(banner + json_answer([json_rank(0, 1)])).version == "2.28.9"


def test_where_the_text_does_not_tell_who_is_where_no_rank_is_told_from_the_others() -> None:
    halves = TEXT_2_24.replace("  7 ranks have launched", "  4 ranks have launched").partition("  Rank 5")[0]
    found = report(halves + "  4 ranks have launched up to operation 6649\n")
    assert found.communicators == ()


def test_progress_that_goes_on_between_two_answers_is_left_out() -> None:
    def at(*counts: int) -> RasReport:
        return report(json_answer([json_rank(r, 100 + r, AllReduce=n) for r, n in enumerate(counts)]))

    stuck = steady(at(8, 8, 7), at(8, 8, 7))
    assert (len(stuck.communicators), stuck.going_on) == (1, 0)
    moving = steady(at(8, 8, 7), at(9, 8, 9))
    assert (moving.communicators, moving.going_on) == ((), 1)
    assert steady(at(8, 8, 7), at(8, 8, 8)).communicators == ()


def test_groups_too_large_to_be_listed_are_not_listed_in_part() -> None:
    count = MAX_MEMBERS + 1
    ranks = [json_rank(r, r, AllReduce=7 + (r < count)) for r in range(count + 2)]
    most, others = report(json_answer(ranks)).communicators[0].progress
    assert (most.ranks, most.members, others.ranks, len(others.members)) == (count, (), 2, 2)


def test_of_many_communicators_the_largest_are_kept() -> None:
    one = json.loads(json_answer([json_rank(0, 1, AllReduce=8), json_rank(1, 2)]))
    one["communicators"] *= 2 * MAX_COMMUNICATORS
    larger = json.loads(json_answer([json_rank(0, 1, AllReduce=8), json_rank(1, 2), json_rank(2, 3)], name="0xbee"))
    one["communicators"] += larger["communicators"]
    found = report(json.dumps(one))
    assert (len(found.communicators), found.communicators[0].name) == (MAX_COMMUNICATORS, "bee")
    assert found.total == 2 * MAX_COMMUNICATORS + 1


BROKEN = json.loads(json_answer([json_rank(0, 1, AllReduce=8), json_rank(1, 2)]))


@pytest.mark.parametrize(
    "answer",
    [
        "", "HTTP/1.1 400 Bad Request\r\n\r\n", "{", '{"communicators": 7}', "[" * 100_000,
        '{"nccl_version": "2", "communicators": [{}]}',
        "NCCL version 2.24.3\n" + "\n" * (MAX_LINES + 1),
        json.dumps(BROKEN).replace('"AllReduce": 8', '"AllReduce": -8'),
        json.dumps(BROKEN).replace('"AllReduce": 8', '"AllReduce": 1e999'),
        json.dumps(BROKEN).replace('"AllReduce": 8', f'"AllReduce": {2**63}'),
        json.dumps(BROKEN).replace('"host": "127.0.0.1"', '"host": ["x"]'),
        json.dumps(BROKEN).replace('"async_error": 0', '"async_error": []'),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_ras_is_refused(answer: str) -> None:
    with pytest.raises(ValueError):
        report(answer)


def test_an_answer_that_would_take_all_memory_or_time_is_refused() -> None:
    most = {f"Kind{number}": 1 for number in range(MAX_KINDS)}
    with pytest.raises(ValueError, match="kinds of operations"):
        report(json_answer([json_rank(0, 1, **most), json_rank(1, 2)]))
    with pytest.raises(ValueError, match=f"more than {MAX_VALUES} values"):
        report('{"communicators": [' + "{}," * MAX_VALUES + "{}]}")
    kinds = (f"  Communicator ranks have different Kind{number} operation counts\n" for number in range(MAX_KINDS + 1))
    with pytest.raises(ValueError, match="kinds of operations"):
        report("NCCL version 2.27.3\n#0-0 (abc) MISMATCH\n" + "".join(kinds))


def test_ranks_of_one_failure_that_the_text_lists_in_several_places_are_all_listed() -> None:
    ranks = [f"  Rank {n} -- GPU 0 managed by process {n} on node ten\n" for n in range(4)]
    several = "  2 ranks reported System error\n"
    found = report("NCCL version 2.27.3\n#0-0 (abc) ERROR\n" + "".join([several, *ranks[:2], several, *ranks[2:]]))
    failure = found.communicators[0].failures[0]
    assert (failure.ranks, [each.member for each in failure.members]) == (4, [0, 1, 2, 3])


def test_names_in_an_answer_are_cut_and_obey_no_terminal() -> None:
    ranks = [json_rank(0, 1, host="\x1b[2J" + "x" * 500, AllReduce=8), json_rank(1, 2)]
    found = report(json_answer(ranks, name="\u202e" * 5000))
    texts = [found.version, found.communicators[0].name, found.communicators[0].progress[0].members[0].host]
    assert all(each.isprintable() and len(each) < 600 for each in texts)


LINES = st.sampled_from([*TEXT_2_27.splitlines(), *TEXT_2_24_DEAD.splitlines(), *TEXT_2_24.splitlines()])


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES | st.text(max_size=40), max_size=60))
def test_any_order_of_lines_gives_a_record_within_its_bounds_or_is_refused(lines: list[str]) -> None:
    try:
        found = report("NCCL version 2.27.3\n" + "\n".join(lines))
    except ValueError:
        return
    assert read(RasReport, asdict(found)) == found.bounded() == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.data(), JSON)
def test_any_value_at_any_place_of_the_json_gives_a_record_or_is_refused(data: st.DataObject, value: Any) -> None:
    answer = json.loads(json_answer([json_rank(0, 1, AllReduce=8), json_rank(1, 2)], [missing_rank(2, 3)]))
    at: Any = answer
    while True:
        keys = list(range(len(at))) if isinstance(at, list) else list(at)
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = value
            break
        at = at[key]
    try:
        found = report(json.dumps(answer))
    except ValueError:
        return
    assert read(RasReport, asdict(found)) == found.bounded() == found
