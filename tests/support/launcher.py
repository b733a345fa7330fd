"""The launcher's side of the control plane, played by a test: plain JSON over HTTP, as the REST shapes promise."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx


class PlayedLauncher:
    """One node's launcher."""

    def __init__(self, api: httpx.Client, job: str, node: str = "node-a", ranks: Sequence[int] = (0, 1, 2, 3)) -> None:
        self.api, self.job, self.node, self.ranks = api, job, node, tuple(ranks)
        self.after = 0
        self.attempt = 0

    def post(self, path: str, content: Mapping[str, Any], status: int = 204) -> httpx.Response:
        answer = self.api.post(f"/api/v1/jobs/{self.job}/{path}", json=content)
        assert answer.status_code == status, f"POST {path}: {answer.status_code} {answer.text}"
        return answer

    def register(self, **more: Any) -> dict[str, Any]:
        """Register the node; directives issued before are not asked for."""
        content = {
            "node": self.node,
            "host": self.node,
            "launcher_pid": os.getpid(),
            "local_world_size": len(self.ranks),
            "attempt": self.attempt,
            **more,
        }
        reported: dict[str, Any] = self.post("nodes", content, 200).json()
        self.after = reported["last_directive"]
        return reported

    def events(self, *events: Mapping[str, Any]) -> None:
        common = {"node": self.node, "attempt": self.attempt}
        self.post("process-events", {"events": [common | dict(event) for event in events]})

    def start(self, attempt: int, world_size: int = 4) -> None:
        """Report that all ranks of this node were started for an attempt."""
        self.attempt = attempt
        self.events(
            *(
                {"kind": "started", "rank": rank, "local_rank": i, "pid": 2000 + rank, "world_size": world_size}
                for i, rank in enumerate(self.ranks)
            )
        )

    def directives(self, wait: float = 15.0) -> list[dict[str, Any]]:
        """Directives since the last ones seen; waits for one."""
        answer = self.api.get(
            f"/api/v1/jobs/{self.job}/directives",
            params={"after": self.after, "node": self.node, "wait": wait},
            timeout=wait + 60.0,
        )
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["directives"]
        self.after = max([self.after, *(directive["id"] for directive in found)])
        return found

    def next_directive(self, kind: str, seconds: float = 60.0) -> dict[str, Any]:
        """The next directive, which must be of this kind; new settings that come before it are passed over."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for directive in self.directives(min(left, 15.0)):
                self.after = directive["id"]  # what came along behind it is asked for again
                if directive["kind"] != "settings" or kind == "settings":
                    assert directive["kind"] == kind, directive
                    return directive
        raise AssertionError(f"no directive {kind!r} within {seconds} s")

    def acknowledge(self, directive: Mapping[str, Any], state: str = "done", **more: Any) -> None:
        self.post(f"directives/{directive['id']}/acks", {"node": self.node, "state": state, **more})

    def send_stacks(self, directive: Mapping[str, Any], frames: Mapping[int, Sequence[tuple[str, str, int]]]) -> None:
        """Answer a capture: rank -> frames (function, file, line), innermost first."""
        stacks = [
            {
                "rank": rank,
                "pid": 2000 + rank,
                "method": "py-spy",
                "frames": [{"function": f, "file": file, "line": line} for f, file, line in stack],
                "process_state": "alive",
            }
            for rank, stack in frames.items()
        ]
        content = {"node": self.node, "attempt": self.attempt, "incident_id": directive["incident_id"]}
        self.post("evidence", {**content, "directive": directive["id"], "stacks": stacks, "seconds": 0.1})


class Poll(threading.Thread):
    """A long poll under way on a thread of its own; ``result`` waits for its end."""

    def __init__(self, launcher: PlayedLauncher, wait: float) -> None:
        super().__init__(daemon=True)
        self.launcher, self.wait = launcher, wait
        self.found: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.ended_at = 0.0

    def run(self) -> None:
        try:
            self.found = self.launcher.directives(self.wait)
        except (httpx.HTTPError, AssertionError) as error:
            self.error = error
        self.ended_at = time.monotonic()

    def result(self) -> list[dict[str, Any]]:
        self.join(self.wait + 60.0)
        assert not self.is_alive(), "the long poll does not end"
        if self.error is not None:
            raise self.error
        return self.found


@contextmanager
def polling(launcher: PlayedLauncher, wait: float) -> Iterator[Poll]:
    """A long poll that is under way within the block, and over after it."""
    poll = Poll(launcher, wait)
    poll.start()
    yield poll
    poll.result()


AT_WORK = (("compute", "train.py", 30), ("main", "train.py", 80))
WAITING = (("all_reduce", "torch/distributed/distributed_c10d.py", 2500), ("main", "train.py", 90))
"""Stacks of a rank that computes and of one that waits for its peers."""
