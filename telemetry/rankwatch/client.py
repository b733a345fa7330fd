"""Commands that ask the monitor something share this: one small HTTP client, its flags, and how an answer is printed.

Standard library only. Exit codes: 0 printed; 1 the monitor cannot be reached, or failed; 2 the question was wrong:
address, token, job or one of the flags.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
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


class MonitorError(Exception):
    """There is no answer; says why, and what to do. ``code`` is the exit code."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


class Client:
    """Asks one monitor.

    Raises:
        MonitorError: the address is none, the monitor cannot be reached, or it refuses.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        if not _is_address(url):
            raise MonitorError(f"--monitor must be an address such as {DEFAULT_MONITOR}, not {url!r}", EXIT_WRONG)
        self._url, self._token = url.rstrip("/"), token
        # A proxy from the environment cannot reach this machine's loopback.
        proxies = urllib.request.ProxyHandler({} if urlsplit(url).hostname in _LOOPBACK else None)
        self._opener = urllib.request.build_opener(proxies)

    def newest_job(self) -> str:
        """The id of the job that was begun last."""
        jobs = self.listed("/jobs", "jobs")
        if not jobs:
            raise MonitorError(f"the monitor at {self._url} knows no job yet", EXIT_WRONG)
        newest: str = jobs[0]["id"]
        return newest

    def listed(self, path: str, name: str) -> list[dict[str, Any]]:
        """The list ``name`` of a path below the API's prefix, whose members have an id."""
        found = self.read(path)
        try:
            return [{**each, "id": str(each["id"])} for each in found[name]]
        except (KeyError, TypeError):
            raise self.stranger() from None

    def read(self, path: str) -> Any:
        """The JSON of a path below the API's prefix."""
        body = self.get(path)
        try:
            return json.loads(body)
        except ValueError:
            raise self.stranger() from None

    def get(self, path: str) -> bytes:
        """The body of a path below the API's prefix."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            request = urllib.request.Request(f"{self._url}{API_PREFIX}{path}", headers=headers)
            with self._opener.open(request, timeout=TIMEOUT) as answer:
                body: bytes = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, _detail(error)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise MonitorError(
                f"no monitor answers at {self._url} ({why}); give its address with --monitor or "
                f"{environment.MONITOR_URL}, the one that 'rankwatch run' printed when the job began",
                EXIT_AWAY,
            ) from None
        return body

    def stranger(self) -> MonitorError:
        """What to say of an answer that no monitor gives."""
        return MonitorError(f"what answers at {self._url} is no monitor of Rankwatch", EXIT_WRONG)

    def _refused(self, status: int, detail: str) -> MonitorError:
        if status in (401, 403):
            words = detail or "the monitor wants another token"
            return MonitorError(
                f"{words}: give one that may read with --token or {environment.TOKEN}",
                EXIT_WRONG,
            )
        if status == 404 and not detail:
            return self.stranger()
        if status == 404:
            return MonitorError(f"{detail}; without a job, the newest one is shown", EXIT_WRONG)
        if status == 422 and detail:
            return MonitorError(detail, EXIT_WRONG)
        return MonitorError(
            f"the monitor at {self._url} answered {status}" + (f": {detail}" if detail else ""), EXIT_AWAY
        )


def path_of(job: str) -> str:
    """The path of a job below the API's prefix."""
    return f"/jobs/{quote(job, safe='')}"


def add_flags(parser: argparse.ArgumentParser, variables: Mapping[str, str]) -> None:
    """Add which job is asked about, of which monitor, with which token."""
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


def print_answer(command: str, told: argparse.Namespace, ask: Callable[[Client, str], str]) -> int:
    """Print what ``ask(client, job)`` returns, or why there is no answer; returns the exit code of ``command``."""
    try:
        client = Client(told.monitor, told.token)
        words = ask(client, told.job or client.newest_job())
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(words.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except MonitorError as error:
        sys.stderr.write(f"{command}: {error}\n")
        return error.code
    except BrokenPipeError:  # the reader (head, less) has seen enough; nothing may be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        return False


def _detail(error: urllib.error.HTTPError) -> str:
    """The sentence of a problem document; empty when the answer is none."""
    try:
        return str(json.loads(error.read())["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
