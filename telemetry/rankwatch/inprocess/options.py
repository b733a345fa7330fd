"""WrapperOptions of in-process restarts: name, default, unit and meaning of each."""

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
"""User code that is called at one point of an iteration; its result is ignored."""


def _option(default: Any, meaning: str, unit: str = "") -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperOptions:
    """The settings of one :class:`rankwatch.inprocess.Wrapper`; durations in seconds."""

    soft_timeout: float = _option(
        60.0, "time without progress after which the function is interrupted and restarted", "s"
    )
    hard_timeout: float = _option(90.0, "time without progress after which the process is killed from outside", "s")
    heartbeat_interval: float = _option(30.0, "time between two heartbeats of a rank", "s")
    heartbeat_timeout: float = _option(60.0, "time without a heartbeat after which a rank is lost", "s")
    barrier_timeout: float = _option(120.0, "how long a restart waits for all ranks to leave the function", "s")
    completion_timeout: float = _option(120.0, "how long a finished rank waits for the others to finish", "s")
    monitor_thread_interval: float = _option(1.0, "check interval of the monitor thread", "s")
    monitor_process_interval: float = _option(1.0, "check interval of the watchdog process", "s")
    progress_watchdog_interval: float = _option(1.0, "how often the main thread is probed", "s")
    last_call_wait: float = _option(
        0.0, "time for other ranks to raise their own errors before collectives are aborted", "s"
    )
    termination_grace_time: float = _option(5.0, "between SIGTERM and SIGKILL at the hard timeout", "s")
    active_world_size: int | None = _option(None, "active ranks; the others are warm reserves; None: all", "{rank}")
    granularity: str = _option("rank", "unit of exclusion: the `rank` alone or its whole `node`")
    max_rank_faults: int | None = _option(
        None, "a rank that has caused more faults is excluded; None: no limit", "{fault}"
    )
    max_restarts: int | None = _option(
        10, "restarts in one call, before the launcher restarts all ranks; None: no limit", "{restart}"
    )
    store_port: int | None = _option(None, "port of the coordination store; None: MASTER_PORT")
    enabled: bool = _option(True, "False: the function is called once, unmonitored")
    initialize: Callback | None = _option(None, "called before each iteration, including the first")
    abort: Callback | None = _option(None, "called by the monitor thread, before the process groups are aborted")
    finalize: Callback | None = _option(None, "called after the function was left, before the health check")
    health_check: Callback | None = _option(None, "raises if this rank may not continue")
    completion: Callback | None = _option(None, "called when all active ranks have finished")
    terminate: Callback | None = _option(None, "called when this rank is excluded or leaves")
    rank_assignment: Assign | None = _option(
        None, "assigns the active ranks of the next iteration; None: `KeepWorldSize()`"
    )

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ValueError(problem)


def make(given: Mapping[str, Any]) -> WrapperOptions:
    """Return the options; durations may be seconds or ``timedelta``.

    Raises:
        TypeError: an option is unknown or has the wrong type.
        ValueError: options contradict each other; the message names them.
    """
    known = {option.name: option for option in fields(WrapperOptions)}
    made = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"Wrapper() knows no option {name!r}; it knows: {', '.join(known)}")
        made[name] = _value(name, value, str(known[name].metadata["unit"]))
    return WrapperOptions(**made)


def signature() -> Signature:
    """Return the signature of the wrapper's constructor for ``help()`` and editors, ``self`` included."""
    own = [Parameter("self", Parameter.POSITIONAL_ONLY)]
    for option in fields(WrapperOptions):
        kind = "float | timedelta" if option.metadata["unit"] == "s" else option.type
        own.append(Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=kind))
    return Signature(own)


def meanings() -> str:
    """Return the options and their meanings, one per line."""
    return "\n".join(f"    {option.name}: {option.metadata['meaning']}" for option in fields(WrapperOptions))


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
"""Pairs of which the first must be smaller."""


def _problem(options: WrapperOptions) -> str | None:
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
