"""The files of one node and its session, without a monitor."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rankwatch_launcher.node.evidence import EvidenceTaker
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.node.session import MonitorSession


class Here:
    """Closed at the end of its context."""

    def __init__(self, **session: Any) -> None:
        self.files = AttemptFiles(1)
        self.session = MonitorSession(Identity("h", "h", "n"), self.files, EvidenceTaker("n", self.files), **session)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.session.close()
        self.files.close()
