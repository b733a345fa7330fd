"""What may hang, a file on a shared file system above all, is done on a thread and waited for only so long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def aside(action: Callable[[], T], seconds: float, what: str) -> T:
    """Return what ``action()`` returns; it goes on by itself when it takes longer than ``seconds``.

    Raises:
        TimeoutError: it takes longer; the text begins with ``what``. An ``OSError``, as a broken file system's is.
        Exception: what the action raises.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again below, by who asked
            failed.append(error)

    thread = threading.Thread(target=run, name="rankwatch-aside", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"{what} takes longer than {seconds:g} s")
    return found[0]
