"""Jobs of other OpenTelemetry emitters: real processes, the real SDK and NeMo Lens, a real monitor, nothing of ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.processes import MARK, end_marked
from support.waiting import wait_for

pytestmark = pytest.mark.timeout(180)

RANK = Path(__file__).parent / "lens_rank.py"
PAGE = RANK.parents[2] / "docs" / "other-emitters.md"
HOST = socket.gethostname()
LIMIT = 4.0
PATIENCE = 60.0
LENS = "nemo-lens[sdk]==0.1.0"
PYTHONS = ("python3.14", "python3.13")
"""NeMo Lens needs 3.13 or newer."""


class Job:
    """Ranks in processes of their own; ``folder`` is that holds their commands."""

    def __init__(self, folder: Path, monitor: RunningMonitor, name: str) -> None:
        self.folder, self.name, self.monitor = folder, name, monitor
        self.api = Api(monitor.url)
        self.mark = uuid4().hex
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, speaks: str, ranks: int, *more: str, python: str = sys.executable) -> None:
        variables = environment(**{MARK: self.mark, "no_proxy": "*"})
        variables.pop("PYTHONPATH", None)
        for rank in range(ranks):
            asked = ["--speaks", speaks, "--job", self.name, "--rank", str(rank), "--ranks", str(ranks), *more]
            where = ["--folder", str(self.folder), "--monitor", self.monitor.url]
            with (self.folder / f"log-{rank}").open("wb") as log:
                command = [python, "-W", "ignore", str(RANK), *asked, *where]
                self.processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))

    def until(self, saying: str, look: Any) -> Any:
        def condition() -> Any:
            for rank, process in enumerate(self.processes):
                printed = (self.folder / f"log-{rank}").read_text()
                assert process.poll() in (None, 0), f"rank {rank} ended with {process.returncode}:\n{printed}"
            return look()

        return wait_for(condition, saying, PATIENCE)

    def until_steps(self, ranks: int, steps: int) -> None:
        def trained() -> bool:
            known = {job["id"] for job in self.api.jobs()}
            if self.name not in known:
                return False
            shown = self.api.ranks(self.name)
            return len(shown) == ranks and all((rank["iteration"] or 0) >= steps for rank in shown)

        self.until(f"the monitor sees {ranks} ranks past step {steps}", trained)

    def report(self, what: str) -> None:
        (self.folder / what).touch()

    def incident(self) -> dict[str, Any] | None:
        """The newest incident that names somebody."""
        return next((each for each in self.api.incidents(self.name) if each["culprits"]), None)

    def finish(self) -> None:
        self.report("stop")
        for process in self.processes:
            assert process.wait(20) == 0

    def close(self) -> None:
        end_marked(self.mark)
        for process in self.processes:
            process.wait(10)
        self.api.close()


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    (tmp_path / "job").mkdir()
    with running_monitor(tmp_path, "--record", str(tmp_path / "recording.jsonl")) as monitor:
        made = Job(tmp_path / "job", monitor, f"foreign-{uuid4().hex[:6]}")
        try:
            yield made
        finally:
            made.close()


def names_the_rank_that_hangs(job: Job, ranks: int, hung: int) -> dict[str, Any]:
    """All is well, then one rank stands still; return the incident that is made of it."""
    job.until_steps(ranks, 5)
    job.api.change_policy(job.name, section_timeouts={"step": LIMIT})
    job.until_steps(ranks, max(rank["iteration"] for rank in job.api.ranks(job.name)) + 5)
    job.api.judge_now(job.name)
    assert job.api.incidents(job.name) == [], "no rank is named as long as all is well"
    job.report(f"hang-{hung}")
    found: dict[str, Any] = job.until("the hang is found", job.incident)
    (culprit,) = found["culprits"]
    assert (culprit["rank"], culprit["host"], culprit["class"]) == (hung, HOST, "behind"), found["reason"]
    assert (found["kind"], found["section"], found["limit"]) == ("section_overrun", "step", LIMIT)
    assert "has been in section 'step' for" in found["reason"]
    assert culprit["reason"] in found["reason"]
    assert job.api.rejected().get("no_identity", 0) == 0
    return found


def without_moment(reason: str) -> str:
    """A reason without what depends on its moment: a replay evaluates at other ones than a busy monitor did."""
    return re.sub(r"for [\d.]+ s| \(\d+ others? too\)", "", reason)


def test_metrics_of_megatron_are_enough(job: Job) -> None:
    """Histogram and counter, cumulative, protobuf; seen in every place a person looks at, and found again by replay."""
    job.start("metrics", 3)
    found = names_the_rank_that_hangs(job, 3, 1)

    shown = job.api.job(job.name)
    assert (shown["state"], shown["world_size"], shown["instrumented"]) == ("hung", 3, True)
    assert [set(rank["open_sections"]) for rank in job.api.ranks(job.name)] == [{"step"}] * 3
    assert job.api.read(f"/jobs/{job.name}/grid/heartbeat_age")["bytes"], "what the page's grid is coloured by"
    of_job = {name for (name, labels) in job.api.metrics() if job.name in dict(labels).values()}
    assert {"rankwatch_job_state", "rankwatch_incidents_total"} <= of_job, sorted(of_job)
    reported = rankwatch("status", job.name, "--monitor", job.monitor.url, code=3)
    assert job.name in reported
    assert found["title"] in reported
    job.finish()

    job.monitor.process.terminate()
    job.monitor.process.wait(20)
    recording = job.monitor.database.parent / "recording.jsonl"
    (again,) = json.loads(rankwatch("replay", str(recording), "--json"))["jobs"]
    assert [culprit["rank"] for each in again["incidents"] for culprit in each["culprits"]] == [1]
    assert without_moment(again["incidents"][0]["reason"]) == without_moment(found["reason"])


def rankwatch(*words: str, code: int = 0) -> str:
    """What the command prints."""
    command = Path(sys.executable).with_name("rankwatch")
    ended = subprocess.run([command, *words], env=environment(), capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    return ended.stdout


def test_a_process_that_exports_no_more_is_silent(job: Job) -> None:
    """Frozen with its exporter; the others wait for it, and report it."""
    job.start("metrics", 2)
    job.until_steps(2, 5)
    # Both have to report twice: one that reported once may be one of those that export once a minute.
    job.until_steps(2, max(rank["iteration"] for rank in job.api.ranks(job.name)) + 5)
    job.api.change_policy(job.name, silence_timeout=LIMIT)
    job.report("freeze-1")
    found = job.until("the silence is found", job.incident)
    (culprit,) = found["culprits"]
    assert (found["kind"], culprit["rank"]) == ("silent", 1), found["reason"]
    assert f"ank 1 on {HOST} has been silent for" in found["reason"]


def test_spans_alone_report_steps_and_of_the_end(job: Job) -> None:
    job.start("spans", 2)
    job.until_steps(2, 5)
    (rank, _) = job.api.ranks(job.name)
    assert set(rank["open_sections"]) == {"step"}
    timeline = job.api.read(f"/jobs/{job.name}/timeline?ranks=0,1&steps=20")
    assert (timeline["ranks_known"], timeline["sections"]) == (2, ["step"])
    job.finish()
    ended = job.until("they have shut down", lambda: (j := job.api.job(job.name))["state"] == "finished" and j)
    assert ended["world_size"] == 2
    assert job.api.incidents(job.name) == []


@pytest.mark.long
@pytest.mark.parametrize("more", [["--delta"], ["--json"], ["--json", "--delta"]], ids=" ".join)
def test_any_encoding_and_temporality(job: Job, more: list[str]) -> None:
    job.start("metrics", 3, *more)
    names_the_rank_that_hangs(job, 3, 0)


@pytest.mark.long
def test_a_gauge_with_the_number_of_the_step_is_enough(job: Job) -> None:
    """Of somebody's own script, which knows neither NVIDIA's names nor ours; the limit is learned."""
    job.start("steps", 4)
    job.until_steps(4, 5)
    changes = {"learned_minimum": LIMIT, "learned_factor": 2.0, "confirmation_window": 2.0}
    job.api.change_policy(job.name, **changes)

    def learned() -> bool:
        rows = job.api.job(job.name)["timeouts"]
        return any(row["section"] == "step" and row["learned"] for row in rows)

    job.until("the limit of a step is learned", learned)
    assert job.api.incidents(job.name) == []
    job.report("hang-3")
    found = job.until("the hang is found", lambda: (each := job.incident()) and each["confirmed"] and each)
    (culprit,) = found["culprits"]
    assert (culprit["rank"], culprit["class"], found["section"]) == (3, "behind", "step"), found["reason"]
    assert "has made no progress in section 'step'" in found["reason"]
    assert "over its learned limit of" in found["reason"]


@pytest.fixture(scope="module")
def with_lens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has NeMo Lens."""
    python = newest_python()
    folder = tmp_path_factory.mktemp("lens")
    subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True, timeout=120)
    pip = subprocess.run([folder / "bin" / "pip", "install", LENS], capture_output=True, text=True, timeout=240)
    if pip.returncode:
        pytest.skip(f"{LENS} cannot be installed here: {pip.stderr[-300:]}")
    return str(folder / "bin" / "python")


