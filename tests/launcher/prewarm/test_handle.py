"""The launcher's end of a prewarmed worker. The worker is played by a few lines that speak its protocol."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.conftest import wait_for
from rankwatch_launcher import open_files
from rankwatch_launcher.prewarm import child, handle
from rankwatch_launcher.prewarm.bootstrap import HOOK
from rankwatch_launcher.prewarm.handle import Answer, Command, PrewarmedWorker, worker_environment

PLAYED = """
import array, json, os, socket, struct, sys, time
link = socket.socket(fileno=int(os.environ["RANKWATCH_PREWARMED"].split(",")[0]))
def read(count, received=b"", ancillary=True):
    found = []
    while len(received) < count:
        data, rest, _, _ = link.recvmsg(count - len(received), 1024)
        if not data:
            os._exit(9)
        received += data
        for _, _, numbers in rest:
            found += array.array("i", numbers)
    return received, found
def hear():
    head, found = read(8)
    body, more = read(struct.unpack("!Q", head)[0])
    return json.loads(body), found + more
def say(message):
    data = json.dumps(message).encode()
    link.sendall(struct.pack("!Q", len(data)) + data)
"""
"""A worker without the interpreter's start-up: it runs what a test appends."""

Play = Callable[..., PrewarmedWorker]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """A worker that runs the given lines; killed with the test."""
    monkeypatch.setattr(handle, "ANSWER_SECONDS", 60.0)
    workers: list[PrewarmedWorker] = []

    def begin(lines: str, environment: dict[str, str] | None = None) -> PrewarmedWorker:
        argv = (sys.executable, "-I", "-S", "-c", PLAYED + lines)
        workers.append(PrewarmedWorker(Command(argv, "/job", "/job/train.py"), environment or {}))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()


def answered(worker: PrewarmedWorker, count: int = 1) -> list[Answer]:
    found: list[Answer] = []

    def look() -> bool:
        found.extend(worker.answers())
        return len(found) >= count

    wait_for(look)
    return found


def test_a_worker_has_the_limit_of_open_files_that_the_launcher_was_started_with(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(open_files, "_inherited", (512, hard))
    assert resource.prlimit(play("hear()").process.pid, resource.RLIMIT_NOFILE) == (512, hard)


# The command ----------------------------------------------------------------------------------------------------------


def test_a_scripts_folder_is_the_first_entry_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").touch()
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "train.py")
    command = Command.of(["python", "-u", "link.py", "--lr", "1"], "python", str(tmp_path))
    assert isinstance(command, Command)
    assert (command.first, command.main) == (str(tmp_path / "real"), str(tmp_path / "link.py"))
    assert command.argv == ("python", "-u", "link.py", "--lr", "1")


def test_a_module_is_looked_for_in_the_current_folder(tmp_path: Path) -> None:
    command = Command.of(["python", "-u", "-m", "pkg.train"], "python", str(tmp_path))
    assert command == Command(("python", "-u", "-m", "pkg.train"), str(tmp_path), "")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "started by nothing"),
        (["bash", "run.sh"], "started by bash"),
        (["python", "train.py"], "not started with python -u"),
        (["python", "-u"], "names no script"),
        (["python", "-u", "-m"], "option -m is not supported"),
        (["python", "-u", "-c", "1"], "option -c is not supported"),
        (["python", "-u", "none.py"], "none.py is not a file"),
    ],
)
def test_other_commands_are_refused_with_the_reason(argv: list[str], reason: str, tmp_path: Path) -> None:
    refused = Command.of(argv, "python", str(tmp_path))
    assert isinstance(refused, str)
    assert reason in refused


def test_the_environment_of_a_worker_runs_the_hook_and_names_its_connection() -> None:
    made = worker_environment({"PYTHONPATH": "/mine", "A": "1"}, "7,8")
    assert made == {"PYTHONPATH": f"{HOOK}{os.pathsep}/mine", "A": "1", child.VARIABLE: "7,8"}


# Imports --------------------------------------------------------------------------------------------------------------


def test_an_import_is_requested_and_its_answer_read_without_waiting(play: Play) -> None:
    worker = play("message, _ = hear(); say({'error': json.dumps(message)}); hear()")
    assert (worker.busy, worker.answers()) == ("start", [])
    worker.request_import("numpy")
    assert worker.busy == "numpy"
    (answer,) = answered(worker)
    assert child.json.loads(answer.error) == {"import": "numpy", "first": "/job", "main": "/job/train.py"}
    assert worker.busy == ""


