"""The JSON shapes that launchers and the monitor exchange under ``/api/v1``.

Each is a frozen dataclass of JSON types: ``dataclasses.asdict`` writes it, :func:`read` reads it and ignores fields
that a newer peer added. Times are given as ages in seconds, never as clock readings.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rankwatch.contract.enums import AckState, DirectiveKind, NodeRole, ProcessEventKind, ProcessState, WaitKind
from rankwatch.contract.flight import FlightDump
from rankwatch.contract.nccl_ras import RasReport
from rankwatch.contract.node_checks import CheckResult
from rankwatch.contract.text import decoded, one_line

FAULTS: Final = "faults"
"""The fact about a launcher that its ranks have faults injected: which."""


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """``POST /jobs/{id}/nodes``: a launcher registers for this job and its directives.

    ``policy`` holds only what was set on the launcher's command line; it is merged into the job's policy.
    """

    node: str
    """Identity of this launcher: stable over its life, unique within the job."""
    host: str
    launcher_pid: int
    local_world_size: int
    job_name: str = ""
    attempt: int = 0
    """The newest attempt this launcher has started; 0 before the first."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the environment: versions, scheduler, node names."""
    launch: str = ""
    """The shell line that launches this node again, without its secrets; empty: not known."""
    ft_state: Mapping[str, Any] = field(default_factory=dict)
    """Content of ``ft_state.json`` (:mod:`rankwatch.contract.ft_state`); empty: there is none."""
    run: str = ""
    """Identity of this start of the job, the same for all its launchers; empty: unknown."""
    min_nodes: int = 0
    """Nodes without which no attempt starts, the minimum of ``--nnodes``; 0: unknown."""
    topology: tuple[str, ...] = ()
    """Where the node is: labels ``KEY=VALUE``, the widest first."""
    checks: tuple[CheckResult, ...] = ()
    """What the last checks of the node found; empty: none yet, or they are switched off."""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """``POST /jobs/{id}/runs``: a launcher is about to start a run under this id; 409 if another run has it."""

    run: str
    host: str
    launcher_pid: int


@dataclass(frozen=True, slots=True)
class Directive:
    """A request of the monitor to every launcher of a job (``GET /jobs/{id}/directives?after=N``)."""

    id: int
    """Ascending within a job; a launcher asks for those after the last it has seen."""
    kind: DirectiveKind
    attempt: int
    """The attempt it applies to. A launcher that is past it answers ``superseded``."""
    reason: str
    incident_id: str | None = None
    deadline: float = 5.0
    """Seconds the launcher has for it."""
    stop_step: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    """Of a restart: names of the nodes (``NodeRegistration.node``) that take no part in the next attempt."""
    watch: float = 0.0
    """Of a capture: seconds in which the launcher looks at its ranks again and again afterwards, for a suspicion."""
    place: str = ""
    """Of a restart for a limit that nobody configured: where the ranks stand, in the same text for the same place."""
    proven: bool = False
    """Of such a restart: looks at the ranks prove the hang."""
    suspected: bool = False
    """Of ``tell``: the hang is not confirmed."""
    word: str = ""
    """What the console shows it as, a :class:`~rankwatch.contract.enums.ConsoleWord`; empty: it shows nothing."""
    headlines: tuple[str, ...] = ()
    """What happened in one sentence, the longest first: the console shows the longest that fits."""
    proof: str = ""
    """Of ``tell``: what looks at the ranks show, a :class:`~rankwatch.contract.enums.Proof`; empty: nothing."""
    follows: str = ""
    """Of ``tell``: why nothing is done; empty: something will be, or it is not known yet."""
    acts_in: float | None = None
    """Of ``tell``: seconds until the ranks are restarted unless they make progress; None: not by time."""
    slow_rank: int | None = None
    """Of ``tell`` about a rank that has become slow; its launcher shows what that rank does."""
    no_restart: str = ""
    """Of a stop that follows since no restart is left, a :class:`~rankwatch.contract.enums.NoRestart`: the job fails;
    empty: the stop is wanted, by an operator or by the policy."""


