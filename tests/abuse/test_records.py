"""A record may come from another: the monitor that shows it opens to nobody but its reader."""

from __future__ import annotations

import hashlib
from pathlib import Path

from monitor.core.scene import Scene
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.repository import Repository
from support.monitor_process import Api, running_monitor

PLANTED = "rw_planted-by-who-made-the-record"


def test_tokens_inside_a_record_open_nothing(tmp_path: Path) -> None:
    record = tmp_path / "record.db"
    store = Repository(str(record))
    store.save(schema.jobs, job_row(Scene(job_id="j").run(3).job))
    row = {"name": "planted", "digest": hashlib.sha256(PLANTED.encode()).hexdigest(), "scope": "control", "jobs": []}
    store.save(schema.tokens, {**row, "created_at": 1.0, "created_by": "x"})
    assert store.flush()
    store.close()
    with running_monitor(tmp_path / "live", "--token", "t", database=record) as live, Api(live.url, PLANTED) as api:
        assert api.get("/api/v1/jobs").status_code == 200, "the twin: it is a token of that database"
    flags = ("--read-only", str(record), "--read-token", "reader")
    with (
        running_monitor(tmp_path / "reader", *flags) as monitor,
        Api(monitor.url, PLANTED) as planted,
        Api(monitor.url, "reader") as reader,
    ):
        assert reader.get("/api/v1/jobs").status_code == 200
        assert {planted.get(f"/api/v1/{path}").status_code for path in ("jobs", "tokens", "audit")} == {401}
        new = {"name": "more", "scope": "control", "jobs": []}
        assert planted.post("/api/v1/tokens", json=new).status_code == 401
        assert reader.post("/api/v1/tokens", json=new).status_code == 403
