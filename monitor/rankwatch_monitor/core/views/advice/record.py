"""What a person should do about a job, and what happens without one: records, and their one line for lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rankwatch.cli.formatting import capital, duration, uncapital
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.views import responses


class Step(NamedTuple):
    """One thing to do."""

    brief: str
    """What, as a clause for lists: it holds no figure that grows."""
    more: str = ""
    """How and why: what follows the clause in the sentence, from its punctuation on."""
    command: str = ""
    """To be run on ``host``; empty: none."""
    host: str = ""
    """Empty: anywhere in the cluster."""
    note: str = ""
    """How the output of the command is to be read, in a sentence; empty: it is plain."""
    reads: int | None = None
    """The rank whose log it reads; None: it reads no log."""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return capital(f"{self.brief}{self.more}.")


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, or what to wait for."""

    rule: str = ""
    """The row of the playbook."""
    steps: tuple[Step, ...] = ()
    """For a person, in their order; while something is awaited, what can be looked at meanwhile."""
    awaited: str = ""
    """What happens without a person, as a clause; empty: nothing does."""
    until: float | None = None
    """Unix seconds when that is due; None: not known."""
    next: str = ""
    """What follows by itself, for the clock beside it: ``restart in``, ``restart within``; empty: nothing does."""
    cost: float | None = None
    """Seconds that the awaited action loses; None: not known, or nothing is lost."""
    otherwise: Step | None = None
    """What is to be done if it has not come by then."""
    orders: tuple[responses.Order, ...] = ()
    """That may be given now, the likeliest first."""
    proposed: bool = False
    """The first order is what the steps advise."""
    condition: str = ""
    """When it is to be given, where a look comes first: ``if it stays slow``; empty: now."""
    weighs_restart: bool = False
    """What a restart loses stands beside it."""
    notes: tuple[str, ...] = ()
    """What else is to be known, a sentence each."""
    alternatives: tuple[str, ...] = ()
    """What follows from each output of the first command, a sentence each."""
    host: str = ""
    """The node that it is about; empty: none, or several."""
    runbook: str = ""
    """Page and section of the manual."""
    slow: bool = False
    """It is about slow ranks, or a slow job."""

    @property
    def waits(self) -> bool:
        """Whether no person is needed now."""
        return bool(self.awaited)

    @property
    def text(self) -> str:
        """The advice in one line, which changes only with it: ``Nothing to do: the launchers restart the ranks``."""
        if not self.awaited:
            return self.steps[0].brief if self.steps else ""
        text = self.awaited if self.cost is None else f"{self.awaited}; a restart loses {duration(self.cost)}"
        if not self.steps:
            return f"Nothing to do: {text}"
        return f"Wait: {text}; meanwhile {uncapital(self.steps[0].brief)}"

    def to_json(self) -> responses.Advice:
        """For the API."""
        steps = [copied(responses.Step, step) for step in self.steps]
        otherwise = None if self.otherwise is None else copied(responses.Step, _if_not(self.otherwise))
        return {**copied(responses.Advice, self), "steps": steps, "otherwise": otherwise}


def _if_not(step: Step) -> Step:
    return step._replace(brief=f"If not by then, {uncapital(step.brief)}", more="")