@dataclass(frozen=True, slots=True)
class DirectiveAck:
    """``POST /jobs/{id}/directives/{directive}/acks``: the result of a directive on one node."""

    node: str
    state: AckState
    detail: str = ""
    max_iteration: int | None = None
    """For a stop step: the furthest iteration among this node's ranks, when it was refused because it was passed."""


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """``POST /jobs/{id}/process-events``: something happened to a process of this node."""

    node: str
    kind: ProcessEventKind
    attempt: int
    age: float = 0.0
    """Seconds since it happened."""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    world_size: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    """The signal's name, SIGKILL for example, when one ended the process."""
    reason: str = ""
    cause: str = ""
    """Of ``failed``: what happened."""
    no_restart: str = ""
    """Of ``failed``: why no restart follows, a :class:`~rankwatch.contract.enums.NoRestart`; empty: not stated."""
    why_none: str = ""
    """The same as a clause."""
    message: str = ""
    """Of an exit: the rank's own message, the first line of its error for example."""
    iteration: int | None = None
    """Of an exit: the last step that the rank completed; its last report is older. None: not known."""
    spared: bool = False
    """Of an exit: the other ranks continue, a spare takes the place of this process; nothing is restarted."""
    final: bool = False
    """Of an exit: no restart follows, since it would end the same way."""
    incident_id: str | None = None
    lost_node: str | None = None
    """Of ``node_lost``: the name of the launcher that timed out."""
    notice: str = ""
    """Of ``notice``: a :class:`~rankwatch.contract.enums.NoticeKind`; ``reason`` is the rank's."""
    seconds: float = 0.0
    """Of ``notice``: how long it took, a restart in the process for example."""


@dataclass(frozen=True, slots=True)
class RankRequest:
    """A request of a rank to its launcher, in a file beside its slots; acted on at once."""

    action: str
    """A :class:`~rankwatch.contract.enums.RankRequestKind`."""
    reason: str
    rank: int
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Of ``change_policy``: settings by name."""
    calculated: bool = False
    """Its limits were calculated, in this run or an earlier one: they are learned ones, not configured ones."""
    notice: str = ""
    """Of ``tell``: a :class:`~rankwatch.contract.enums.NoticeKind`."""
    seconds: float = 0.0
    """Of ``tell``: how long it took."""


@dataclass(frozen=True, slots=True)
class RankObservation:
    """What a launcher reads of a rank from its slots and /proc; reported on behalf of a rank that cannot report."""

    rank: int
    pid: int
    process_state: ProcessState
    pulse_age: float | None = None
    """Seconds since the rank's liveness thread ran; grows when the GIL is held. None: the rank never called init()."""
    beats: int = 0
    heartbeat_age: float | None = None
    iteration: int | None = None
    progress: int = 0
    first_iteration: int | None = None
    first_iteration_age: float | None = None
    open_sections: Mapping[str, float] = field(default_factory=dict)
    idle: float | None = None
    uses_sections: bool = False
    quiet: float | None = None
    """Seconds since the last progress: a section entered or left, a step completed, ``progress()``."""
    first_time: tuple[str, ...] = ()
    """Sections open now that this process has never finished before."""
    leaving: float | None = None
    """Seconds since the process began to end: its script is over, or has raised. None: it does not end."""


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """``POST /jobs/{id}/observations``: a launcher's heartbeat, with the ranks that cannot report themselves."""

    node: str
    attempt: int
    ranks: tuple[RankObservation, ...] = ()
    age: float = 0.0
    """Seconds since the observation; its ages are as of then."""
    role: NodeRole = NodeRole.ACTIVE
    role_reason: str = ""
    """Why the node is a spare or parked, in one sentence."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack, innermost first in a list of them."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Collective:
    """Progress of one process group of a rank, from torch's flight recorder."""

    group: str
    """The group's name or description: the same on all its ranks."""
    operation: str
    """Of the newest collective that was enqueued: ``all_reduce``, ``barrier``."""
    enqueued: int
    """Its sequence number."""
    completed: int
    """Sequence number of the newest collective that was completed; -1: none."""
    ranks: tuple[int, ...] = ()
    """Global ranks of the group; empty: unknown."""
    calls_from: int = 0
    """Sequence number of the first of ``calls``."""
    calls: tuple[str, ...] = ()
    """Consecutive collectives around ``completed``: ``barrier``, or ``all_reduce of 4 Float`` where all ranks must pass
    the same size; empty text: unknown."""
    thread: int = 0
    """The thread that made the newest call, as :attr:`RankStack.thread`; 0: unknown."""
    unusual: bool = False
    """Since the call before the newest one, the rank has called in other groups than ever between two calls."""


