"""Runs one script of this folder under ``rankwatch run``, as a user does, and records what its monitor published."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from rankwatch.contract.env import EXIT_DO_NOT_REQUEUE
from support.processes import MARK, end_marked
from trust.scripts import CONFIRMATION_WINDOW, HERE, Kind, Script

LOOK_AGAIN = 0.25
"""Seconds between two looks at the job; a confirmation is dated by the first look that shows it."""
START_SECONDS = 240.0
"""A start takes 8 s on an idle machine of two cores."""
HEALTHY_SECONDS = 480.0
"""The longest waits of the healthy scripts are 300 s, or 2 times 90 s."""
RESTART_SECONDS = 60.0
"""A restart begins so soon after its cause is confirmed; ranks that stand are given 30 s to end."""
HELD_SECONDS = 90.0
"""So long after its announcement a held job must not have been restarted: more than its patience."""
SETTLE_SECONDS = 4.0
"""The sentence of a confirmed incident is the last one within this time, for stacks that arrive late."""
FOREIGN = ("RANKWATCH_", "OTEL_", "TORCH", "PET_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "XDG_", "OMP_")
_marks: set[str] = set()
"""Those of the runs that are going on."""
FAULT = re.compile(r"FAULT (\d+) ([\d.]+)")


@dataclass
class Result:
    """What one run has shown; ``announced``, ``seconds`` and ``restarted`` are the seconds from the fault until an
    incident was published, until one was confirmed, and until the first restart began.
    """

    name: str
    does: str
    kind: str
    at_fault: list[int] | None
    verdict: str = ""
    """``right``, or in words what was wrong."""
    announced: float | None = None
    seconds: float | None = None
    restarted: float | None = None
    ranks: list[int] = field(default_factory=list)
    sentence: str = ""
    restarts: int = 0
    confirmed: int = 0
    suspected: int = 0
    took: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    """Each change of an incident as it was published."""

    @property
    def right(self) -> bool:
        return self.verdict == "right"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """One launcher with its ranks and its own monitor, in a folder of its own, ended with everything it started."""

    def __init__(self, script: Script, command: Sequence[str], folder: Path, arguments: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        self._monitors = folder / "state" / "rankwatch" / "monitors"
        self._mark = uuid4().hex
        _marks.add(self._mark)
        self._token: str | None = None
        self.reached = False
        self._url: str | None = None
        self._client = httpx.Client(trust_env=False, timeout=10.0)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        own = {
            MARK: self._mark,
            "TMPDIR": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        }
        self.job = f"{script.path.stem}-{self._mark[:6]}"
        flags = ("--nproc-per-node", "4", "--job-id", self.job, *script.flags)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command, *flags, str(script.path), *arguments],
                env=kept | own,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def close(self) -> None:
        self._client.close()
        self.process.kill()
        self.process.wait()
        end_marked(self._mark)
        _marks.discard(self._mark)

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def faults(self) -> dict[int, float]:
        """When the fault of each rank began, the first time."""
        found: dict[int, float] = {}
        for rank, at in FAULT.findall(self.printed()):
            found.setdefault(int(rank), float(at))
        return found

    def get(self, path: str) -> dict[str, Any]:
        """The JSON below the job's path; empty while there is none."""
        if self._url is None:
            for file in self._monitors.glob("*.json"):  # what the commands of this user read
                access = json.loads(file.read_text())
                self._url, self._token = access["url"], access["token"]
            if self._url is None:
                return {}
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        with contextlib.suppress(httpx.TransportError):
            answer = self._client.get(f"{self._url}/api/v1/jobs/{self.job}{path}", headers=headers)
            if answer.status_code == 200:
                self.reached = True
                return answer.json()  # type: ignore[no-any-return]
            # 401: its monitor has ended, and that of another run has taken the port.
            assert answer.status_code in (401, 404), f"GET {path}: {answer.status_code} {answer.text}"
        return {}


def run(script: Script, command: Sequence[str] = ("-m", "rankwatch", "run"), *, patience: float = 120.0) -> Result:
    """Run one script and judge what was published.

    Args:
        script: what to run.
        command: the arguments of Python that stand for ``rankwatch run``.
        patience: seconds for which a sick job may stand, once its fault is provable, before it counts as not found.
    """
    folder = Path(tempfile.mkdtemp(prefix="trust"))
    at_fault = None if script.at_fault is None else sorted(script.at_fault)
    result = Result(script.name, script.does, script.kind.value, at_fault)
    began = time.monotonic()
    with contextlib.closing(Run(script, command, folder)) as job:
        try:
            if script.kind is Kind.HEALTHY:
                _healthy(job, script, result)
            else:
                _sick(job, script, result, patience)
        except AssertionError as error:
            result.verdict = str(error)
        result.took = round(time.monotonic() - began, 1)
        if keep := os.environ.get("TRUST_KEEP"):
            shutil.copy(job.log, Path(keep) / f"{script.path.stem}.log")
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _look(job: Run, result: Result, fault: float | None = None) -> list[dict[str, Any]]:
    """Fetch the incidents, the oldest first, and note what has changed since the fault."""
    incidents: list[dict[str, Any]] = job.get("/incidents").get("incidents", [])[::-1]
    view = job.get("")
    result.restarts = max(result.restarts, (view.get("attempt") or 1) - 1)
    shown = {}
    for entry in result.history:
        shown[entry["id"]] = {name: value for name, value in entry.items() if name != "at"}
    for incident in incidents:
        entry = {name: incident[name] for name in ("id", "kind", "confirmed", "reason", "phase", "action", "outcome")}
        entry["ranks"] = [culprit["rank"] for culprit in incident["culprits"]]
        if shown.get(entry["id"]) != entry:
            result.history.append({"at": round(time.time(), 2), **entry})
    result.confirmed = sum(incident["confirmed"] for incident in incidents)
    result.suspected = len(incidents) - result.confirmed
    if fault is not None:
        since = round(time.time() - fault, 1)
        if incidents and result.announced is None:
            result.announced = since
        if result.confirmed and result.seconds is None:
            result.seconds = since
        if result.restarts and result.restarted is None:
            result.restarted = since
    return incidents


