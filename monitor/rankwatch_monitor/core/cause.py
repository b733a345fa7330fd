"""Causes as records: why a rank is to blame, why no rank is, and what a check of the limits found.

Blame, the state machine, API and store compare these; :mod:`.words` makes every sentence of them. Each union is closed:
a new member fails mypy until it has a class and words. ``kind`` names the member in JSON. Durations are seconds, as of
the detection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, assert_never

from rankwatch.contract.enums import CulpritClass, LimitSource, Proof, VerdictKind
from rankwatch.contract.messages import Wait

SHOWN: Final = 8
"""Ranks that a sentence lists."""
SIGABRT: Final = 6
"""Linux's number, wherever the monitor runs."""


OF_A_SECTION: Final = (VerdictKind.SECTION_OVERRUN, VerdictKind.OUT_OF_SECTION_OVERRUN, VerdictKind.HEARTBEAT_OVERRUN)
"""Verdicts of limits that are configured or learned: of a section, of the time between sections, of heartbeats."""


OF_SILENCE: Final = (VerdictKind.SILENT, VerdictKind.NODE_LOST, VerdictKind.NEVER_STARTED)
"""Verdicts on ranks of which nothing is heard; a lost node that the launchers have declared has no limit."""


class Site(NamedTuple):
    """A place in a program: the name of a function, the base name of its file, the line."""

    function: str
    file: str
    line: int


class Call(NamedTuple):
    """A collective of a process group, by its sequence number."""

    operation: str
    number: int
    group: str


class Some(NamedTuple):
    """Ranks of which the first few are listed."""

    first: tuple[int, ...]
    number: int

    @classmethod
    def of(cls, ranks: Sequence[int]) -> Some:
        """The ranks, in order."""
        return cls(tuple(ranks[:SHOWN]), len(ranks))


# Why a rank is to blame -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exited:
    """Its process ended: ``code`` is the exit code, or minus the signal that killed it."""

    code: int
    message: str = ""
    """The first line of its exception, or its own explanation."""
    early: bool = False
    """It exited with code 0 while other ranks still needed it."""
    kind: Literal["exited"] = "exited"

    @property
    def aborted(self) -> bool:
        """It was killed by SIGABRT and printed no exception: a backend aborts the process whose peer is at fault."""
        return self.code == -SIGABRT and not self.message


@dataclass(frozen=True, slots=True)
class Stopped:
    """Its process is stopped by a signal."""

    kind: Literal["stopped"] = "stopped"


@dataclass(frozen=True, slots=True)
class Leaving:
    """Its process began to end ``seconds`` ago and is still there."""

    seconds: float
    kind: Literal["leaving"] = "leaving"


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """It never reported, while other ranks did."""

    kind: Literal["never_started"] = "never_started"


@dataclass(frozen=True, slots=True)
class InKernel:
    """Its process is in uninterruptible sleep: something of its node does not answer."""

    host: str
    kind: Literal["in_kernel"] = "in_kernel"


@dataclass(frozen=True, slots=True)
class GilHeld:
    """Its process runs, but no Python thread of it has for ``seconds``."""

    seconds: float
    kind: Literal["gil_held"] = "gil_held"


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The launchers declared its node lost."""

    node: str
    """The name of the node, with its host where that is another one."""
    ranks: Some
    reason: str
    """The words of the launchers."""
    kind: Literal["node_lost"] = "node_lost"


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Neither the launcher nor the ranks of its node reported for ``seconds``."""

    host: str
    ranks: int
    seconds: float
    kind: Literal["node_silent"] = "node_silent"


@dataclass(frozen=True, slots=True)
class Silent:
    """It has sent no report for ``seconds``, while its launcher has."""

    seconds: float
    kind: Literal["silent"] = "silent"


class Among(NamedTuple):
    """Between which ranks a call is, by its arguments."""

    ranks: int
    """Of its process group; 0: not known."""
    group: str = ""
    """The variable that holds the process group; empty: not known."""
    peer: int = -1
    """The rank that a message is from or for; -1: it is none, or not known."""


