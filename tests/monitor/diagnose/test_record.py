"""A diagnosis as a record: read by the read-only monitor that ``rankwatch open`` and its siblings start."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from monitor.diagnose.scenes import JOB, locked, report, stands
from rankwatch.cli import past
from rankwatch.monitor_client import path_of
from rankwatch_monitor.diagnose import command


def test_a_record_shows_the_incident_with_its_stacks_and_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, record = tmp_path / "seen", tmp_path / "hang.db"
    seen.write_text(json.dumps(asdict(report(stands(0), locked(1), stands(2), stands(3)))))
    assert command.diagnose(["--from", str(seen), "--record", str(record)]) == 3
    said = capsys.readouterr().out
    with past.reader(record) as client:
        (job,) = client.listed("/jobs", "jobs")
        (incident,) = client.listed(f"{path_of(job['id'])}/incidents", "incidents")
        whole = client.read(f"{path_of(job['id'])}/incidents/{incident['id']}")
    assert job["id"] == JOB
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    assert incident["reason"].split(";")[0] in said
    assert [group["ranks"] for group in whole["stack_groups"]] == [[1], [0, 2, 3]]
    assert command.diagnose(["--from", str(seen), "--record", str(record)]) == 2
