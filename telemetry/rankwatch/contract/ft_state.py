"""``ft_state.json``: timeouts learned in earlier runs, kept beside the checkpoints, in the layout that NVRx writes.

The file holds one object, whose key ``current_timeouts`` holds two more, either of which may be missing::

    {"current_timeouts": {
        "heartbeat": {"initial": 1800.0, "subsequent": 300.0, "were_calculated": true},
        "section": {
            "section": {"setup": 600.0, "step": 42.5, "checkpointing": null},
            "out_of_section": 300.0,
            "calculated_sections": ["step"],
            "is_out_of_section_calculated": false}}}

Only values marked as calculated are used; the others were configured in the run that wrote the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.contract.schema import MAX_SECTION_NAME, timeout

FILE_NAME: Final = "ft_state.json"
MAX_SECTIONS: Final = 256
"""A file with more calculated sections is rejected; a rank has 64 at most."""
_ROOT: Final = "current_timeouts"


@dataclass(frozen=True, slots=True)
class LearnedTimeouts:
    """Limits in seconds that were calculated from what was observed; None, or a missing section: none was."""

    sections: Mapping[str, float] = field(default_factory=dict)
    out_of_section: float | None = None
    initial_heartbeat: float | None = None
    heartbeat: float | None = None

    def __bool__(self) -> bool:
        return bool(self.sections or self.out_of_section or self.heartbeat)


def read(state: Mapping[str, Any]) -> LearnedTimeouts:
    """The calculated limits in the content of the file. Sections with longer names than a rank can use are left out.

    Raises:
        ValueError: the layout is another; the message states where.
    """
    if _object(state, "the content") and _ROOT not in state:
        raise ValueError(f"it has no {_ROOT}")
    current = _object(state.get(_ROOT, {}), _ROOT)
    section = _object(current.get("section", {}), "section")
    beats = _object(current.get("heartbeat", {}), "heartbeat")
    given = _object(section.get("section", {}), "section.section")
    calculated = section.get("calculated_sections", ())
    if not isinstance(calculated, list | tuple):
        raise ValueError(f"calculated_sections must be a list of names, not {calculated!r}")
    if len(calculated) > MAX_SECTIONS:
        raise ValueError(f"calculated_sections has {len(calculated)} names, the limit is {MAX_SECTIONS}")
    outside = section.get("out_of_section") if section.get("is_out_of_section_calculated") else None
    learned_beats = bool(beats.get("were_calculated"))
    return LearnedTimeouts(
        sections={
            name: timeout(f"the timeout of section {name!r}", given[name])
            for name in map(_name, calculated)
            if given.get(name) is not None and len(name.encode()) <= MAX_SECTION_NAME
        },
        out_of_section=_optional("out_of_section", outside),
        initial_heartbeat=_optional("initial", beats.get("initial") if learned_beats else None),
        heartbeat=_optional("subsequent", beats.get("subsequent") if learned_beats else None),
    )


def write(learned: LearnedTimeouts, configured: Mapping[str, float], out_of_section: float | None) -> dict[str, Any]:
    """The content of the file: learned limits and, not marked as calculated, configured ones."""
    outside = learned.out_of_section
    current: dict[str, Any] = {
        "section": {
            "section": {**configured, **learned.sections},
            "out_of_section": out_of_section if outside is None else outside,
            "calculated_sections": sorted(learned.sections),
            "is_out_of_section_calculated": outside is not None,
        }
    }
    if learned.heartbeat is not None:
        current["heartbeat"] = {
            "initial": learned.initial_heartbeat,
            "subsequent": learned.heartbeat,
            "were_calculated": True,
        }
    return {_ROOT: current}


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, not {value!r}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"calculated_sections must be a list of names; {value!r} is not")
    return value


def _optional(what: str, value: Any) -> float | None:
    return None if value is None else timeout(what, value)
