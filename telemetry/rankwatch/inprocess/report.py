"""Tells the monitor, through the launcher, of restarts within the process and of their end."""

from __future__ import annotations

import logging

from rankwatch.inprocess.decision import Plan

_log = logging.getLogger("rankwatch")


def tell_restarted(plan: Plan, rank: int, seconds: float) -> None:
    """Say that a restart has come about; the first rank speaks for all. Nothing in the first iteration."""
    if plan.iteration == 0 or not plan.places or rank != plan.places[0]:
        return
    text = (
        f"{plan.cause}; the training function was restarted in the same processes in {seconds:.1f} s "
        f"(restart {plan.iteration}, {len(plan.places)} ranks)"
    )
    _log.warning("%s", text)
    _tell("RESTARTED_IN_PROCESS", text, seconds)


def tell_given_up(rank: int, text: str) -> None:
    """Say that no restart follows: it becomes the reason of this process's exit."""
    _log.error("rank %d: %s", rank, text)
    _tell("LAST_WORDS", text, 0.0)


def say_sparable(*, sparable: bool) -> None:
    """Let the launcher know whether the others would go on without this process, should it end."""
    from rankwatch import launcher_requests

    launcher_requests.say_sparable(sparable=sparable)


def _tell(kind: str, text: str, seconds: float) -> None:
    import rankwatch
    from rankwatch.contract.enums import NoticeKind

    if rankwatch.is_initialized():
        rankwatch.tell(NoticeKind[kind], text, seconds)
