"""Another user of the machine, against a job whose monitor ``rankwatch run`` started by itself."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rankwatch.cli import readers
from rankwatch.cli.doctor import node_checks
from rankwatch.contract import access, records
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.diagnose.collect import Collector
from rankwatch_launcher.monitor.process import LocalMonitor
from rankwatch_launcher.node.slots import SlotsFolder
from rankwatch_launcher.stacks import collectives
from rankwatch_monitor.replay.recording import Writer
from rankwatch_monitor.settings import read as read_settings
from rankwatch_monitor.store import archive
from rankwatch_monitor.store.engine import open_engine
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as the user nobody")

JOB: Final = "private"
ATTACK: Final = """
import json, os, sys, urllib.error, urllib.request
url, job, files, uid, gid = json.loads(sys.argv[1])
"x".encode("idna")  # imported before Python's own files may be out of reach
os.setgroups([])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)

def ask(method, path, content=None):
    sent = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url + path, sent, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code

def try_to(act):
    try:
        return str(act())
    except OSError as error:
        return type(error).__name__

below = f"/api/v1/jobs/{job}"
node = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}
print(json.dumps({
    "livez": ask("GET", "/livez"),
    "refused": {
        "stop": ask("POST", f"{below}/actions", {"action": "stop"}),
        "policy": ask("PATCH", f"{below}/policy", {"max_restarts": 0}),
        "stacks": ask("GET", f"{below}/incidents/1"),
        "directives": ask("GET", f"{below}/directives?after=0&node=n&wait=0"),
        "register": ask("POST", f"{below}/nodes", node),
        "jobs": ask("GET", "/api/v1/jobs"),
    },
    "files": {file: [try_to(lambda: open(file).read()), try_to(lambda: open(file, "a"))] for file in files},
}))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMonitor]:
    """A monitor as a launcher of root has it, with a state folder that others may reach."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    for folder in (state, *tmp_path.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.mkdir(exist_ok=True)
            folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    made = LocalMonitor(JOB)
    try:
        made.start()
        wait_for(access.running, "the monitor has its file", 100.0)
        yield made
    finally:
        made.close()
        os.umask(before)


def test_another_user_cannot_stop_the_job_read_its_stacks_or_its_files(own: LocalMonitor, tmp_path: Path) -> None:
    files = [str(path) for path in (tmp_path / "state").rglob("*") if path.is_file()]
    files += [str(path) for path in own._folder.iterdir()]
    assert len([file for file in files if file.endswith((".db", ".json", ".lock"))]) >= 3, files
    anonymous = pwd.getpwnam("nobody")
    attack = subprocess.run(
        [sys.executable, "-I", "-c", ATTACK, json.dumps([own.url, JOB, files, anonymous.pw_uid, anonymous.pw_gid])],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert attack.returncode == 0, attack.stderr
    seen: dict[str, Any] = json.loads(attack.stdout)
    assert seen["livez"] == 200, "it reaches the port"
    assert set(seen["refused"].values()) == {401}, seen["refused"]
    assert {file: tried for file, tried in seen["files"].items() if tried != ["PermissionError"] * 2} == {}


# A port that was a monitor's ------------------------------------------------------------------------------------------

LISTENER: Final = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers["Authorization"], flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

"x".encode("idna")  # imported before Python's own files may be out of reach
os.setgroups([])
os.setresuid(*[int(sys.argv[1])] * 3)
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_port_that_another_user_listens_on_is_sent_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    record = tmp_path / "record.db"
    command = [sys.executable, "-I", "-c", LISTENER, str(pwd.getpwnam("nobody").pw_uid)]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout
            url = f"http://127.0.0.1:{int(other.stdout.readline())}"
            access.publish(access.MonitorAccess(url, JOB, os.getpid(), "secret", "secret", socket.gethostname()))
            assert access.running() == []
            assert access.of(url) is None
            readers.publish(record, url, "secret", readers.written(record), os.getpid())
            assert readers.running(record) is None
        finally:
            other.kill()
        assert other.stdout.read() == ""


# A state folder of another user, as ``sudo -E`` and ``su -p`` leave it ------------------------------------------------


@pytest.mark.parametrize("planted", ["link to a folder", "links in the folder", "folder above"])
def test_a_state_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    tmp_path.chmod(0o755)
    precious, file = tmp_path / "precious", tmp_path / "file"
    precious.mkdir(mode=0o755)
    file.write_text("keep")
    state = tmp_path / "state"
    jobs = state / "rankwatch" / "jobs"
    jobs.parent.mkdir(parents=True)
    if planted == "link to a folder":
        jobs.symlink_to(precious)
    elif planted == "links in the folder":
        jobs.mkdir()
        (jobs / "j.log").symlink_to(file)
        (jobs / "j.db").symlink_to(tmp_path / "made")
    for place in (state, *(state.rglob("*") if planted != "folder above" else ())):
        os.chown(place, pwd.getpwnam("nobody").pw_uid, -1, follow_symlinks=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PermissionError, match="another user"):
        records.create(records.state_place(os.environ))
    with pytest.raises(ValueError, match=r"another user.*give --database"):
        read_settings([], {})
    before = sorted(state.rglob("*"))
    made = LocalMonitor("j")
    try:
        made.start()
        wait_for(access.running, "the monitor has its file", 100.0)
        assert made.record is not None
        assert made.record.is_relative_to(tmp_path / f"rankwatch.{os.geteuid()}")
    finally:
        made.close()
    assert sorted(state.rglob("*")) == before
    assert (file.read_text(), stat.S_IMODE(precious.stat().st_mode)) == ("keep", 0o755)
    assert not (tmp_path / "made").exists()


def test_the_log_of_a_monitor_follows_no_link(own: LocalMonitor, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    own._log.path.unlink()
    own._log.path.symlink_to(precious)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        own._spawn()
    assert precious.read_text() == "keep"


# Folders that a cleaner of temporary files has removed while the job runs ---------------------------------------------


def plant(place: Path, victim: Path, how: str) -> None:
    """Take the name of a folder in /dev/shm or /tmp: with a link to a folder of the victim, or an own folder."""
    shutil.rmtree(place)
    if how == "link":
        place.symlink_to(victim)
    else:
        place.mkdir(mode=0o777)
        os.chown(place, pwd.getpwnam("nobody").pw_uid, -1)


@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_folder_planted_in_place_of_the_slots_is_neither_used_nor_emptied(tmp_path: Path, how: str) -> None:
    precious = tmp_path / "victim" / "precious"
    precious.mkdir(parents=True)
    folder = SlotsFolder(tmp_path)
    planted = folder.path
    plant(planted, precious.parent, how)
    try:
        used = folder.attempt(1, 1)
        assert precious.is_dir()
        assert used.is_dir()
        assert not used.is_relative_to(planted)
    finally:
        folder.remove()


POSED: Final = """
import json, os, sys
secret, uid = json.loads(sys.argv[1])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
os.dup2(os.open(secret, os.O_PATH), 2)  # which needs no permission to read it
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_diagnosing_as_root_shows_no_file_that_the_user_of_a_process_cannot_read(shared: Path) -> None:
    secret, user = shared / "secret", pwd.getpwnam("nobody").pw_uid
    secret.write_text("secret of root\n")
    secret.chmod(0o600)
    numbers = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    given = json.dumps([str(secret), user])
    rank = subprocess.Popen(
        [sys.executable, "-I", "-c", POSED, given],
        env={"PATH": os.environ["PATH"], **numbers},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        found = Collector([rank.pid]).report(0.1, alone=True)
        assert rank.stdin is not None
        rank.stdin.close()
    assert [each.user for each in found.ranks] == [user]
    assert "secret of root" not in repr(found)


def test_a_socket_that_a_user_names_is_not_written_to_where_another_one_listens(tmp_path: Path) -> None:
    """The user may not be able to connect to it, as to those of container runtimes."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(PermissionError, match="another user"):
            collectives.of_rank(path, time.monotonic() + 60.0, pwd.getpwnam("nobody").pw_uid)
        listener.settimeout(60.0)
        with listener.accept()[0] as connection:
            assert connection.recv(1) == b""


FULL: Final = """
import sys, tempfile
from pathlib import Path
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.node.slots import NodeSlots, SlotsFolder
memory, elsewhere = map(Path, sys.argv[1:])
tempfile.tempdir = str(elsewhere)
folder = SlotsFolder(memory)
with (memory / "of another user").open("wb", buffering=0) as full:
    try:
        while full.write(bytes(4096)):
            pass
    except OSError:
        pass
used = folder.attempt(1, 2)
ranks = [Slots.open(used / f"{local}.slots") for local in range(2)]
for local, slots in enumerate(ranks):
    slots.claim(rank=local, local_rank=local, world_size=2, attempt=1)
print(len(NodeSlots(used, 2).read()), used.is_relative_to(elsewhere), [each.name for each in memory.iterdir()])
"""


def test_memory_that_another_user_has_filled_kills_neither_ranks_nor_launcher(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    mount = 'mount --make-rprivate / && mount -t tmpfs -o size=64k none "$1" && shift && exec "$@"'
    places = [str(tmp_path / "memory"), str(tmp_path)]
    made = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", places[0], sys.executable, "-P", "-c", FULL, *places],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "unshare" in made.stderr or "mount" in made.stderr:
        pytest.skip(f"needs the right to mount: {made.stderr}")
    assert (made.returncode, made.stdout.strip()) == (0, "2 True ['of another user']"), made.stderr


@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_folder_planted_in_place_of_the_monitors_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    victim = tmp_path / "victim"
    victim.mkdir()
    made = LocalMonitor(JOB)
    planted = made._folder
    plant(planted, victim, how)
    try:
        made.start()
        assert made.wait_ready()
        assert [*victim.iterdir(), *planted.iterdir()] == []
    finally:
        made.close()
        planted.unlink() if planted.is_symlink() else planted.rmdir()


def test_a_recording_is_readable_by_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Writer(tmp_path / "run.jsonl", 0.0).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("is_link", [False, True])
def test_doctor_of_root_opens_nothing_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    """Its files may be links to devices, and who maps them is ended when they are cut."""
    monkeypatch.setattr(node_checks, "MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "rankwatch-x"
    slots = Slots.create(folder / "attempt-1" / "0.slots")
    slots.claim(rank=4, local_rank=0, world_size=8, attempt=1)
    slots.close()
    [own] = node_checks.launchers()
    assert "1 rank (4)" in own.found, "the twin: one of this user's"
    if is_link:
        folder.rename(tmp_path / "other")
        folder.symlink_to(tmp_path / "other")
    for place in (tmp_path, *tmp_path.rglob("*")):
        os.chown(place, pwd.getpwnam("nobody").pw_uid, -1, follow_symlinks=False)
    [found] = node_checks.launchers()
    assert found.found == ("none runs ranks on this machine" if is_link else "1 folder of launchers of other users")


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_database_that_another_user_has_planted_is_not_used(tmp_path: Path, suffix: str, *, is_link: bool) -> None:
    """Its tokens, or those in its log, would open the monitor to that user."""
    database, nobody = tmp_path / "rankwatch.db", pwd.getpwnam("nobody").pw_uid
    sqlite3.connect(database).close()
    database.touch()
    open_engine(str(database)).dispose()
    planted = tmp_path / f"rankwatch.db{suffix}"
    if is_link:
        planted.unlink(missing_ok=True)
        planted.symlink_to(tmp_path / "other")
        (tmp_path / "other").touch()
    else:
        planted.touch()
    os.chown(planted, nobody, -1, follow_symlinks=False)
    with pytest.raises(ValueError, match="belongs to another user"):
        open_engine(str(database))


def test_a_record_is_not_read_with_the_log_of_a_third_user(tmp_path: Path) -> None:
    """It would show what that user wrote as the record of another."""
    record, nobody = tmp_path / "record.db", pwd.getpwnam("nobody").pw_uid
    record.write_bytes(b"")
    log = tmp_path / "record.db-wal"
    log.touch()
    os.chown(log, nobody, -1)
    for read in (lambda: archive.copy(record, tmp_path / "copy.db"), lambda: archive.jobs(record)):
        with pytest.raises(ValueError, match="belongs to another user"):
            read()
    os.chown(record, nobody, -1)  # both are that user's: a record that somebody gave away
    with pytest.raises(ValueError, match="record") as refused:
        archive.jobs(record)
    assert "another user" not in str(refused.value)