class Made(NamedTuple):
    """A collective call of a rank: operation and size, as torch names them, and the place that made it."""

    operation: str
    size: str
    site: Site | None = None
    waits: bool = False
    """The rank waits in it."""
    among: Among | None = None
    """None: it is one of all ranks, or has a number."""


@dataclass(frozen=True, slots=True)
class OtherCall:
    """It made another call than ``ranks`` ranks of its group under the same sequence number."""

    made: Made
    usual: Made
    ranks: int
    group: str
    """Empty: that of all ranks."""
    number: int
    """0: not known, and all ranks stand in their calls."""
    kind: Literal["other_call"] = "other_call"


@dataclass(frozen=True, slots=True)
class OtherSite:
    """It entered the collective in which all ranks wait from another line than ``ranks`` ranks."""

    call: Call
    site: Site
    usual: Site
    ranks: int
    kind: Literal["other_site"] = "other_site"


@dataclass(frozen=True, slots=True)
class NotEntered:
    """It has not entered a collective in which ``waiting`` ranks wait."""

    call: Call
    waiting: int
    newest: int
    """Number of the newest collective of the group that it has entered."""
    instead: Call | None = None
    """A collective of another group in which it waits; None: it waits in none."""
    site: Site | None = None
    """Where it called that one."""
    reordered: bool = False
    """The ranks wait for each other in a circle, and this one entered the groups in another order than before."""
    kind: Literal["not_entered"] = "not_entered"


@dataclass(frozen=True, slots=True)
class Behind:
    """Its progress is behind that of the others; ``steps`` 0: within the same step."""

    steps: int
    waiting: int
    between: bool = False
    """It is outside the step that the others are in."""
    kind: Literal["behind"] = "behind"

    @property
    def within_step(self) -> bool:
        """It has begun the step of the others and is not as far in it."""
        return not self.steps and not self.between


@dataclass(frozen=True, slots=True)
class Outside:
    """Its stack is outside every call that waits for peers, while those of the others are in one."""

    site: Site | None
    kind: Literal["outside"] = "outside"


class Launched(NamedTuple):
    """How many operations of one kind a rank has launched in a communicator of NCCL, and others there."""

    kind: str
    """As NCCL calls it; ``collective``: of any."""
    own: int
    others: int


@dataclass(frozen=True, slots=True)
class NcclBehind:
    """NCCL itself reports that it has launched fewer or other operations than ``ranks`` ranks of a communicator."""

    communicator: str
    kinds: tuple[Launched, ...]
    """The first that differ."""
    ranks: int
    kind: Literal["nccl_behind"] = "nccl_behind"


@dataclass(frozen=True, slots=True)
class NcclUnreachable:
    """NCCL itself reports that it does not reach its process."""

    dead: bool
    """For so long that it considers it dead."""
    kind: Literal["nccl_unreachable"] = "nccl_unreachable"


@dataclass(frozen=True, slots=True)
class PastLimit:
    """It is past its limit, and no other rank is: these are within theirs, have ended, or there are none."""

    others: Literal["within", "ended", "none"]
    kind: Literal["past_limit"] = "past_limit"


@dataclass(frozen=True, slots=True)
class Watched:
    """Samples of it show that it is busy, in a debugger, or waits for what may end by itself."""

    proof: Proof
    wait: Wait | None
    site: Site | None
    waiting: int
    """Ranks that wait for it."""
    kind: Literal["watched"] = "watched"


@dataclass(frozen=True, slots=True)
class Slow:
    """It is slower than its peers; ``stated`` is the sentence of the straggler detector."""

    stated: str
    kind: Literal["slow"] = "slow"


@dataclass(frozen=True, slots=True)
class Rejected:
    """It rejected a result of its own; ``stated`` is its message."""

    stated: str
    kind: Literal["rejected"] = "rejected"


Cause = (
    Exited | Stopped | Leaving | NeverStarted | InKernel | GilHeld | NodeLost | NodeSilent | Silent | OtherCall
    | OtherSite | NotEntered | Behind | Outside | NcclBehind | NcclUnreachable | PastLimit | Watched | Slow | Rejected
)  # fmt: skip


