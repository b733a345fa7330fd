"""Runs an operation that may hang, above all a file access, on a thread with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def with_timeout(action: Callable[[], T], seconds: float, what: str) -> T:
    """Return ``action()``; after ``seconds`` it is abandoned, and continues on its daemon thread.

    Raises:
        TimeoutError: it takes longer; the message begins with ``what``. A subclass of ``OSError``.
        Exception: what the action raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, name="rankwatch-with-timeout", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"{what} takes longer than {seconds:g} s")
    return results[0]
