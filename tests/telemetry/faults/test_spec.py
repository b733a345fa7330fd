from __future__ import annotations

import pytest

from rankwatch.faults.spec import JITTER, RANDOM_KINDS, SYNONYMS, Fault, Kind, of, parse, parse_all


def test_a_fault_as_it_is_written() -> None:
    assert parse("rank=2,step=12,kind=hang") == Fault(2, 12, Kind.HANG)
    assert parse(" rank=0 , step=3,kind=exit,code=17,attempt=2,section=forward ") == Fault(
        0, 3, Kind.EXIT, attempt=2, section="forward", code=17
    )
    assert parse("rank=1,step=0,kind=slow,factor=1.5,attempt=any").attempt is None
    assert parse("rank=1,delay=2.5,kind=stop") == Fault(1, None, Kind.STOP, delay=2.5)
    assert parse("rank=random,section=saving,kind=HANG,seed=-4") == Fault(
        None, None, Kind.HANG, section="saving", seed=-4
    )
    assert [fault.rank for fault in parse_all("rank=0,step=1,kind=kill; rank=1,step=1,kind=stop;")] == [0, 1]
    assert parse_all("") == ()


def test_the_names_that_nvrx_users_know() -> None:
    assert parse("rank=0,step=1,kind=rank_hung").kind is Kind.STOP
    assert parse("rank=0,step=1,kind=RANK_KILLED").kind is Kind.KILL
    known = ("GPU_ERROR", "GPU_SLEEP", "WORKLOAD_EXC", "ASYNC_EXC", "OS_ABORT", "LOCK_GIL", "SEGFAULT")
    signals = ("SIGINT", "SIGKILL", "SIGTERM", "SIGSTOP")
    kinds = [parse(f"rank=0,step=1,kind={name}").kind for name in known + signals]
    assert len(set(kinds)) == len(kinds)
    assert not SYNONYMS.keys() & {str(kind) for kind in Kind}, "no synonym hides a kind"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"lacks rank, kind, step \(or section, or delay\)"),
        ("rank=1", r"lacks kind, step \(or section"),
        ("rank=1,step=2", "lacks kind"),
        ("step=2,kind=hang", "lacks rank"),
        ("rank=1,kind=hang", r"lacks step \(or section"),
        ("rank=1,step=2,kind=explode", "kind of a fault must be one of hang, gil, stop"),
        ("rank=one,step=2,kind=hang", "rank of a fault must be a whole number from 0, or random"),
        ("rank=-1,step=2,kind=hang", "rank of a fault must be a whole number"),
        ("rank=1,step=random,kind=hang", "step of a fault must be a whole number"),
        ("rank=1,step=2,kind=hang,colour=red", "'colour=red' is not"),
        ("rank=1,step=2,kind=hang,seconds", "'seconds' is not"),
        ("rank=1,rank=2,step=2,kind=hang", "sets rank twice"),
        ("rank=1,step=2,kind=hang,section=", "section of a fault must be a name"),
        ("rank=1,step=2,kind=hang,seconds=0", "seconds of a fault must be a number above 0"),
        ("rank=1,step=2,kind=hang,seconds=nan", "seconds of a fault must be a number above 0"),
        ("rank=1,step=2,kind=kill,seconds=3", "kill has no length"),
        ("rank=1,step=2,kind=exit,code=300", "code of a fault must be a whole number from 0 to 255"),
        ("rank=1,step=2,kind=hang,code=3", "code is for kind=exit, not for hang"),
        ("rank=1,step=2,kind=slow", "either seconds or factor"),
        ("rank=1,step=2,kind=slow,seconds=1,factor=2", "either seconds or factor"),
        ("rank=1,step=2,kind=hang,factor=2", "factor is for kind=slow"),
        ("rank=1,delay=-1,kind=hang", "delay of a fault must be a number of seconds from 0"),
        ("rank=1,delay=inf,kind=hang", "delay of a fault must be a number of seconds from 0"),
        ("rank=1,delay=3,step=2,kind=hang", "after a delay or in a step or section, not both"),
        ("rank=1,delay=3,section=save,kind=hang", "after a delay or in a step or section, not both"),
        ("rank=1,step=2,kind=hang,seed=3", "seed is for what is random"),
        ("rank=random,step=2,kind=hang,seed=x", "seed of a fault must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_reported(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_a_program_may_give_values_as_they_are() -> None:
    assert of({"rank": 2, "kind": Kind.SLOW, "factor": 2}) == Fault(2, None, Kind.SLOW, factor=2.0)
    with pytest.raises(ValueError, match=r"rank of a fault must be .*, not '1\.5'"):
        of({"rank": 1.5, "kind": "hang"})


def strikes(fault: Fault, *, rank: int, step: int, attempt: int, section: str | None = None) -> bool:
    return fault.concerns(rank=rank, attempt=attempt) and fault.is_due(step, section)


def test_a_fault_strikes_its_rank_step_section_and_attempt_only() -> None:
    fault = parse("rank=2,step=12,kind=hang,section=forward")
    time = {"rank": 2, "step": 12, "attempt": 1, "section": "forward"}
    assert strikes(fault, **time)  # type: ignore[arg-type]
    for other in ({"rank": 1}, {"step": 13}, {"step": 11}, {"attempt": 2}, {"section": None}, {"section": "backward"}):
        assert not strikes(fault, **(time | other))  # type: ignore[arg-type]


def test_any_attempt_and_slowness_that_lasts() -> None:
    always = parse("rank=0,step=5,kind=kill,attempt=any")
    assert strikes(always, rank=0, step=5, attempt=9)
    slow = parse("rank=0,step=5,kind=slow,seconds=0.1")
    assert [strikes(slow, rank=0, step=step, attempt=1) for step in (4, 5, 500)] == [False, True, True]


def test_without_a_step_the_section_decides_and_a_delay_is_never_due_by_step() -> None:
    saving = parse("rank=0,section=saving,kind=hang")
    assert [saving.is_due(step, "saving") for step in (0, 70)] == [True, True]
    assert not saving.is_due(0, None)
    assert not parse("rank=0,delay=0,kind=hang").is_due(0, None)


def test_chance_is_the_same_on_all_ranks_and_another_for_another_job_or_place() -> None:
    fault = parse("rank=random,delay=10,kind=random")
    drawn = [fault.settled(world_size=1000, job_id="a") for _ in range(3)]
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0].kind in RANDOM_KINDS
    others = [fault.settled(world_size=1000, job_id="b"), fault.settled(world_size=1000, job_id="a", index=1)]
    assert len({each.rank for each in (drawn[0], *others)}) == 3
    seeded = parse("rank=random,delay=10,kind=random,seed=7")
    assert seeded.settled(world_size=1000, job_id="a") == seeded.settled(world_size=1000, job_id="b")


