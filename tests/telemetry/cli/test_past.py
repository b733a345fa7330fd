"""Commands about a job that has ended: they read its record, which stays as it is."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from monitor.core.scene import Scene
from rankwatch.cli import past, readers
from rankwatch.cli.access import audit
from rankwatch.cli.incidents import incidents
from rankwatch.cli.open_page import open_page
from rankwatch.cli.report import report
from rankwatch.cli.status.command import status
from rankwatch.cli.why import why
from rankwatch.contract import access, env, records
from rankwatch.contract.access import MonitorAccess
from rankwatch.monitor_client import MonitorError
from rankwatch_monitor.past_jobs import jobs
from rankwatch_monitor.service.audit import Entry
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import incident_row, job_row
from rankwatch_monitor.store.repository import Repository
from support.otlp import PROTOBUF
from support.processes import MARK, end_marked, marked
from support.waiting import wait_for

JOB = "team run"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of records, of which the environment knows; the default monitor's port is free."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (env.MONITOR_URL, env.TOKEN):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(past, "DEFAULT_MONITOR", f"http://127.0.0.1:{taken.getsockname()[1]}")
        made = tmp_path / "state" / "rankwatch" / "jobs"
        made.mkdir(parents=True)
        return made


def keep(folder: Path, job_id: str = JOB, written: float | None = None) -> Path:
    """The record of a job that hung once and went on."""
    scene = Scene(job_id=job_id).run(10).hang(2).until_found().run(20)
    path = folder / records.file_name(job_id)
    repository = Repository(str(path))
    try:
        repository.save(schema.jobs, job_row(scene.job))
        for incident in scene.job.incidents:
            repository.save(schema.incidents, incident_row(incident))
        assert repository.flush()
    finally:
        repository.close()
    if written is not None:
        os.utime(path, (written, written))
    return path


def asked(job: str | None = None, database: str | None = None, monitor: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(job=job, database=database, monitor=monitor, token=None)


# Which one ------------------------------------------------------------------------------------------------------------


def test_without_a_monitor_the_newest_record_answers_or_that_of_the_job(folder: Path) -> None:
    old, new = keep(folder, "old", 1_000.0), keep(folder, "new", 2_000.0)
    assert past.record_to_ask(asked(), os.environ) == new
    assert past.record_to_ask(asked("old"), os.environ) == old
    assert past.record_to_ask(asked(database=str(old)), os.environ) == old


def test_a_monitor_that_is_named_or_runs_answers_itself(folder: Path) -> None:
    record = keep(folder)
    assert past.record_to_ask(asked(JOB, monitor="http://127.0.0.1:1"), os.environ) is None
    access.publish(MonitorAccess("http://127.0.0.1:1", "living", os.getpid(), "t", "i", socket.gethostname()))
    assert past.record_to_ask(asked(), os.environ) is None
    assert past.record_to_ask(asked("living"), os.environ) is None
    assert past.record_to_ask(asked(JOB), os.environ) == record


def test_a_job_without_a_record_and_a_file_that_is_none_are_named(folder: Path) -> None:
    assert past.record_to_ask(asked("unknown"), os.environ) is None, "no record at all: the default monitor is asked"
    keep(folder)
    for wrong in (asked("unknown"), asked(database=str(folder / "nothing.db")), asked(database="postgresql://db/x")):
        with pytest.raises(MonitorError) as refused:
            past.record_to_ask(wrong, os.environ)
        assert refused.value.code == 2


def test_what_is_no_database_is_refused_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = folder / "broken.db"
    broken.write_text("this is no database, whatever its name is\n" * 100)
    assert report(["--database", str(broken)]) == 1
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert said.count("\n") == 1


def test_a_monitor_that_ends_with_its_job_while_it_is_asked_leaves_the_answer_to_the_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder)
    launcher = subprocess.Popen(["sleep", "600"])
    meanwhile = past.ended_meanwhile

    def ends(arguments: argparse.Namespace) -> bool:
        launcher.terminate()
        launcher.wait()
        return meanwhile(arguments)

    monkeypatch.setattr(past, "ended_meanwhile", ends)
    try:
        access.publish(MonitorAccess("http://127.0.0.1:1", JOB, launcher.pid, "t", "i", socket.gethostname()))
        assert past.record_to_ask(asked(JOB), os.environ) is None
        assert why([JOB, "--json"]) == 0
    finally:
        launcher.kill()
        launcher.wait()
    assert json.loads(capsys.readouterr().out)["state"] == "lost"


# What they answer -----------------------------------------------------------------------------------------------------


def test_a_reader_only_reads(folder: Path) -> None:
    record = keep(folder)
    before, there = record.read_bytes(), sorted(folder.iterdir())
    with past.reader(record) as client:
        [job] = client.listed("/jobs", "jobs")
        assert (job["id"], job["state"]) == (JOB, "lost")
        assert len(client.listed("/jobs/team%20run/incidents", "incidents")) == 1
        with pytest.raises(MonitorError, match="control"):
            client.send("PATCH", "/jobs/team%20run/policy", {"observe_only": True})
        sent = httpx.post(f"{client.url}/v1/metrics", headers=PROTOBUF, content=b"", trust_env=False)
        assert sent.status_code == 401
    with pytest.raises(MonitorError, match="no monitor answers"):
        client.read("/jobs")
    assert record.read_bytes() == before
    assert sorted(folder.iterdir()) == there


def test_whoever_has_the_port_of_a_reader_that_ended_is_sent_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(folder))
    record = keep(folder)
    try:
        with past.reader(record, stays=True) as client:
            url = client.url
        [noted] = tmp_path.rglob("readers/*.json")
        again = readers.running(record)
        assert again is not None
        assert again.url == url
    finally:
        end_marked(str(folder))
    wait_for(lambda: not past._listens(url), "its port is free")
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))) as thief:
        assert readers.running(record) is None
        thief.setblocking(False)
        with pytest.raises(BlockingIOError):
            thief.accept()
    assert not noted.exists()


def test_the_audit_log_of_a_record_is_read_by_its_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = Repository(str(keep(folder)))
    try:
        for number, (subject, action) in enumerate([(JOB, "stop"), ("another", "restart")]):
            detail = {"action": action, "reason": "the switch reboots"}
            entry = Entry(str(number), 1e9 + number, "order", subject, "ops", "10.0.0.7", detail)
            repository.save(schema.audit, asdict(entry))
        assert repository.flush()
    finally:
        repository.close()
    assert audit([JOB]) == 0
    printed = capsys.readouterr()
    assert "read from the record" in printed.err
    _, row, detail = printed.out.splitlines()
    assert row.split()[:3] == ["2001-09-09", "01:46:40", "UTC"]
    assert detail == "  action stop, reason the switch reboots"
    assert audit(["--json", "--limit", "1"]) == 0, "of the newest record"
    assert [each["subject"] for each in json.loads(capsys.readouterr().out)["entries"]] == ["another"]


@pytest.mark.parametrize("limit", ["0", "10001", "x", "-1"])
def test_a_limit_that_is_none_is_refused_in_words(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        audit([f"--limit={limit}"])
    assert ended.value.code == 2
    assert f"must be a whole number from 1 to 10000, not '{limit}'" in capsys.readouterr().err


def test_jobs_lists_living_and_past_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = keep(folder)
    keep(folder, "living")
    (folder / "broken.db").write_text("no database")
    there = sorted(folder.iterdir())
    access.publish(MonitorAccess("http://127.0.0.1:1", "living", os.getpid(), "t", "i", socket.gethostname()))
    assert jobs(["--json"]) == 0
    found = {each["id"]: each for each in json.loads(capsys.readouterr().out)["jobs"]}
    assert next(iter(found)) == "living", "those that run come first"
    assert found["living"]["monitor"] == "http://127.0.0.1:1"
    assert (found[JOB]["monitor"], found[JOB]["record"], found[JOB]["world_size"]) == (None, str(record), 4)
    assert found["broken"]["state"] == "unreadable"
    assert jobs([]) == 0
    assert JOB in capsys.readouterr().out
    assert sorted(folder.iterdir()) == there, "nothing was left beside the records"


def test_without_jobs_the_folder_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs([]) == 0
    assert str(folder) in capsys.readouterr().out


@pytest.mark.long
def test_every_command_answers_from_the_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = keep(folder)
    assert report([]) == 0
    said = capsys.readouterr()
    assert JOB in said.out
    assert str(record) in said.err
    assert incidents([JOB, "--json"]) == 0
    [incident] = json.loads(capsys.readouterr().out)["incidents"]
    assert incident["culprits"][0]["rank"] == 2
    assert status([JOB, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["job"]["state"] == "lost"
    assert why(["--database", str(record)]) == 0
    assert capsys.readouterr().err == "", "a record that was named is not named again"


@pytest.mark.long
def test_the_page_over_a_record_ends_once_it_was_left(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "LEFT_SECONDS", 15)
    monkeypatch.setenv(MARK, str(folder))
    keep(folder)
    try:
        assert open_page([JOB]) == 0
        assert len(marked(str(folder))) == 1
        address = capsys.readouterr().out.strip()
        with httpx.Client(trust_env=False, follow_redirects=True) as browser:
            page = browser.get(address)
            assert page.status_code in (200, 503), "503: the page was not built"
            root = address.partition("/api/")[0]
            [job] = browser.get(f"{root}/api/v1/jobs").json()["jobs"]
            assert job["id"] == JOB
        wait_for(lambda: not marked(str(folder)), "the monitor ends by itself")
    finally:
        end_marked(str(folder))


@pytest.mark.long
def test_a_page_that_is_opened_again_has_the_same_monitor_until_its_record_changes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(folder))
    record = keep(folder)

    def root() -> str:
        assert open_page([JOB]) == 0
        return capsys.readouterr().out.partition("/api/")[0]

    try:
        first = root()
        assert root() == first
        assert status([JOB, "--json"]) == 3, "other commands use it too"
        capsys.readouterr()
        assert len(marked(str(folder))) == 1
        os.utime(record, (2_000.0, 2_000.0))
        assert root() != first, "it has not read the change"
        assert len(marked(str(folder))) == 2
        end_marked(str(folder))
        assert root() != first, "it has ended"
        assert len(marked(str(folder))) == 1
    finally:
        end_marked(str(folder))
