"""Reads the answers of NCCL's RAS subsystem: JSON (2.28.7 and newer) and text (2.24 and newer), pure.

The text lists only ranks that differ from most, one kind of operation at a time (before 2.26 all kinds as one); JSON
lists every rank with all its counts. Both become one record. An answer is another process's: whatever is in it, the
result is a record within its bounds or a ``ValueError``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rankwatch.contract.nccl_ras import (
    MAX_CLASSES,
    MAX_COMMUNICATORS,
    MAX_FAILURES,
    MAX_MEMBERS,
    RasCommunicator,
    RasFailure,
    RasProcess,
    RasProgress,
    RasReport,
)
from rankwatch.contract.text import decoded

POINT_TO_POINT: Final = frozenset({"Send", "Recv", "SendRecv", "PutSignal", "Signal", "WaitSignal"})
"""Kinds of which ranks need not launch equally many."""
ERRORS: Final = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
    8: "Timeout",
}
"""``ncclResult_t`` in the words of NCCL's text; 0 is success, 7 in progress."""
LARGEST: Final = 2**62
LONGEST: Final = 256
MAX_LINES: Final = 50_000
"""Of a text."""
MAX_VALUES: Final = 1_000_000
"""Of JSON: each takes up to 100 bytes of memory, and the answer of a thousand GPUs in ten communicators has 300,000."""
MAX_KINDS: Final = 64
"""Of operations in one communicator: each is compared between all ranks."""

_VERSION: Final = re.compile(r"\b[NR]CCL version (\S{1,64})")
_GROUP: Final = re.compile(
    r"\s*(\d{1,9})\s+(\d{1,9})\s+\d{1,9}\s+\d{1,9}(?:-\d{1,9})?\s+(\d{1,9})\s+\d{1,9}\s+[A-Z]+\s+\S+\s*"
)
_COMMUNICATOR: Final = re.compile(r"#(\d{1,9})-\d{1,9} \(([0-9a-fA-F]{1,32})\) [A-Z]+")
_PROCESS: Final = re.compile(r"  Process (\d{1,9}) on node (\S{1,64}) managing GPU")
_RANK: Final = re.compile(
    r"  Rank (-?\d{1,10})"
    r"(?: has launched up to operation (?P<count>\d{1,18})|(?P<none> has not launched any operations)"
    r"| has status (?P<status>\w{1,32})| reported (?P<error>[\w ]{1,64}?))? -- "
    r"(?:GPU [\d, (NVML)]{1,32} managed by process (?P<pid>\d{1,9}) on node (?P<host>\S{1,64})|\[process )"
)
_SEVERAL: Final = re.compile(
    r"  (\d{1,9}) ranks (?:have launched up to operation (?P<count>\d{1,18})|(?P<none>have not launched any operations)"
    r"|have status (?P<status>\w{1,32})|reported (?P<error>[\w ]{1,64}))\s*"
)
_MISSING_RANKS: Final = re.compile(r"  The missing ranks?: ([\d,]{1,4096})")
_KIND: Final = re.compile(r"  Communicator ranks have different (\w{1,64}) operation counts")
_TIMEOUTS: Final = re.compile(r"  Encountered (\d{1,9}) communication timeout")


def report(answer: str) -> RasReport:
    """The record of one answer in either form.

    Raises:
        ValueError: it is no answer of RAS.
    """
    start = answer.find("{")
    if answer.lstrip().startswith("{") or (start >= 0 and '"communicators"' in answer):
        if sum(map(answer.count, "{[,")) > MAX_VALUES:
            raise ValueError(f"an answer of RAS with more than {MAX_VALUES} values")
        return _of_json(decoded(answer[start:]))  # RCCL writes its version before
    return _of_text(answer)


def steady(first: RasReport, second: RasReport) -> RasReport:
    """The second of two answers, without the progress of communicators whose ranks launched operations in between."""
    before = {each.name: each.progress for each in first.communicators}
    kept, going_on = [], 0
    for each in second.communicators:
        if each.progress and set(map(_key, each.progress)) != set(map(_key, before.get(each.name, ()))):
            going_on += 1
            if not each.missing and not each.failures:
                continue
            each = replace(each, progress=())
        kept.append(each)
    return replace(second, communicators=tuple(kept), going_on=going_on)


def _key(progress: RasProgress) -> tuple[object, ...]:
    return tuple(sorted(progress.counts.items())), progress.ranks, progress.members


def _made(
    version: str, found: Sequence[RasCommunicator], total: int, missing: Sequence[RasProcess], timeouts: int
) -> RasReport:
    odd = [each for each in found if len(each.progress) > 1 or each.missing or each.failures]
    odd.sort(key=lambda each: -each.size)
    few = tuple(missing) if len(missing) <= MAX_MEMBERS else ()
    return RasReport(version, tuple(odd[:MAX_COMMUNICATORS]), total, few, timeouts=timeouts).bounded()


