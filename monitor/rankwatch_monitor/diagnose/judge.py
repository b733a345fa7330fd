"""The verdict on one job from the reports of its nodes. Pure.

How a job is judged
-------------------
The reports become what a watched job consists of: columns over ranks, stacks, an incident. The core decides what the
looks prove (:mod:`..core.hang.proof`), who is to blame (:mod:`..core.hang.blame`), words and advice. What it knows of a
watched job and nobody knows here are its steps; so a rank *stands* if it is in a call that waits for its peers, at the
same line in all looks, without a wake-up. The first row that applies:

==================================================================  ============  =====================================
what was seen                                                       verdict       named
==================================================================  ============  =====================================
processes ended meanwhile, or the ranks are restarted repeatedly    trouble       the first that ended by itself
nothing could be seen of the job                                    cannot tell   nobody
all ranks are stopped                                               trouble       nobody
a rank is stopped, or nothing can wake it while others stand        trouble       it, or whom the collectives show
all stand in collectives that cannot complete                       trouble       whom the collectives show, if any
a rank works, or waits for what may end by itself, others stand     cannot tell   it, as the one that is waited for
all stand                                                           cannot tell   nobody: a transfer may take so long
every rank moves, not only to sleep again                           healthy       nobody
all else                                                            cannot tell   nobody
==================================================================  ============  =====================================

Where the ranks were profiled, a job that is not in trouble, and of which no rank stands, is *slow* if its
ranks wait for one (:mod:`.slow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from rankwatch.contract.diagnosis import NodeReport, SeenExit, SeenRank
from rankwatch.contract.enums import JobState, LimitSource, ProcessState, Proof, VerdictKind, WaitKind
from rankwatch.contract.exits import is_consequence
from rankwatch.contract.job_id import usable
from rankwatch.contract.messages import NodeRegistration, RankStack, Usage, Wait
from rankwatch.contract.peers import waiting_call
from rankwatch_monitor.core.cause import Detection, DifferentCalls, Shown, Site, Unnamed
from rankwatch_monitor.core.hang import nccl, proof
from rankwatch_monitor.core.hang.arguments import calls_of_circle
from rankwatch_monitor.core.hang.blame import blame
from rankwatch_monitor.core.hang.proof import Decision
from rankwatch_monitor.core.hang.stacks import Stacks, call_site, of_script, site_of
from rankwatch_monitor.core.hang.verdict import Blame, Common, Culprit, Verdicts, culprit_of
from rankwatch_monitor.core.incident import state_machine as machine
from rankwatch_monitor.core.incident_record import MOST_ANSWERS, Incident, NcclAnswer, Timeline, Withheld
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.ranks import EXITED, PROCESS_CODES, PROOFS
from rankwatch_monitor.core.views.advice.playbook import advice
from rankwatch_monitor.core.views.advice.record import Advice
from rankwatch_monitor.core.views.advice.situation import situation
from rankwatch_monitor.core.words import sentence
from rankwatch_monitor.diagnose import words
from rankwatch_monitor.diagnose.slow import Slowness, compare

MAX_RANKS: Final = 1 << 18
"""Of all jobs together: any process of any user of a node may claim any world."""
SIGKILL: Final = 9
KILLED_BY_LAUNCHER: Final = (-15, -SIGKILL)
"""Exit codes of ranks that their launcher has ended since another one failed."""
QUIET_BYTES: Final = 64.0
"""Bytes a second read, written and exchanged up to which a rank trains with nobody: it logs a line now and then."""
MOST_CALLS: Final = 3
LOOP_RESTARTS: Final = 2
LOOP_SECONDS: Final = 120.0
"""Ranks that were restarted so often, and the last time so recently, end again and again."""


class Verdict(StrEnum):
    """What is to be said of a job."""

    HEALTHY = "healthy"
    TROUBLE = "trouble"
    SLOW = "slow"
    """Its ranks were profiled, and wait for one of them."""
    UNKNOWN = "unknown"
    """Nothing that was seen decides it."""


WORST_FIRST: Final = (Verdict.TROUBLE, Verdict.SLOW, Verdict.UNKNOWN, Verdict.HEALTHY)


@dataclass(frozen=True, slots=True)
class Judged:
    """One job."""

    name: str
    verdict: Verdict
    reason: str
    """One sentence, or two."""
    job: Job
    incident: Incident | None
    """None: it is healthy."""
    decision: Decision
    stacks: Stacks
    ranks: tuple[SeenRank, ...]
    hosts: tuple[str, ...]
    exits: tuple[SeenExit, ...]
    standing: tuple[int, ...]
    """Ranks that stand in a call that waits for their peers."""
    unseen: tuple[int, ...]
    """Ranks of the job of which no report tells."""
    seconds: float
    advice: Advice | None
    at: float
    slowness: Slowness | None = None
    """None: the ranks were not profiled, or not long enough."""

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Who is named."""
        return () if self.incident is None else self.incident.culprits


