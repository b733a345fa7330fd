"""Directives that were committed, and the launchers that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.job import Job

log = logging.getLogger("rankwatch")

A_TURN: Final = 500
"""Launchers that are answered in one turn of the loop: what else has come in is heard in between."""

Answer = Callable[[list[Directive] | None], None]
"""Takes what there is, nothing after the time that was given, or None: the job is not watched here any more."""


@dataclass(eq=False, slots=True)
class Question:
    """One launcher that waits."""

    job: Job
    after: int
    answer: Answer
    timer: asyncio.TimerHandle | None = None


class Handout:
    """Which directives of each job may be seen. On the loop's thread only."""

    def __init__(self) -> None:
        self.ending = False
        """Long polls are to end."""
        self._shown: dict[str, int] = {}
        self._asked: dict[str, dict[Question, None]] = {}

    def show(self, job_id: str, number: int) -> None:
        """Hand out the directives of a job up to this number."""
        self._shown[job_id] = max(number, self._shown.get(job_id, 0))
        self._answer_all(job_id)

    def forget(self, job_id: str) -> None:
        """Answer all who wait for news of a job, which is watched no more."""
        self._shown.pop(job_id, None)
        self._answer_all(job_id, gone=True)

    def end_waits(self) -> None:
        """Answer all who wait."""
        self.ending = True
        for job_id in list(self._asked):
            self._answer_all(job_id)

    def ready(self, job: Job, after: int) -> list[Directive]:
        """Directives of a job above number ``after`` that may be seen."""
        shown = self._shown.get(job.id, 0)
        return [directive for directive in job.directives if after < directive.id <= shown] if after < shown else []

    def ask(self, job: Job, after: int, wait: float, answer: Answer) -> Callable[[], object]:
        """Have ``answer`` called once: with the next directive above ``after``, or after ``wait`` seconds.

        What is called meanwhile, to withdraw the question, is returned. For what is there already see :meth:`ready`.
        """
        question = Question(job, after, answer)
        self._asked.setdefault(job.id, {})[question] = None
        question.timer = asyncio.get_running_loop().call_later(wait, self._answer, question, [])
        return lambda: self._withdraw(question)

    async def after(self, find: Callable[[], Job], after: int, wait: float) -> list[Directive]:
        """Directives above number ``after``; waits up to ``wait`` seconds for one.

        ``find`` gives the job, or raises what is then raised here: it may be gone after a while.
        """
        job = find()
        found = self.ready(job, after)
        if found or wait <= 0 or self.ending:
            return found
        answered: asyncio.Future[list[Directive] | None] = asyncio.get_running_loop().create_future()
        withdraw = self.ask(job, after, wait, lambda ready: None if answered.done() else answered.set_result(ready))
        try:
            told = await answered
        finally:
            withdraw()
        return self.ready(find(), after) if told is None else told

    def _answer_all(self, job_id: str, *, gone: bool = False) -> None:
        self._answer_some(list(self._asked.get(job_id, ())), gone)

    def _answer_some(self, waiting: list[Question], gone: bool) -> None:
        most = len(waiting) if self.ending else A_TURN
        if rest := waiting[most:]:
            asyncio.get_running_loop().call_soon(self._answer_some, rest, gone)
        for question in waiting[:most]:
            ready = self.ready(question.job, question.after)
            if gone or ready or self.ending:
                self._answer(question, None if gone else ready)

    def _answer(self, question: Question, ready: list[Directive] | None) -> None:
        if self._withdraw(question):
            try:
                question.answer(ready)
            except Exception:
                log.exception("a launcher of job %s could not be answered", question.job.id)

    def _withdraw(self, question: Question) -> bool:
        asked = self._asked.get(question.job.id, {})
        if question not in asked:
            return False
        del asked[question]
        if not asked:
            del self._asked[question.job.id]
        if question.timer is not None:
            question.timer.cancel()
            question.timer = None
        return True
