"""A record may come from another: the monitor that shows it opens to nobody but its reader."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.core.scene import Scene
from rankwatch_monitor.core.rank_runs import MOST_RANKS
from rankwatch_monitor.store import archive, schema
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.repository import Repository
from support.monitor_process import Api, environment, running_monitor

PLANTED = "rw_planted-by-who-made-the-record"


ENDLESS = """
alter table jobs rename to jobs_;
create view jobs as with recursive r(n) as (select 1 union all select n + 1 from r)
select id, created_at, last_heard, policy, learned, body from jobs_ where (select count(*) from r) > 0;
"""


GENERATED = """
create table copied as select * from jobs;
drop table jobs;
create table jobs (id, created_at, last_heard, policy, learned,
                   body generated always as (printf('%.*c', 900000000, ' ') || '{}') virtual);
insert into jobs select id, created_at, last_heard, policy, learned from copied;
drop table copied;
"""
KINDS = (
    "a view without end",
    "a view that poses as a table",
    "a column made of nothing",
    "a default that is repeated",
    "deep JSON",
)


def record_of(folder: Path) -> Path:
    path = folder / "record.db"
    store = Repository(str(path))
    store.save(schema.jobs, job_row(Scene(job_id="j").run(3).job))
    assert store.flush()
    store.close()
    return path


def changed(path: Path, kind: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file:
        if kind == "a view without end":
            file.executescript(ENDLESS)
        elif kind == "a view that poses as a table":
            file.executescript(ENDLESS)
            file.execute("pragma writable_schema = on")
            file.execute("update sqlite_master set type = 'table' where name = 'jobs'")
        elif kind == "a column made of nothing":
            file.executescript(GENERATED)
        elif kind == "a default that is repeated":
            file.execute("alter table jobs add column more text default 'x'")
        elif kind == "deep JSON":
            file.execute("update jobs set body = ?", ("[" * 200_000 + "]" * 200_000,))
        else:
            body = json.loads(file.execute("select body from jobs").fetchone()[0])
            file.execute("update jobs set body = ?", (json.dumps({**body, "world_size": 2_000_000_000}),))
        file.commit()


@pytest.mark.parametrize("kind", [*KINDS, "a huge world"])
def test_a_hostile_record_is_refused_or_left_out_at_once(tmp_path: Path, kind: str) -> None:
    path = record_of(tmp_path)
    assert [job.id for job in archive.jobs(path)] == ["j"]
    changed(path, kind)
    if kind == "a huge world":
        assert archive.jobs(path) == []
        flags = ("--read-only", str(path), "--read-token", "r")
        with running_monitor(tmp_path / "m", *flags) as monitor, Api(monitor.url, "r") as reader:
            assert reader.jobs() == []
        return
    with pytest.raises(ValueError, match="record"):
        archive.jobs(path)
    command = [sys.executable, "-m", "rankwatch_monitor", "--port", "0", "--read-only", str(path), "--read-token", "r"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["a log without end", "a file without end"])
def test_a_record_whose_copy_would_fill_the_disk_is_refused(tmp_path: Path, kind: str) -> None:
    path, target = record_of(tmp_path), tmp_path / "copy"
    archive.copy(path, target)
    assert [job.id for job in archive.jobs(target)] == ["j"]
    if kind == "a log without end":
        path.with_name("record.db-wal").unlink(missing_ok=True)
        path.with_name("record.db-wal").symlink_to("/dev/zero")
    else:
        os.truncate(path, shutil.disk_usage(tmp_path).free)
    with pytest.raises(ValueError, match=r"no file|would fill"):
        archive.copy(path, tmp_path / "another")
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("first", [-(10**12), 4, "Infinity"])
def test_jobs_that_claim_more_ranks_together_than_a_monitor_has_are_left_out(tmp_path: Path, first: object) -> None:
    path, claimed = record_of(tmp_path), 100_000
    with contextlib.closing(sqlite3.connect(path)) as file:
        names = [row[1] for row in file.execute("pragma table_info(jobs)")]
        row = dict(zip(names, file.execute("select * from jobs").fetchone(), strict=True))
        body = json.loads(row["body"])
        marks = ", ".join("?" * len(names))
        for number, world in enumerate([first, *[claimed] * 5]):
            made = json.dumps({**body, "world_size": world}).replace('"Infinity"', "Infinity")
            new = {**row, "id": f"j{number}", "last_heard": 2e9 - number, "body": made}
            file.execute(f"insert into jobs values ({marks})", list(new.values()))
        file.commit()
    expected = ["j0", "j1", "j2", "j"] if first == 4 else ["j1", "j2", "j"]
    assert [job.id for job in archive.jobs(path)] == expected
    store = Repository(str(path))
    try:
        assert [job.id for job in store.load(0.0, ranks=MOST_RANKS)] == expected
    finally:
        store.close()


def test_tokens_inside_a_record_open_nothing(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    store = Repository(str(record))
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


def test_a_reader_that_still_loads_ends_with_the_command_that_started_it() -> None:
    with subprocess.Popen(["sleep", "600"]) as parent:
        program = (
            "import threading, time; from rankwatch_monitor import cli; cli._GRACE = 0.0\n"
            f"threading.Thread(target=cli._end_while_loading, args=({parent.pid},), daemon=True).start()\n"
            "print('loads', flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline() == b"loads\n"
                parent.kill()
                parent.wait()
                assert reader.wait(60) == 1
            finally:
                reader.kill()
