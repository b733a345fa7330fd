"""What the monitor says of slow ranks, fetched now and then on a thread of its own: training never waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from rankwatch.client import Client, MonitorError, path_of

LAST_WAIT: Final = 2.0
"""Seconds that the end of a run gives the monitor for a last report."""
FIGURES: Final[Mapping[str, str]] = {"gpu_relative": "gpu_relative_perf", "gpu_individual": "gpu_individual_perf"}
"""The monitor's name of a score, and the one it has in the run's loggers: as nvidia-resiliency-ext writes it."""
STOPS: Final = ("save_and_stop", "stop")
"""What the monitor may have done about a straggler that ends the run."""
WARNING: Final = "STRAGGLER DETECTION WARNING: %s"


class Reports:
    """Asks once an interval, writes the text to ``log`` and keeps the newest figures for :meth:`take`.

    ``shown`` worst and best ranks are printed; 0: only when somebody is slow. ``figures``: the scores that are wanted.
    """

    def __init__(
        self, client: Client, job: str, interval: float, shown: int, figures: tuple[str, ...], log: logging.Logger
    ) -> None:
        self._client, self._job, self._interval = client, job, interval
        self._shown, self._figures, self._log = shown, figures, log
        self._newest: dict[str, float] | None = None
        self._seen: Any = None
        self._named: set[tuple[Any, Any]] = set()
        self._complained = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwatch-reports", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question that is under way is not waited for."""
        self._over.set()

    def take(self) -> dict[str, float] | None:
        """The newest figures that have not been taken yet. Costs two references."""
        newest = self._newest
        if newest is not None:
            self._newest = None
        return newest

    def look(self, *, last: bool = False) -> bool:
        """Ask once, and print if there is anything new; whether somebody is slow.

        ``last``: the run was stopped. Whether it was for the sake of a rank that was slow, which it may be no more.
        """
        path = path_of(self._job)
        try:
            told = self._client.read(f"{path}/scores?worst=1")
            if last:
                every = self._client.read(f"{path}/stragglers")["stragglers"]
                told["stragglers"] = [each for each in every if each["action"] in STOPS]
            at, stragglers = told["at"], told["stragglers"]
            if at is not None and (at != self._seen or last):
                self._seen = at
                if self._shown or stragglers:
                    shown = f"?shown={self._shown}" if self._shown else ""
                    self._log.info("\n%s", self._client.get(f"{path}/scores/report{shown}").decode())
                self._newest = self._figures_of(told["overall"]) or self._newest
            self._name(stragglers)
        except MonitorError as error:
            self._complain(str(error))
        except (KeyError, TypeError, ValueError) as error:
            self._complain(f"the monitor's answer is not understood: {error!r}")
        else:
            self._complained = False
            return bool(stragglers)
        return False

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            try:
                self.look()
            except Exception:  # the thread's boundary: a handler of the user's may raise what it likes
                logging.getLogger("rankwatch").warning("a straggler report could not be printed", exc_info=True)

    def _figures_of(self, overall: Mapping[str, Any]) -> dict[str, float] | None:
        """None: no rank has such a score yet."""
        known = {FIGURES[name]: overall[name] for name in self._figures if overall.get(name)}
        found = {f"{name}/{which}": float(over[which]) for name, over in known.items() for which in over}
        return found or None

    def _name(self, stragglers: list[dict[str, Any]]) -> None:
        """Warn of those that are new."""
        named = {(each["rank"], each["since"]) for each in stragglers}
        for each in stragglers:
            if (each["rank"], each["since"]) not in self._named:
                self._log.warning(WARNING, each["reason"])
        self._named = named

    def _complain(self, words: str) -> None:
        if not self._complained and not self._over.is_set():
            self._log.warning("there is no straggler report: %s", words)
        self._complained = True