def judge(reports: Sequence[NodeReport], silent: Sequence[str] = (), *, only: str | None = None) -> list[Judged]:
    """The verdict on each job of these nodes, the largest first, as far as there is room for its ranks.

    Args:
        silent: nodes that sent no report.
        only: the job to judge; None: all.
    """
    jobs: dict[tuple[str, int], list[tuple[NodeReport, SeenRank]]] = {}
    exits: dict[tuple[str, int], list[tuple[NodeReport, SeenExit]]] = {}
    for report in reports:
        for rank in report.ranks:
            if only in (None, rank.job):
                jobs.setdefault((rank.job, rank.user), []).append((report, rank))
        for end in report.exits:
            if only in (None, end.job):
                exits.setdefault((end.job, end.user), []).append((report, end))
    found, room = list[Judged](), MAX_RANKS
    for key in sorted(jobs.keys() | exits, key=lambda one: (-len(jobs.get(one, ())), one)):
        case = _Case(key[0], jobs.get(key, []), exits.get(key, []), silent)
        if case.size <= room:
            room -= case.size
            found.append(_with_profiles(case.judged()))
    return found


def _with_profiles(judged: Judged) -> Judged:
    """The same with what the profiles of its ranks show."""
    slowness = compare(judged.ranks)
    if slowness is None or judged.verdict is Verdict.TROUBLE or judged.standing:
        return replace(judged, slowness=slowness)
    if slowness.late:
        late = slowness.late[0]
        host = judged.job.columns.hosts[late.rank] or ""
        return replace(
            judged,
            verdict=Verdict.SLOW,
            reason=words.late(slowness.late, host, judged.seconds, judged.unseen),
            incident=None,
            advice=words.make_faster(late, host),
            slowness=slowness,
        )
    reason = f"{judged.reason} {words.none_late(slowness)}" if judged.verdict is Verdict.HEALTHY else judged.reason
    return replace(judged, reason=reason, slowness=slowness)


