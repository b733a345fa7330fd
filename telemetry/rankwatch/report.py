"""``rankwatch report``: asks the monitor for the report of a job and prints it. Standard library only.

Exit codes: 0 printed; 1 the monitor cannot be reached, or failed; 2 the question was wrong: address, token or job.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rankwatch.wire import environment
from rankwatch.wire.names import API_PREFIX

DEFAULT_MONITOR: Final = "http://127.0.0.1:9560"
TIMEOUT: Final = 15.0
"""Seconds without an answer after which the monitor counts as away."""
EXIT_AWAY: Final = 1
EXIT_WRONG: Final = 2

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class ReportError(Exception):
    """There is no report; says why, and what to do. ``code`` is the exit code."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


def report(argv: Sequence[str]) -> int:
    """Print what happened to a job: goodput, incidents, stacks, limits."""
    told = _parser(os.environ).parse_args(argv)
    try:
        client = Client(told.monitor, told.token)
        job = told.job or client.newest_job()
        words = client.as_json(job) if told.json else client.text(job)
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(words.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except ReportError as error:
        sys.stderr.write(f"rankwatch report: {error}\n")
        return error.code
    except BrokenPipeError:  # the reader (head, less) has seen enough; nothing may be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class Client:
    """Asks one monitor.

    Raises:
        ReportError: the address is none, the monitor cannot be reached, or it refuses.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        if not _is_address(url):
            raise ReportError(f"--monitor must be an address such as {DEFAULT_MONITOR}, not {url!r}", EXIT_WRONG)
        self._url, self._token = url.rstrip("/"), token
        # A proxy from the environment cannot reach this machine's loopback.
        proxies = urllib.request.ProxyHandler({} if urlsplit(url).hostname in _LOOPBACK else None)
        self._opener = urllib.request.build_opener(proxies)

    def newest_job(self) -> str:
        """The id of the job that was begun last."""
        jobs = self._list("/jobs", "jobs")
        if not jobs:
            raise ReportError(f"the monitor at {self._url} knows no job yet", EXIT_WRONG)
        newest: str = jobs[0]["id"]
        return newest

    def text(self, job: str) -> str:
        """The report as text."""
        return self._get(f"/jobs/{quote(job, safe='')}/report").decode()

    def as_json(self, job: str) -> str:
        """The same facts as JSON: the job, its goodput, its incidents with their stacks."""
        path = f"/jobs/{quote(job, safe='')}"
        facts = {"job": self._json(path), "goodput": self._json(f"{path}/goodput")}
        listed = self._list(f"{path}/incidents", "incidents")
        incidents = [self._json(f"{path}/incidents/{quote(each['id'], safe='')}") for each in listed]
        return json.dumps({**facts, "incidents": incidents}, indent=2) + "\n"

    def _list(self, path: str, name: str) -> list[dict[str, Any]]:
        found = self._json(path)
        try:
            return [{**each, "id": str(each["id"])} for each in found[name]]
        except (KeyError, TypeError):
            raise _no_monitor(self._url) from None

    def _json(self, path: str) -> Any:
        body = self._get(path)
        try:
            return json.loads(body)
        except ValueError:
            raise _no_monitor(self._url) from None

    def _get(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            request = urllib.request.Request(f"{self._url}{API_PREFIX}{path}", headers=headers)
            with self._opener.open(request, timeout=TIMEOUT) as answer:
                body: bytes = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error.code, _detail(error), self._url) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise ReportError(
                f"no monitor answers at {self._url} ({why}); give its address with --monitor or "
                f"{environment.MONITOR_URL}, the one that 'rankwatch run' printed when the job began",
                EXIT_AWAY,
            ) from None
        return body


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        return False


def _refused(status: int, detail: str, url: str) -> ReportError:
    if status in (401, 403):
        return ReportError(
            f"{detail or 'the monitor wants another token'}: give one that may read with --token or "
            f"{environment.TOKEN}",
            EXIT_WRONG,
        )
    if status == 404 and not detail:
        return _no_monitor(url)
    if status == 404:
        return ReportError(f"{detail}; without a job, the newest one is shown", EXIT_WRONG)
    return ReportError(f"the monitor at {url} answered {status}" + (f": {detail}" if detail else ""), EXIT_AWAY)


def _no_monitor(url: str) -> ReportError:
    return ReportError(f"what answers at {url} is no monitor of Rankwatch", EXIT_WRONG)


def _detail(error: urllib.error.HTTPError) -> str:
    """The sentence of a problem document; empty when the answer is none."""
    try:
        return str(json.loads(error.read())["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankwatch report",
        description="Prints what happened to a job: goodput, incidents with stacks, limits in force.",
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job's id; without it the newest job")
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=variables.get(environment.MONITOR_URL) or DEFAULT_MONITOR,
        help=f"address of the monitor (also {environment.MONITOR_URL}; else {DEFAULT_MONITOR})",
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        default=variables.get(environment.TOKEN) or None,
        help=f"a token that may read; better given as {environment.TOKEN}",
    )
    parser.add_argument("--json", action="store_true", help="the same facts as JSON")
    return parser
