"""Reads the newest scores of this rank's job from the monitor, on a thread: nobody who trains waits for HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rankwatch import session, settings
from rankwatch.cli.client import Client, MonitorError, path_of
from rankwatch.contract.env import MONITOR_URL

TIMEOUT: Final = 10.0
"""Seconds that one question may take."""

_log = logging.getLogger("rankwatch")


class WatchedJob:
    """This rank's job, as the monitor shows it. Its methods ask over HTTP, so they are for threads of our own.

    Raises:
        MonitorError: there is no answer.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path

    def read(self, below: str) -> Any:
        """The JSON of a path below the job's."""
        return self._client.read(f"{self._path}{below}")

    def text(self, below: str) -> str:
        """The text of one."""
        return self._client.get(f"{self._path}{below}").decode()


class ScoreReader:
    """Asks every ``interval`` seconds, and at once when it is told to. ``start`` it, and ``stop`` it.

    Args:
        interval: seconds between two questions.
        query: of the question for the scores, for example ``?worst=1``.
        at_once: ask first when it is started, and not after the first interval.
        each: called on the thread with the job and each answer.
        log: where it is said, once for each trouble, that there are no scores.
    """

    def __init__(
        self,
        interval: float,
        *,
        query: str = "",
        at_once: bool = True,
        each: Callable[[WatchedJob, Mapping[str, Any]], None] | None = None,
        log: logging.Logger = _log,
    ) -> None:
        self._interval, self._at_once, self._each, self._log = interval, at_once, each, log
        self._path = f"/scores{query}"
        self._newest: tuple[float, Mapping[str, Any]] | None = None
        self._asked = self._answered = 0
        """Calls of :meth:`fetch`, and how many of them have been seen to, with an answer or in vain."""
        self._stopped = False
        self._trouble = ""
        self._changed = threading.Condition()
        self._job: WatchedJob | None = None

    def start(self) -> None:
        """Begin to ask, if there is a monitor to be asked."""
        self._job = _job(self._log)
        if self._job is not None:
            threading.Thread(target=self._run, args=(self._job,), name="rankwatch-scores", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; does not wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def newest(self) -> tuple[float, Mapping[str, Any]] | None:
        """When the newest scores were computed (unix seconds) and the answer; None: none has come yet."""
        return self._newest

    def fetch(self, seconds: float) -> tuple[float, Mapping[str, Any]] | None:
        """Ask now and wait for the answer, for so many seconds at most; without one, the newest before.

        While the monitor is known to be away it is asked, and not waited for.
        """
        if self._job is None:
            return None
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            if not self._trouble:
                self._changed.wait_for(lambda: self._stopped or self._answered >= mine, seconds)
            return self._newest

    def _run(self, job: WatchedJob) -> None:
        asked = 0
        if not self._at_once:
            self._rest(asked)
        while not self._stopped:
            asked = self._asked
            answer = self._ask(job)
            with self._changed:
                self._newest = answer or self._newest
                self._answered = asked
                self._changed.notify_all()
            self._rest(asked)

    def _rest(self, asked: int) -> None:
        """Until the interval is over, or somebody wants scores who has not been answered."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._asked != asked, self._interval)

    def _ask(self, job: WatchedJob) -> tuple[float, Mapping[str, Any]] | None:
        try:
            answer = job.read(self._path)
            at = answer["at"]
            if self._each is not None:
                self._each(job, answer)
            self._trouble = ""
            return None if at is None else (float(at), answer)
        except MonitorError as error:
            words = str(error)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: it asks again whatever came
            words = f"{type(error).__name__}: {error}"
        if words != self._trouble and not self._stopped:
            self._log.warning("there are no scores of stragglers to report: %s", words)
        self._trouble = words
        return None


def _job(log: logging.Logger) -> WatchedJob | None:
    """Whom to ask; None, with a word in the log, where nobody can be. Rankwatch switched off asks nobody, silently."""
    loaded = session.told() or settings.load()[0]
    if loaded.disabled:
        return None
    if loaded.monitor is None or loaded.job_id is None:
        log.warning(
            "no monitor is named (%s), so there are no reports of stragglers: start the script with `rankwatch run`",
            MONITOR_URL,
        )
        return None
    try:
        return WatchedJob(Client(loaded.monitor, loaded.token, TIMEOUT), path_of(loaded.job_id))
    except MonitorError as error:
        log.warning("there are no reports of stragglers: %s", error)
        return None