def test_every_rank_and_kind_may_be_drawn_and_a_delay_grows_by_a_fifth_at_most() -> None:
    fault = parse("rank=random,delay=10,kind=random")
    drawn = [fault.settled(world_size=4, job_id=str(job)) for job in range(200)]
    assert {each.rank for each in drawn} == {0, 1, 2, 3}
    assert {each.kind for each in drawn} == set(RANDOM_KINDS)
    delays = [each.delay for each in drawn if each.delay is not None]
    assert len(delays) == 200
    assert 10 <= min(delays) < 10.2
    assert 10 * (1 + JITTER) - 0.2 < max(delays) < 10 * (1 + JITTER)


def test_what_is_given_is_not_drawn() -> None:
    fault = parse("rank=3,step=2,kind=gil")
    assert fault.settled(world_size=2, job_id="a") == fault


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank=2,step=5,kind=hang", "hang on rank 2, in step 5, in attempt 1"),
        ("rank=2,step=5,section=data,kind=hang", "hang on rank 2, in step 5 in section 'data', in attempt 1"),
        (
            "rank=random,section=data,kind=gil,attempt=any",
            "gil on a random rank, the first time in section 'data', in every attempt",
        ),
        ("rank=0,delay=90,kind=term,attempt=2", "term on rank 0, 90.0 s after init(), in attempt 2"),
    ],
)
def test_a_fault(text: str, words: str) -> None:
    assert str(parse(text)) == words
