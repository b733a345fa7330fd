"""The policy of a job: each setting with its name, default, unit and meaning in one place.

The launcher's flags, the ``RANKWATCH_*`` environment variables, the policy API of the monitor and the table in
``docs/reference.md`` are all made from the fields of :class:`Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from rankwatch.contract.enums import Action, KernelSource, ScoreReference
from rankwatch.contract.schema import (
    LIMIT,
    MORE_THAN_0,
    SECONDS,
    SECTIONS,
    SWITCH,
    Kind,
    choice,
    kinds,
    number,
    setting,
    whole,
)
from rankwatch.contract.text import did_you_mean


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


def _percent(text: str) -> Any:
    return float(text.rstrip().removesuffix("%")) / 100 if text.rstrip().endswith("%") else text


def _share(value: Any) -> Any:
    return _PART.take(_percent(value) if isinstance(value, str) else value)


_PART: Final = number(MORE_THAN_0, 1.0, "a part of a step: above 0% and up to 100%, or above 0 and up to 1")
RANKS: Final = Kind("all, none or ranks such as 0,8-15", lambda value: str(parse_ranks(value)))
SHARE: Final = Kind(_PART.words, _share, metavar="N")
SCORE: Final = number(0.0, 1.0, "a score: a number from 0 (never) to 1")


@dataclass(frozen=True, slots=True)
class Policy:
    """How one job is evaluated and which actions are taken. Can be changed while the job runs.

    A limit that equals its default counts as not configured.
    Build it with :meth:`changed`, which validates every value.
    """

    detection: bool = setting(True, SWITCH, "detect hangs and act on them; off: the job is only shown")
    observe_only: bool = setting(False, SWITCH, "detect, record and alert, but never act on the ranks")
    initial_heartbeat_timeout: float | None = setting(
        1800.0,
        LIMIT,
        "limit for a rank's first heartbeat or report, once another rank has given one; the default raises a "
        "suspicion, another value acts at once, also where no rank has sent a heartbeat",
    )
    heartbeat_timeout: float | None = setting(
        300.0,
        LIMIT,
        "limit between two heartbeats of a rank; the default raises a suspicion, and not while a section is "
        "open; another value acts at once",
    )
    section_timeouts: Mapping[str, float] = setting({}, SECTIONS, "limit for each named section, NAME=SECONDS")
    out_of_section_timeout: float | None = setting(None, LIMIT, "limit for the time outside all sections")
    silence_timeout: float | None = setting(
        60.0,
        LIMIT,
        "limit for the time in which nothing is received from a rank, at least three export intervals; the "
        "default raises a suspicion, another value acts at once",
    )
    learn_timeouts: bool = setting(
        True,
        SWITCH,
        "learn limits for sections that have none; off: what is configured, exactly",
    )
    calculate_timeouts: bool = setting(
        False,
        SWITCH,
        "a learned limit also applies where a longer one is configured",
    )
    learned_factor: float = setting(
        5.0,
        number(math.nextafter(1.0, 2.0), 1000.0, "a number above 1 and up to 1000"),
        "a learned limit is so many times the longest time seen",
        "{times}",
    )
    learned_minimum: float = setting(2.5, SECONDS, "no learned limit is shorter than this, nor than 5 steps")
    first_time_timeout: float | None = setting(
        1800.0,
        LIMIT,
        "limit for a section of which nothing is known yet, and for the first step of a process",
    )
    confirmation_window: float = setting(
        180.0,
        SECONDS,
        "how long a suspicion that nothing proves lasts at least before it is acted on; twice that where the "
        "wait may end by itself",
    )
    longest_patience: float = setting(1800.0, SECONDS, "how long such a suspicion lasts at most")
    on_hang: Action = setting(
        Action.RESTART, choice(Action), "what to do about a hang; the stacks are recorded in each case"
    )
    capture_deadline: float = setting(5.0, SECONDS, "how long to wait for stacks before acting without them")
    stop_deadline: float = setting(60.0, SECONDS, "how long ranks may take to reach an agreed stop step and save")
    max_restarts: int = setting(
        3, whole(0, 10_000), "restarts of the ranks in one job, after crashes and hangs", "{restarts}"
    )
    max_no_progress: int = setting(
        3,
        whole(0, 10_000),
        "end the job with exit code 93 after so many attempts in a row that got no further; 0: off",
        "{attempts}",
    )
    straggler_detection: bool = setting(True, SWITCH, "score the ranks and name stragglers; off: nothing is scored")
    straggler_reference: ScoreReference = setting(
        ScoreReference.ROBUST,
        choice(ScoreReference),
        "what decides which rank is a straggler: robust (middle of the peers) or fastest (the thresholds of "
        "nvidia-resiliency-ext)",
    )
    straggler_slowdown: float = setting(
        0.05,
        SHARE,
        "the part of each step for which a straggler makes the others wait, 5% or 0.05; reference robust",
    )
    straggler_windows: int = setting(
        5, whole(1, 20), "how many of the latest windows are compared; reference robust", "{windows}"
    )
    straggler_windows_needed: int = setting(3, whole(1, 20), "in how many of these a straggler is slow", "{windows}")
    straggler_alarms_per_day: float = setting(
        0.1,
        number(MORE_THAN_0, 1000.0, "a number above 0 and up to 1000"),
        "acceptable false alarms a day; the lower, the slower a rank must be",
        "{a day}",
    )
    on_straggler: Action = setting(Action.LOG, choice(Action), "what to do about a straggler")
    calc_relative: bool = setting(True, SWITCH, "compute relative scores: a rank against the others")
    calc_individual: bool = setting(True, SWITCH, "compute individual scores: a rank against its own best")
    relative_threshold: float = setting(0.7, SCORE, "a relative score below this makes a straggler; reference fastest")
    individual_threshold: float = setting(
        0.7, SCORE, "an individual score below this makes a straggler; reference fastest"
    )
    kernel_timings: KernelSource = setting(
        KernelSource.AUTO, choice(KernelSource), "where kernel timings come from: auto, cupti, kineto or off"
    )
    profiling_interval: int = setting(
        0,
        whole(0, 1_000_000),
        "profile every so many steps, at most once in 1.5 export intervals; 0: about every 10 s",
        "{steps}",
    )
    profiled_ranks: str = setting("all", RANKS, "ranks that are profiled: all, none, or 0,8-15")
    report_interval: float = setting(300.0, SECONDS, "time between two reports of kernel timings and scores")
    num_gpu_perf_scores_to_print: int = setting(
        5,
        whole(0, 1_000),
        "worst and best ranks in the report; 0: a report only where there are stragglers",
        "{ranks}",
    )

    def changed(self, changes: Mapping[str, Any]) -> Policy:
        """Return this policy with some values replaced.

        ``None`` switches a limit off. ``section_timeouts`` is merged by section; a section set to ``None`` is removed.

        Raises:
            ValueError: a name is unknown or a value is invalid; the message names it and what is valid.
        """
        known = kinds(Policy)
        new: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                close = did_you_mean(str(name), known) or f"; known are: {', '.join(sorted(known))}"
                raise ValueError(f"unknown policy setting {name!r}{close}")
            try:
                new[name] = known[name].read(value)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        if (limits := new.get("section_timeouts")) is not None:
            merged = {**self.section_timeouts, **limits}
            new["section_timeouts"] = {section: limit for section, limit in merged.items() if limit is not None}
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
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}


SHARES: Final = ("straggler_slowdown",)
"""Settings that are shares, which people read and write in percent: ``5%`` is 0.05."""
ACTION_MEANINGS: Final[Mapping[Action, str]] = {
    Action.LOG: "only recorded and shown; the ranks are left as they are",
    Action.CAPTURE: "the stacks of all ranks are stored in an incident; the ranks are left as they are",
    Action.RESTART: "once the stacks are in, or after capture_deadline, the ranks are killed and start again",
    Action.RESTART_EXCLUDING_NODE: (
        "like restart, without the nodes of the culprits or those named; spares take their places"
    ),
    Action.SAVE_AND_STOP: (
        "the ranks agree on a step, save there and end, if they still make steps and the script calls "
        "should_stop(); else they are ended after stop_deadline"
    ),
    Action.STOP: "the ranks are ended at once, without saving",
}
"""What each action does and when, alike for hangs, stragglers and orders. A setting's name stands for its value."""
LOST_STEPS: Final = "Restarts and stop lose the steps since the last checkpoint."


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


def changes_of(given: Sequence[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` as changes of a policy, for sections ``section_timeouts=step=30,save=none``.

    Raises:
        ValueError: the syntax is wrong. The monitor validates names and values.
    """
    changes: dict[str, Any] = {}
    for each in given:
        name, mark, text = (part.strip() for part in each.partition("="))
        if not mark or not name:
            raise ValueError(f"invalid change {each!r}: give NAME=VALUE, for example silence_timeout=30")
        if name == "section_timeouts":
            changes[name] = {**changes.get(name, {}), **_sections(text)}
        else:
            changes[name] = parse_value(text)
    return changes


def _sections(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        section, mark, seconds = (word.strip() for word in part.rpartition("="))
        if not mark or not section:
            raise ValueError(
                f"invalid section limit {part!r}: give section_timeouts=NAME=SECONDS,NAME=none, for example "
                f"section_timeouts=step=30"
            )
        found[section] = parse_value(seconds)
    return found
