"""What a person should do about a job, in a few words for lists. Derived when read, from what its own page proposes.

Nothing while Rankwatch acts by itself. The words hold no figure that grows, so that a summary changes only with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rankwatch.cli.formatting import capital
from rankwatch.contract.enums import Action, JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import incident_view
from rankwatch_monitor.core.views.awaited import Awaited, awaited
from rankwatch_monitor.core.views.headline import first_clause, restart_without
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.next_steps import next_steps
from rankwatch_monitor.core.views.quiet_host import QuietHost
from rankwatch_monitor.core.views.slow_action import SlowAction


class Todo(NamedTuple):
    """The next action of a person."""

    text: str
    action: Action | None = None
    """The order that carries it out; None: it is done outside of Rankwatch."""
    ranks: tuple[int, ...] = ()
    """Of the order."""
    host: str = ""
    """The node that it is about; empty: the job's own page shows how."""
    then: str = ""
    """What follows about a slow job, as a sentence; empty: nothing."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**self._asdict(), "action": str(self.action) if self.action else None, "ranks": list(self.ranks)}


def todo(
    job: Job,
    state: JobState,
    quiet: QuietHost | None,
    slow: SlowAction | None,
    now: float,
    activity: HostActivity | None = None,
) -> Todo | None:
    """The next action about a job; None: there is none.

    Args:
        job: the job.
        state: as of now.
        quiet: its hosts of which nothing is received now.
        slow: what to do about what slows it.
        now: unix seconds.
        activity: of all jobs; None: not known.
    """
    if steps := next_steps(job, state, now, activity):
        return Todo(first_clause(steps[0].text))
    if job.ended is not None:
        return None
    if quiet is not None:
        return Todo(quiet.step, host=quiet.hosts[0] if len(quiet.hosts) == 1 else "")
    if (incident := job.open_incident) is not None:
        proposed, host = incident_view.advice(job, incident, now, activity)
        if proposed.waits:
            return None
        if proposed.until is not None:  # nothing came by then
            if proposed.action is None or host is None:
                return Todo(first_clause(capital(proposed.otherwise)))
            return Todo(restart_without(host.host), proposed.action, proposed.ranks)
        return Todo(first_clause(proposed.text), proposed.action, proposed.ranks)
    return None if slow is None else Todo(first_clause(slow.text), then=slow.then)


def by_itself(job: Job, quiet: QuietHost | None, now: float, activity: HostActivity | None = None) -> Awaited | None:
    """What happens to a job without a person, with what can be looked at meanwhile; the arguments are those of todo.

    None: nothing does, or there is no trouble.
    """
    found, incident = awaited(job, now), job.open_incident
    if found is None or incident is None or quiet is not None:
        return found
    host = incident_view.of_host(job, incident, now, activity)
    return found if host is None else found._replace(meanwhile=host.meanwhile)