# JSON -----------------------------------------------------------------------------------------------------------------


def _of_json(answer: Any) -> RasReport:
    try:
        communicators = [_communicator(each) for each in answer["communicators"]]
        gone = [process for each in answer["communicators"] for process in _missing(each)]
        missing = {(each.host, each.pid): replace(each, member=-1) for each in gone if each.pid >= 0}
        timeouts = _count(answer.get("ras", {}).get("timeouts_count", 0))
        return _made(_text(answer["nccl_version"]), communicators, len(communicators), [*missing.values()], timeouts)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"unexpected answer of RAS: {error!r}") from None


def _communicator(given: Mapping[str, Any]) -> RasCommunicator:
    ranks = given["ranks"]
    kinds = _differing([each["collective_counts"] for each in ranks])
    classes: dict[tuple[int, ...], list[RasProcess]] = {}
    failures: dict[str, list[RasProcess]] = {}
    for each in ranks:
        process = _process(each)
        counts = each["collective_counts"]
        classes.setdefault(tuple(_count(counts.get(kind, 0)) for kind in kinds), []).append(process)
        for what in _failures(each["status"]):
            failures.setdefault(what, []).append(process)
    most_first = sorted(classes.items(), key=lambda item: -len(item[1]))
    progress = [
        RasProgress(dict(zip(kinds, counts, strict=True)), len(found), _few(found)) for counts, found in most_first
    ]
    return RasCommunicator(
        _text(given["hash"]).removeprefix("0x"),
        _count(given["size"]),
        tuple(progress) if kinds and len(progress) <= MAX_CLASSES else (),
        _few(_missing(given)),
        tuple(RasFailure(what, len(found), _few(found)) for what, found in [*failures.items()][:MAX_FAILURES]),
    )


