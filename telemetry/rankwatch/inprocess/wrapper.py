"""The wrapper itself: what a person decorates a training function with."""

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
    """One call of a wrapped function: a parameter annotated with this class is given it."""

    @property
    def iteration(self) -> int:
        """0 at first, and one more after each restart."""
        return iteration()

    def ping(self) -> None:
        """Say that the function comes further."""
        ping()

    def atomic(self) -> contextlib.AbstractContextManager[None]:
        """A stretch that must not be interrupted."""
        return atomic()


class Wrapper:
    """Restarts a training function within its processes: after an exception on any rank, a hang, or the loss of a rank.

    The parameters stand at ``__init__``, which are those of :class:`rankwatch.inprocess.options.Options`.
    The wrapped function returns what the function returns, on the ranks that trained; the others return None.

    Raises:
        TypeError: there is no such parameter, or it has another type.
        ValueError: the parameters make no sense together.
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
    """0 in the first run of the function and one more after each restart; 0 outside a wrapped function."""
    call = current()
    return call.state.iteration if call is not None and call.state is not None else 0


def ping() -> None:
    """Say that the function comes further; from the first one on, the timeouts hold between two.

    A completed ``rankwatch.step()`` says the same. Does nothing outside a wrapped function.
    """
    call = current()
    if call is not None and call.watcher is not None:
        call.watcher.progress.ping()


@contextlib.contextmanager
def atomic() -> Iterator[None]:
    """A stretch that no restart interrupts: ``with inprocess.atomic(): ...``. The hard timeout still ends it."""
    call = current()
    lock = call.interruption.atomic if call is not None and call.interruption is not None else None
    with lock if lock is not None else contextlib.nullcontext():
        yield


def _wants_call(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that are annotated with :class:`CallWrapper`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if _is_call(p.annotation))


def _is_call(annotation: Any) -> bool:
    if isinstance(annotation, str):  # with ``from __future__ import annotations``, under whatever name it was imported
        return annotation.removesuffix(" | None").rpartition(".")[2] == "CallWrapper"
    return annotation in (CallWrapper, CallWrapper | None)
