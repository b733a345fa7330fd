from __future__ import annotations

import pytest

from rankwatch.contract.job_id import LONGEST, problem, usable


@pytest.mark.parametrize("job_id", ["train-5f3a9c1e", "a_b", "a b", "größe", "x" * LONGEST, "...", "a%2Fb"])
def test_what_can_be_an_id_stays_as_it_is(job_id: str) -> None:
    assert problem(job_id) is None
    assert usable(job_id) == job_id


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "/", "team/run", "a\nb", "x" * (LONGEST + 1), "x/" * LONGEST])
def test_of_any_other_text_one_is_made(text: str) -> None:
    assert problem(text)
    assert problem(usable(text)) is None
    assert usable(text) == usable(text), "every launcher of the job derives the same one"


def test_no_two_texts_share_an_id() -> None:
    texts = ["a/b", "a_b", "a\\b", "a//b", "a/b/", ".", "..", ""]
    assert len({usable(text) for text in texts}) == len(texts)
