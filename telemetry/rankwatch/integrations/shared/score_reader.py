"""Polls the scores of this rank's job from the monitor on a thread, so that training never waits for HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rankwatch import session, settings
from rankwatch.contract.env import MONITOR_URL
from rankwatch.monitor_client import MonitorClient, MonitorError, path_of

TIMEOUT: Final = 10.0
"""Seconds per request."""

_log = logging.getLogger("rankwatch")


class MonitoredJob:
    """This rank's job in the monitor's API. Its methods block on HTTP, so only background threads may call them.

    Raises:
        MonitorError: the request failed.
    """

    def __init__(self, client: MonitorClient, path: str) -> None:
        self._client, self._path = client, path

    def read(self, below: str) -> Any:
        """Return the JSON of a path below the job's."""
        return self._client.read(f"{self._path}{below}")

    def text(self, below: str) -> str:
        """Return the text of a path below the job's."""
        return self._client.get(f"{self._path}{below}").decode()


class ScoreReader:
    """Polls every ``interval`` seconds, and at once upon :meth:`fetch`, from :meth:`start` to :meth:`stop`.

    Args:
        interval: seconds between two requests.
        query: query string of the request, for example ``?worst=1``.
        at_once: make the first request at the start instead of after the first interval.
        on_scores: called on the thread with the job and each response.
        log: where errors are logged, repeated ones once.
    """

    def __init__(
        self,
        interval: float,
        *,
        query: str = "",
        at_once: bool = True,
        on_scores: Callable[[MonitoredJob, Mapping[str, Any]], None] | None = None,
        log: logging.Logger = _log,
    ) -> None:
        self._interval, self._at_once, self._on_scores, self._log = interval, at_once, on_scores, log
        self._path = f"/scores{query}"
        self._newest: tuple[float, Mapping[str, Any]] | None = None
        self._requested = self._served = 0
        """Calls of :meth:`fetch`, and how many of them were served, successfully or not."""
        self._stopped = False
        self._error = ""
        self._changed = threading.Condition()
        self._job: MonitoredJob | None = None

    def start(self) -> None:
        """Begin polling, if a monitor is configured."""
        self._job = _job(self._log)
        if self._job is not None:
            threading.Thread(target=self._run, args=(self._job,), name="rankwatch-scores", daemon=True).start()

    def stop(self) -> None:
        """Stop polling, without waiting."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def newest(self) -> tuple[float, Mapping[str, Any]] | None:
        """Return when the newest scores were computed (unix seconds), and the response; None before the first."""
        return self._newest

    def fetch(self, seconds: float) -> tuple[float, Mapping[str, Any]] | None:
        """Request scores now and wait at most ``seconds``; return the newest ones.

        Does not wait while the last request failed.
        """
        if self._job is None:
            return None
        with self._changed:
            self._requested += 1
            number = self._requested
            self._changed.notify_all()
            if not self._error:
                self._changed.wait_for(lambda: self._stopped or self._served >= number, seconds)
            return self._newest

    def _run(self, job: MonitoredJob) -> None:
        requested = 0
        if not self._at_once:
            self._wait(requested)
        while not self._stopped:
            requested = self._requested
            answer = self._request(job)
            with self._changed:
                self._newest = answer or self._newest
                self._served = requested
                self._changed.notify_all()
            self._wait(requested)

    def _wait(self, requested: int) -> None:
        """Wait for the end of the interval, or for an unserved call of :meth:`fetch`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._requested != requested, self._interval)

    def _request(self, job: MonitoredJob) -> tuple[float, Mapping[str, Any]] | None:
        try:
            answer = job.read(self._path)
            at = answer["at"]
            if self._on_scores is not None:
                self._on_scores(job, answer)
            self._error = ""
            return None if at is None else (float(at), answer)
        except MonitorError as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 - thread boundary; the next request may succeed
            text = f"{type(error).__name__}: {error}"
        if text != self._error and not self._stopped:
            self._log.warning("straggler scores are unavailable: %s", text)
        self._error = text
        return None


def _job(log: logging.Logger) -> MonitoredJob | None:
    """Return the job to poll; None, with a warning, without a monitor, or silently if Rankwatch is disabled."""
    loaded = session.active_settings() or settings.load()[0]
    if loaded.disabled:
        return None
    if loaded.monitor is None or loaded.job_id is None:
        log.warning(
            "no monitor is configured (%s), so there are no straggler reports: start the script with `rankwatch run`",
            MONITOR_URL,
        )
        return None
    try:
        return MonitoredJob(MonitorClient(loaded.monitor, loaded.token, TIMEOUT), path_of(loaded.job_id))
    except MonitorError as error:
        log.warning("straggler reports are unavailable: %s", error)
        return None
