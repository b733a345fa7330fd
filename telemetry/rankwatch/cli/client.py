"""Commands that ask the monitor something share this: one small HTTP client, its flags, and how an answer is printed.

Standard library only. Exit codes: 0 printed; 1 the monitor cannot be reached, or failed; 2 the question was wrong:
address, token, job or one of the flags, or the monitor refuses what was asked; 3 (``status``, ``doctor``) it was
answered, and there is trouble.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rankwatch.contract import env
from rankwatch.contract.semconv import API_PREFIX

DEFAULT_MONITOR: Final = "http://127.0.0.1:9560"
TIMEOUT: Final = 15.0
"""Seconds without an answer after which the monitor counts as away."""
EXIT_AWAY: Final = 1
EXIT_WRONG: Final = 2
EXIT_TROUBLE: Final = 3
EXIT_INTERRUPTED: Final = 130
"""As shells count it: 128 and the number of SIGINT."""

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

    def __init__(self, url: str, token: str | None = None, timeout: float | None = None) -> None:
        if not _is_address(url):
            raise MonitorError(f"--monitor must be an address such as {DEFAULT_MONITOR}, not {url!r}", EXIT_WRONG)
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout
        # A proxy from the environment cannot reach this machine's loopback.
        proxies = urllib.request.ProxyHandler({} if is_loopback(url) else None)
        self._opener = urllib.request.build_opener(proxies)

    @property
    def url(self) -> str:
        """The monitor's address."""
        return self._url

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
        with self._asked(path) as answer:
            body: bytes = answer.read()
        return body

    def send(self, method: str, path: str, content: Mapping[str, Any]) -> Any:
        """Change or order something: the JSON of the answer to a body of JSON."""
        with self._asked(path, method, json.dumps(content).encode()) as answer:
            body = answer.read()
        try:
            return json.loads(body)
        except ValueError:
            raise self.stranger() from None

    def first_events(self, path: str, wanted: frozenset[str]) -> dict[str, Any]:
        """The first event of each kind in ``wanted`` of a live stream, by its kind; reads no further.

        The stream ends early when the monitor does; what had come by then is returned.
        """
        found: dict[str, Any] = {}
        kind = ""
        with self._asked(path) as stream:
            while wanted - found.keys() and (line := stream.readline()):
                name, _, value = line.decode(errors="replace").strip().partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind in wanted:
                    try:
                        found.setdefault(kind, json.loads(value))
                    except ValueError:
                        raise self.stranger() from None
        return found

    @contextmanager
    def _asked(self, path: str, method: str = "GET", content: bytes | None = None) -> Iterator[Any]:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            request = urllib.request.Request(f"{self._url}{API_PREFIX}{path}", content, headers, method=method)
            with self._opener.open(request, timeout=self._timeout or TIMEOUT) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, _detail(error), method) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise MonitorError(
                f"no monitor answers at {self._url} ({why}); give its address with --monitor or "
                f"{env.MONITOR_URL}, the one that 'rankwatch run' printed when the job began",
                EXIT_AWAY,
            ) from None

    def stranger(self) -> MonitorError:
        """What to say of an answer that no monitor gives."""
        return MonitorError(f"what answers at {self._url} is no monitor of Rankwatch", EXIT_WRONG)

    def _refused(self, status: int, detail: str, method: str) -> MonitorError:
        if status in (401, 403):
            words = detail or "the monitor wants another token"
            may = "read" if method == "GET" else "control"
            return MonitorError(
                f"{words}: give one that may {may} with --token or {env.TOKEN}",
                EXIT_WRONG,
            )
        if status == 404 and not detail:
            return self.stranger()
        if status == 404:
            return MonitorError(f"{detail.partition(';')[0]}; 'rankwatch status' lists those there are", EXIT_WRONG)
        if status in (409, 422) and detail:
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
    add_monitor_flags(parser, variables)


def add_monitor_flags(parser: argparse.ArgumentParser, variables: Mapping[str, str], may: str = "read") -> None:
    """Add which monitor is asked, with a token that ``may`` do what."""
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=variables.get(env.MONITOR_URL) or DEFAULT_MONITOR,
        help=f"address of the monitor (also {env.MONITOR_URL}; else {DEFAULT_MONITOR})",
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        default=variables.get(env.TOKEN) or None,
        help=f"a token that may {may}; better given as {env.TOKEN}",
    )


def print_answer(command: str, told: argparse.Namespace, ask: Callable[[Client, str], str]) -> int:
    """Print what ``ask(client, job)`` returns, or why there is no answer; returns the exit code of ``command``."""
    return print_found(command, told, lambda client: (ask(client, told.job or client.newest_job()), 0))


def print_found(command: str, told: argparse.Namespace, ask: Callable[[Client], tuple[str, int]]) -> int:
    """The same for a question that needs no job: ``ask(client)`` returns what to print and the exit code."""
    try:
        words, code = ask(Client(told.monitor, told.token))
        say(words)
    except MonitorError as error:
        return complain(command, error)
    except KeyboardInterrupt:  # a monitor that does not answer is waited for; a traceback would say nothing more
        return EXIT_INTERRUPTED
    return code


def complain(command: str, error: MonitorError) -> int:
    """Say why there is no answer, as every command does; returns the exit code."""
    sys.stderr.write(f"{command}: {error}\n")
    return error.code


def say(words: str) -> None:
    """Write to stdout, whatever its encoding and whoever reads it."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(words.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough; nothing may be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own."""
    return urlsplit(url).hostname in _LOOPBACK


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
