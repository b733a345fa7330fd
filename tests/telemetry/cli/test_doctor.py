"""``rankwatch doctor``: each check with what is well and its twin that is not, mostly against the real thing."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import rankwatch
from rankwatch.cli.doctor import doctor, monitor_checks, node_checks, package_checks
from rankwatch.cli.doctor.finding import Finding, Level
from rankwatch.contract.files import find_program
from rankwatch.recording.shared_slots import Slots
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor, running_monitor

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def named(findings: Sequence[Finding] | Iterator[Finding], name: str) -> Finding:
    [found] = [each for each in findings if each.name == name]
    return found


def bad(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.level is not Level.OK]


# The monitor ----------------------------------------------------------------------------------------------------------


def test_a_monitor_that_is_well(monitor: RunningMonitor) -> None:
    found = list(monitor_checks.checks(monitor.url, None, named=True))
    assert bad(found) == []
    assert [each.name for each in found] == ["monitor", "version", "clock", "token", "telemetry"]


def test_nothing_of_a_check_stays_behind(monitor: RunningMonitor) -> None:
    with Api(monitor.url) as api:
        before = api.jobs()
        assert bad(list(monitor_checks.checks(monitor.url, "unneeded", named=True))) == []
        assert api.jobs() == before


@pytest.mark.parametrize("is_named", [True, False])
def test_a_monitor_that_is_away_is_a_fault_only_if_configured(is_named: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        [found] = monitor_checks.checks(url, None, named=is_named)
    assert found.level is (Level.FAULT if is_named else Level.OK)
    assert ("start it on this machine" in found.mend) is is_named


def test_an_address_that_is_none() -> None:
    [found] = monitor_checks.checks("nonsense", None, named=True)
    assert found.level is Level.FAULT
    assert "not 'nonsense'" in found.found


@pytest.fixture
def fake_server() -> Iterator[tuple[str, dict[str, tuple[int, bytes, dict[str, str]]]]]:
    """A server with answers by path (else 404): status, body, headers."""
    answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body, headers = answers.get(self.path, (404, b"", {}))
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_is_no_monitor(fake_server: tuple[str, dict]) -> None:
    url, answers = fake_server
    assert "answers 404 to /livez" in next(monitor_checks.checks(url, None, named=True)).found
    answers["/livez"] = (200, b"{}", {})
    [found] = monitor_checks.checks(url, None, named=True)
    assert "is not a Rankwatch monitor" in found.found


def test_an_answer_without_end_and_one_that_is_nested_without_end(fake_server: tuple[str, dict]) -> None:
    url, answers = fake_server
    for body in (b" " * (monitor_checks.LARGEST_ANSWER + 1), b"[" * 200_000):
        answers["/livez"] = (200, body, {})
        assert len(monitor_checks._request(url, "/livez").body) <= monitor_checks.LARGEST_ANSWER
        [found] = monitor_checks.checks(url, None, named=True)
        assert "is not a Rankwatch monitor" in found.found


def test_another_version_another_clock_and_refused_telemetry(fake_server: tuple[str, dict]) -> None:
    url, answers = fake_server
    about = {"status": "alive", "rankwatch": "7.1.0"}
    answers["/livez"] = (200, json.dumps(about).encode(), {"Date": "Thu, 09 Oct 2025 14:00:00 GMT"})
    answers["/readyz"] = (503, b'{"detail": "the database refuses rows"}', {})
    answers["/api/v1/jobs"] = (200, b'{"jobs": []}', {})
    answers["/v1/metrics"] = (503, b"", {})
    found = list(monitor_checks.checks(url, None, named=True))
    assert named(found, "monitor").found.endswith("not ready: the database refuses rows")
    assert named(found, "version").level is Level.FAULT
    assert f"{rankwatch.__version__} here, 7.1.0 at the monitor" in named(found, "version").found
    assert named(found, "clock").level is Level.WARNING
    assert "ahead of the monitor's" in named(found, "clock").found
    assert named(found, "telemetry").level is Level.FAULT
    assert all(each.mend for each in bad(found))


def test_what_each_token_may(tmp_path: Path) -> None:
    with running_monitor(tmp_path, "--token", "all", "--read-token", "looks", "--ingest-token", "sends") as guarded:

        def answers(token: str | None) -> Finding:
            return named(monitor_checks.checks(guarded.url, token, named=True), "token")

        assert answers("all").found == "it allows ingest, read, control"
        assert answers("sends").found.startswith("it allows ingest; this is the ranks' one")
        assert answers("looks").level is Level.WARNING
        assert answers("looks").found == "it allows read; ranks could not send with it"
        assert (answers("wrong").level, answers("wrong").found) == (
            Level.FAULT,
            "the monitor rejects it: the token is wrong",
        )
        assert answers(None).level is Level.FAULT
        assert "RANKWATCH_TOKEN" in answers(None).mend


# The machine ----------------------------------------------------------------------------------------------------------


def test_settings_that_make_no_sense_are_named() -> None:
    found = list(node_checks.settings({"RANKWATCH_EXPORT_INTERVAL": "soon"}))
    assert [each.level for each in found] == [Level.WARNING]
    assert found[0].found.startswith("RANKWATCH_EXPORT_INTERVAL must be a number of seconds")
    [well] = node_checks.settings({"RANKWATCH_EXPORT_INTERVAL": "2"})
    assert well.level is Level.OK


def test_a_token_is_never_printed() -> None:
    [found] = node_checks.settings({"RANKWATCH_TOKEN": "very-secret"})
    assert "very-secret" not in found.found
    assert "RANKWATCH_TOKEN" in found.found


@pytest.mark.skipif(find_program("py-spy") is None, reason="py-spy is not installed")
def test_the_right_to_take_stacks_is_really_tried() -> None:
    found = node_checks.stacks()
    assert found.level in (Level.OK, Level.WARNING)
    assert ("reads a process here" in found.found) is (found.level is Level.OK)
    assert "CAP_SYS_PTRACE" in found.found


def test_a_py_spy_that_has_no_right_and_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    denied = node_checks.stacks()
    assert denied.level is Level.WARNING
    assert "Permission Denied" in denied.found
    assert "--cap-add SYS_PTRACE" in denied.mend
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node_checks.stacks().mend == "pip install py-spy"


def test_memory_for_slots(tmp_path: Path) -> None:
    well = node_checks.memory(tmp_path)
    assert well.level is Level.OK
    assert list(tmp_path.iterdir()) == [], "what was tried is removed"
    assert node_checks.memory(tmp_path / "nowhere").level is Level.WARNING


@pytest.mark.parametrize(("soft", "level"), [(128, Level.FAULT), (1024, Level.WARNING), (65536, Level.OK)])
def test_open_files(soft: int, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 65536))
    found = node_checks.files()
    assert found.level is level
    assert ("ulimit -n 65536" in found.mend) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("variables", "url", "level"),
    [
        ({}, "http://127.0.0.1:9560", Level.OK),
        ({"http_proxy": "http://p:3128", "no_proxy": "localhost,127.0.0.1"}, "http://127.0.0.1:9560", Level.OK),
        ({"http_proxy": "http://p:3128"}, "http://127.0.0.1:9560", Level.WARNING),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "localhost,127.0.0.1"}, "http://head:9560", Level.WARNING),
        ({"http_proxy": "http://p:3128", "no_proxy": "localhost,127.0.0.1,head"}, "http://head:9560", Level.OK),
    ],
)
def test_proxies(variables: dict[str, str], url: str, level: Level) -> None:
    [found] = node_checks.proxies(url, variables)
    assert found.level is level
    assert ("export no_proxy=127.0.0.1,localhost" in found.mend) is (level is Level.WARNING)


def test_the_password_of_a_proxy_is_not_printed() -> None:
    [found] = node_checks.proxies("http://127.0.0.1:1", {"http_proxy": "http://me:secret@p:3128"})
    assert "secret" not in found.found


def test_slots_of_a_launcher_and_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checks, "MEMORY", tmp_path)
    monkeypatch.setattr(node_checks.tempfile, "gettempdir", lambda: str(tmp_path))
    [none] = node_checks.launchers()
    assert none.found == "none runs ranks on this machine"
    slots = Slots.create(tmp_path / "rankwatch-a;b" / "attempt-2" / "0.slots")
    slots.claim(rank=4, local_rank=0, world_size=8, attempt=2)
    [runs] = node_checks.launchers()
    assert runs.level is Level.OK
    assert "attempt-2: 1 rank (4)" in runs.found
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    from rankwatch.recording.shared_slots import PID

    slots.words[PID] = gone.pid
    [left] = node_checks.launchers()
    slots.close()
    assert left.level is Level.WARNING
    assert left.mend.endswith(f"rm -r '{tmp_path}/rankwatch-a;b'")


# The packages ---------------------------------------------------------------------------------------------------------

WELL = {
    "driver": True,
    "nvml": {"metrics": 9, "reason": None},
    "torch": "2.13.0",
    "launcher": {"complaint": None, "untested": None, "missing": []},
    "control_plane": None,
    "gpus": 8,
    "kernels": {"source": "cupti", "reason": ""},
}


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page and manual are built, whatever this checkout has."""
    monkeypatch.setattr(package_checks, "is_built", lambda folder: True)


