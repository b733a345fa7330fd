"""The decorator for training functions, and what code inside one may call."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from rankwatch.inprocess import options as all_options
from rankwatch.inprocess.call import Call, current

P = ParamSpec("P")
T = TypeVar("T")

_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class CallWrapper:
    """One call of a wrapped function; passed to parameters annotated with this class."""

    @property
    def iteration(self) -> int:
        """0 at first, and one more after each restart."""
        return iteration()

    def ping(self) -> None:
        """Report progress."""
        ping()

    def atomic(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no restart interrupts."""
        return atomic()


class Wrapper:
    """Restarts a training function within its processes: after an exception on any rank, a hang, or the loss of a rank.

    Parameters: :class:`rankwatch.inprocess.options.WrapperOptions`. The wrapped function returns the function's result
    on active ranks and None on reserves.

    Raises:
        TypeError: a parameter is unknown or has the wrong type.
        ValueError: parameters contradict each other.
        rankwatch.inprocess.InProcessError: (from the call) no restart is possible any more; let it end the process.
    """

    def __init__(self, **parameters: Any) -> None:
        self.options = all_options.make(parameters)

    __init__.__signature__ = all_options.signature()  # type: ignore[attr-defined]
    __init__.__doc__ = f"Durations are seconds or ``timedelta``.\n\nArgs:\n{all_options.meanings()}\n"

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Decorate."""
        if any(kind(function) for kind in _RUN_LATER):
            raise TypeError("a coroutine or generator runs after its call returns; wrap what runs it to its end")
        wants = _wants_call(function)

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T | None:
            run = functools.partial(function, *args, **kwargs)
            if wants:
                bound = inspect.signature(function).bind_partial(*args, **kwargs)
                bound.arguments.update(dict.fromkeys(wants, CallWrapper()))
                run = functools.partial(function, *bound.args, **bound.kwargs)
            result: T | None = Call(self.options).run(run) if self.options.enabled else run()
            return result

        wrapped.ping = ping  # type: ignore[attr-defined]
        return wrapped


def iteration() -> int:
    """Return 0 in the first iteration and one more after each restart; 0 outside a wrapped function."""
    call = current()
    return call.state.iteration if call is not None and call.state is not None else 0


def ping() -> None:
    """Report progress. From the first report on, the timeouts apply to the time between two.

    A completed ``rankwatch.step()`` is a report too. Does nothing outside a wrapped function.
    """
    call = current()
    if call is not None and call.monitor_thread is not None:
        call.monitor_thread.progress.ping()


@contextlib.contextmanager
def atomic() -> Iterator[None]:
    """Context in which no restart interrupts: ``with inprocess.atomic(): ...``. The hard timeout still applies."""
    call = current()
    lock = call.interruption.atomic if call is not None and call.interruption is not None else None
    with lock if lock is not None else contextlib.nullcontext():
        yield


def _wants_call(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters annotated with :class:`CallWrapper`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if _is_call(p.annotation))


def _is_call(annotation: Any) -> bool:
    if isinstance(annotation, str):  # under ``from __future__ import annotations``
        return annotation.removesuffix(" | None").rpartition(".")[2] == "CallWrapper"
    return annotation in (CallWrapper, CallWrapper | None)
