"""The policy of a job: each setting with its name, default, unit and meaning in one place.

The launcher's flags, the ``RANKWATCH_*`` environment variables, the policy API of the monitor and the table in
``docs/reference.md`` are all made from the fields of :class:`Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

from rankwatch.contract.enums import Action, KernelSource, ScoreReference
from rankwatch.contract.text import did_you_mean

MAX_TIMEOUT = 30 * 86_400.0
"""A longer limit is rejected as a mistake in the unit (for example milliseconds)."""
MAX_SECTION_NAME = 63
"""Bytes of a section's name that fit into its slot."""


def _setting(default: Any, unit: str, meaning: str) -> Any:
    make = {"default_factory": dict} if default == {} else {"default": default}
    return field(metadata={"unit": unit, "meaning": meaning}, **make)


@dataclass(frozen=True, slots=True)
class Policy:
    """How one job is evaluated and which actions are taken. Can be changed while the job runs.

    A limit that equals its default counts as not configured.
    Build it with :meth:`changed`, which validates every value.
    """

    detection: bool = _setting(True, "", "detect hangs and act on them; off: the job is only shown")
    observe_only: bool = _setting(False, "", "detect, record and alert, but never act on the ranks")
    initial_heartbeat_timeout: float | None = _setting(
        1800.0,
        "s",
        "limit for the first heartbeat or report of a rank, once another rank of the job has given one; the default "
        "one raises a suspicion; another value acts at once, also where no rank has sent a heartbeat, in ranks without "
        "sections and steps",
    )
    heartbeat_timeout: float | None = _setting(
        300.0,
        "s",
        "limit between two heartbeats of a rank; the default one raises a suspicion and does not count while a section "
        "is open, another value acts at once",
    )
    section_timeouts: Mapping[str, float] = _setting({}, "s", "limit for each named section, NAME=SECONDS")
    out_of_section_timeout: float | None = _setting(
        None, "s", "limit for the time outside all sections, for ranks that have used sections"
    )
    silence_timeout: float | None = _setting(
        60.0,
        "s",
        "limit for the time in which nothing is received from a rank; at least three of its export intervals; the "
        "default one raises a suspicion, another value acts at once",
    )
    learn_timeouts: bool = _setting(
        True,
        "",
        "learn limits for the sections that have none, and use those of earlier runs; off: what is configured, exactly",
    )
    calculate_timeouts: bool = _setting(
        False,
        "",
        "a learned limit also applies in a section with a longer configured one, which still acts when it is passed",
    )
    learned_factor: float = _setting(5.0, "{times}", "a learned limit is so many times the longest time seen")
    learned_minimum: float = _setting(2.5, "s", "no learned limit is shorter than this, nor than 5 steps")
    first_time_timeout: float | None = _setting(
        1800.0,
        "s",
        "limit for a section of which nothing is known yet, and for the first step of a process, which compiles",
    )
    confirmation_window: float = _setting(
        180.0,
        "s",
        "how long a rank past a limit that was not configured must at least stay without progress before it is acted "
        "on, where nothing proves that it hangs; twice that where it waits for what may end by itself",
    )
    longest_patience: float = _setting(
        1800.0, "s", "the same at most, however much training since the last save a restart would lose"
    )
    on_hang: Action = _setting(
        Action.RESTART, "", "what to do when a limit is passed; the stacks are recorded in each case"
    )
    capture_deadline: float = _setting(5.0, "s", "how long to wait for stacks before acting without them")
    stop_deadline: float = _setting(60.0, "s", "how long ranks may take to reach an agreed stop step and save")
    max_restarts: int = _setting(
        3, "{restarts}", "how often the ranks may be restarted in one job, after crashes and hangs"
    )
    max_no_progress: int = _setting(
        3,
        "{attempts}",
        "end the job with exit code 93 after so many attempts in a row that got no further than earlier ones; 0: off",
    )
    straggler_detection: bool = _setting(True, "", "score the ranks and name stragglers; off: nothing is scored")
    straggler_reference: ScoreReference = _setting(
        ScoreReference.ROBUST,
        "",
        "what decides which rank is a straggler: robust (middle of the peers, against the job's noise) or fastest (the "
        "thresholds of nvidia-resiliency-ext); both are always computed",
    )
    straggler_slowdown: float = _setting(
        0.05,
        "",
        "the part of each step that the others must wait for a rank before it is a straggler, written 5% or 0.05; with "
        "the reference robust",
    )
    straggler_windows: int = _setting(
        5, "{windows}", "how many of the latest windows of steps are compared; with the reference robust"
    )
    straggler_windows_needed: int = _setting(
        3, "{windows}", "in how many of these windows a rank must be slow to be a straggler"
    )
    straggler_alarms_per_day: float = _setting(
        0.1,
        "{a day}",
        "false alarms a day that are acceptable for a job; the lower, the slower a rank must be before it is reported",
    )
    on_straggler: Action = _setting(Action.LOG, "", "what to do about a straggler")
    calc_relative: bool = _setting(True, "", "compute relative scores: a rank against the others")
    calc_individual: bool = _setting(True, "", "compute individual scores: a rank against its own best")
    relative_threshold: float = _setting(
        0.7, "", "a relative score strictly below this makes a straggler; with the reference fastest"
    )
    individual_threshold: float = _setting(
        0.7, "", "an individual score strictly below this makes a straggler; with the reference fastest"
    )
    kernel_timings: KernelSource = _setting(
        KernelSource.AUTO, "", "where kernel timings come from: auto, cupti, kineto or off"
    )
    profiling_interval: int = _setting(
        0,
        "{steps}",
        "profile every so many steps, at most once in 1.5 export intervals; 0: about every 10 s",
    )
    profiled_ranks: str = _setting("all", "", "ranks that are profiled: all, none, or 0,8-15")
    report_interval: float = _setting(300.0, "s", "time between two reports of kernel timings and scores")
    num_gpu_perf_scores_to_print: int = _setting(
        5, "{ranks}", "worst and best ranks in the report; 0: the report is logged only when a straggler is found"
    )

    def changed(self, changes: Mapping[str, Any]) -> Policy:
        """Return this policy with some values replaced.

        ``None`` switches a limit off. ``section_timeouts`` is merged by section; a section set to ``None`` is removed.

        Raises:
            ValueError: a name is unknown or a value is invalid; the message names it and what is valid.
        """
        known = {f.name: f for f in fields(self)}
        new: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                close = did_you_mean(str(name), known) or f"; known are: {', '.join(sorted(known))}"
                raise ValueError(f"unknown policy setting {name!r}{close}")
            new[name] = _checked(name, value, self)
        made = replace(self, **new)
        if made.straggler_windows_needed > made.straggler_windows:
            raise ValueError(
                f"straggler_windows_needed ({made.straggler_windows_needed}) cannot be more than straggler_windows "
                f"({made.straggler_windows})"
            )
        return made

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON types."""
        values = asdict(self)
        values["section_timeouts"] = dict(self.section_timeouts)
        for name in _ENUMS:
            values[name] = str(values[name])
        return values


def _checked(name: str, value: Any, old: Policy) -> Any:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value
    if name == "section_timeouts":
        return _merged_sections(value, old.section_timeouts)
    if name in _ENUMS:
        try:
            return _ENUMS[name](value)
        except ValueError:
            close = did_you_mean(str(value), _ENUMS[name])
            raise ValueError(f"{name} must be one of {', '.join(_ENUMS[name])}, not {value!r}{close}") from None
    if name in _WHOLE:
        least, most = _WHOLE[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        return value
    if name in _NUMBERS:
        return _number(name, value)
    if name == "profiled_ranks":
        return str(parse_ranks(value))
    if value is None and name in _NEVER_OFF:
        raise ValueError(f"{name} cannot be switched off; give seconds")
    return None if value is None else timeout(name, value)


_SWITCHES = (
    "detection",
    "observe_only",
    "learn_timeouts",
    "calculate_timeouts",
    "straggler_detection",
    "calc_relative",
    "calc_individual",
)
_ENUMS: Mapping[str, type[StrEnum]] = {
    "on_hang": Action,
    "on_straggler": Action,
    "straggler_reference": ScoreReference,
    "kernel_timings": KernelSource,
}
_WHOLE: Mapping[str, tuple[int, int]] = {
    "max_restarts": (0, 10_000),
    "max_no_progress": (0, 10_000),
    "straggler_windows": (1, 20),
    "straggler_windows_needed": (1, 20),
    "profiling_interval": (0, 1_000_000),
    "num_gpu_perf_scores_to_print": (0, 1_000),
}
# By setting: the bound it must be above, the highest value, and the words for both.
_NUMBERS: Mapping[str, tuple[float, float, str]] = {
    "learned_factor": (1.0, 1000.0, "a number above 1 and up to 1000"),
    "straggler_slowdown": (0.0, 1.0, "a part of a step: above 0% and up to 100%, or above 0 and up to 1"),
    "straggler_alarms_per_day": (0.0, 1000.0, "a number above 0 and up to 1000"),
    "relative_threshold": (-math.ulp(0.0), 1.0, "a score: a number from 0 (never) to 1"),
    "individual_threshold": (-math.ulp(0.0), 1.0, "a score: a number from 0 (never) to 1"),
}
SHARES: Final = ("straggler_slowdown",)
"""Settings that are shares, which people read and write in percent: ``5%`` is 0.05."""
ACTION_MEANINGS: Final[Mapping[Action, str]] = {
    Action.LOG: "only recorded and shown; the ranks are left as they are",
    Action.CAPTURE: "the stacks of all ranks are stored in an incident; the ranks are left as they are",
    Action.RESTART: (
        "once the stacks are in, or after capture_deadline without them, the ranks are killed and start again"
    ),
    Action.RESTART_EXCLUDING_NODE: (
        "like restart, without the nodes of the culprits or those named; a spare takes each place if one waits"
    ),
    Action.SAVE_AND_STOP: (
        "the ranks agree on a step within seconds, save there and end: no step is lost if they still make steps "
        "and the script calls should_stop(), else they are ended after stop_deadline"
    ),
    Action.STOP: "the ranks are ended at once, without saving",
}
"""What each action does and when, alike for hangs, stragglers and orders. A setting's name stands for its value."""
LOST_STEPS: Final = "Restarts and stop lose the steps since the last checkpoint."
_NEVER_OFF = (
    "capture_deadline",
    "stop_deadline",
    "learned_minimum",
    "confirmation_window",
    "longest_patience",
    "report_interval",
)


