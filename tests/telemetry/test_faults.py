from __future__ import annotations

import pytest

from rankwatch import faults
from rankwatch.faults import Fault, Kind, parse, parse_all


def test_a_fault_as_it_is_written() -> None:
    assert parse("rank=2,step=12,kind=hang") == Fault(2, 12, Kind.HANG)
    assert parse(" rank=0 , step=3,kind=exit,code=17,attempt=2,section=forward ") == Fault(
        0, 3, Kind.EXIT, attempt=2, section="forward", code=17
    )
    assert parse("rank=1,step=0,kind=slow,factor=1.5,attempt=any").attempt is None
    assert [fault.rank for fault in parse_all("rank=0,step=1,kind=kill; rank=1,step=1,kind=stop;")] == [0, 1]
    assert parse_all("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks rank, step, kind"),
        ("rank=1,step=2", "lacks kind"),
        ("rank=1,step=2,kind=explode", "kind of a fault must be one of hang, gil, stop"),
        ("rank=one,step=2,kind=hang", "rank of a fault must be a whole number"),
        ("rank=-1,step=2,kind=hang", "rank of a fault must be a whole number"),
        ("rank=1,step=2,kind=hang,colour=red", "'colour=red' is not"),
        ("rank=1,step=2,kind=hang,seconds", "'seconds' is not"),
        ("rank=1,step=2,kind=hang,seconds=0", "seconds of a fault must be a number above 0"),
        ("rank=1,step=2,kind=hang,seconds=nan", "seconds of a fault must be a number above 0"),
        ("rank=1,step=2,kind=exit,code=300", "code of a fault must be a whole number from 0 to 255"),
        ("rank=1,step=2,kind=slow", "either seconds or factor"),
        ("rank=1,step=2,kind=slow,seconds=1,factor=2", "either seconds or factor"),
    ],
)
def test_what_cannot_be_read_is_told_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_a_fault_strikes_its_rank_step_section_and_attempt_only() -> None:
    fault = parse("rank=2,step=12,kind=hang,section=forward")
    time = {"rank": 2, "step": 12, "attempt": 1, "section": "forward"}
    assert fault.strikes(**time)  # type: ignore[arg-type]
    for other in ({"rank": 1}, {"step": 13}, {"step": 11}, {"attempt": 2}, {"section": None}, {"section": "backward"}):
        assert not fault.strikes(**(time | other))  # type: ignore[arg-type]


def test_any_attempt_and_slowness_that_lasts() -> None:
    always = parse("rank=0,step=5,kind=kill,attempt=any")
    assert always.strikes(rank=0, step=5, attempt=9)
    slow = parse("rank=0,step=5,kind=slow,seconds=0.1")
    assert [slow.strikes(rank=0, step=step, attempt=1) for step in (4, 5, 500)] == [False, True, True]


def test_what_the_environment_asks_for_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_INJECT", "rank=1,step=3,kind=exit,code=9")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    faults._asked_for.cache_clear()
    try:
        faults.maybe_inject(2)
        with pytest.raises(SystemExit, match="9"):
            faults.maybe_inject(3)
    finally:
        faults._asked_for.cache_clear()


def test_a_fault_that_cannot_be_read_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_INJECT", "rank=1")
    faults._asked_for.cache_clear()
    try:
        with pytest.raises(ValueError, match="lacks step, kind"):
            faults.maybe_inject(0)
    finally:
        faults._asked_for.cache_clear()