@pytest.mark.parametrize("part", ["page", "manual"])
def test_a_part_of_the_monitor_that_is_not_built_is_a_warning(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    folder = {"page": "static", "manual": "manual"}[part]
    monkeypatch.setattr(package_checks, "is_built", lambda path: path.name != folder)
    [missing] = bad(list(package_checks.page()))
    assert (missing.name, missing.level) == (part, Level.WARNING)
    assert "make" in missing.mend


def test_packages_that_are_well() -> None:
    assert bad(list(package_checks.checks(WELL))) == []


@pytest.mark.parametrize(
    ("more", "name", "level"),
    [
        ({"nvml": {"metrics": 0, "reason": "libnvidia-ml.so.1 was not found"}}, "nvml", Level.WARNING),
        ({"kernels": {"source": None, "reason": "cupti-python is not installed"}}, "kernel timings", Level.WARNING),
        ({"control_plane": "this torch has no worker control plane"}, "control plane", Level.WARNING),
        ({"launcher": {"complaint": "torch 1.0 lacks A._b", "untested": None, "missing": []}}, "torch", Level.WARNING),
        ({"launcher": {"complaint": None, "untested": "torch 9.9 is untested", "missing": []}}, "torch", Level.WARNING),
    ],
)
def test_a_missing_package_is_a_warning_with_a_remedy(more: dict, name: str, level: Level) -> None:
    found = list(package_checks.checks({**WELL, **more}))
    assert [each.name for each in bad(found)] == [name]
    assert named(found, name).level is level
    assert named(found, name).mend


def test_a_machine_without_a_gpu_is_well() -> None:
    answers = {**WELL, "driver": False, "kernels": {"source": "kineto-cpu", "reason": "this process uses no GPU"}}
    assert bad(list(package_checks.checks(answers))) == []


def test_no_torch_is_no_fault_and_a_torch_that_dies_is_one() -> None:
    missing = list(package_checks.torch({"driver": False, "torch_missing": "No module named 'torch'"}))
    assert [each.level for each in missing] == [Level.WARNING]
    died = list(package_checks.torch({"driver": False, "died": "ended with code -6"}))
    assert [each.level for each in died] == [Level.FAULT]


def test_a_probe_that_crashes_keeps_its_earlier_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answers = package_checks.probe()
    assert "driver" in answers
    assert "torch" not in answers
    assert "code -6" in answers["died"]


def test_the_real_probe() -> None:
    pytest.importorskip("torch")
    answers = package_checks.probe()
    assert "died" not in answers
    assert answers["launcher"] == {"complaint": None, "untested": None, "missing": []}
    assert answers["control_plane"] is None
    assert answers["kernels"]["source"] or answers["kernels"]["reason"]


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_checks, "probe", lambda: WELL)


