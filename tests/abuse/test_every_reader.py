"""Every place where a launcher or a rank reads what another process wrote: arbitrary content is read or refused.

A place that is not in :data:`READERS`, nor in :data:`APART` with the reason, fails a test. The same sequence in every
run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import os
import socket
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch.distributed import HashStore, PrefixStore

from abuse.test_answers_fuzz import DIRECTIVE, SETTINGS
from abuse.test_launcher_fuzz import changed
from abuse.test_rank_files_fuzz import ERROR, LEARNED, REQUEST, reading, written
from abuse.test_store_fuzz import RECORDS
from rankwatch import launcher_requests
from rankwatch.cli import flight_dumps, readers
from rankwatch.cli import past as past_reader
from rankwatch.contract import access, env, messages
from rankwatch.contract.access import MonitorAccess
from rankwatch.contract.flight import FILE
from rankwatch.contract.rank_output import LogRequest
from rankwatch.inprocess import rank_process, store_server
from rankwatch.inprocess.assignment import KeepWorldSize
from rankwatch.inprocess.coordination import DONE, INTERRUPTED, Coordination
from rankwatch.inprocess.decision import FailureKind, FailureRecord, IterationPlan, RestartRules, decide
from rankwatch.inprocess.rank_process import RankProcess
from rankwatch.inprocess.state import InProcessError, state_of
from rankwatch.inprocess.store_server import RankLine
from rankwatch.integrations.shared.state_file import StateFile
from rankwatch.monitor_client import MonitorClient, MonitorError, _detail
from rankwatch.recording.shared_slots import SETTINGS_BYTES, SETTINGS_LENGTH, SETTINGS_OFFSET, Slots
from rankwatch_launcher.coordination.membership import Member
from rankwatch_launcher.coordination.store import _of
from rankwatch_launcher.coordination.store_file import StoreFile
from rankwatch_launcher.diagnose import find
from rankwatch_launcher.diagnose.collect import _locals
from rankwatch_launcher.monitor import answers
from rankwatch_launcher.monitor.process import LocalMonitor
from rankwatch_launcher.node import learned_limits
from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_launcher.options import PrewarmSettings
from rankwatch_launcher.outcome import FINISHED, Outcome
from rankwatch_launcher.prewarm import child, handle
from rankwatch_launcher.prewarm.handle import Answer, PrewarmedWorker
from rankwatch_launcher.prewarm.pool import PrewarmPool
from rankwatch_launcher.schedulers.slurm_batch import LAUNCHES, LaunchHistory
from rankwatch_launcher.shell.rank_error import read_error
from rankwatch_launcher.stacks import collectives, formats, ras_answer
from support.fake_ras import json_answer, json_rank, missing_rank

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("launcher/rankwatch_launcher", "telemetry/rankwatch")
DECODERS: Final = {
    "json": {"load", "loads"}, "yaml": {"load", "safe_load"}, "pickle": {"load", "loads"},
    "struct": {"unpack", "unpack_from", "iter_unpack"},
}  # fmt: skip
APART: Final = {
    "call.py": "a folder of the launcher, in which only its ranks write: elastic_launch of torch unpickles theirs, too",
    "checks/": "the launcher's own children, which run its code; what a command prints reaches them as text",
    "cli/doctor/": "answers of commands of this machine, for the person who has typed the command",
    "cli/nvrx.py": "a file that the user names at the start",
    "contract/messages.py": "what the others read with",
    "contract/text.py": "the same",
    "job/pair_check.py": "the launcher's own child, as in checks/",
    "demo/": "the demo's own files and processes",
    "diagnose/memory.py": "memory of any process: changed at random in tests/launcher/diagnose/test_memory.py",
    "liveness/torch_control_plane.py": "the kernel",
    "prewarm/child.py": "the launcher's end of a pair of sockets that nobody else has",
    "profiling/kineto.py": "torch in the same process",
    "rerun/checkpoint.py": "a checkpoint that the script has loaded",
    "stacks/sockets.py": "the kernel",
    "stacks/waits.py": "memory of a rank, whose size is known",
    "tcp.py": "the kernel",
}


@dataclass(frozen=True)
class Reader:
    """What is well-formed, what reads it, and how it may refuse."""

    whole: Any
    read: Callable[[bytes, Path], object]
    refuses: tuple[type[Exception], ...] = ()


def file_in(folder: Path, name: str, content: bytes, mode: int = 0o600) -> Path:
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


# One function for each, with the content and an empty folder ----------------------------------------------------------


def locals_of_a_process(content: bytes, folder: Path) -> None:
    file_in(folder, "dump.json", content)
    tool = file_in(folder, "py-spy", f"#!/bin/sh\nexec cat {folder}/dump.json\n".encode(), 0o700)
    for frame in _locals(str(tool), 7):
        assert isinstance(frame, dict)


def request_of_a_rank(content: bytes, folder: Path) -> None:
    file_in(folder, env.request_file(0, 1), content)
    for request in RequestInbox(folder).take({0: reading()}):
        TypeAdapter(messages.RankRequest).validate_json(json.dumps(asdict(request)), strict=True)


def error_file(content: bytes, folder: Path) -> None:
    if (found := read_error(str(file_in(folder, "error.json", content)))) is not None:
        found.where()
        found.stack(0, 1)


def ready_file(content: bytes, folder: Path) -> None:
    monitor: Any = SimpleNamespace(_ready_file=file_in(folder, "ready", content))
    assert isinstance(LocalMonitor._read_ready(monitor), dict | None)


def flight_recorder(content: bytes, folder: Path) -> None:
    with patch.object(collectives, "query", lambda *_: content):
        for position in collectives.of_rank(folder, 0.0):
            encoded(position)


def dumps_for_torch(content: bytes, folder: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr(f"{FILE}0.json", content)
    flight_dumps.write(archive.getvalue(), folder, 2)


def stack_of_py_spy(content: bytes, _: Path) -> None:
    text = content.decode(errors="replace")
    frames, _threads = formats.from_py_spy(text, 7)
    formats.main_thread(text, 7)
    encoded(frames[0])


def main_thread(content: bytes, _: Path) -> None:
    formats.main_thread(content.decode(errors="replace"), 7)


def launches(content: bytes, folder: Path) -> None:
    file_in(folder, LAUNCHES, content)
    assert LaunchHistory(folder).past(2).launches in range(10)


def answer_of_a_worker(content: bytes, _: Path) -> None:
    worker: Any = SimpleNamespace(_data=child.HEADER.pack(len(content)) + content)
    answer = PrewarmedWorker._next(worker)
    assert answer is not None
    TypeAdapter(Answer).validate_json(json.dumps(asdict(answer)), strict=True)


def directive(content: bytes, _: Path) -> None:
    encoded(answers.read_directive(answers.read_object(content)))


def access_file(content: bytes, folder: Path) -> None:
    list(access._read(file_in(folder, "access", content)))


def learned(content: bytes, folder: Path) -> None:
    file_in(folder, env.LEARNED_FILE, content)
    with patch.object(launcher_requests, "_writer", SimpleNamespace(folder=folder)):
        launcher_requests.learned_timeouts()


def slots(content: bytes, folder: Path) -> None:
    made = Slots.create(folder / "slots")
    try:
        body = content[:SETTINGS_BYTES]
        made._view[SETTINGS_OFFSET : SETTINGS_OFFSET + len(body)] = body
        made.words[SETTINGS_LENGTH] = len(body)
        assert made.settings() is not None
    finally:
        made.close()


def detail_of_a_refusal(content: bytes, _: Path) -> None:
    assert isinstance(_detail(io.BytesIO(content)), str)


def reader_of_a_record(content: bytes, folder: Path) -> None:
    path = file_in(folder, "reader", content)
    with patch.object(readers, "_file", lambda *_, **__: path), patch.object(readers, "written", lambda _: 1.0):
        assert readers.running(folder) is None


def facts_of_a_reader(content: bytes, folder: Path) -> None:
    assert isinstance(past_reader._read(file_in(folder, "ready", content)), dict | None)


def encoded(shape: Any) -> None:
    """What was read can be sent on as what it is declared to be."""
    try:
        plain = json.dumps(asdict(shape), allow_nan=False, ensure_ascii=False).encode()
        TypeAdapter(type(shape)).validate_json(plain, strict=True)
    except ValueError as error:
        raise AssertionError(shape) from error


ENTRY: Final = {
    "process_group": ["0", "default_pg"], "pg_id": 0, "record_id": 3, "collective_seq_id": 3, "is_p2p": False,
    "profiling_name": "nccl:all_reduce", "state": "scheduled", "time_discovered_completed_ns": None,
    "input_sizes": [[4]], "input_dtypes": ["Float"], "thread_id": "1",
}  # fmt: skip
RECORDER: Final = {"entries": [ENTRY], "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}
FRAME: Final = {"name": "train", "filename": "/train.py", "line": 3}
THREAD: Final = {"pid": 7, "os_thread_id": 7, "thread_id": 9, "thread_name": "MainThread", "frames": [FRAME]}
ACCESS: Final = asdict(MonitorAccess("http://127.0.0.1:1", "j", os.getpid(), "t", "i", socket.gethostname()))
LAUNCH: Final = {"outcome": asdict(Outcome(FINISHED, 0)), "counted": True}
LOG_REQUEST: Final = asdict(LogRequest("q", 1, (0, 3), 4096, {"3.output": 7}, whole=True))
NO_OBJECT: Final = (ValueError,)
MEMBER: Final = asdict(RankProcess(0, "n", "h", 1, "7", "127.0.0.1"))
PLAN: Final = json.loads(json.dumps(asdict(IterationPlan(1, (0, 1), (2,), {3: "why"}, {3: 1}, "rank 3 is lost", 3))))

READERS: Final[dict[str, Reader]] = {
    "shell/rank_error.py::_from_error_file": Reader(ERROR, error_file),
    "coordination/store.py::_of": Reader(RECORDS["member/b"], lambda c, _: encoded(_of(Member)(c)), NO_OBJECT),
    "monitor/answers.py::read_directive": Reader(DIRECTIVE, directive, NO_OBJECT),
    "monitor/answers.py::read_log_request": Reader(
        LOG_REQUEST, lambda c, _: encoded(answers.read_log_request(answers.read_object(c))), NO_OBJECT
    ),
    "monitor/answers.py::read_object": Reader({"settings": SETTINGS}, lambda c, _: answers.read_object(c), NO_OBJECT),
    "monitor/process.py::_read_ready": Reader({"page": True}, ready_file),
    "node/learned_limits.py::_parse": Reader(
        LEARNED, lambda c, folder: learned_limits._parse(file_in(folder, "state", c)), NO_OBJECT
    ),
    "node/rank_requests.py::_read": Reader(REQUEST, request_of_a_rank),
    "outcome.py::read": Reader(
        asdict(Outcome(FINISHED, 0)), lambda c, folder: Outcome.read(file_in(folder, "outcome", c))
    ),
    "prewarm/handle.py::_next": Reader(
        {"imported": "torch", "error": "", "printed": 3, "started": 0},
        answer_of_a_worker, (OSError,),
    ),
    "schedulers/slurm_batch.py::past": Reader(LAUNCH, launches),
    "coordination/store_file.py::address": Reader(
        {"address": "node0", "port": 29400},
        lambda c, _: StoreFile.address(cast("StoreFile", SimpleNamespace(_text=lambda: c.decode(errors="replace")))),
    ),
    "diagnose/collect.py::_locals": Reader([THREAD | {"os_thread_id": 7}], locals_of_a_process),
    "diagnose/find.py::error_of": Reader(
        {"message": {"message": "ValueError: x"}},
        lambda c, folder: find.error_of(
            find.Rank(1, "job", 0, error_file=str(file_in(folder, "error", c)), user=os.geteuid())
        ),
    ),
    "stacks/collectives.py::_ranks": Reader(
        [0, 1], lambda c, _: collectives.from_flight_recorder({"pg_config": {"0": {"name": "", "ranks": c.decode()}}}),
        (ValueError, RecursionError),
    ),
    "stacks/collectives.py::of_rank": Reader(RECORDER, flight_recorder, NO_OBJECT),
    "stacks/formats.py::from_py_spy": Reader([THREAD], stack_of_py_spy, NO_OBJECT),
    "stacks/capture.py::_collectives": Reader(RECORDER, flight_recorder, NO_OBJECT),
    "stacks/ras_answer.py::report": Reader(
        json.loads(json_answer([json_rank(0, 7, AllReduce=8), json_rank(1, 8)], [missing_rank(2, 9)])),
        lambda c, _: encoded(ras_answer.report(c.decode(errors="replace")).bounded()), NO_OBJECT
    ),
    "stacks/collectives.py::from_flight_recorder": Reader(RECORDER, flight_recorder, NO_OBJECT),
    "stacks/formats.py::frame": Reader([THREAD], stack_of_py_spy, NO_OBJECT),
    "stacks/formats.py::main_thread": Reader([THREAD], main_thread, NO_OBJECT),
    "cli/flight_dumps.py::write": Reader(RECORDER, dumps_for_torch, NO_OBJECT),
    "cli/past.py::_read": Reader({"url": "http://127.0.0.1:9"}, facts_of_a_reader),
    "cli/readers.py::running": Reader(
        asdict(readers.Reader("http://127.0.0.1:9", "t", "elsewhere", 1.0, 7, "7")), reader_of_a_record
    ),
    "contract/access.py::_read": Reader(ACCESS, access_file),
    "inprocess/coordination.py::members": Reader(MEMBER, lambda c, _: in_process({"member/0": c}), (InProcessError,)),
    "inprocess/coordination.py::plan": Reader(PLAN, lambda c, _: in_process({"plan/1": c}), (InProcessError,)),
    "inprocess/store_server.py::lines": Reader(
        asdict(RankLine(1, "why")), lambda c, _: in_process({"lost": c, "0/back": c, "0/finished": c})
    ),
    "integrations/shared/state_file.py::read": Reader(
        LEARNED, lambda c, folder: StateFile(file_in(folder, "state", c), logging.getLogger("x")).learned()
    ),
    "launcher_requests.py::learned_timeouts": Reader(LEARNED, learned),
    "monitor_client.py::_detail": Reader({"detail": "why"}, detail_of_a_refusal),
    "monitor_client.py::_json": Reader(
        {"jobs": []}, lambda c, _: MonitorClient("http://127.0.0.1:9")._json(c), (MonitorError,)
    ),
    "recording/shared_slots.py::settings": Reader(SETTINGS, slots),
}  # fmt: skip


# What the ranks share about restarts in the process -------------------------------------------------------------------

WORLD: Final = 4


def coordination(store: HashStore) -> Coordination:
    """One over a store in this process."""
    made = Coordination.__new__(Coordination)
    made._store, made._world, made._noticed, made.poll_interval = PrefixStore("c", store), WORLD, set(), 0.001
    return made


def in_process(content: dict[str, bytes]) -> None:
    """All that a rank does with what it finds; what is none of a rank's is ignored, or ends it with the one error."""
    store = HashStore()
    ranks = coordination(store)
    for rank in range(WORLD):
        ranks.register(RankProcess(rank, f"n{rank}", "h", 1, "7", "127.0.0.1"))
    for key, value in content.items():
        store.set(f"c/{key}", value)
    members = ranks.members(WORLD, 1.0)
    rank_process.is_dead(members[0])
    assert ranks.end_status(0) in (b"", DONE, INTERRUPTED)
    ranks.interrupt(0, FailureRecord(1, FailureKind.RAISED, "raised"))
    for rank in range(WORLD):
        ranks.check_in(0, rank, "")
    unfit = {rank: why for rank, why in ranks.checked_in(0).items() if why}
    rules = RestartRules(KeepWorldSize(), max_rank_faults=1)
    plan = IterationPlan(0, (0, 1, 2), (3,))
    nodes = [member.node for member in members]
    ranks.propose(decide(plan, ranks.records(0), ranks.lost(), unfit, nodes, rules))
    following = ranks.plan(1)
    assert following is not None
    for rank in range(WORLD):
        state_of(following, rank, WORLD)
    decide(following, ranks.records(0), ranks.lost(), {}, nodes, rules)
    ranks.completed(0)
    if (found := ranks.master(1)) is not None:
        assert found[1].isdigit()
    for rank in range(WORLD):
        ranks.deregister(rank, WORLD)
    assert store_server._is_finished(ranks._store), "all have deregistered, whatever else is written there"