def test_answers_that_come_in_pieces_or_together_are_told_apart(play: Play) -> None:
    worker = play(
        "one, two = b'{\"started\": 1}', b'{\"started\": 2}'\n"
        "link.sendall(struct.pack('!Q', len(one))[:3]); hear()\n"
        "link.sendall(struct.pack('!Q', len(one))[3:] + one[:2]); hear()\n"
        "link.sendall(one[2:] + struct.pack('!Q', len(two)) + two); hear()\n"
    )
    for _ in range(2):
        wait_for(lambda: worker._data or worker.answers() or worker._data)
        assert worker.answers() == []
        assert worker.busy
        worker.request_import("next")
    assert answered(worker, 2) == [Answer(started=1), Answer(started=2)]


def test_a_worker_that_has_exited_raises_and_its_last_words_are_known(play: Play) -> None:
    worker = play("sys.stderr.write('Traceback\\nImportError: no numpy\\n\\n'); sys.exit(1)")
    assert worker.process.wait(60) == 1
    with pytest.raises(OSError):
        worker.answers()
    assert worker.last_stderr_line() == "ImportError: no numpy"
    worker.kill()
    assert worker.last_stderr_line() == ""


# The start of the rank ------------------------------------------------------------------------------------------------


def test_the_start_has_only_what_differs_and_the_descriptors(play: Play, tmp_path: Path) -> None:
    worker = play(
        "message, found = hear()\n"
        "os.write(found[0], json.dumps(message).encode()); os.write(found[1], b'err')\n"
        "say({'started': 1})\n",
        {"SAME": "1", "OTHER": "1", "GONE": "1"},
    )
    outputs = [os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY) for name in ("out", "err")]
    before = os.umask(0o027)
    try:
        assert worker.start({"SAME": "1", "OTHER": "2", "NEW": "3"}, outputs, "/work") == ""
    finally:
        os.umask(before)
        for descriptor in outputs:
            os.close(descriptor)
    start = child.json.loads((tmp_path / "out").read_text())["start"]
    assert start == {"set": {"OTHER": "2", "NEW": "3"}, "unset": ["GONE"], "cwd": "/work", "umask": 0o027}
    assert (tmp_path / "err").read_text() == "err"


def test_a_worker_that_cannot_become_the_rank_states_why(play: Play) -> None:
    worker = play("hear(); say({'error': 'no such folder'})")
    assert worker.start({}, [], "/none") == "no such folder"


def test_a_worker_that_exits_instead_raises(play: Play) -> None:
    worker = play("hear(); sys.exit(1)")
    with pytest.raises(OSError):
        worker.start({}, [], "/work")


def test_a_stopped_worker_raises_in_time(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = play("time.sleep(600)")
    monkeypatch.setattr(handle, "ANSWER_SECONDS", 0.05)
    with pytest.raises(TimeoutError):
        worker.start({}, [], "/work")


# Its end --------------------------------------------------------------------------------------------------------------


def test_a_worker_is_killed_with_what_it_has_started(play: Play) -> None:
    worker = play("pid = os.fork()\nif pid == 0: time.sleep(600)\nsay({'started': pid}); time.sleep(600)")
    (answer,) = answered(worker)
    worker.kill()
    assert worker.process.returncode == -signal.SIGKILL
    wait_for(lambda: not running(answer.started))
    worker.kill()  # it may be killed again


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_cannot_be_started_leaves_nothing_open() -> None:
    before = descriptors()
    for _ in range(3):
        with pytest.raises(OSError):
            PrewarmedWorker(Command(("/does/not/exist",), "", ""), {})
    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_process_that_does_not_end_is_left_behind_and_reaped_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handle, "KILLED_SECONDS", 0.01)
    monkeypatch.setattr(handle, "_left_behind", left := [])
    stuck, ended = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        assert handle.wait_killed(stuck) is None
        assert left == [stuck]
        stuck.kill()
        stuck.wait()
        assert handle.wait_killed(ended) is None
        assert left == [ended], "the first one has exited since"
    finally:
        for process in (stuck, ended):
            process.kill()
            process.wait()
    assert handle.wait_killed(ended) == -signal.SIGKILL


def test_the_umask_is_read_and_not_changed() -> None:
    before = os.umask(0o013)
    try:
        assert handle.current_umask() == 0o013
        assert os.umask(0o013) == 0o013
    finally:
        os.umask(before)
