"""Grouping of stacks, and which of them wait for peers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.messages import Collective, Frame, RankStack
from rankwatch_monitor.core.hang.stacks import (
    MAX_COLLECTIVES,
    MAX_ERRORS,
    MAX_FRAMES,
    MAX_PLACES,
    MAX_POSITIONS,
    MAX_TEXT,
    POSITIONS_PER_RANK,
    Failure,
    StackGroup,
    Stacks,
    call_site,
    of_script,
    waits_for_peers,
)

TORCH = "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def grouped(stacks: Iterable[RankStack]) -> list[StackGroup]:
    return Stacks.of(stacks).groups()


def stack(rank: int, *functions: str, file: str = "/srv/me/train.py", line: int = 1) -> RankStack:
    return RankStack(rank, 100 + rank, "py-spy", tuple(Frame(f, file, line) for f in functions))


def test_the_odd_one_comes_first() -> None:
    groups = grouped([stack(r, "all_reduce", file=TORCH) for r in range(16) if r != 7] + [stack(7, "load")])
    assert [g.ranks for g in groups] == [(7,), tuple(r for r in range(16) if r != 7)]
    assert [g.label for g in groups] == ["rank 7", "15 ranks"]


def test_line_numbers_do_not_split_a_group_and_the_lowest_rank_is_shown() -> None:
    (only,) = grouped([stack(3, "f", line=30), stack(1, "f", line=10)])
    assert only.ranks == (1, 3)
    assert only.frames[0].line == 10


def test_the_same_function_of_another_file_is_another_place() -> None:
    assert len(grouped([stack(0, "f"), stack(1, "f", file="/srv/me/other.py")])) == 2


def test_stacks_that_could_not_be_had_are_left_out() -> None:
    assert grouped([RankStack(0, 1, "", error="no permission")]) == []
    assert grouped([]) == []


@pytest.mark.parametrize("function", ["all_reduce", "ProcessGroupNCCL.barrier", "Work.wait", "_engine_run_backward"])
def test_a_collective_of_torch_waits(function: str) -> None:
    assert waits_for_peers(stack(0, function, "train_step", file=TORCH).frames)


@pytest.mark.parametrize(
    "frames",
    [
        stack(0, "wait", file="/srv/me/train.py").frames,
        stack(0, "send", file="/usr/lib/python3.12/socket.py").frames,
        stack(0, "forward", file=TORCH).frames,
        stack(0, "wait", file="/srv/me/torchlike/queue.py").frames,
        (),
    ],
    ids=["a user's wait", "a socket", "another torch function", "a name alike", "nothing"],
)
def test_anything_else_does_not(frames: tuple[Frame, ...]) -> None:
    assert not waits_for_peers(frames)


SITE = "/venv/lib/python3.11/site-packages/"


@pytest.mark.parametrize("folder", [SITE, "/srv/source/telemetry/", "/srv/me/rankwatch/telemetry/"])
@pytest.mark.parametrize("script", ["/srv/me/train.py", "/srv/me/rankwatch/train.py"])
def test_the_place_of_a_call_is_that_of_the_script(folder: str, script: str) -> None:
    frames = (
        Frame("_engine_run_backward", SITE + "torch/autograd/graph.py", 979),
        Frame("backward", SITE + "torch/autograd/__init__.py", 395),
        Frame("backward", folder + "rankwatch/integrations/autorun/torch_hooks.py", 168),
        Frame("Tensor.backward", SITE + "torch/_tensor.py", 623),
        Frame("main", script, 9),
        Frame("<module>", "/srv/me/launch.py", 1),
    )
    assert call_site(frames) == frames[4]
    helper = Frame("barrier", folder + "rankwatch/rerun/collectives.py", 30)
    assert call_site((stack(0, "barrier", file=TORCH).frames[0], helper, frames[4])) == frames[4]


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/srv/ada/train/train_gpt.py", True),
        ("<string>", True),
        ("/usr/lib/python3.11/threading.py", False),
        ("/opt/venv/lib/python3.12/site-packages/torch/_tensor.py", False),
        ("<frozen runpy>", False),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", False),
    ],
)
def test_the_script_stands_out_from_packages_the_standard_library_and_native_code(file: str, own: bool) -> None:
    assert of_script(Frame("train", file, 1)) is own


def test_a_windows_path_is_understood() -> None:
    assert waits_for_peers((Frame("barrier", r"C:\venv\Lib\site-packages\torch\distributed\distributed_c10d.py", 1),))


@given(st.dictionaries(st.integers(0, 50), st.sampled_from(["f", "g", "h"])))
def test_every_rank_is_in_exactly_one_group(places: dict[int, str]) -> None:
    groups = grouped(stack(rank, function) for rank, function in places.items())
    ranks = [r for g in groups for r in g.ranks]
    assert sorted(ranks) == sorted(places)
    assert [len(g.ranks) for g in groups] == sorted(len(g.ranks) for g in groups)
    for g in groups:
        assert len({places[r] for r in g.ranks}) == 1


# The container --------------------------------------------------------------------------------------------------------


def test_a_ranks_newest_stack_replaces_the_earlier() -> None:
    stacks = Stacks.of([stack(0, "f"), stack(1, "f")])
    stacks.add(stack(0, "g"))
    assert [g.ranks for g in stacks.groups()] == [(0,), (1,)]
    stacks.add(RankStack(0, 1, "", error="gone"))
    assert [g.ranks for g in stacks.groups()] == [(1,)]
    assert stacks.failures() == [Failure((0,), "gone", "unknown")]
    assert len(stacks) == 2
    stacks.add(stack(0, "f"))
    assert [g.ranks for g in stacks.groups()] == [(0, 1)]
    assert not stacks.failures()


def test_a_process_that_cannot_run_stands_apart() -> None:
    asleep = replace(stack(1, "f"), process_state=ProcessState.UNINTERRUPTIBLE)
    groups = Stacks.of([stack(0, "f"), asleep, stack(2, "f")]).groups()
    assert [(g.ranks, g.process_state) for g in groups] == [((1,), "uninterruptible"), ((0, 2), "unknown")]


def test_what_is_kept_does_not_grow_with_different_stacks() -> None:
    stacks = Stacks.of(stack(rank, f"f{rank}") for rank in range(1000))
    stacks.add(stack(1000, "all_reduce", "f", file=TORCH))
    groups = stacks.groups()
    assert sum(bool(g.frames) for g in groups) == MAX_PLACES
    assert sorted(r for g in groups for r in g.ranks) == list(range(1001)), "every rank is accounted for"
    rest = {g.waits: g for g in groups if not g.frames}
    assert rest[True].ranks == (1000,), "whether it waits is known of those beyond, too"
    assert len(rest[False].ranks) == 1000 - MAX_PLACES
    assert "different stacks" in rest[False].note


def test_errors_are_bounded() -> None:
    failures = Stacks.of(RankStack(r, 1, "", error=f"no process {r}" * 99) for r in range(500)).failures()
    assert len(failures) == MAX_ERRORS + 1
    assert sorted(r for f in failures for r in f.ranks) == list(range(500))
    assert max(len(f.error) for f in failures) <= MAX_TEXT


def test_a_stack_that_is_too_long_is_cut_and_reports_it() -> None:
    long = stack(0, *("f" * 9999 for _ in range(500)), file="/srv/" + "d" * 9999 + "/train.py")
    (only,) = Stacks.of([replace(long, error="for its size cut")]).groups()
    assert len(only.frames) == MAX_FRAMES
    assert only.frames[0].file.endswith("/train.py")
    assert max(len(only.frames[0].function), len(only.frames[0].file)) <= MAX_TEXT
    assert only.note == f"for its size cut; cut to the inner {MAX_FRAMES} of 500 frames"


def test_a_call_that_waits_counts_although_it_was_cut_away() -> None:
    deep = (*(Frame("helper", "/srv/me/train.py", 1) for _ in range(MAX_FRAMES)), Frame("all_reduce", TORCH, 1))
    (only,) = Stacks.of([RankStack(0, 1, "py-spy", deep)]).groups()
    assert only.waits


def test_progress_are_per_group_with_the_furthest_first_and_bounded() -> None:
    many = tuple(Collective(f"g{i:03}", "all_reduce", 1, 0) for i in range(500))
    stacks = Stacks.of([replace(stack(0, "f"), collectives=many)])
    assert len(stacks.group_progress()) == MAX_COLLECTIVES
    stacks = Stacks.of(
        replace(stack(r, "f"), collectives=(Collective("dp", "all_reduce", 57 + (r != 2), 57),)) for r in range(4)
    )
    assert [(f.enqueued, f.ranks, f.waits) for f in stacks.group_progress()] == [
        (58, (0, 1, 3), True),
        (57, (2,), False),
    ]
    stacks.add(stack(2, "f"))
    assert [f.ranks for f in stacks.group_progress()] == [(0, 1, 3)], "the newest word of a rank counts"


RANK_STACKS = st.builds(
    RankStack,
    rank=st.integers(0, 30),
    pid=st.just(1),
    method=st.sampled_from(["py-spy", "faulthandler"]),
    frames=st.lists(st.builds(Frame, st.sampled_from("fgh"), st.sampled_from([TORCH, "/a.py"]), st.integers(0, 9))).map(
        tuple
    ),
    process_state=st.sampled_from(ProcessState),
    error=st.sampled_from(["", "no right"]),
    collectives=st.lists(
        st.builds(Collective, st.sampled_from("ab"), st.just("barrier"), st.integers(0, 3), st.integers(-1, 3)),
        unique_by=lambda c: c.group,
    ).map(tuple),
)


@given(st.lists(RANK_STACKS))
def test_what_is_stored_comes_back(taken: list[RankStack]) -> None:
    stacks = Stacks.of(taken)
    back = Stacks.of_json(json.loads(json.dumps(stacks.to_json())))
    assert back.groups() == stacks.groups()
    assert back.failures() == stacks.failures()
    assert back.group_progress() == stacks.group_progress()
    assert list(back) == list(stacks) == sorted({s.rank for s in taken})
    assert back == stacks
    back.add(stack(31, "f"))
    assert back != stacks


def at(rank: int, function: str, line: int, method: str = "py-spy") -> RankStack:
    return RankStack(rank, 1, method, (Frame(function, "/a.py", line),), process_state=ProcessState.ALIVE)


@given(st.lists(RANK_STACKS), st.lists(RANK_STACKS))
@example([at(0, "f", 0), at(1, "f", 0, "faulthandler")], [at(0, "f", 0)])
@example([at(0, "f", 0), at(5, "f", 0), at(0, "g", 0)], [at(1, "f", 7)])
def test_settled_stacks_show_the_same_and_take_further_ones(first: list[RankStack], then: list[RankStack]) -> None:
    stacks, twin = Stacks.of(first), Stacks.of(first)
    stacks.settle()
    assert stacks.settled
    assert (stacks, list(stacks), len(stacks), stacks.to_json()) == (twin, list(twin), len(twin), twin.to_json())
    assert stacks.copy() == twin
    for each in then:
        stacks.add(each)
        twin.add(each)
    assert stacks.settled == (not then)
    assert (stacks, list(stacks), stacks.to_json()) == (twin, list(twin), twin.to_json())


def test_twenty_thousand_ranks_are_stored_in_a_few_kilobytes() -> None:
    waits = stack(0, *("all_reduce", *(f"layer_{i}" for i in range(40))), file=TORCH)
    reported = tuple(Collective(f"group ({i})", "all_reduce", 58, 57) for i in range(8))
    stacks = Stacks.of(replace(waits, rank=rank, collectives=reported) for rank in range(20_000))
    stacks.add(stack(17_777, "load_batch"))
    stored = json.dumps(stacks.to_json())
    assert len(stored) < 30_000
    assert [g.label for g in stacks.groups()] == ["rank 17777", "19999 ranks"]


_collective = st.builds(
    Collective, st.sampled_from("ab"), st.sampled_from(("all_reduce", "barrier")), st.integers(1, 3), st.integers(0, 2)
)
_stack = st.builds(
    RankStack,
    st.integers(0, 5),
    st.just(1),
    st.just("py-spy"),
    st.sampled_from(((), (Frame("f", "a.py", 1),), (Frame("g", "a.py", 1),))),
    collectives=st.lists(_collective, max_size=3).map(tuple),
)


@given(st.lists(st.one_of(_stack, st.none()), max_size=30))
def test_stacks_that_replace_others_leave_what_the_newest_alone_would(sent: list[RankStack | None]) -> None:
    """None: what is held is read meanwhile, which caches it."""
    kept = Stacks()
    newest: dict[int, RankStack] = {}
    for each in sent:
        if each is None:
            kept.groups(), kept.group_progress()
            continue
        kept.add(each)
        newest.pop(each.rank, None)
        newest[each.rank] = each
    fresh = Stacks.of(newest.values())
    assert kept.group_progress() == fresh.group_progress()
    assert [g.ranks for g in kept.groups()] == [g.ranks for g in fresh.groups()]
    copied = kept.copy()
    assert copied.to_json() == kept.to_json()
    before = copied.to_json()
    kept.add(RankStack(99, 1, "py-spy", (Frame("h", "b.py", 1),), collectives=(Collective("c", "barrier", 1, 0),)))
    assert copied.to_json() == before


@pytest.mark.parametrize("taken", [True, False])
def test_ranks_with_equal_stacks_share_what_is_kept_of_them(taken: bool) -> None:
    """100,000 ranks hang in one collective: what is kept of each is a number, and never frames or an error."""
    ranks, held = range(2_000), Stacks()
    frames = [(f"function_{number}", f"/srv/me/module_{number}.py", number) for number in range(40)]
    tracemalloc.start()
    try:
        for rank in ranks:
            seen = tuple(Frame(*frame) for frame in frames) if taken else ()
            held.add(RankStack(rank, 100 + rank, "py-spy", seen, error="" if taken else f"{'long':>200}"))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == len(ranks)
    assert kept < 300 * len(ranks)


def test_positions_that_differ_in_every_rank_are_bounded() -> None:
    stacks = Stacks()
    for rank in range(200):
        groups = tuple(Collective(str(i), "barrier", rank, -1) for i in range(MAX_COLLECTIVES))
        stacks.add(RankStack(rank, 1, "py-spy", error="none", collectives=groups))
    assert len(stacks.group_progress()) <= MAX_POSITIONS + POSITIONS_PER_RANK * 200