@pytest.mark.parametrize("key", ["0/records", "0/end", "1/master"])
def test_whatever_is_in_the_store_of_restarts_in_the_process_a_rank_goes_on(key: str) -> None:
    wholes = {"0/records": asdict(FailureRecord(2, FailureKind.GONE, "is lost")), "0/end": "done", "1/master": "h 1"}

    @EXAMPLES
    @given(content=st.one_of(changed(wholes[key]), st.binary(max_size=20)))
    def look(content: Any) -> None:
        with contextlib.suppress(InProcessError):
            in_process({key: written(content)})

    look()


@pytest.mark.parametrize(
    "wrong",
    [{"iteration": 2}, {"places": [0, 0]}, {"places": [0, 4]}, {"places": [-1]}, {"excluded": {"9": "x"}},
     {"places": []}],
    ids=str,
)  # fmt: skip
def test_a_plan_of_other_ranks_than_the_job_has_ends_the_processes_in_words(wrong: dict[str, Any]) -> None:
    store = HashStore()
    store.set("c/plan/1", json.dumps({**PLAN, **wrong}))
    with pytest.raises(InProcessError):
        coordination(store).plan(1)


def test_what_is_ignored_there_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = HashStore()
    store.set("c/lost", b'{"rank": 1, "why": "left"}\n{"rank": "x"}\n{"rank": 99, "why": "no rank"}\n')
    ranks = coordination(store)
    with caplog.at_level(logging.WARNING):
        assert [ranks.lost() for _ in range(3)] == [{1: "left"}] * 3
    assert len(caplog.records) == 1