MAX_WAIT: Final = 240
"""Characters of what a rank waits for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits for, read of its threads and children from /proc."""

    kind: WaitKind
    target: str = ""
    """``10.0.3.7:443``, the path of a lock file, a child's command with its pid; empty: not known."""
    seconds: float | None = None
    """Seconds until it wakes by itself; None: it need not, or it is not known."""
    through: str = ""
    """The name of the thread or the command of the child that waits for this while the main thread waits for it."""

    def bounded(self, longest: int = MAX_WAIT) -> Wait:
        """It with names that no terminal obeys, cut: files, threads and commands may be called anything."""
        if max(len(self.target), len(self.through)) <= longest and (self.target + self.through).isprintable():
            return self
        target, through = (one_line(one_line(each, longest), longest) for each in (self.target, self.through))
        return replace(self, target=target, through=through)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a rank's processes did over the last looks at them: from /proc, and by comparing its stacks."""

    seconds: float
    """Between the first and the last of these looks."""
    looks: int
    cpu: float = 0.0
    """Seconds of CPU of the rank's own threads, the collective libraries' and the main thread left out."""
    main_cpu: float = 0.0
    """The same of its main thread."""
    child_cpu: float = 0.0
    """The same of its child processes: loader workers, commands."""
    main_delay: float = 0.0
    """Seconds that the main thread was ready to run and waited for a CPU, as on a machine that is overloaded."""
    child_delay: float = 0.0
    """The same of its child processes."""
    io_bytes: int = 0
    """Bytes that the rank and its children read and wrote."""
    wakeups: int = 0
    """How often its main thread went to sleep (voluntary context switches)."""
    same_stack: float | None = None
    """Seconds for which all looks showed the main thread at the same lines; None: no stack could be read."""
    same_functions: float | None = None
    """The same for the functions, whatever their lines."""
    new_stack: float | None = None
    """Seconds since a look showed a stack that none before had shown: one that repeats the same few may only retry."""
    gpu: bool = False
    """The rank holds a GPU open: CPU burnt may be a wait for it."""
    wait: Wait | None = None
    """What it waits for; None: it was not looked at."""
    arrives: bool = False
    """Bytes passed meanwhile through the connection over which it awaits an answer."""


@dataclass(frozen=True, slots=True)
class RankStack:
    """The Python stack of one rank's main thread, or why it could not be captured."""

    rank: int
    pid: int
    method: str
    """``py-spy`` or ``faulthandler``; ``traceback``: of the exception that ended the process, which is in ``error``;
    empty when none worked."""
    frames: tuple[Frame, ...] = ()
    process_state: ProcessState = ProcessState.UNKNOWN
    error: str = ""
    collectives: tuple[Collective, ...] = ()
    thread: int = 0
    """The main thread (``pthread_self``), whose frames they are; 0: unknown."""
    usage: Usage | None = None
    """Of a watch: what its processes did; None: they were looked at once."""
    raised: float | None = None
    """Of a ``traceback``: seconds since the exception was raised; None: unknown."""


TRACEBACK: Final = "traceback"
"""``method`` of a stack that is an exception's."""
LOG_LINES: Final = 20
"""Lines of a log that are sent and kept, the last ones."""
LOG_LINE: Final = 300
"""Characters of one of them."""
LOGGED_RANKS: Final = 8
"""Failed ranks of one incident whose logs are kept."""
LOGS_UNSENT: Final = "logs_unsent"
"""Fact of a registration: the launcher was started with ``--no-send-logs``."""
KEPT_OUTPUT: Final = "kept_output"
"""Fact of a registration: the folder in which the launcher keeps what each rank prints."""


@dataclass(frozen=True, slots=True)
class RankLog:
    """The end of a file that the output of a failed rank went to."""

    rank: int
    stream: str
    """``stderr`` or ``stdout``."""
    host: str
    path: str
    """Of the whole log, on that host."""
    lines: tuple[str, ...] = ()
    shared: bool = False
    """The launcher's own output goes there, and that of its other ranks."""

    def bounded(self) -> RankLog:
        """It with the lines that are kept, which no terminal obeys."""
        lines = (one_line(one_line(line, LOG_LINE), LOG_LINE) for line in self.lines[-LOG_LINES:])
        return replace(self, stream=one_line(self.stream), path=one_line(self.path), lines=tuple(lines))


@dataclass(frozen=True, slots=True)
class Evidence:
    """``POST /jobs/{id}/evidence``: the stacks of one node's ranks, taken before anything was killed."""

    node: str
    attempt: int
    incident_id: str | None
    stacks: tuple[RankStack, ...]
    directive: int | None = None
    seconds: float = 0.0
    """How long the capture took."""
    age: float = 0.0
    """Seconds since it was taken."""
    look: int = 0
    """Of a watch: which look at the ranks it is, from 1; 0: stacks that were asked for once."""
    logs: tuple[RankLog, ...] = ()
    """Of a crash: the logs of the first ranks of this node that failed."""
    dumps: tuple[FlightDump, ...] = ()
    """What the flight recorders of its ranks held."""
    ras: RasReport | None = None
    """What NCCL itself reports of the job, where a rank of this node could be asked."""


T = TypeVar("T")
Reader = Callable[[Any], Any]
_LARGEST: Final = 2**62
"""Numbers in a record are smaller: sums of a few of them are still no more than what C and JSON readers take."""