def newest_python() -> str:
    """A Python that is new enough: on the path, or among those that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in PYTHONS:
        for found in filter(None, [shutil.which(name), *map(str, sorted(kept.glob(f"*/bin/{name}")))]):
            if subprocess.run([found, "-c", "pass"], capture_output=True).returncode == 0:
                return found
    pytest.skip(f"NeMo Lens needs one of {', '.join(PYTHONS)}, and there is none")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_real_nemo_lens(job: Job, with_lens: str) -> None:
    """Its own set-up, exporters and span groups, in ranks that know nothing of Rankwatch."""
    job.start("lens", 3, python=with_lens)
    found = names_the_rank_that_hangs(job, 3, 2)
    assert "1 step behind" in found["reason"] or "behind within the same step" in found["reason"]
    timeline = job.api.read(f"/jobs/{job.name}/timeline?ranks=0,1,2&steps=20")
    assert (timeline["ranks_known"], timeline["sections"]) == (3, ["step"])
    for each in (job.folder).glob("hang-*"):
        each.unlink()
    over = job.until("they go on", lambda: (i := job.api.incidents(job.name)[0])["closed_at"] and i)
    assert over["outcome"] == "the ranks went on by themselves"
    job.finish()
    job.until("they have shut down", lambda: job.api.job(job.name)["state"] == "finished")


def test_the_commands_of_the_page_are_enough(job: Job) -> None:
    """The two blocks of docs/other-emitters.md for a script of one's own, as they stand there but for the address."""
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (shell, script) = (next(text for kind, text in reversed(blocks) if kind == wanted) for wanted in ("bash", "python"))
    (job.folder / "script.py").write_text(script)
    variables = shell.replace("http://monitor-host:9560", job.monitor.url).replace("my-training", job.name)
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "HOSTNAME": HOST, "PYTHON": sys.executable}
    command = f'{variables}"$PYTHON" script.py'
    ended = subprocess.run(["bash", "-ec", command], cwd=job.folder, env=environment(**place), capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    (rank,) = job.api.ranks(job.name)
    assert (rank["iteration"], rank["host"]) == (100, HOST)