@pytest.mark.usefixtures("no_probe")
def test_exit_codes_and_lines(monitor: RunningMonitor, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["--monitor", monitor.url]) == 0
    printed = capsys.readouterr().out
    assert f"ok       monitor         {monitor.url} answers and is ready\n" in printed
    assert "0 faults" in printed.splitlines()[-1]
    assert doctor(["--monitor", "http://127.0.0.1:9"]) == 3
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("fault    monitor         nothing answers at http://127.0.0.1:9")
    assert any(line.lstrip().startswith("→ start it on this machine") for line in printed)


@pytest.mark.usefixtures("no_probe")
def test_json(monitor: RunningMonitor, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["--monitor", monitor.url, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert answers["faults"] == 0
    assert {"name", "level", "found", "mend"} == set(answers["findings"][0])


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Iterator[Finding]:
        raise RuntimeError("boom")
        yield

    monkeypatch.setattr(node_checks, "checks", broken)
    monkeypatch.setattr(package_checks, "checks", lambda: iter(()))
    assert doctor(["--monitor", "http://127.0.0.1:9"]) == 3
    assert "the check failed: RuntimeError('boom')" in capsys.readouterr().out


def test_promtool_is_no_fault_when_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert named(package_checks.extras(), "promtool").level is Level.OK
