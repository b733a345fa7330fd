"""The tools: each is one request of the API with the caller's token; nothing is derived here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from rankwatch.cli import monitors
from rankwatch.monitor_client import MonitorClient, path_of

LONGEST: Final = 100_000
"""Characters of an answer: what a job of 100,000 ranks has to tell fits no context."""


class Answers:
    """The tools: what each returns is the API's, as JSON or text."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments

    def jobs(self) -> str:
        """All jobs with their state, the newest first."""
        return self._read("/jobs")

    def job(self, job: str = "") -> str:
        """One job: verdict, what to do, step, goodput, attempts, policy, limits, nodes."""
        return self._read(self._of(job))

    def report(self, job: str = "") -> str:
        """One job as text: state, incidents, stragglers, lost time, limits."""
        return self._read(self._of(job, "/report"))

    def incidents(self, job: str = "") -> str:
        """The incidents of a job, the newest first."""
        return self._read(self._of(job, "/incidents"))

    def incident(self, incident: str, job: str = "") -> str:
        """One incident: culprits, proof, grouped stacks, collectives, last log lines of its ranks, phases, advice."""
        return self._read(self._of(job, f"/incidents/{quote(incident, safe='')}"))

    def why(self, job: str = "", at: float | None = None) -> str:
        """Why the step time of a job changed; 'at': about that moment, in unix seconds."""
        query = "" if at is None else f"?at={at:.3f}"
        return self._read(self._of(job, f"/why{query}"))

    def stragglers(self, job: str = "") -> str:
        """Ranks and nodes that slow a job now, the costliest first, then those that ended."""
        return self._read(self._of(job, "/stragglers"))

    def goodput(self, job: str = "") -> str:
        """How the time of a job was spent, and what each incident has cost."""
        return self._read(self._of(job, "/goodput"))

    def digest(self, hours: float = 12.0) -> str:
        """What happened over all jobs in the last hours."""
        return self._read(f"/digest?last={hours * 3600:.0f}")

    def hosts(self) -> str:
        """The hosts that incidents have named, over all jobs, the most frequent first."""
        return self._read("/hosts")

    def node(self, host: str) -> str:
        """One node: its ranks, devices, checks, and the incidents that named it."""
        return self._read(f"/nodes/{quote(host, safe='')}")

    def order(self, job: str, action: str, reason: str, ranks: Sequence[int], nodes: Sequence[str]) -> str:
        """Send an order that was confirmed."""
        content = {"action": action, "reason": reason, "ranks": list(ranks), "nodes": list(nodes)}
        return json.dumps(self.client().send("POST", f"{path_of(job)}/actions", content))

    def client(self) -> MonitorClient:
        """Of the monitor that answers now: it may have been started after this command."""
        return monitors.client(self._arguments)

    def _of(self, job: str, path: str = "") -> str:
        return f"{path_of(job or self.client().newest_job())}{path}"

    def _read(self, path: str) -> str:
        text = self.client().get(path).decode(errors="replace")
        cut = len(text) - LONGEST
        return text if cut <= 0 else f"{text[:LONGEST]}\n... {cut:,} more characters were cut off"