def test_a_world_of_any_size_keeps_the_store_from_nothing() -> None:
    store = HashStore()
    store.set("c/ranks", b"9" * 18)
    assert not store_server._is_finished(PrefixStore("c", store))
    store.set("c/ranks", b"many")
    assert not store_server._is_finished(PrefixStore("c", store))


# A prewarmed worker, in which modules of the user run -----------------------------------------------------------------


@pytest.mark.parametrize(
    "sends",
    [b"\xff" * 8, child.HEADER.pack(1 << 40), child.HEADER.pack(2) + b"[]", child.HEADER.pack(3) + b"xxx"],
    ids=["length", "huge", "list", "no JSON"],
)
def test_a_worker_that_sends_what_is_no_answer_disables_the_pool(sends: bytes) -> None:
    ours, theirs = socket.socketpair()
    killed: list[bool] = []

    class Worker:
        busy, imported, _connection, _data = "torch", [], ours, b""
        answers, _next, _read = PrewarmedWorker.answers, PrewarmedWorker._next, PrewarmedWorker._read

        def kill(self) -> None:
            killed.append(True)

    pool = PrewarmPool(PrewarmSettings(), dict)
    worker: Any = Worker()
    pool._workers[0] = worker
    with ours, theirs:
        theirs.sendall(sends)
        pool._read_answers()
    assert pool.disabled
    assert killed == [True]