def read(shape: type[T], data: object, *, own: bool = False) -> T:
    """Build ``shape``, a dataclass or named tuple, from decoded JSON of another process, leaving out unknown fields.

    ``own``: this program wrote it, so that numbers and texts are only checked for their type.

    Raises:
        ValueError: a required field is missing, or a value, at any depth, is none that its field can have.
    """
    return cast(T, _reader(cast(Hashable, shape), own)(data))


def read_text(shape: type[T], text: str | bytes) -> T:
    """The same from JSON.

    Raises:
        ValueError: it is no JSON, or as for :func:`read`.
    """
    return read(shape, decoded(text))


@cache
def _reader(hint: Any, own: bool) -> Reader:
    """What reads a value of a field with this type hint; made once, since thousands of records a second are read."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [each for each in inner if each is not NoneType]
        of_kind = _reader(kinds[0], own) if len(kinds) == 1 else _tagged(kinds, own)
        return of_kind if len(kinds) == len(inner) else lambda value: None if value is None else of_kind(value)
    if origin is tuple:
        repeated = inner[-1] is Ellipsis
        return _items([_reader(each, own) for each in (inner[:1] if repeated else inner)], repeated=repeated)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = (_reader(each, own) for each in inner)
        return _entries(int if inner[0] is int else key, item)  # JSON has no keys but text
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return _record(hint, own)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if origin is Literal:
        return _one_of(inner)
    return (_OWN if own else _FOREIGN).get(hint) or _typed(origin or hint)


def _tagged(shapes: Sequence[Any], own: bool) -> Reader:
    """Of records whose field ``kind`` names them."""
    readers = {get_args(get_type_hints(shape)["kind"])[0]: _reader(shape, own) for shape in shapes}

    def tagged(value: Any) -> Any:
        if not isinstance(value, Mapping) or (reader := readers.get(value.get("kind"))) is None:
            raise ValueError("no record of a known kind")
        return reader(value)

    return tagged


def _record(shape: Any, own: bool) -> Reader:
    readers = {name: _reader(hint, own) for name, hint in get_type_hints(shape).items()}
    if is_dataclass(shape):
        needed = [each.name for each in fields(shape) if each.default is each.default_factory is MISSING]
    else:
        needed = [name for name in readers if name not in shape._field_defaults]

    def record(value: Any) -> Any:
        if isinstance(value, list | tuple) and not is_dataclass(shape):  # as JSON has a named tuple
            value = dict(zip(readers, value, strict=False))
        if not isinstance(value, Mapping):
            raise ValueError(f"{shape.__name__} is no object")
        if missing := [name for name in needed if name not in value]:
            raise ValueError(f"{shape.__name__} lacks {', '.join(missing)}")
        found = {}
        for name, reader in readers.items():
            if name in value:
                try:
                    found[name] = reader(value[name])
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return shape(**found)

    return record


def _items(readers: Sequence[Reader], *, repeated: bool) -> Reader:
    def items(value: Any) -> Any:
        if not isinstance(value, list | tuple) or (len(value) != len(readers) and not repeated):
            raise ValueError("no list, or one of another length")
        of_each = itertools.repeat(readers[0], len(value)) if repeated else readers
        return tuple(reader(each) for reader, each in zip(of_each, value, strict=True))

    return items


def _entries(key: Reader, item: Reader) -> Reader:
    def entries(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("no object")
        return {key(name): item(each) for name, each in value.items()}

    return entries


def _typed(*kinds: type) -> Reader:
    def typed(value: Any) -> Any:
        if type(value) not in kinds and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise ValueError(f"no {kinds[-1].__name__}")
        return value

    return typed


def _one_of(values: Sequence[Any]) -> Reader:
    def one_of(value: Any) -> Any:
        if value not in values:
            raise ValueError(f"none of {', '.join(map(str, values))}")
        return value

    return one_of


def _number(*kinds: type) -> Reader:
    def number(value: Any) -> Any:
        if type(value) not in kinds or not -_LARGEST < value < _LARGEST:  # neither infinite nor NaN
            raise ValueError(f"no {kinds[-1].__name__}, or too large a one")
        return value

    return number


def _text(value: Any) -> Any:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("no text, or one with a null character")
    if not value.isascii():
        value.encode()  # half a surrogate pair, a ValueError, can be neither written nor sent
    return value


def _anything(value: Any) -> Any:
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # else it could not be passed on
    return value


_OWN: Final[Mapping[Any, Reader]] = {float: _typed(int, float), Any: lambda value: value}
_FOREIGN: Final[Mapping[Any, Reader]] = {str: _text, int: _number(int), float: _number(int, float), Any: _anything}
