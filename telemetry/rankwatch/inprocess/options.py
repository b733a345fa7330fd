"""What a person may set about in-process restarts: names, defaults, units and meanings in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from inspect import Parameter, Signature
from typing import Any

from rankwatch.inprocess.assignment import Assign
from rankwatch.inprocess.state import State

Callback = Callable[[State], Any]
"""What a person hands in to be called at one point of the life of an iteration; its result is not looked at."""


def _about(unit: str, meaning: str) -> dict[str, str]:
    return {"unit": unit, "meaning": meaning}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of one :class:`rankwatch.inprocess.Wrapper`; durations in seconds."""

    soft_timeout: float = field(
        default=60.0, metadata=_about("s", "no progress for so long: the function is interrupted and restarted")
    )
    hard_timeout: float = field(
        default=90.0, metadata=_about("s", "no progress for so long: the process is killed from outside")
    )
    heartbeat_interval: float = field(
        default=30.0, metadata=_about("s", "time between two heartbeats of a rank, read by its neighbour")
    )
    heartbeat_timeout: float = field(default=60.0, metadata=_about("s", "no heartbeat for so long: the rank is lost"))
    barrier_timeout: float = field(
        default=120.0,
        metadata=_about("s", "how long a restart waits for ranks to come back, cleaned up"),
    )
    completion_timeout: float = field(
        default=120.0, metadata=_about("s", "how long a finished rank waits for the others to finish")
    )
    monitor_thread_interval: float = field(default=1.0, metadata=_about("s", "how often the thread in the rank looks"))
    monitor_process_interval: float = field(
        default=1.0, metadata=_about("s", "how often the process beside the rank looks")
    )
    progress_watchdog_interval: float = field(
        default=1.0, metadata=_about("s", "how often the main thread is asked for a sign of life")
    )
    last_call_wait: float = field(
        default=0.0, metadata=_about("s", "time for other ranks to raise what is their own, before the abort")
    )
    termination_grace_time: float = field(
        default=5.0, metadata=_about("s", "between SIGTERM and SIGKILL at the hard timeout")
    )
    active_world_size: int | None = field(
        default=None, metadata=_about("{rank}", "ranks that train; the others are warm reserves; None: all")
    )
    granularity: str = field(
        default="rank", metadata=_about("", "what is lost with a rank: the `rank` alone or its whole `node`")
    )
    max_rank_faults: int | None = field(
        default=None, metadata=_about("{fault}", "a rank that caused more faults takes no part; None: no bound")
    )
    max_restarts: int | None = field(
        default=10, metadata=_about("{restart}", "restarts in one call; after these the launcher is next")
    )
    store_port: int | None = field(
        default=None, metadata=_about("", "port of the coordination store; None: MASTER_PORT")
    )
    enabled: bool = field(default=True, metadata=_about("", "False: the function is called once, unwatched"))
    initialize: Callback | None = field(
        default=None, metadata=_about("", "called before each iteration, the first too")
    )
    abort: Callback | None = field(
        default=None, metadata=_about("", "called by the watching thread, before the process groups are aborted")
    )
    finalize: Callback | None = field(
        default=None, metadata=_about("", "called after the function was left, before the health check")
    )
    health_check: Callback | None = field(
        default=None, metadata=_about("", "raises when this rank may not go on; called before each entry")
    )
    completion: Callback | None = field(default=None, metadata=_about("", "called when all active ranks have finished"))
    terminate: Callback | None = field(
        default=None, metadata=_about("", "called when this rank takes no part any more")
    )
    rank_assignment: Assign | None = field(
        default=None, metadata=_about("", "who trains next; None: `KeepWorldSize()`")
    )

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ValueError(problem)


def make(given: Mapping[str, Any]) -> Options:
    """Return the options that were given, ``timedelta`` and plain seconds alike.

    Raises:
        TypeError: there is no such option, or it has another type.
        ValueError: the options make no sense together; the text says which and what would.
    """
    known = {option.name: option for option in fields(Options)}
    made = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"Wrapper() knows no option {name!r}; it knows: {', '.join(known)}")
        made[name] = _value(name, value, str(known[name].metadata["unit"]))
    return Options(**made)


def signature() -> Signature:
    """What ``help()`` and an editor show of the wrapper's constructor, ``self`` included."""
    own = [Parameter("self", Parameter.POSITIONAL_ONLY)]
    for option in fields(Options):
        kind = "float | timedelta" if option.metadata["unit"] == "s" else option.type
        own.append(Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=kind))
    return Signature(own)


def meanings() -> str:
    """The options, one a line, with their meaning."""
    return "\n".join(f"    {option.name}: {option.metadata['meaning']}" for option in fields(Options))


def _value(name: str, value: Any, unit: str) -> Any:
    if unit == "s":
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number of seconds or a datetime.timedelta, not {value!r}")
        return float(value)
    callback = name in ("initialize", "abort", "finalize", "health_check", "completion", "terminate", "rank_assignment")
    if callback and value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, not {value!r}")
    return value


_ORDER = (
    ("soft_timeout", "hard_timeout"),
    ("hard_timeout", "barrier_timeout"),
    ("heartbeat_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout"),
    ("monitor_thread_interval", "soft_timeout"),
    ("monitor_process_interval", "soft_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)
"""Of each pair the first must be the smaller one."""


def _problem(options: Options) -> str | None:
    for option in fields(options):
        value = getattr(options, option.name)
        if option.metadata["unit"] == "s" and not math.isfinite(value):
            return f"{option.name} must be finite, not {value:g} s"
        if option.metadata["unit"] == "s" and (value < 0 or (value == 0 and option.name != "last_call_wait")):
            return f"{option.name} must be more than 0 s, not {value:g} s"
    for smaller, larger in _ORDER:
        one, other = getattr(options, smaller), getattr(options, larger)
        if one >= other:
            return f"{smaller} ({one:g} s) must be shorter than {larger} ({other:g} s)"
    if options.granularity not in ("rank", "node"):
        return f"granularity must be 'rank' or 'node', not {options.granularity!r}"
    for name, least in (("active_world_size", 1), ("max_rank_faults", 0), ("max_restarts", 0)):
        value = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            return f"{name} must be None or a whole number from {least} on, not {value!r}"
    return None