def _healthy(job: Run, script: Script, result: Result) -> None:
    deadline = time.monotonic() + START_SECONDS + HEALTHY_SECONDS
    while job.process.poll() is None:
        assert time.monotonic() < deadline, f"did not end in time:\n{job.printed()[-2000:]}"
        for incident in _look(job, result):
            if incident["confirmed"]:
                _name(result, incident)
                raise AssertionError(f"confirmed {incident['kind']}, {incident['action']}")
        assert result.restarts == 0, f"{result.restarts} restarts"
        time.sleep(LOOK_AGAIN)
    assert job.process.returncode == 0, f"exit code {job.process.returncode}:\n{job.printed()[-2000:]}"
    assert job.reached, "its monitor was never reached"
    assert not script.repeats or result.suspected <= 1, f"{result.suspected} suspicions at one place"
    result.verdict = "right"


def _sick(job: Run, script: Script, result: Result, patience: float) -> None:
    assert script.at_fault is not None
    deadline = time.monotonic() + START_SECONDS
    while not (faults := job.faults()):
        assert job.process.poll() is None, f"ended before its fault:\n{job.printed()[-2000:]}"
        assert time.monotonic() < deadline, f"no fault in time:\n{job.printed()[-2000:]}"
        assert not any(incident["confirmed"] for incident in _look(job, result)), "confirmed before the fault"
        time.sleep(LOOK_AGAIN)
    watch = {
        Kind.PERMANENT: _permanent,
        Kind.BY_ITSELF: _by_itself,
        Kind.HELD: _held,
        Kind.DETERMINISTIC: _deterministic,
    }[script.kind]
    watch(job, result, max(faults.values()), patience + script.provable_after)
    named = {rank for entry in result.history for rank in entry["ranks"]}
    wrong = sorted(named - script.at_fault)
    assert not wrong, f"named rank {', '.join(map(str, wrong))}"
    assert set(result.ranks) == script.at_fault, "not all ranks named" if result.ranks else "no rank named"
    result.verdict = "right"


def _permanent(job: Run, result: Result, fault: float, patience: float) -> None:
    for incidents in _looks(job, result, fault, patience):
        if confirmed := [incident for incident in incidents if incident["confirmed"]]:
            _name(result, confirmed[0])
            break
    assert result.seconds is not None, _not_found(result, patience)
    settled = time.monotonic() + SETTLE_SECONDS
    for incidents in _looks(job, result, fault, RESTART_SECONDS):
        _name(result, next(incident for incident in incidents if incident["confirmed"]))
        if result.restarts and time.monotonic() > settled:
            break
    assert result.restarted is not None, "not restarted"


def _by_itself(job: Run, result: Result, fault: float, patience: float) -> None:
    for incidents in _looks(job, result, fault, patience):
        if incidents:
            _name(result, incidents[0])
        if result.restarts:
            break
    assert result.announced is not None, _not_found(result, patience)
    assert not result.history[0]["confirmed"], "confirmed at once"
    assert result.restarted is not None, f"not restarted in {patience:g} s"
    assert result.restarted >= CONFIRMATION_WINDOW, f"restarted after {result.restarted:g} s, before its patience"
    for _ in _looks(job, result, fault, START_SECONDS + patience):
        assert result.restarts == 1, f"{result.restarts} restarts"
    assert job.process.returncode == 0, f"exit code {job.process.returncode}:\n{job.printed()[-2000:]}"


def _held(job: Run, result: Result, fault: float, patience: float) -> None:
    for incidents in _looks(job, result, fault, patience):
        if incidents:
            break
    assert result.announced is not None, _not_found(result, patience)
    for incidents in _looks(job, result, fault, HELD_SECONDS):
        _name(result, incidents[-1])
        assert result.restarts == 0, "restarted"
    assert job.process.returncode is None, f"ended with exit code {job.process.returncode}"


def _deterministic(job: Run, result: Result, fault: float, patience: float) -> None:
    for incidents in _looks(job, result, fault, 3 * START_SECONDS):
        if confirmed := [incident for incident in incidents if incident["confirmed"]]:
            _name(result, confirmed[0])
        assert result.restarts <= 2, f"{result.restarts} restarts"
        assert result.seconds is not None or time.time() < fault + patience, _not_found(result, patience)
    code = job.process.returncode
    assert code == EXIT_DO_NOT_REQUEUE, f"exit code {code}"


def _looks(job: Run, result: Result, fault: float, seconds: float) -> Iterator[list[dict[str, Any]]]:
    """The incidents, look by look, for so long, or until the job ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended = job.process.poll() is not None
        yield _look(job, result, fault)
        if ended:
            return
        time.sleep(LOOK_AGAIN)


def _name(result: Result, incident: dict[str, Any]) -> None:
    result.sentence = incident["reason"]
    result.ranks = sorted({culprit["rank"] for culprit in incident["culprits"]})


def _not_found(result: Result, patience: float) -> str:
    return f"not found in {patience:g} s" + (f", {result.suspected} suspected" if result.suspected else "")


def end_all() -> None:
    """End the processes of every run that is going on, and of no other."""
    for mark in tuple(_marks):
        end_marked(mark)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that do nothing but need a core."""
    loops = [
        subprocess.Popen(
            [sys.executable, "-c", "import os\nwhile os.getppid() == PARENT: pass".replace("PARENT", str(os.getpid()))]
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
