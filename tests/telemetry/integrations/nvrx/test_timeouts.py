from __future__ import annotations

import json

from rankwatch.contract import ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.nvrx import timeouts
from rankwatch.integrations.nvrx.timeouts import HeartbeatTimeouts, SectionTimeouts

LEARNED = LearnedTimeouts({"setup": 100.0, "step": 10.0, "checkpointing": 40.0}, out_of_section=20.0)
NONE = SectionTimeouts()


def test_only_what_is_wanted_is_taken() -> None:
    made = NONE.with_learned(LEARNED, ["step"], outside=False, earlier=NONE)
    assert made == SectionTimeouts({"step": 10.0}, None, {"step"})
    assert made.policy() == {"section_timeouts": {"step": 10.0}}


def test_what_an_earlier_run_calculated_counts_half() -> None:
    earlier = SectionTimeouts({"step": 30.0, "setup": 7.0}, 40.0, {"step"}, is_out_of_section_calculated=True)
    made = earlier.with_learned(LEARNED, ["step", "setup"], outside=True, earlier=earlier)
    assert (made.section["step"], made.out_of_section) == (20.0, 30.0)
    assert made.section["setup"] == 100.0, "it was configured in that run, not calculated"
    again = made.with_learned(LEARNED, ["step"], outside=True, earlier=earlier)
    assert again == made, "a second update moves nothing: what was learned is the longest of the whole run"


def test_what_the_monitor_does_not_know_stays() -> None:
    before = SectionTimeouts({"step": 5.0}, 9.0, {"step"})
    assert before.with_learned(LearnedTimeouts(), ["step"], outside=True, earlier=NONE) == before


def test_calculated_limits_lie_over_the_configured_ones() -> None:
    configured = SectionTimeouts({"setup": 600.0, "step": 180.0}, 300.0)
    calculated = SectionTimeouts({"step": 12.0}, None, {"step"})
    assert calculated.over(configured) == SectionTimeouts({"setup": 600.0, "step": 12.0}, 300.0, {"step"})
    assert NONE.over(configured) == configured


def test_the_properties_of_the_original() -> None:
    assert SectionTimeouts({"step": 1.0}, 2.0, {"step"}, is_out_of_section_calculated=True).were_calculated
    assert not SectionTimeouts(
        {"step": 1.0, "setup": 1.0}, 2.0, {"step"}, is_out_of_section_calculated=True
    ).were_calculated
    assert SectionTimeouts({"step": 1.0}, 2.0).are_valid
    assert not SectionTimeouts({"step": None}, 2.0).are_valid
    assert HeartbeatTimeouts(1.0, 2.0).are_valid
    assert not HeartbeatTimeouts(1.0).are_valid


def test_the_state_is_what_the_file_holds() -> None:
    beats = HeartbeatTimeouts(60.0, 30.0, were_calculated=True)
    section = SectionTimeouts({"setup": 600.0, "step": 10.0}, 20.0, {"step"}, is_out_of_section_calculated=True)
    state = json.loads(json.dumps(timeouts.to_state(beats, section)))
    learned = ft_state.read(state)
    assert learned == LearnedTimeouts({"step": 10.0}, 20.0, 60.0, 30.0)
    assert timeouts.from_learned(learned) == (
        beats,
        SectionTimeouts({"step": 10.0}, 20.0, {"step"}, is_out_of_section_calculated=True),
    )


def test_what_was_only_configured_is_no_state() -> None:
    assert timeouts.to_state(HeartbeatTimeouts(1.0, 2.0), SectionTimeouts({"step": 3.0}, 4.0)) == {
        "current_timeouts": {}
    }
    assert timeouts.from_learned(LearnedTimeouts()) == (None, None)