class _Case:
    """One job while it is judged."""

    def __init__(
        self,
        name: str,
        seen: Sequence[tuple[NodeReport, SeenRank]],
        exits: Sequence[tuple[NodeReport, SeenExit]],
        silent: Sequence[str],
    ) -> None:
        newest = max((rank.attempt for _, rank in seen), default=0)
        one_of_each: dict[int, tuple[NodeReport, SeenRank]] = {}
        for report, rank in seen:
            if rank.attempt == newest and rank.rank >= 0:
                one_of_each[rank.rank] = (report, rank)
        self.name, self.silent = name, tuple(silent)
        self.seen = [one_of_each[rank] for rank in sorted(one_of_each)]
        self.exits = [(report, end) for report, end in exits if end.rank >= 0]
        users = {rank.user for _, rank in self.seen}
        hosts = {report.host: report for report, _ in seen}.values()
        self.answers = [
            (report.host, each.report.bounded())
            for report in hosts
            for each in report.nccl
            if each.job == name and each.user in users
        ]
        numbers = [*one_of_each, *(end.rank for _, end in self.exits)]
        self.size = max(1 + max(numbers, default=0), *(rank.world_size for _, rank in self.seen), 1)
        self._attempt = newest
        self.at = max([report.at for report, _ in (*self.seen, *self.exits)], default=0.0)
        self.seconds = max([report.seconds for report, _ in self.seen], default=0.0)

    def _made(self, attempt: int) -> Job:
        """The job as its monitor would have it."""
        job = Job(usable(self.name), self.at - self.seconds, name=self.name)
        job.begin_attempt(attempt, self.at - self.seconds, self.size)
        job.restarts, columns = attempt, job.columns
        for report, rank in self.seen:
            columns.reported_R[rank.rank], columns.pid_R[rank.rank] = True, rank.pid
            columns.local_rank_R[rank.rank], columns.hosts[rank.rank] = rank.local_rank, report.host
            columns.process_R[rank.rank] = PROCESS_CODES.index(rank.stack.process_state)
            node = job.nodes.get(report.host)
            if node is None:
                registration = NodeRegistration(report.host, report.host, 0, rank.local_world_size)
                node = job.nodes[report.host] = Node(registration, self.at, attempt)
            node.ranks.add(rank.rank)
        for report, end in self.exits:
            if end.attempt == attempt and not columns.reported_R[end.rank]:
                columns.process_R[end.rank], columns.hosts[end.rank] = EXITED, report.host
                # Without failure torchrun lets the others go on; else it ends them within moments.
                code = 0 if end.age is None and end.code is None else end.code
                if code is not None:
                    columns.exit_known_R[end.rank], columns.exit_code_R[end.rank] = True, code
                    columns.exit_messages[end.rank] = end.message
        return job

    def _stands(self, stack: RankStack) -> bool:
        usage = stack.usage
        if usage is None or PROOFS[self.job.columns.proof_R[stack.rank]] is not Proof.WAITING:
            return False
        return usage.wakeups <= 1 + proof.WAKEUPS * usage.seconds

    def _moves(self, stack: RankStack) -> bool:
        usage = stack.usage
        if usage is None or stack.rank in self.standing:
            return False
        shown = PROOFS[self.job.columns.proof_R[stack.rank]] if self.job.columns.proof_R[stack.rank] >= 0 else None
        another_line = usage.same_stack is not None and usage.same_stack + 0.05 < min(
            usage.seconds, proof.STILL_SECONDS
        )
        if shown is Proof.BUSY or another_line:
            return True
        if stack.process_state in (ProcessState.STOPPED, ProcessState.UNINTERRUPTIBLE) or usage.gpu:
            return False  # a thread that waits for its GPU polls
        if _polls(usage):
            return False
        return usage.wakeups > 1 + proof.WAKEUPS * usage.seconds

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks of which no report tells."""
        known = {rank.rank for _, rank in self.seen} | {end.rank for _, end in self.exits}
        return tuple(rank for rank in range(self.job.world_size) if rank not in known)

    # Rows of the table ------------------------------------------------------------------------------------------------

    def judged(self) -> Judged:
        """Judge it."""
        self.job = self._made(self._attempt)
        self.stacks = Stacks.of(rank.stack for _, rank in self.seen)
        proof.record(self.job.columns, [rank.stack for _, rank in self.seen], self.at)
        self.standing = tuple(rank.rank for _, rank in self.seen if self._stands(rank.stack))
        ended = self._first_end()
        if ended is not None:
            return self._crashed(*ended)
        decision = proof.decide(self.job.columns, self.job.limits.rank, self.stacks, self.at)
        looked_at = [rank for _, rank in self.seen if rank.stack.usage is not None]
        if not looked_at or not len(self.stacks.groups()):
            text = words.nothing_seen(len(self.seen)) if self.seen else words.all_ended(len(self.exits))
            return self._made_of(Verdict.UNKNOWN, text, proof.NOTHING)
        live, alone = len(self.seen), len(self.seen) == 1 and not self.unseen
        loops = self._restart_loop()
        if decision.proof is Proof.SUSPENDED or decision.proof is Proof.STOPPED:
            return self._proven(decision)
        if decision.proven and (self.standing or alone):
            return self._proven(decision)
        if self.standing and decision.proof in proof.WAITED_FOR:
            return self._waited_for(decision)
        if loops:
            return self._made_of(Verdict.TROUBLE, loops, decision)
        if len(self.standing) == live > 1 or (self.standing and self.unseen and len(self.standing) == live):
            return self._all_stand(decision)
        moving = [rank.rank for _, rank in self.seen if self._moves(rank.stack)]
        if len(moving) == live and not self.silent:
            working = sum(1 for _, rank in self.seen if _works(rank.stack))
            return self._made_of(
                Verdict.HEALTHY, words.healthy(live, self.job.world_size, self.seconds, working), decision
            )
        if decision.proof in (Proof.MAY_END, Proof.DEBUGGED, Proof.UNINTERRUPTIBLE):
            shown = self._shown(decision)
            return self._made_of(Verdict.UNKNOWN, sentence.shown(shown), decision, shown=shown)
        return self._made_of(Verdict.UNKNOWN, self._undecided(moving), decision)

    def _proven(self, decision: Decision) -> Judged:
        blamed = self._blame()
        shown = self._shown(decision)
        named = [culprit[:3] for culprit in blamed.culprits]
        stopped = decision.ranks if decision.proof in (Proof.SUSPENDED, Proof.STOPPED) else ()
        text = words.hangs(named, blamed.why_none, shown)
        if decision.proof is Proof.SUSPENDED:
            text, blamed = sentence.shown(shown), Blame(())
        judged = self._made_of(Verdict.TROUBLE, text, decision, blamed=blamed, shown=shown)
        return self._with_command(judged, stopped)

    def _waited_for(self, decision: Decision) -> Judged:
        """Ranks stand, and others work or wait for what may end by itself."""
        ranks = tuple(rank for rank in decision.ranks if rank not in self.standing)
        if not ranks:
            return self._made_of(Verdict.UNKNOWN, self._undecided([]), decision)
        shown = replace(self._shown(Decision(decision.proof, ranks)), waiting=len(self.standing))
        waits = self._waits()
        # The others may wait for one that nobody has seen or that has ended, and these may be ending after it: a
        # process that leaves has no stack.
        whole = not self.unseen and not self.exits and all(rank.stack.frames for _, rank in self.seen)
        named = ranks if whole and 2 * len(ranks) <= len(self.seen) else ()
        causes = proof.watched(shown, named, waits, self.stacks)
        culprits = [culprit_of(self.job.columns, rank, cause) for rank, cause in zip(named, causes, strict=True)]
        return self._made_of(
            Verdict.UNKNOWN, sentence.shown(shown), decision, blamed=Blame(tuple(culprits)), shown=shown
        )

    def _all_stand(self, decision: Decision) -> Judged:
        blamed = self._blame()
        if not blamed.culprits and not self.unseen and not self.stacks.group_progress() and (none := self._circle()):
            blamed = Blame((), none)
        differ = blamed.why_none is not None and isinstance(blamed.why_none.why, DifferentCalls)
        if (blamed.culprits or differ) and not self.unseen:
            text = words.hangs([culprit[:3] for culprit in blamed.culprits], blamed.why_none, None)
            return self._with_command(self._made_of(Verdict.TROUBLE, text, decision, blamed=blamed))
        places = self._places()
        if self.unseen or len(places) > 1 or not self.stacks.group_progress():
            text = words.all_stand(len(self.seen), places, self.unseen, self.seconds)
            return self._made_of(Verdict.UNKNOWN, text, decision, blamed=Blame(()))
        shown = self._shown(decision)
        return self._made_of(Verdict.UNKNOWN, sentence.shown(shown), decision, blamed=Blame(()), shown=shown)

    def _places(self) -> list[words.Place]:
        """The calls in which ranks stand, that of most ranks first."""
        ranks_at: dict[tuple[str, Site | None, bool], list[int]] = {}
        of_all = self._of_all()
        for group in self.stacks.groups():
            call = waiting_call(group.frames)
            name, site = "its peers' call" if call is None else call.function, site_of(call_site(group.frames))
            for rank in self.standing:
                if rank in group.ranks:
                    ranks_at.setdefault((name, site, rank in of_all), []).append(rank)
        made = [words.Place(*place, tuple(sorted(ranks))) for place, ranks in ranks_at.items() if ranks]
        return sorted(made, key=lambda place: (-len(place.ranks), place.ranks))

    def _of_all(self) -> set[int]:
        """Ranks in a collective that names no process group."""
        return {rank.rank for _, rank in self.seen if rank.called is not None and rank.called.of_all}

    def _circle(self) -> Unnamed | None:
        """That the ranks wait for each other, by the arguments of their calls; None: a call may complete.

        Bytes may be a transfer, a thread of the script may make the call that is missing, and a GPU computes before it
        transfers.
        """
        usages = [rank.stack.usage for _, rank in self.seen]
        if any(each is None or each.gpu or each.io_bytes >= QUIET_BYTES * each.seconds for each in usages):
            return None
        frames = [one.frames for _, rank in self.seen for one in rank.threads]
        if any(waiting_call(each) is not None or any(map(of_script, each)) for each in frames):
            return None
        called = {rank.rank: rank.called for _, rank in self.seen if rank.called is not None}
        calls = calls_of_circle(self.stacks.groups(), called, self.job.world_size)
        return Unnamed(DifferentCalls("", 0, calls[:MOST_CALLS])) if calls else None

    def _undecided(self, moving: Sequence[int]) -> str:
        others = [rank.rank for _, rank in self.seen if rank.rank not in self.standing and rank.rank not in moving]
        unread = [rank.rank for _, rank in self.seen if not rank.stack.frames]
        return words.undecided(self.standing, moving, others, unread)

    # Ends of processes ------------------------------------------------------------------------------------------------

    def _first_end(self) -> tuple[NodeReport, SeenExit, int] | None:
        """The first process that ended by itself meanwhile, and how many more did; None: none did."""
        newest = max((rank.attempt for _, rank in self.seen), default=0)
        meanwhile = [
            (report, end)
            for report, end in self.exits
            # An end of which the code is not known may be that of a job which is done, unless it was restarted.
            if end.age is not None and (end.code or (end.code is None and (end.message or end.attempt < newest)))
        ]
        by_itself = [each for each in meanwhile if each[1].code not in KILLED_BY_LAUNCHER]
        killed = [each for each in meanwhile if each[1].code == -SIGKILL]
        meanwhile = by_itself or killed
        if not meanwhile:
            return None
        own = [each for each in meanwhile if not is_consequence(each[1].message)] or meanwhile
        report, first = min(own, key=lambda each: (each[1].attempt, each[0].at - (each[1].age or 0.0)))
        return report, first, len({end.rank for _, end in meanwhile}) - 1

    def _crashed(self, report: NodeReport, first: SeenExit, more: int) -> Judged:
        rank, host, columns = first.rank, report.host, self.job.columns
        columns.hosts[rank] = columns.hosts[rank] or host
        cause = words.ended(first)
        follows = is_consequence(first.message)
        named = cause is not None and not follows
        culprits = (Culprit(rank, host, cause, int(columns.local_rank_R[rank])),) if named and cause is not None else ()
        found = Detection(VerdictKind.PROCESS_EXITED, rank, host, None, 0.0, 0.0, LimitSource.CONFIGURED)
        restarts = max([seen.attempt for _, seen in self.seen], default=0)
        newest = self.seen[0][1] if self.seen else None
        text = words.crashed(found, cause, more, restarts, newest, follows=follows)
        return self._made_of(
            Verdict.TROUBLE, text, proof.NOTHING, kind=VerdictKind.PROCESS_EXITED, blamed=Blame(culprits), found=found
        )

    def _restart_loop(self) -> str:
        """That the ranks are restarted again and again; empty: they are not."""
        if not self.seen:
            return ""
        youngest = min(rank.age for _, rank in self.seen)
        restarts = min(rank.attempt for _, rank in self.seen)
        if restarts < LOOP_RESTARTS or youngest > LOOP_SECONDS:
            return ""
        return words.restarted(restarts, youngest, self.seen[0][1].launcher)

    # Parts ------------------------------------------------------------------------------------------------------------

    def _blame(self) -> Blame:
        """Whom the core blames for a hang of all these ranks, which nobody knows the progress of."""
        ranks = [rank.rank for _, rank in self.seen]
        number = len(ranks)
        common = Common(VerdictKind.STALLED, source=LimitSource.FIRST_TIME)
        began = self.at - self.seconds
        zero, elapsed, since = (np.full(number, value) for value in (0.0, self.seconds, began))
        verdicts = Verdicts(np.array(ranks, dtype=np.int64), zero, elapsed, since, [common])
        named = nccl.accused([answer for _, answer in self.answers], self.job.columns)
        self.stacks.of_all = self._of_all() & set(self.standing)
        return blame(self.job.columns, verdicts, self.stacks, without_stacks=self.silent, nccl=named)

    def _waits(self) -> dict[int, Wait]:
        usages = ((rank.rank, rank.stack.usage) for _, rank in self.seen)
        return {rank: usage.wait for rank, usage in usages if usage is not None and usage.wait is not None}

    def _shown(self, decision: Decision) -> Shown:
        shown = proof.shown(decision, self._waits(), self.stacks, self.job.columns, self.at)
        stood = [
            rank.stack.usage.same_stack
            for _, rank in self.seen
            if rank.rank in decision.ranks and rank.stack.usage is not None and rank.stack.usage.same_stack is not None
        ]
        known = decision.proof in (Proof.MAY_END, Proof.BUSY) and stood
        return replace(shown, seconds=self.seconds if known else None)

    def _made_of(
        self,
        verdict: Verdict,
        text: str,
        decision: Decision,
        *,
        kind: VerdictKind = VerdictKind.STALLED,
        blamed: Blame | None = None,
        shown: Shown | None = None,
        found: Detection | None = None,
    ) -> Judged:
        incident, what_to_do = None, None
        if verdict is not Verdict.HEALTHY:
            blamed = blamed or Blame(())
            if xids := [(s.rank, r.host, s.gpu.xids) for r, s in self.seen if s.gpu is not None and s.gpu.xids]:
                text += f" {words.xids(xids)}"
            named = {culprit.rank for culprit in blamed.culprits}
            if guessed := [(rank.rank, rank.pid) for _, rank in self.seen if rank.guessed]:
                text += f" {words.guessed([each for each in guessed if each[0] in named] or guessed)}"
            confirmed = verdict is Verdict.TROUBLE
            incident = self._incident(kind, text, blamed, shown, found, confirmed=confirmed)
            what_to_do = self._advice(verdict)
        return Judged(
            self.name,
            verdict,
            text,
            self.job,
            incident,
            decision,
            self.stacks,
            tuple(rank for _, rank in self.seen),
            tuple(dict.fromkeys(report.host for report, _ in (*self.seen, *self.exits))),
            tuple(end for _, end in self.exits),
            self.standing,
            self.unseen,
            self.seconds,
            what_to_do,
            self.at,
        )

    def _incident(
        self,
        kind: VerdictKind,
        text: str,
        blamed: Blame,
        shown: Shown | None,
        found: Detection | None,
        *,
        confirmed: bool,
    ) -> Incident:
        """The incident as a monitor would hold it that nobody has asked to act."""
        began = self.at - self.seconds
        incident = Incident(
            f"{self.job.id}-diagnosed",
            self.job.id,
            kind,
            self.job.attempt,
            self.at,
            text,
            confirmed=confirmed,
            phase_since=self.at,
            timeline=Timeline(since=began, detected=self.at, decided=self.at),
        )
        self.job.incidents.append(incident)
        if shown is not None:
            machine.transition(incident, machine.Proved(shown), self.at)
        by_host: dict[str, list[RankStack]] = {}
        for report, rank in self.seen:
            by_host.setdefault(report.host, []).append(rank.stack)
        for host, stacks in by_host.items():
            machine.transition(incident, machine.EvidenceReceived(host, tuple(stacks), self.at, look=1), self.at)
        for host, answer in self.answers[-MOST_ANSWERS:]:
            accused = tuple(culprit.rank for culprit in nccl.accused([answer], self.job.columns))
            given = NcclAnswer(host, host, answer, accused)
            machine.transition(incident, machine.EvidenceReceived(host, (), self.at, look=1, nccl=given), self.at)
        affected = tuple(sorted({*(rank.rank for _, rank in self.seen), *(each.rank for each in blamed.culprits)}))
        diagnosis = machine.Diagnosis(kind, text, began, found, blamed.culprits, blamed.why_none, affected)
        machine.transition(incident, machine.Recorded(words.NOT_WATCHED, Withheld.NO_LAUNCHER, diagnosis), self.at)
        return incident

    def _advice(self, verdict: Verdict) -> Advice | None:
        """The playbook's; while nothing is proven, to look again."""
        if verdict is Verdict.UNKNOWN:
            seen = (self.seen and (self.unseen or any(rank.stack.frames for _, rank in self.seen))) or self.silent
            return words.look_again(self.unseen, self.silent) if seen else None  # else the obstacles say what to do
        return advice(situation(self.job, JobState.HUNG, self.at))

    def _with_command(self, judged: Judged, stopped: Sequence[int] = ()) -> Judged:
        """The same with the command that ends a job which hangs for good, or lets ranks go on that were stopped."""
        if judged.advice is None:
            return judged
        found = [(report.host, rank) for report, rank in self.seen if rank.rank in stopped] or [
            (report.host, rank) for report, rank in self.seen[:1]
        ]
        host = found[0][0]
        step = (
            words.go_on([rank.pid for there, rank in found if there == host], host)
            if stopped
            else words.end_it(found[0][1], host)
        )
        steps = (*([step] if step is not None else []), *judged.advice.steps)
        return replace(judged, advice=replace(judged.advice, steps=steps))


def _polls(usage: Usage) -> bool:
    """Whether a rank sleeps at one line again and again, and hears of nobody: ranks that train exchange bytes."""
    stood = usage.same_stack is not None and usage.same_stack >= proof.STILL_SECONDS
    sleeps = usage.wait is not None and usage.wait.kind is WaitKind.TIMED
    return stood and sleeps and usage.io_bytes < QUIET_BYTES * usage.seconds


def _works(stack: RankStack) -> bool:
    usage = stack.usage
    return usage is not None and usage.main_cpu + usage.cpu + usage.child_cpu >= proof.WORK * max(usage.seconds, 1e-3)


def worst(judged: Iterable[Judged]) -> Verdict | None:
    """The verdict that the exit code tells; None: there is no job."""
    found = {each.verdict for each in judged}
    return next((each for each in WORST_FIRST if each in found), None)
