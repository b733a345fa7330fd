"""Rows of the tables that the scripted monitor answers with."""

from __future__ import annotations

from typing import Any

from rankwatch.contract.enums import Action
from rankwatch_monitor.core.views.advice.record import Advice, Step
from rankwatch_monitor.core.views.responses import Order


def host_of(rank: int) -> str:
    return f"node-{rank // 8}"


def straggler(rank: int, share: float, now: float) -> dict[str, Any]:
    """One row of ``stragglers``; every third is slow in its input instead of on its device."""
    cause, what = ("data", "its input") if rank % 3 == 2 else ("compute", "its kernels")
    return {
        "id": f"s{rank}", "rank": rank, "host": host_of(rank), "device": "0", "cause": cause, "reference": "robust",
        "reason": f"rank {rank} makes the others wait {share:.2f} s in each step: {what} took longer than those of its "
                  "peers in 5 of 5 windows", "since": now - 600, "seen": now, "attempt": 1,
        "score": 1 - share, "lateness": share, "share": share, "cost_gpu_hours": 10 * share, "action": "log",
    }  # fmt: skip


def rank_scores(rank: int, lost: float) -> dict[str, Any]:
    """One row of ``scores``."""
    return {
        "rank": rank, "host": host_of(rank), "gpu_relative": 0.98 - lost, "gpu_individual": None,
        "gpu_robust": 1 - lost, "lateness": lost or -0.002, "lateness_share": lost, "sections": {},
    }  # fmt: skip


def limit(what: str, section: str | None = None, **seconds: float | str | None) -> dict[str, Any]:
    """One row of ``timeouts``."""
    return {"what": what, "section": section} | seconds


TIMEOUTS = [
    limit("section", "checkpointing", loaded=240.0, in_force=240.0, source="loaded"),
    limit("section", "evaluation", in_force=1800.0, source="first_time"),
    limit("section", "forward", configured=30.0, learned=12.5, in_force=30.0, source="configured"),
    limit("section", "step", learned=10.0, loaded=14.0, in_force=12.0, source="learned"),
    limit("out_of_section"),
    limit("heartbeat", configured=300.0, in_force=300.0, source="configured"),
    limit("initial_heartbeat", configured=1800.0, in_force=1800.0, source="configured"),
    limit("silence", configured=60.0, in_force=60.0, source="configured"),
    limit("first_time", configured=1800.0, in_force=1800.0, source="configured"),
]


def advised(
    text: str, *orders: Order, command: str = "", host: str = "", runbook: str = "jobhung", **facts: Any
) -> Any:
    """An advice of one step as the API has it; the first order is what it proposes."""
    step = Step(text, "", command, host)
    page = f"runbook.html#rankwatch{runbook}"
    return Advice("", (step,), orders=orders, proposed=bool(orders), runbook=page, **facts).to_json()


RESTART = Order(Action.RESTART, "Restart")
