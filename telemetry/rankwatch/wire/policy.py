"""What a person may set about a job: each value with its name, default, unit and meaning in one place.

The launcher's flags, the ``RANKWATCH_*`` environment variables, the policy API of the monitor and the table in
``docs/reference.md`` are all made from the fields of :class:`Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rankwatch.wire.vocabulary import Action

MAX_TIMEOUT = 30 * 86_400.0
"""A limit longer than 30 days is taken for a mistake in the unit (milliseconds, say)."""
DEFAULT_HEARTBEAT = 300.0
"""A limit of exactly this is nobody's choice: it does not count while a section is open, which has its own."""
MAX_SECTION_NAME = 63
"""Bytes of a section's name that fit into its slot."""


def _setting(default: Any, unit: str, meaning: str) -> Any:
    make = {"default_factory": dict} if default == {} else {"default": default}
    return field(metadata={"unit": unit, "meaning": meaning}, **make)


@dataclass(frozen=True, slots=True)
class Policy:
    """How one job is judged and what is done about it. Read and changed while the job runs.

    Build it with :meth:`changed`, which checks every value and raises ``ValueError`` with words a person can act on.
    """

    detection: bool = _setting(True, "", "judge this job at all; off means it is only shown")
    observe_only: bool = _setting(False, "", "judge, record and alert, but never act on the ranks")
    initial_heartbeat_timeout: float | None = _setting(
        1800.0, "s", "limit for the first heartbeat or report of a rank, once another rank of the job has given one"
    )
    heartbeat_timeout: float | None = _setting(
        DEFAULT_HEARTBEAT,
        "s",
        "limit between two heartbeats of a rank that has beaten; the default does not count while a section is open",
    )
    section_timeouts: Mapping[str, float] = _setting({}, "s", "limit for each named section, NAME=SECONDS")
    out_of_section_timeout: float | None = _setting(
        None, "s", "limit for the time outside all sections, for ranks that have used sections"
    )
    silence_timeout: float | None = _setting(
        60.0, "s", "limit for hearing nothing at all of a rank; never below three of its export intervals"
    )
    learn_timeouts: bool = _setting(
        True,
        "",
        "learn limits for the sections that have none, and use those of earlier runs; off: what is configured, exactly",
    )
    learned_factor: float = _setting(5.0, "", "a learned limit is so many times the longest time seen")
    learned_minimum: float = _setting(10.0, "s", "no learned limit is shorter than this")
    first_time_timeout: float | None = _setting(
        1800.0,
        "s",
        "limit for a section of which nothing is known yet, and for the first step of a process, which compiles",
    )
    confirmation_window: float = _setting(
        60.0, "s", "how long a rank past a learned limit must stay without progress before it is acted on"
    )
    on_hang: Action = _setting(Action.RESTART, "", "what to do when a limit is passed")
    capture_deadline: float = _setting(5.0, "s", "how long to wait for stacks before acting without them")
    stop_deadline: float = _setting(60.0, "s", "how long ranks may take to reach an agreed stop step and save")
    max_restarts: int = _setting(3, "", "restarts of the ranks within one job, crashes and hangs together")
    max_no_progress: int = _setting(
        3,
        "",
        "attempts in a row that get no further than an earlier one, before the job ends with exit code 93; 0: off",
    )

    def changed(self, changes: Mapping[str, Any]) -> Policy:
        """Return this policy with some values replaced.

        ``None`` switches a limit off. ``section_timeouts`` is merged by section; a section set to ``None`` is removed.

        Raises:
            ValueError: a name is unknown or a value makes no sense; the text says which and what would.
        """
        known = {f.name: f for f in fields(self)}
        new: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"unknown policy setting {name!r}; known are: {', '.join(sorted(known))}")
            new[name] = _checked(name, value, self)
        return replace(self, **new)

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON types."""
        values = asdict(self)
        values["section_timeouts"] = dict(self.section_timeouts)
        values["on_hang"] = str(self.on_hang)
        return values


def _checked(name: str, value: Any, old: Policy) -> Any:
    if name in ("detection", "observe_only", "learn_timeouts"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value
    if name == "section_timeouts":
        return _merged_sections(value, old.section_timeouts)
    if name == "on_hang":
        try:
            return Action(value)
        except ValueError:
            raise ValueError(f"on_hang must be one of {', '.join(Action)}, not {value!r}") from None
    if name in ("max_restarts", "max_no_progress"):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10_000:
            raise ValueError(f"{name} must be a whole number from 0 to 10000, not {value!r}")
        return value
    if name == "learned_factor":
        return _factor(value)
    if value is None and name in ("capture_deadline", "stop_deadline", "learned_minimum", "confirmation_window"):
        raise ValueError(f"{name} cannot be switched off; give seconds")
    return None if value is None else timeout(name, value)


def _factor(value: Any) -> float:
    try:
        factor = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        factor = float("nan")
    if not 1 < factor <= 1000:
        raise ValueError(f"learned_factor must be a number above 1 and up to 1000, not {value!r}")
    return factor


def _merged_sections(value: Any, old: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"section_timeouts must map section names to seconds, not {value!r}")
    merged = dict(old)
    for section, seconds in value.items():
        if not isinstance(section, str) or not 0 < _bytes(section) <= MAX_SECTION_NAME:
            raise ValueError(f"a section's name must be 1 to {MAX_SECTION_NAME} bytes of text, not {section!r}")
        if seconds is None:
            merged.pop(section, None)
        else:
            merged[section] = timeout(f"the timeout of section {section!r}", seconds)
    return merged


def _bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def timeout(what: str, value: Any) -> float:
    """Return ``value`` as seconds, or raise ``ValueError`` saying what ``what`` must be."""
    try:
        seconds = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = float("nan")
    if not math.isfinite(seconds) or not 0 < seconds <= MAX_TIMEOUT:
        raise ValueError(f"{what} must be a number of seconds above 0 and up to {MAX_TIMEOUT:.0f}, not {value!r}")
    return seconds


def parse_section_timeouts(text: str) -> dict[str, float]:
    """Read ``step=10,checkpointing=420`` (or with ``:`` for ``=``, as NVRx writes it).

    Raises:
        ValueError: a part is not NAME=SECONDS.
    """
    limits: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, mark, seconds = part.replace(":", "=").partition("=")
        if not mark or not name.strip():
            raise ValueError(f"section timeouts are written NAME=SECONDS, for example step=180; {part!r} is not")
        limits[name.strip()] = timeout(f"the timeout of section {name.strip()!r}", seconds.strip())
    return limits