def _differing(counts: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = {str(kind) for each in counts for kind in each} - POINT_TO_POINT
    _check_kinds(kinds)
    return sorted(kind for kind in kinds if len({_count(each.get(kind, 0)) for each in counts}) > 1)


def _check_kinds(kinds: Collection[str]) -> None:
    if len(kinds) > MAX_KINDS:
        raise ValueError(f"an answer of RAS with more than {MAX_KINDS} kinds of operations")


def _failures(status: Mapping[str, Any]) -> Iterator[str]:
    for name in ("init_state", "async_error"):
        if (code := status.get(name, 0)) not in (0, 7):
            yield ERRORS.get(code, "Unexpected error")
    if status.get("abort_flag") is True:
        yield "ABORT"


def _missing(given: Mapping[str, Any]) -> list[RasProcess]:
    """Ranks whose process did not answer; one that did is only no longer, or not yet, in this communicator."""
    listed = given.get("missing_ranks", ())
    states = [(each, each["status"]) for each in listed]
    return [
        replace(_process(each), dead=state.get("considered_dead") is True)
        for each, state in states
        if state.get("considered_dead") is True or state.get("unresponsive") is True
    ]


def _process(each: Mapping[str, Any]) -> RasProcess:
    host, pid = _text(each["host"]), each["pid"]
    return RasProcess("" if host == "unknown" else host, -1 if pid == -1 else _count(pid), _count(each["rank"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value[:LONGEST]


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        raise ValueError(f"unexpected number in an answer of RAS: {str(value)[:40]}")
    return value


def _few(found: Sequence[RasProcess]) -> tuple[RasProcess, ...]:
    return tuple(found) if len(found) <= MAX_MEMBERS else ()


# Text -----------------------------------------------------------------------------------------------------------------


@dataclass
class _Section:
    """What the text tells of one communicator, in one or several places."""

    name: str
    size: int
    levels: dict[str, list[tuple[int, int, list[RasProcess]]]] = field(default_factory=dict)
    """By kind: count, number of ranks, and those of them that are listed."""
    missing: dict[int, RasProcess] = field(default_factory=dict)
    failures: dict[str, list[tuple[int, list[RasProcess]]]] = field(default_factory=dict)
    """By state or error: number of ranks, and those of them that are listed."""


def _of_text(answer: str) -> RasReport:
    version = _VERSION.search(answer)
    if version is None:
        raise ValueError("no answer of RAS: it names no version of NCCL")
    sizes: dict[int, int] = {}
    sections: dict[str, _Section] = {}
    missing: dict[tuple[str, int], RasProcess] = {}
    total = timeouts = 0
    heading, at, kind = "", None, ""
    several: list[RasProcess] | None = (
        None  # takes the ranks that follow the line with their number; None: missing ones
    )
    lines = answer.splitlines()
    if len(lines) > MAX_LINES:
        raise ValueError(f"an answer of RAS with more than {MAX_LINES} lines")
    for line in lines:
        if line in ("INCOMPLETE", "DEAD", "TIMEOUT", "Errors", "Warnings"):
            heading, at = line, None
        elif (match := _COMMUNICATOR.match(line)) is not None:
            heading, kind, several = "", "", None
            at = sections.setdefault(match[2], _Section(match[2], sizes.get(int(match[1]), 0)))
        elif at is None and not heading and (match := _GROUP.fullmatch(line)) is not None:
            sizes[int(match[1])] = int(match[3])
            total += int(match[2])
        elif heading == "TIMEOUT" and (match := _TIMEOUTS.match(line)) is not None:
            timeouts = int(match[1])
        elif at is None and (match := _PROCESS.match(line)) is not None:
            process = RasProcess(match[2], int(match[1]), dead=heading == "DEAD")
            missing[process.host, process.pid] = process
        elif at is not None and (match := _KIND.match(line)) is not None:
            kind, several = match[1], []
            at.levels.setdefault(kind, [])
            _check_kinds(at.levels)
        elif at is not None and (match := _MISSING_RANKS.match(line)) is not None:
            for member in match[1].split(","):
                if member:
                    at.missing.setdefault(int(member), RasProcess("", member=int(member)))
        elif at is not None and (match := _SEVERAL.fullmatch(line)) is not None:
            several = []
            _take(at, kind, match, int(match[1]), several)
        elif at is not None and (match := _RANK.match(line)) is not None:
            process = RasProcess(match["host"] or "", int(match["pid"] or -1), max(-1, int(match[1])))
            if any(match[name] for name in ("count", "none", "status", "error")):
                _take(at, kind, match, 1, [process])
            elif several is not None:
                several.append(process)
            else:
                at.missing[process.member] = process
    dead = {key for key, each in missing.items() if each.dead}
    found = [_of_section(each, dead) for each in sections.values()]
    return _made(version[1], found, total, [*missing.values()], timeouts)


def _take(at: _Section, kind: str, match: re.Match[str], ranks: int, listed: list[RasProcess]) -> None:
    """Note a level or a failure; of several ranks ``listed`` is filled by the next lines."""
    if match["count"] or match["none"]:
        if kind and kind not in POINT_TO_POINT:
            at.levels[kind].append((int(match["count"] or 0), ranks, listed))
        return
    what = (match["error"] or "").strip() or str(match["status"] or "")
    if what and what != "RUNNING":
        at.failures.setdefault(what, []).append((ranks, listed))


def _of_section(section: _Section, dead: set[tuple[str, int]]) -> RasCommunicator:
    missing = [replace(each, dead=(each.host, each.pid) in dead) for each in section.missing.values()]
    failures = (
        RasFailure(what, sum(ranks for ranks, _ in found), _few([each for _, listed in found for each in listed]))
        for what, found in [*section.failures.items()][:MAX_FAILURES]
    )
    return RasCommunicator(section.name, section.size, _progress(section), _few(missing), tuple(failures))


def _progress(section: _Section) -> tuple[RasProgress, ...]:
    """The classes of ranks, where each rank's counts follow from the text; else nothing."""
    if not section.levels:
        return ()
    usual: dict[str, int] = {}
    named: dict[int, dict[str, int]] = {}
    processes: dict[int, RasProcess] = {}
    answered = max(sum(ranks for _, ranks, _ in levels) for levels in section.levels.values())
    for kind, levels in section.levels.items():
        unlisted = [count for count, ranks, listed in levels if ranks != len(listed)]
        if len(unlisted) > 1:
            return ()  # which rank is at which of them is not told
        if unlisted:
            usual[kind] = unlisted[0]
        for count, _, listed in levels:
            for process in listed:
                processes[process.member] = process
                named.setdefault(process.member, {})[kind] = count
    classes: dict[tuple[tuple[str, int], ...], list[RasProcess]] = {}
    for member, counts in named.items():
        full = {kind: counts.get(kind, usual.get(kind, -1)) for kind in section.levels}
        if min(full.values()) < 0:
            return ()
        classes.setdefault(tuple(sorted(full.items())), []).append(processes[member])
    found = [RasProgress(dict(counts), len(members), _few(members)) for counts, members in classes.items()]
    rest = answered - len(named)
    if rest > 0:
        if len(usual) < len(section.levels):
            return ()
        found.append(RasProgress(dict(sorted(usual.items())), rest))
    found.sort(key=lambda each: -each.ranks)
    return tuple(found) if len(found) <= MAX_CLASSES else ()
