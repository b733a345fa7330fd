"""``rankwatch logs``: what ranks print, fetched from their launchers when it is read. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from rankwatch.cli.common import add_flags, print_result
from rankwatch.cli.formatting import count, printable
from rankwatch.cli.incident_report import crash_lines
from rankwatch.cli.incidents import whole
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import terminal_of
from rankwatch.contract.rank_output import LogGap
from rankwatch.monitor_client import EXIT_AWAY, MonitorClient, path_of

COMMAND: Final = "rankwatch logs"
LINES: Final = 100
FOLLOW_SECONDS: Final = 1.0
"""Between two requests of ``--follow``."""
MOST_PAGED: Final = 32 << 20
"""Bytes of logs that are read from their beginning."""
FROM_BEGIN: Final = "0"

Json = Mapping[str, Any]


def logs(argv: Sequence[str]) -> int:
    """Show what ranks print, fetched from their nodes."""
    arguments = parser(os.environ).parse_args(argv)
    reading = Reading(arguments)

    return print_result(COMMAND, arguments, lambda client: reading.read(client, arguments.job or client.newest_job()))


class Reading:
    """What has been shown so far, and where it goes on."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._wanted = arguments
        self._said: set[tuple[int, str]] = set()
        self._shown = False
        self._several = False

    def read(self, client: MonitorClient, job: str) -> tuple[str, int]:
        """Show the logs of a job; returns what is still to print, and the exit code."""
        wanted = self._wanted
        if wanted.errors:
            return _errors(client, job, wanted)
        everything = wanted.tail == 0 or wanted.grep is not None
        answer = self._fetch(client, job, wanted.attempt, FROM_BEGIN if everything else "")
        if wanted.json:
            return json.dumps(answer, indent=2) + "\n", 0
        self._several = len(answer["logs"]) + len(answer["gaps"]) > 1
        self._remark(answer)
        if everything:
            answer = self._page(client, job, answer)
        else:
            most = LINES if wanted.tail is None else wanted.tail
            self._show({**answer, "logs": [{**log, "lines": log["lines"][-most:]} for log in answer["logs"]]})
        if wanted.follow:
            self._follow(client, job, answer)
        return "", 0 if self._shown or answer["logs"] else EXIT_AWAY

    def _page(self, client: MonitorClient, job: str, answer: Json) -> Json:
        """Show all that is kept, from its beginning."""
        held: dict[tuple[int, str], list[str]] = {}
        read = 0
        while True:
            for log in answer["logs"]:
                lines = held.setdefault((log["rank"], log["stream"]), [])
                lines += [line for line in log["lines"] if self._matches(line)]
                del lines[: -self._wanted.tail if self._wanted.tail else 0]
                read += log["end"] - log["begin"]
            if not self._wanted.tail:
                self._show(answer)
            if not any(log["end"] < log["size"] and log["end"] > log["begin"] for log in answer["logs"]):
                break
            if read >= MOST_PAGED:
                where = next(log for log in answer["logs"] if log["end"] < log["size"])
                _note(f"stopped after {read >> 20} MiB; the rest is in {where['path']} on {where['host']}")
                break
            answer = self._fetch(client, job, answer["attempt"], answer["after"])
        if self._wanted.tail:
            logs = [{"rank": rank, "stream": stream, "lines": lines} for (rank, stream), lines in held.items()]
            self._show({**answer, "logs": logs})
        return answer

    def _follow(self, client: MonitorClient, job: str, answer: Json) -> None:
        pinned = self._wanted.attempt is not None
        while not answer["ended"]:
            if answer["newest"] > answer["attempt"] and not pinned:
                self._show(self._fetch(client, job, answer["attempt"], answer["after"]))
                _note(f"attempt {answer['newest']} has begun")
                answer = self._fetch(client, job, answer["newest"], FROM_BEGIN)
            elif pinned and answer["newest"] > answer["attempt"]:
                return
            else:
                time.sleep(FOLLOW_SECONDS)
                answer = self._fetch(client, job, answer["attempt"], answer["after"] or FROM_BEGIN)
            self._remark(answer)
            self._show(answer)
        _note(f"job {job} has ended")

    def _fetch(self, client: MonitorClient, job: str, attempt: int | None, after: str) -> Json:
        asked: list[tuple[str, Any]] = [("rank", rank) for rank in self._wanted.rank]
        asked += [("attempt", attempt)] if attempt else []
        asked += [("after", after)] if after else []
        asked += [("whole", "true")] if self._wanted.follow else []
        found: Json = client.read(f"{path_of(job)}/logs?{urlencode(asked)}")
        if not isinstance(found["logs"], list) or not isinstance(found["gaps"], list):
            raise TypeError
        return found

    def _matches(self, line: str) -> bool:
        return self._wanted.grep is None or self._wanted.grep.search(line) is not None

    def _show(self, answer: Json) -> None:
        made = [
            f"{self._prefix(log)}{printable(line)}\n"
            for log in answer["logs"]
            for line in log["lines"]
            if self._matches(line)
        ]
        self._shown = self._shown or bool(made)
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write("".join(made).encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()

    def _prefix(self, log: Json) -> str:
        stream = "" if log["stream"] == "output" else f" {log['stream']}"
        return printable(f"[rank {log['rank']}{stream}] ") if self._several else ""

    def _remark(self, answer: Json) -> None:
        """State on stderr what is not there, once, and show what an incident holds of it."""
        recorded: dict[int, list[Json]] = {}
        for log in answer["recorded"]:
            recorded.setdefault(log["rank"], []).append(log)
        for gap in answer["gaps"]:
            if (gap["rank"], gap["gap"]) in self._said:
                continue
            self._said.add((gap["rank"], gap["gap"]))
            held = recorded.get(gap["rank"], [])
            kept = sum(len(log["lines"]) for log in held)
            words = f"rank {gap['rank']}: {gap['text']}"
            if kept:
                words += f"; an incident holds {count(kept, 'line')} of it"
            place = gap["place"]
            if place["command"]:
                on = f"on {place['host']}: " if place["host"] else ""
                words += f"; the whole log, {on}{place['command']}"
            _note(words)
            if held and gap["gap"] != LogGap.UNSENT:
                self._show({"logs": [{**log, "stream": log["stream"] or "output"} for log in held]})
        if answer["left_out"] and not self._wanted.rank and (-1, "") not in self._said:
            self._said.add((-1, ""))
            _note(f"{count(answer['left_out'], 'more rank')}: name them with --rank")


def _errors(client: MonitorClient, job: str, wanted: argparse.Namespace) -> tuple[str, int]:
    """The head of the newest crash: the first error of each rank by time."""
    rows = client.listed(f"{path_of(job)}/incidents", "incidents")
    for row in rows:
        if wanted.attempt in (None, row["attempt"]):
            incident = whole(client, job, row["id"])
            if incident["crash"]:
                if wanted.json:
                    return json.dumps({"incident": row["id"], **incident["crash"]}, indent=2) + "\n", 0
                lines = [f"attempt {row['attempt']}, incident {row['id']}"]
                lines += crash_lines(incident["crash"], terminal_of(sys.stdout))[2:]
                return "".join(f"{line}\n" for line in lines), 0
    return "no rank is known to have raised an error\n", 0


def _note(words: str) -> None:
    sys.stderr.write(f"{COMMAND}: {printable(words)}\n")
    sys.stderr.flush()


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} is no rank: give a number from 0 up")
    return int(text)


def _lines(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog=COMMAND,
        description="Shows what ranks print, fetched from the launchers on their nodes when it is read. Without --rank "
        "of those that failed, else of all, 16 at most; of a job that has ended what its incidents hold, and where the "
        "files are.",
    )
    add_flags(made, variables)
    made.add_argument("--rank", type=_rank, action="append", default=[], metavar="N", help="a rank; may be repeated")
    made.add_argument("--attempt", type=_lines, metavar="A", help="an attempt, from 1 (default: the newest)")
    made.add_argument("--follow", "-f", action="store_true", help="go on until the job ends, over its restarts")
    made.add_argument(
        "--grep", type=_pattern, metavar="PATTERN", help="only lines that this regular expression finds something in"
    )
    made.add_argument(
        "--tail",
        type=_lines,
        metavar="N",
        help=f"the last N lines of each log (default: {LINES}; with --grep, and with 0, all that is kept)",
    )
    made.add_argument(
        "--errors",
        action="store_true",
        help="instead: the first error of each rank by time, of the newest crash (or that of --attempt)",
    )
    made.add_argument("--json", action="store_true", help="print JSON, the end of each log")
    return made