def class_of(cause: Cause) -> CulpritClass:
    """The class that counts, policies and colours go by."""
    match cause:
        case Exited():
            return CulpritClass.DEAD
        case Stopped():
            return CulpritClass.STOPPED
        case NeverStarted():
            return CulpritClass.NEVER_STARTED
        case InKernel():
            return CulpritClass.DEVICE_OR_NETWORK
        case GilHeld():
            return CulpritClass.GIL_HELD
        case NodeLost() | NodeSilent() | Silent():
            return CulpritClass.HOST_SILENT
        case Leaving() | OtherCall() | OtherSite() | NotEntered() | Behind() | Outside() | PastLimit() | Watched():
            return CulpritClass.BEHIND
        case NcclBehind() | NcclUnreachable():
            return CulpritClass.BEHIND
        case Slow():
            return CulpritClass.STRAGGLER
        case Rejected():
            return CulpritClass.WRONG_RESULT
        case _:
            assert_never(cause)


# Why no rank is to blame ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StacksFollow:
    """Progress alone blames no rank; stacks are being captured."""

    kind: Literal["stacks_follow"] = "stacks_follow"


@dataclass(frozen=True, slots=True)
class DifferentCalls:
    """Ranks made different calls under one number, and no call is that of most ranks."""

    group: str
    number: int
    """0: as in :class:`OtherCall`."""
    calls: tuple[tuple[Made, Some], ...]
    kind: Literal["different_calls"] = "different_calls"


@dataclass(frozen=True, slots=True)
class Circle:
    """Ranks wait for each other."""

    ranks: Some
    waits: tuple[tuple[Call, Some], ...]
    """Collectives in which they wait, and which ranks do."""
    kind: Literal["circle"] = "circle"


@dataclass(frozen=True, slots=True)
class AllAlike:
    """All ranks are stuck in the same place: a collective that all have entered, else a function, if one is known."""

    call: Call | None = None
    function: str = ""
    answered: bool = False
    """It is known of the ranks of the nodes that answered alone, and these wait for their peers."""
    kind: Literal["all_alike"] = "all_alike"


@dataclass(frozen=True, slots=True)
class Apart:
    """The ranks are at different points; ``seen``: by their stacks, none of which waits for another."""

    seen: bool
    kind: Literal["apart"] = "apart"


@dataclass(frozen=True, slots=True)
class Disagreed:
    """Our evidence blames other ranks than NCCL's own answer does."""

    ours: Some
    nccl: Some
    kind: Literal["disagreed"] = "disagreed"


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Why no rank is named."""

    why: StacksFollow | DifferentCalls | Circle | AllAlike | Apart | Disagreed
    unanswered: tuple[str, ...] = ()
    """Hosts whose launchers sent no stacks in time."""
    asleep: int = 0
    """Ranks that are stuck in the kernel."""
    live: int = 0


# What was found -------------------------------------------------------------------------------------------------------


class Followed(NamedTuple):
    """The first rank that crashed after the cause, and how many more did."""

    rank: int
    host: str
    exit: Exited
    more: int


@dataclass(frozen=True, slots=True)
class Detection:
    """The limit that was passed, by which rank, as of the detection."""

    kind: VerdictKind
    rank: int
    host: str
    section: str | None
    limit: float
    elapsed: float
    source: LimitSource
    others: int = 0
    """Other ranks over a limit."""
    has_beaten: bool = False
    """The rank has sent heartbeats before."""
    followed: Followed | None = None

    @property
    def stated_source(self) -> str:
        """The source of a limit of a section, the time between sections, heartbeats, silence; empty: there is none."""
        return str(self.source) if self.limit and self.kind in (*OF_A_SECTION, *OF_SILENCE) else ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What repeated samples of suspected ranks show, as of the newest."""

    proof: Proof
    ranks: Some
    host: str = ""
    """Of the first of the ranks, like the next two."""
    wait: Wait | None = None
    site: Site | None = None
    seconds: float | None = None
    """Since its last progress, or since the last completed step of a stalled job; None: not known."""
    waiting: int = 0
    """Other live ranks."""
    call: Call | None = None
    """The collective that all ranks have entered, if they wait in one."""
