"""Traces of whole attempts: what a launcher sees, and what it does, with the time of each; golden file ``traces.txt``.

``UPDATE_TRACES=1`` writes the file anew; read the difference.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed import HashStore

from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind, RankRequestKind
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch.recording.shared_slots import PHASE_RUNNING, PHASE_SHUT_DOWN
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    AttemptDecision,
    RestartBudget,
    StepRange,
    StopProposal,
    StopRequest,
)
from rankwatch_launcher.coordination.membership import NodeProgress
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.core.state import AttemptState, Over, Site
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.outcome import PREEMPTED
from rankwatch_launcher.shell.loop import Loop, Surroundings
from rankwatch_launcher.torch_compat import DistError

GOLDEN = Path(__file__).with_name("traces.txt")
LOST = "RuntimeError: connection closed by peer"
Happening = tuple[Any, ...]
"""Seconds since the start, what happens, and its details."""


@dataclass
class Job:
    """A scenario: a node of a job, and what happens to it."""

    happens: Sequence[Happening]
    ranks: int = 2
    nodes: int = 1
    restarts: int = 3
    attempt: int = 2
    kill_signal: int = signal.SIGKILL
    stop_grace: float = 50.0
    steps: StepRange | None = None
    reserve: frozenset[int] = frozenset()
    shut_down: frozenset[int] = frozenset()
    """Local ranks that called ``rankwatch.shutdown()``."""
    stubborn: bool = False
    """The ranks do not end when they get SIGTERM."""
    works: bool = False
    """The ranks make progress."""


def directive(kind: DirectiveKind, **more: Any) -> Directive:
    return Directive(id=5, kind=kind, attempt=2, reason="ordered", **more)


JOBS: dict[str, Job] = {
    "all ranks exit with 0": Job([(1, "exit", 0, 0), (2, "exit", 1, 0)]),
    "a crash": Job([(1, "exit", 1, 3)]),
    "a crash by a signal": Job([(1, "exit", 1, -11)]),
    "a crash beyond the budget": Job([(1, "exit", 1, 3)], restarts=0),
    "a lost connection, then its cause": Job([(1, "exit", 0, 1, LOST), (1.3, "exit", 1, 1, "ValueError: bad batch")]),
    "a lost connection without a cause": Job([(1, "exit", 0, 1, LOST)]),
    "a lost connection, and a rank that is about to exit": Job(
        [(1, "exit", 0, 1, LOST), (1.2, "fails", 1, "ValueError: bad batch"), (2.4, "exit", 1, 1)]
    ),
    "a lost connection on one of two nodes": Job([(1, "exit", 0, 1, LOST), (1, "exit", 1, 1, LOST)], nodes=2),
    "the node with the cause decides meanwhile": Job(
        [(1, "exit", 0, 1, LOST), (1, "exit", 1, 1, LOST), (1.2, "peer", RESTART, "rank 5 on b exited")], nodes=2
    ),
    "a rank leaves, and the others lose it": Job([(1, "exit", 0, 0), (1.2, "exit", 1, 1, LOST)]),
    "an abort, then the crash that it follows from": Job([(1, "exit", 0, -6), (1.1, "exit", 1, 1, "ValueError: bad")]),
    "an abort at exit while the peers finish": Job([(1, "exit", 0, -6), (1.1, "exit", 1, 0)]),
    "a rank that raised, shut down and then aborted": Job(
        [(1, "exit", 0, -6, "AcceleratorError: CUDA error")], shut_down=frozenset({0})
    ),
    "all fail alike at the start": Job(
        [(1, "exit", 0, 1, "KeyError: 'data'"), (1.5, "exit", 1, 1, "KeyError: 'data'")], attempt=1
    ),
    "one fails at the start": Job([(1, "exit", 0, 1, "KeyError: 'data'")], attempt=1),
    "all fail at the start after a step": Job(
        [(1, "exit", 0, 1, "KeyError: 'data'"), (1.5, "exit", 1, 1, "KeyError: 'data'")],
        attempt=1,
        steps=StepRange(0, 4),
    ),
    "a rejected result": Job([(1, "exit", 0, 17), (1.4, "exit", 1, 17)]),
    "a result to be checked elsewhere": Job([(1, "exit", 0, 16), (1.4, "exit", 1, 16)], nodes=2),
    "another node knows why the result was rejected": Job(
        [(1, "exit", 0, 17), (1, "exit", 1, 17), (3, "peer", FAIL, "rank 5 on b: the loss is NaN")], nodes=2
    ),
    "a reserve rank fails": Job([(1, "exit", 1, 1), (2, "exit", 0, 0)], reserve=frozenset({1})),
    "all ranks here fail, and none was expendable": Job(
        [(1, "exit", 0, 1), (1, "exit", 1, 1)], reserve=frozenset({0, 1})
    ),
    "another node decides": Job([(1, "peer", RESTART, "rank 5 on b exited with code 3")], nodes=2),
    "another node decides to fail": Job([(1, "peer", FAIL, "rank 5 on b rejected a result")], nodes=2),
    "nodes regroup": Job(
        [
            (
                1,
                "regroup",
            )
        ],
        nodes=2,
    ),
    "the monitor restarts": Job(
        [(1, "directive", directive(DirectiveKind.RESTART, incident_id="i1", deadline=8.0, exclude=("m",)))], nodes=2
    ),
    "the monitor restarts while a stop is being agreed on": Job(
        [(1, "signal"), (1.5, "directive", directive(DirectiveKind.RESTART, incident_id="i1"))]
    ),
    "the monitor restarts a job that has just failed": Job(
        [(1, "directive", directive(DirectiveKind.RESTART)), (1, "peer", FAIL, "rank 5 on b rejected a result")],
        nodes=2,
    ),
    "the monitor restarts beyond the budget": Job(
        [(1, "directive", directive(DirectiveKind.RESTART)), (2, "exit", 0, 0), (2, "exit", 1, 0)], restarts=0
    ),
    "the monitor stops": Job([(1, "directive", directive(DirectiveKind.STOP))]),
    "the monitor stops ranks that ignore SIGTERM": Job(
        [(1, "directive", directive(DirectiveKind.STOP))], stubborn=True
    ),
    "the monitor stops ranks that only record SIGTERM": Job(
        [(1, "directive", directive(DirectiveKind.STOP)), (2, "records", 0), (2, "records", 1)], stubborn=True
    ),
    "a directive that comes while the ranks are ended is for the next attempt": Job(
        [(1, "directive", directive(DirectiveKind.STOP)), (2, "directive", directive(DirectiveKind.RESTART))],
        stubborn=True,
    ),
    "the monitor gives up": Job([(1, "directive", directive(DirectiveKind.STOP, no_restart="used_up"))]),
    "save and stop": Job(
        [
            (1, "directive", directive(DirectiveKind.SAVE_AND_STOP, stop_step=20, deadline=30.0)),
            (3, "exit", 0, 0),
            (3, "exit", 1, 0),
        ]
    ),
    "save and stop at a step that has passed": Job(
        [
            (1, "directive", directive(DirectiveKind.SAVE_AND_STOP, stop_step=5, deadline=30.0)),
            (3, "exit", 0, 0),
            (3, "exit", 1, 0),
        ]
    ),
    "save and stop without a step, in vain": Job(
        [(1, "directive", directive(DirectiveKind.SAVE_AND_STOP, deadline=30.0))], stubborn=True
    ),
    "a stop signal, agreed on and followed": Job(
        [(1, "signal"), (1.5, "propose", 0, None), (2, "propose", 1, 20), (4, "exit", 0, 0), (4, "exit", 1, 0)]
    ),
    "a stop signal without a step": Job(
        [(1, "signal"), (1.5, "propose", 0, None), (2, "propose", 1, None), (4, "exit", 0, 0), (4, "exit", 1, 0)]
    ),
    "a stop signal without an agreement": Job([(1, "signal"), (13, "exit", 0, 0), (13, "exit", 1, 0)]),
    "a stop signal without an agreement among many launchers, which poll rarely": Job(
        [(1, "signal")], nodes=12_500, stop_grace=10.0
    ),
    "the grace period ends": Job([(1, "propose", 1, 20)], stop_grace=30.0),
    "a crash during a graceful stop": Job([(1, "propose", 1, 20), (2, "exit", 0, 3), (3, "exit", 1, 0)]),
    "a crash while a stop is being agreed on": Job([(1, "signal"), (1.2, "exit", 0, 3)]),
    "a peer's restart during a graceful stop": Job(
        [(1, "propose", 1, 20), (2, "peer", RESTART, "b is lost"), (3, "exit", 0, 0), (3, "exit", 1, 0)], nodes=2
    ),
    "a rank asks for a stop": Job(
        [(1, "request", RankRequestKind.STOP_JOB), (2, "propose", 1, None), (3, "exit", 0, 0)]
    ),
    "a rank has its node excluded": Job([(1, "request", RankRequestKind.EXCLUDE_NODE)], nodes=2),
    "a rank has the only node excluded": Job([(1, "request", RankRequestKind.EXCLUDE_NODE)]),
    "a rank asks for a stop as the last of them exits": Job(
        [(1, "exit", 1, -6), (1.1, "request", RankRequestKind.STOP_JOB), (1.2, "exit", 0, 0)], reserve=frozenset({1})
    ),
    "a node waits for the others": Job([(1, "exit", 0, 0), (1, "exit", 1, 0), (3, "finish")], nodes=2),
    "a node that waits for the others restarts with them": Job(
        [(1, "exit", 0, 0), (1, "exit", 1, 0), (3, "peer", RESTART, "rank 5 on b exited with code 3")], nodes=2
    ),
    "a directive finds no rank": Job(
        [(1, "exit", 0, 0), (1, "exit", 1, 0), (2, "directive", directive(DirectiveKind.STOP)), (3, "finish")], nodes=2
    ),
    "the store is lost": Job([(1, "lost")], nodes=2),
    "the host of the store is killed, whose sockets close one after another": Job(
        [(1, "lost", False), (1.1, "lost")], nodes=2, works=True
    ),
    "the store is out of sight, and no rank here makes progress": Job([(1, "lost", False)], nodes=2),
    "the store is out of sight of ranks that work, to their end": Job(
        [(1, "lost", False), (240, "exit", 0, 0), (250, "exit", 1, 0)], nodes=2, works=True
    ),
    "the store is out of sight, and a rank crashes": Job(
        [(1, "lost", False), (200, "exit", 0, 3)], nodes=2, works=True
    ),
    "the store is out of sight, and a stop is requested": Job(
        [(1, "lost", False), (100, "signal"), (115, "exit", 0, 0), (115, "exit", 1, 0)], nodes=2, works=True
    ),
    "the store is out of sight, and the monitor restarts": Job(
        [(1, "lost", False), (100, "directive", directive(DirectiveKind.RESTART))], nodes=2, works=True
    ),
    "the store is lost during a graceful stop": Job(
        [(1, "propose", 1, 20), (2, "lost"), (3, "exit", 0, 0), (3, "exit", 1, 0)]
    ),
    "the configured signal precedes the kill": Job(
        [(1, "peer", RESTART, "b is lost")], nodes=2, kill_signal=signal.SIGINT
    ),
}


class Scene:
    """One attempt on one node, in a time of its own; what the launcher does is noted in ``trace``."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.now, self.trace = job, 0.0, list[str]()
        self.folder = folder
        self.ahead = sorted(job.happens, key=lambda each: float(each[0]))
        self.all = tuple(RankProcess(rank, rank, 1000 + rank) for rank in range(job.ranks))
        self.unseen: list[RankProcess] = []
        self.directives: list[Directive] = []
        self.requests: list[RankRequest] = []
        self.recorded: set[int] = set()
        self.lost = self.ended = False
        self.store = JobStore(HashStore(), "job")
        self.signals: Any = SimpleNamespace(stop=signal.SIGTERM, stop_received=None, polled=True)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:5.1f} {text}")

    def pass_time(self, seconds: float, ready: Callable[[], object] = lambda: False) -> None:
        """Let time pass until something is ready."""
        until = self.now + seconds
        while self.ahead and self.ahead[0][0] <= (self.now if ready() else until):
            at, what, *details = self.ahead.pop(0)
            self.now = max(self.now, float(at))
            getattr(self, f"on_{what}")(*details)
        if not ready():
            self.now = until
        assert self.now < 300, "no end is reached"

    # What happens -----------------------------------------------------------------------------------------------------

    def on_exit(self, rank: int, code: int, error: str = "") -> None:
        if error:
            self.on_fails(rank, error)
        self.all[rank].code = code
        self.unseen.append(self.all[rank])

    def on_fails(self, rank: int, error: str) -> None:
        (self.folder / str(rank)).write_text(json.dumps({"message": {"message": error, "rankwatch": {"at": 7.0}}}))

    def on_peer(self, verdict: str, reason: str) -> None:
        decision = AttemptDecision(verdict, reason)
        self.store.end_attempt(self.job.attempt, decision, by="other", budget=RestartBudget(self.job.restarts))

    def on_regroup(self) -> None:
        decision = AttemptDecision(RESTART, "b has joined", counted=False, fault=False)
        self.store.end_attempt(self.job.attempt, decision, by="other", budget=RestartBudget(self.job.restarts))

    def on_directive(self, order: Directive) -> None:
        self.directives.append(order)

    def on_signal(self) -> None:
        self.signals.stop_received = signal.SIGTERM

    def on_propose(self, number: int, step: int | None) -> None:
        request = self.store.stop_request(self.job.attempt) or StopRequest("preempted", "m", PREEMPTED)
        self.store.propose_stop(self.job.attempt, StopProposal(number, step, request))

    def on_request(self, action: RankRequestKind) -> None:
        self.requests.append(RankRequest(action, "ECC errors", 1))

    def on_records(self, rank: int) -> None:
        self.recorded.add(rank)

    def on_finish(self) -> None:
        self.store.finish(self.job.attempt, 1)

    def on_lost(self, ended: bool = True) -> None:
        self.lost, self.ended = True, ended

    # What the launcher does to its ranks ------------------------------------------------------------------------------

    def wait(self, timeout: float, wake: int | None = None) -> list[RankProcess]:
        self.pass_time(timeout, lambda: self.unseen or (self.directives if wake is not None else False))
        found, self.unseen = self.unseen, []
        return found

    def alive(self) -> list[RankProcess]:
        return [rank for rank in self.all if rank.code is None or rank in self.unseen]

    def signal(self, number: int, *, ending: bool = False) -> None:
        self.note(f"send {signal.Signals(number).name}")
        if ending and not self.job.stubborn:
            self.end(number)

    def kill(self) -> None:
        self.note("kill")
        self.end(signal.SIGKILL)

    def end(self, number: int) -> None:
        for rank in self.all:
            if rank.code is None:
                self.on_exit(rank.rank, -number)

    def close(self) -> None:
        self.note("close")

    # What the launcher tells others -----------------------------------------------------------------------------------

    def report(self, kind: ProcessEventKind, reason: str = "", **details: Any) -> None:
        flags = [name for name in ("spared", "final") if details.get(name)]
        self.note(f"report {kind}: {', '.join([reason, *flags])}")

    def ack(self, order: Directive, state: AckState, detail: str = "", furthest: int | None = None) -> None:
        self.note(f"ack {order.id} {state}" + (f": {detail}" if detail else ""))

    def take(self, attempt: int) -> Directive | None:
        return self.directives.pop(0) if self.directives else None

    def take_requests(self) -> list[RankRequest]:
        taken, self.requests = self.requests, []
        return taken

    def readings(self) -> dict[int, Any]:
        return {
            rank.local_rank: SimpleNamespace(
                rank=rank.rank,
                stop_signalled=rank.rank in self.recorded,
                phase=PHASE_SHUT_DOWN if rank.rank in self.job.shut_down else PHASE_RUNNING,
                expendable=rank.rank in self.job.reserve,
                iteration=None,
            )
            for rank in self.all
        }

    def capture(self, deadline: float, *, incident: str | None, exited: Sequence[Any] = (), **_: Any) -> int:
        self.note(f"capture {incident or 'the crash'} within {deadline:g} s, tracebacks of {len(exited)}")
        return 1

    def set_stop_step(self, step: int, *, preempts: bool = False) -> tuple[bool, int | None]:
        self.note(f"stop after step {step}" + (", preempted" if preempts else ""))
        return step > 10, 10

    def decision(self) -> AttemptDecision | None:
        return self.reachable().decision(self.job.attempt)

    def reachable(self) -> JobStore:
        if self.lost:
            raise DistError("connection reset")
        return self.store

    # Its run ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        job = self.job
        me = Identity("h", "h", "n")
        files: Any = SimpleNamespace(
            launchers=job.nodes,
            readings=self.readings,
            exit_reason=lambda process: "",
            steps=lambda: job.steps,
            progress=lambda: NodeProgress(work=int(self.now) if job.works else 0),
            complete=lambda: False,
            set_stop_step=self.set_stop_step,
        )
        session: Any = SimpleNamespace(
            directives=SimpleNamespace(wake=3, take=self.take, ack=self.ack),
            requests=self.take_requests,
            report=self.report,
            budget=lambda configured: configured,
        )
        evidence: Any = SimpleNamespace(capture=self.capture)
        scene = self

        class Rendezvous(SimpleNamespace):
            @property
            def store(self) -> JobStore:
                return scene.reachable()

        rendezvous: Any = Rendezvous(
            rank=0,
            decision=self.decision,
            host_has_ended=lambda: self.ended,
            members=SimpleNamespace(
                answer_stop=lambda number, agreed, furthest: self.note(
                    f"answer proposal {number}: {'agreed' if agreed else f'refused at step {furthest}'}"
                ),
                wake=lambda: None,
            ),
        )
        around = Surroundings(
            me,
            files,
            evidence,
            session,
            rendezvous,
            self.signals,
            budget=RestartBudget(job.restarts),
            clock=lambda: self.now,
        )
        site = Site(
            "n",
            "h",
            "h",
            job.attempt,
            tuple(range(job.ranks)),
            0.0,
            nodes=job.nodes,
            first=job.attempt == 1,
            stop_grace=job.stop_grace,
            kill_signal=job.kill_signal,
        )
        files = {rank: str(self.folder / str(rank)) for rank in range(job.ranks)}
        context: Any = SimpleNamespace(error_files=files, stderrs={}, stdouts={})
        ranks: Any = self
        reaper: Any = SimpleNamespace(stuck_seconds=lambda: 0.0, reap=lambda: None)
        try:
            ended = Loop(AttemptState(site), ranks, context, around, reaper).run()
        except DistError:
            self.note("ended without the store")
            return
        assert isinstance(ended.phase, Over)
        if ended.phase.restart:
            self.note("the next attempt")
        else:
            outcome, failed = ended.outcome, sorted((each.rank, each.code) for each in ended.exits if each.code)
            failures = "".join(f", rank {rank}: {code}" for rank, code in failed if outcome.code)
            self.note(f"{outcome.state}, code {outcome.code}: {outcome.reason}{failures}")


def test_attempts_take_their_known_course(tmp_path: Path) -> None:
    traces = []
    for number, (name, job) in enumerate(JOBS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        scene = Scene(job, folder)
        scene.run()
        traces.append("\n".join([name, *scene.trace]))
    text = "\n\n".join(traces) + "\n"
    if "UPDATE_TRACES" in os.environ:
        GOLDEN.write_text(text)
    assert text.split("\n\n") == GOLDEN.read_text().split("\n\n")