def test_a_worker_that_drips_its_answer_does_not_hold_up_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "ANSWER_SECONDS", 0.1)
    ours, theirs = socket.socketpair()
    worker: Any = SimpleNamespace(environment={}, _data=b"", _connection=ours, _send=lambda *_: None)

    def drip() -> None:
        theirs.sendall(b" ")
        PrewarmedWorker._read(worker)

    worker._next, worker._read = lambda: None, drip
    with ours, theirs, pytest.raises(TimeoutError):
        PrewarmedWorker.start(worker, {}, (), "/")


# All of them ----------------------------------------------------------------------------------------------------------

EXAMPLES: Final = settings(
    max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
DEEP: Final = (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000)


@pytest.mark.parametrize("name", READERS)
def test_whatever_it_holds_it_is_read_or_refused(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = READERS[name]
    reader.read(written(reader.whole), tmp_path_factory.mktemp("whole"))
    folder = tmp_path_factory.mktemp("one")
    for content in DEEP:
        with contextlib.suppress(*reader.refuses):
            reader.read(content, folder)

    @EXAMPLES
    @given(content=st.one_of(changed(reader.whole), st.binary(max_size=20)))
    def look(content: Any) -> None:
        with contextlib.suppress(*reader.refuses):
            reader.read(written(content), folder)

    look()


def _decoding(path: Path) -> Iterator[str]:
    """The functions of a file that decode something, methods included."""
    tree = ast.parse(path.read_text())
    shapes = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankwatch.contract.")
        for alias in node.names
        if alias.name in ("read", "read_text", "decoded")
    }
    packed = {"unpack", "unpack_from", "iter_unpack"}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            named = isinstance(node, ast.Name) and node.id in shapes
            attribute = isinstance(node, ast.Attribute) and (
                node.attr in packed
                or (isinstance(node.value, ast.Name) and node.attr in DECODERS.get(node.value.id, ()))
            )
            if named or attribute:
                yield function.name


def test_every_place_that_decodes_something_is_in_the_table() -> None:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT / package))
            if not name.startswith(tuple(APART)):
                found |= {f"{name}::{function}" for function in _decoding(path)}
    assert found == set(READERS)


def test_those_apart_are_there() -> None:
    for name in APART:
        assert any((ROOT / package / name).exists() for package in PACKAGES), name