def _number(name: str, value: Any) -> float:
    above, most, words = _NUMBERS[name]
    try:
        number = float("nan") if isinstance(value, bool) else _share(value) if name in SHARES else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not above < number <= most:
        raise ValueError(f"{name} must be {words}, not {value!r}")
    return number


def _share(value: Any) -> float:
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return float(value.rstrip().removesuffix("%")) / 100
    return float(value)


@dataclass(frozen=True, slots=True)
class Ranks:
    """A set of ranks in the notation of the user; made by :func:`parse_ranks`."""

    text: str
    runs: tuple[tuple[int, int], ...]

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and any(first <= rank <= last for first, last in self.runs)

    def __str__(self) -> str:
        return self.text


def parse_ranks(text: Any) -> Ranks:
    """Read ``all``, ``none`` or ``0,8-15``.

    Raises:
        ValueError: it is none of these.
    """
    words = text.strip().lower() if isinstance(text, str) else ""
    if words in ("all", "none"):
        return Ranks(words, ((0, 2**62),) if words == "all" else ())
    runs = []
    for part in words.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            raise ValueError(f"ranks are written all, none or like 0,8-15; not {text!r}")
        runs.append((int(first), int(last or first)))
    return Ranks(words.replace(" ", ""), tuple(runs))


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


def parse_value(text: str) -> bool | int | float | str | None:
    """Read a setting's value from a command line: true, false, none (or null), a number, or else the text itself.

    :meth:`Policy.changed` validates it.
    """
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


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
