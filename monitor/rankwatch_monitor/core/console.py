"""What the consoles of a job's launchers show: the events of the job in one line each, by the effects of the core.

:func:`worded` is given every effect before it is delivered. Directives about an incident get a word and headlines;
changes of incidents and stragglers that no directive is about become a ``tell``. What a console shows already of an
incident or a straggler (:attr:`~.job.Job.told`) is not told again.

=======================  ===============================================================================================
suspicion                once its stacks are known, and again when samples show something else
hang                     with the order to restart or stop, or alone where nothing is done about it
crash                    by the launchers themselves, which notice it first
ended by itself          of what was told
first new step           of every restart
slow rank, and its end   of the first few that are found at once
=======================  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from rankwatch.cli.formatting import count, duration, uncapital
from rankwatch.contract.enums import ConsoleWord, DirectiveKind, StragglerVerdict, VerdictKind
from rankwatch.contract.messages import Directive
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.cause import Some
from rankwatch_monitor.core.effects import Changed, Effect, Issue, Slowed
from rankwatch_monitor.core.incident_record import Ended, Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler, subject
from rankwatch_monitor.core.views import downtime
from rankwatch_monitor.core.views.headline import headlines
from rankwatch_monitor.core.views.slow_headline import slow_headline
from rankwatch_monitor.core.views.throttling import throttle_of
from rankwatch_monitor.core.words.causes import some

_OF_THE_JOB: Final = (StragglerVerdict.STAGE, StragglerVerdict.WORKLOAD, StragglerVerdict.LINK)
"""Findings about the job as a whole; a rank that is slow is told by itself."""
KEPT: Final = 1000
"""Incidents and stragglers of which it is remembered what was told."""


def worded(job: Job, effect: Effect) -> list[Effect]:
    """The effect with its words for the consoles, and the directives that tell what no other directive does."""
    match effect:
        case Issue(directive=directive):
            return [Issue(_with_words(job, directive))]
        case Changed(incident=incident):
            return [effect, *_incident(job, incident)]
        case Slowed(straggler=None):
            return [effect, *_finding(job)]
        case Slowed(straggler=straggler, message=message) if straggler is not None and message:
            return [effect, *_straggler(job, straggler)]
    return [effect]


# Incidents ------------------------------------------------------------------------------------------------------------


def _with_words(job: Job, directive: Directive) -> Directive:
    """A directive about an incident with what the console shows of it; unchanged if there is nothing new to show."""
    incident = next((each for each in reversed(job.incidents) if each.id == directive.incident_id), None)
    if incident is None or directive.kind in (DirectiveKind.CAPTURE, DirectiveKind.SETTINGS):
        return directive
    word, tells = _word(incident, directive.kind), directive.kind is DirectiveKind.TELL
    if tells and incident.provisional:
        return directive  # another one follows with what the stacks show
    if not _is_news(job, incident.id, _key(incident, word)) and tells:
        return directive
    lines = _lines(incident)
    if word is ConsoleWord.HANG and job.told.get(_text(incident)) == lines and incident.proof_reason:
        lines = (uncapital(incident.proof_reason.rstrip(".")),)  # what was suspected is shown; this is what proves it
    made = replace(directive, word=word, headlines=lines)
    _note(job, _text(incident), lines)
    job.directives[:] = [made if each is directive else each for each in job.directives]
    return made


def _lines(incident: Incident) -> tuple[str, ...]:
    return tuple(map(uncapital, headlines(incident)))


def _text(incident: Incident) -> str:
    return f"{incident.id} text"


def _word(incident: Incident, kind: DirectiveKind) -> ConsoleWord:
    if incident.kind is VerdictKind.STRAGGLER:
        return ConsoleWord.SLOW
    if incident.kind is VerdictKind.ORDERED:
        return ConsoleWord.RESTART if kind is DirectiveKind.RESTART else ConsoleWord.STOP
    return ConsoleWord.HANG if incident.confirmed else ConsoleWord.SUSPECT


def _key(incident: Incident, word: ConsoleWord) -> Hashable:
    proof = incident.proof if word is ConsoleWord.SUSPECT else ""
    return word, tuple(culprit.rank for culprit in incident.culprits), proof


def _incident(job: Job, incident: Incident) -> Iterator[Issue]:
    if incident.phase is Phase.CONFIRMING and incident.id not in job.told:
        _note(job, incident.id, _key(incident, ConsoleWord.SUSPECT))
        lines = _lines(incident)
        _note(job, _text(incident), lines)
        yield from _tell(job, ConsoleWord.SUSPECT, lines, incident, suspected=True)
    if incident.open:
        return
    lasted = downtime.held_up(incident)
    after = "" if lasted is None else f" after {duration(lasted)}"
    if incident.ended is Ended.WENT_ON and job.told.pop(incident.id, None) is not None:
        ranks = [culprit.rank for culprit in incident.culprits]
        who = some(Some.of(ranks), short=True) if ranks else "the ranks"
        yield from _tell(job, ConsoleWord.WENT_ON, (f"{who} went on by {_self(ranks)}{after}",), incident)
    elif incident.ended is Ended.RECOVERED and incident.timeline.restarted is not None:
        job.told.pop(incident.id, None)
        lost = incident.steps_lost
        lost_words = "" if lost is None else f" · {count(lost, 'step')} lost" if lost else " · no step lost"
        yield from _tell(job, ConsoleWord.BACK, (f"{_resumed(job)}{after}{lost_words}",), incident)


def _self(ranks: Sequence[int]) -> str:
    return "itself" if len(ranks) == 1 else "themselves"


def _resumed(job: Job) -> str:
    """``step 46``, of steps that the script counts; else the attempt that goes on."""
    columns = job.columns
    stepped_R = columns.first_iteration_R >= 0
    if not stepped_R.any():
        return f"attempt {job.attempt} runs"
    if columns.counted_R[stepped_R].any():
        return f"attempt {job.attempt} goes on"
    return f"step {int(columns.first_iteration_R[stepped_R].min())}"


# Speed ----------------------------------------------------------------------------------------------------------------


def _straggler(job: Job, straggler: Straggler) -> Iterator[Issue]:
    if straggler.open and straggler.id not in job.told:
        _note(job, straggler.id, ConsoleWord.SLOW)
        short = slow_headline(straggler, throttle_of(job, straggler))
        lines = tuple(map(uncapital, (straggler.reason.rstrip("."), short)))
        yield from _tell(job, ConsoleWord.SLOW, lines, slow_rank=straggler.rank)
    elif not straggler.open and job.told.pop(straggler.id, None) is not None and job.ended is None:
        who = uncapital(subject(straggler.rank, straggler.host))
        yield from _tell(job, ConsoleWord.BACK, (f"{who} is as fast as its peers again",))


def _finding(job: Job) -> Iterator[Issue]:
    found = job.performance.finding
    if found.verdict in _OF_THE_JOB and _is_news(job, "finding", found.verdict):
        yield from _tell(job, ConsoleWord.SLOW, (uncapital(found.reason.rstrip(".")),))


# Telling --------------------------------------------------------------------------------------------------------------


def _is_news(job: Job, about: str, key: Hashable) -> bool:
    if job.told.get(about) == key:
        return False
    _note(job, about, key)
    return True


def _note(job: Job, about: str, key: Hashable) -> None:
    job.told[about] = key
    if len(job.told) > KEPT:
        del job.told[next(iter(job.told))]


def _tell(
    job: Job, word: ConsoleWord, lines: tuple[str, ...], incident: Incident | None = None, **more: Any
) -> Iterator[Issue]:
    """``more``: fields of the directive."""
    if nodes.any_acting(job) and job.ended is None:
        about = None if incident is None else incident.id
        told = {"incident_id": about, "word": word, "headlines": lines, **more}
        yield Issue(job.new_directive(DirectiveKind.TELL, lines[0], **told))
