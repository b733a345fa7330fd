"""The layout of ft_state.json: what counts in it, what is refused, and that what was written is read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.contract.ft_state import LearnedTimeouts, read, write

SECTION = {
    "section": {"setup": 600.0, "step": 42.5, "checkpointing": None},
    "out_of_section": 300.0,
    "calculated_sections": ["step", "checkpointing", "gone"],
    "is_out_of_section_calculated": False,
}
BEATS = {"initial": 1800.0, "subsequent": 300.0, "were_calculated": True}


def state(section: Any = SECTION, heartbeat: Any = BEATS) -> dict[str, Any]:
    return {"current_timeouts": {"section": section, "heartbeat": heartbeat}}


def test_only_what_was_calculated_counts() -> None:
    assert read(state()) == LearnedTimeouts({"step": 42.5}, None, 1800.0, 300.0)
    configured = state({**SECTION, "calculated_sections": []}, {**BEATS, "were_calculated": False})
    assert not read(configured)
    assert read(state({**SECTION, "is_out_of_section_calculated": True})).out_of_section == 300.0


def test_either_part_may_be_missing() -> None:
    assert not read({})
    assert not read({"current_timeouts": {}})
    assert read({"current_timeouts": {"section": SECTION}}).sections == {"step": 42.5}
    assert read({"current_timeouts": {"heartbeat": BEATS}}).heartbeat == 300.0


def test_a_name_that_no_rank_can_use_is_left_out() -> None:
    names = ["é" * 31, "é" * 32]
    given = {"section": dict.fromkeys(names, 5.0), "calculated_sections": names}
    assert read(state(given)).sections == {"é" * 31: 5.0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {}}, "no current_timeouts"),
        ({"current_timeouts": None}, "current_timeouts must be an object"),
        (state(section=[]), "section must be an object"),
        (state(heartbeat=3), "heartbeat must be an object"),
        (state({**SECTION, "section": "step"}), r"section\.section must be an object"),
        (state({**SECTION, "calculated_sections": "step"}), "calculated_sections must be a list of names"),
        (state({**SECTION, "calculated_sections": [["step"]]}), "list of names; .* is not"),
        (state({**SECTION, "calculated_sections": [""]}), "list of names"),
        (state({**SECTION, "calculated_sections": ["\ud800"]}), "list of names"),
        (state({**SECTION, "calculated_sections": ["step"] * 300}), "300 names, the limit is 256"),
        (state({**SECTION, "section": {"step": "long"}}), "timeout of section 'step' must be a number of seconds"),
        (state({**SECTION, "section": {"step": -1}}), "timeout of section 'step' must be a number of seconds"),
        (state(heartbeat={**BEATS, "subsequent": 0}), "subsequent must be a number of seconds"),
    ],
)
def test_another_layout_is_refused_with_the_place(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(content)


seconds = st.floats(0.001, 1e6)


@given(st.dictionaries(st.sampled_from(["step", "save", "load"]), seconds), st.none() | seconds, st.none() | seconds)
def test_what_is_written_is_read_back(
    sections: dict[str, float], outside: float | None, heartbeat: float | None
) -> None:
    learned = LearnedTimeouts(sections, outside, None if heartbeat is None else 2 * heartbeat, heartbeat)
    content = json.loads(json.dumps(write(learned, {"step": 7.0, "other": 8.0}, 9.0)))
    assert read(content) == learned
    kept = content["current_timeouts"]["section"]
    assert kept["section"]["other"] == 8.0, "what was configured stands beside it"
    assert kept["out_of_section"] == (9.0 if outside is None else outside)
