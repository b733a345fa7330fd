"""``rankwatch why``: why a job stands, and the explanation of a change in step time. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rankwatch.cli.common import add_flags, print_for_job
from rankwatch.cli.formatting import fault, printable, refit, when
from rankwatch.cli.incident_report import log_report
from rankwatch.cli.incidents import whole
from rankwatch.cli.parser import Parser
from rankwatch.cli.status.render import details_line, incident_lines, state_lines
from rankwatch.cli.terminal import Terminal, terminal_of
from rankwatch.monitor_client import MonitorClient, path_of

MOMENTS: Final = "unix seconds, ISO 8601 (UTC unless it has an offset), HH:MM[:SS] (UTC), or -10m (s, m, h, d) ago"

_AGO: Final = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def why(argv: Sequence[str]) -> int:
    """Explain a change in the step time of a job."""
    arguments = _parser(os.environ).parse_args(joined(argv, "--at"))

    def ask(client: MonitorClient, job: str) -> str:
        question = "" if arguments.at is None else f"?at={arguments.at:.3f}"
        answer, shown = client.read(f"{path_of(job)}/why{question}"), client.read(path_of(job))
        incident = None if arguments.at is not None else stood_still(client, shown)
        if arguments.json:
            return json.dumps({**answer, "state": shown["state"], "incident": incident}, indent=2) + "\n"
        terminal = terminal_of(sys.stdout)
        lines = [] if arguments.at is not None else standing(shown, incident, terminal, client.now())
        if arguments.at is None and not lines:
            lines = slow_lines(shown, terminal, client.now())
        if lines and answer["kind"] == "unknown":
            return "".join(f"{line}\n" for line in lines)
        return "".join(f"{line}\n" for line in (*lines, *(["", "STEP TIMES"] if lines else []))) + text(
            answer, terminal
        )

    return print_for_job("rankwatch why", arguments, ask)


def stood_still(client: MonitorClient, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """The incident for which a job stands or has failed, with its logs; None: there is none."""
    incidents = client.listed(f"{path_of(job['id'])}/incidents", "incidents")
    newest = incidents[0] if incidents else None
    if newest is None or (newest["closed_at"] is not None and not _ended_it(newest, job)):
        return None
    return whole(client, job["id"], newest["id"])


def _ended_it(incident: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether a job failed with this incident: its end closes what is open."""
    return job["state"] == "failed" and bool(incident["closed_at"] >= job["ended_at"])


def standing(job: Mapping[str, Any], incident: Mapping[str, Any] | None, terminal: Terminal, now: float) -> list[str]:
    """Why a job stands or has failed, above its step times: state, incident, logs; empty: it does not."""
    if incident is None and job["state"] not in ("lost", "failed"):
        return []
    lines = state_lines(job, terminal, now)
    if incident is not None:
        lines += ["", f"INCIDENT {printable(fault(incident['kind']))}, opened {when(incident['opened_at'])}"]
        lines += incident_lines(incident, terminal, titled=True) + details_line(incident, terminal)
        lines += log_report(incident)
    return lines


def slow_lines(job: Mapping[str, Any], terminal: Terminal, now: float) -> list[str]:
    """Which rank makes a job slow and what to do about it, above its step times; empty: it is not slow."""
    if not (job.get("advice") or {}).get("slow"):
        return []
    return state_lines(job, terminal, now)


def text(answer: Mapping[str, Any], terminal: Terminal | None = None) -> str:
    """The answer as text: the summary, then the contributions with their shares, then correlated changes."""
    lines = [str(answer["sentence"])]
    if changed := [each for each in answer.get("parts") or () if _percent(each["share"]) != 0]:
        lines += ["", "What a step's time goes into"]
        for each in changed:
            spans = f"{_span(each['before']):>8} -> {_span(each['after']):>8}"
            lines.append(f"  {each['part']:<15} {spans} {_percent(each['share']):>6} %")
    if shares := [each for each in answer.get("contributors") or () if each["share"] > 0 and not each["stated"]]:
        lines += ["", "What takes another time"]
        lines += [f"  {_percent(each['share']):>4} %  {each['sentence']}" for each in shares]
    if answer.get("seen"):
        lines += ["", "Where it is seen too", *(f"  {sentence}" for sentence in answer["seen"])]
    slow = () if answer.get("states_slow") else answer.get("slow", ())
    if slow := [*slow, *([late] if (late := answer.get("late")) else ())]:
        lines += ["", "Slow ranks", *(f"  {each['sentence']}" for each in slow)]
    if answer.get("circumstances"):
        lines += ["", "What else changed at that time"]
        lines += [f"  {each['sentence']}" for each in answer["circumstances"]]
    fitted = [line for each in lines for line in _fit(printable(each), terminal)]
    return "".join(f"{line}\n" for line in fitted)


def _fit(line: str, terminal: Terminal | None) -> list[str]:
    if terminal is None or not terminal.height:
        return [line]
    return refit([line], terminal.width)


def moment(words: str, now: float) -> float:
    """Parse a point in time, in a form of :data:`MOMENTS`, as Unix seconds. A time of day is its latest occurrence.

    Raises:
        ValueError: the text has none of these forms.
    """
    words = words.strip()
    if ago := _AGO.fullmatch(words):
        return now - float(ago[1]) * _SECONDS[ago[2]]
    if clock := _CLOCK.fullmatch(words):
        today = datetime.fromtimestamp(now, UTC)
        then = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0)
        # Shortly after midnight, 23:50 means yesterday's.
        return (then if then <= today else then - timedelta(days=1)).timestamp()
    if re.fullmatch(r"\d{9,11}(\.\d*)?", words):
        return float(words)
    then = datetime.fromisoformat(words)
    return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp()


def moment_flag(words: str) -> float:
    """:func:`moment` before now, as the type of a flag."""
    try:
        return moment(words, time.time())
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"invalid time {words!r}: give {MOMENTS}") from None


def joined(argv: Sequence[str], flag: str) -> list[str]:
    """The arguments with ``--at -10m`` as ``--at=-10m``: argparse takes an argument with a leading dash for a flag."""
    made: list[str] = []
    for each in argv:
        if made and made[-1] == flag and re.match(r"-\d", each):
            made[-1] = f"{flag}={each}"
        else:
            made.append(each)
    return made


def _span(seconds: float) -> str:
    return f"{seconds:.3f} s" if abs(seconds) >= 0.1 else f"{1000 * seconds:.2f} ms"


def _percent(share: float) -> int:
    return round(100 * share)  # a whole number: there is no -0


def _parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="rankwatch why",
        description="Explains why a job stands or has failed, with what the failed ranks printed last, and a change in "
        "its step time: its contributions, with their shares, and other changes at the same time.",
    )
    add_flags(parser, variables)
    parser.add_argument(
        "--at",
        type=moment_flag,
        metavar="T",
        help=f"when it changed: {MOMENTS}; without it, the largest lasting change of the last hour",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
