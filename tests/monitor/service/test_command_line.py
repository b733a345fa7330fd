"""The command: what it refuses with words, how it listens, and how it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from rankwatch_monitor.cli import serve
from support.forked import MONITOR, ForkedPopen
from support.monitor_process import Api, environment, running_monitor
from support.otlp import rank_report
from support.waiting import wait_for


class Wrong(NamedTuple):
    flags: tuple[str, ...]
    words: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """Variables of the environment."""


WRONG = {
    "beyond loopback without a token": Wrong(
        ("--host", "0.0.0.0"), ("0.0.0.0", "token", "RANKWATCH_TOKEN", "127.0.0.1")
    ),
    "beyond loopback with a reading token only": Wrong(
        ("--host", "0.0.0.0", "--read-token", "r"), ("0.0.0.0", "token", "RANKWATCH_TOKEN")
    ),
    "beyond loopback by the environment": Wrong((), ("token",), (("RANKWATCH_MONITOR_HOST", "::"),)),
    "a certificate without a key": Wrong(("--tls-cert", "{cert}"), ("--tls-cert", "--tls-key", "together")),
    "a key without a certificate": Wrong(("--tls-key", "{cert}"), ("--tls-cert", "--tls-key", "together")),
    "a certificate that is not there": Wrong(("--tls-cert", "no.pem", "--tls-key", "{cert}"), ("--tls-cert", "no.pem")),
    "a certificate that is none": Wrong(("--tls-cert", "{cert}", "--tls-key", "{cert}"), ("--tls-cert", "certificate")),
    "a port in use": Wrong(("--port", "{port}"), ("{port}", "--port 0")),
    "a descriptor that is none": Wrong(("--listen-fd", "987654"), ("--listen-fd", "987654", "socket")),
    "a port beyond all ports": Wrong(("--port", "70000"), ("--port", "65535", "70000")),
    "a port that is no number": Wrong(("--port", "http"), ("--port", "http")),
    "a port that is no number by the environment": Wrong(
        (), ("RANKWATCH_MONITOR_PORT", "http"), (("RANKWATCH_MONITOR_PORT", "http"),)
    ),
    "a host that is none": Wrong(("--host", "no.such.host.invalid", "--token", "t"), ("no.such.host.invalid",)),
    "an unwritable database": Wrong(("--database", "{file}/rankwatch.db"), ("database", "{file}")),
    "a database that is a folder": Wrong(("--database", "{folder}"), ("database", "{folder}")),
    "a database that is another file": Wrong(("--database", "{file}"), ("database", "{file}")),
    "a database of an unknown kind": Wrong(("--database", "nosuch://x"), ("database", "nosuch")),
    "an unwritable ready file": Wrong(("--ready-file", "{file}/ready.json"), ("--ready-file", "{file}")),
    "an unknown flag": Wrong(("--prot", "1"), ("--prot",)),
    "an unknown log level": Wrong(("--log-level", "loud"), ("--log-level", "loud", "info")),
}


REAL = ("beyond loopback without a token", "a certificate without a key", "a port in use", "an unwritable database")
"""Tried with a process of their own; for the others the command's function is called, which spares Python's start."""


class Places(NamedTuple):
    cert: str
    file: str
    folder: str
    port: str


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """What stands in the braces of the table above."""
    folder = tmp_path_factory.mktemp("wrong")
    file = folder / "taken.txt"
    file.write_text("this is no certificate and no database, " * 50)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield Places(str(file), str(file), str(folder), str(taken.getsockname()[1]))


@pytest.fixture(scope="module")
def refusals(places: Places) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The real processes, started all at the same time."""
    with contextlib.ExitStack() as stack:
        started = {}
        for name in REAL:
            command = [sys.executable, "-m", "rankwatch_monitor", *flags_of(WRONG[name], places)]
            variables = environment(**dict(WRONG[name].settings))
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started[name] = ForkedPopen(command, preload=MONITOR, env=variables, **pipes)
            stack.callback(started[name].communicate)
            stack.callback(started[name].kill)
        yield started


def flags_of(wrong: Wrong, places: Places) -> list[str]:
    port = [] if dict(wrong.settings).get("RANKWATCH_MONITOR_PORT") else ["--port", "0"]
    defaults = [*port, "--database", f"{places.folder}/rankwatch.db"]
    return defaults + [flag.format(**places._asdict()) for flag in wrong.flags]


def check(name: str, places: Places, code: int, errors: str) -> None:
    assert "Traceback" not in errors
    assert code == 2, errors
    assert errors.splitlines()[-1].startswith("rankwatch monitor: ")
    for word in WRONG[name].words:
        assert word.format(**places._asdict()) in errors


@pytest.mark.parametrize("name", REAL)
def test_settings_that_make_no_sense_end_the_command_with_words_and_code_2(
    refusals: dict[str, subprocess.Popen[str]], places: Places, name: str
) -> None:
    printed, errors = refusals[name].communicate(timeout=180)
    assert printed == ""
    check(name, places, refusals[name].returncode, errors)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", sorted(set(WRONG) - set(REAL)))
def test_other_settings_that_make_no_sense_are_refused_likewise(
    places: Places, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in [known for known in os.environ if known.startswith("RANKWATCH_")]:
        monkeypatch.delenv(variable)
    for variable, value in WRONG[name].settings:
        monkeypatch.setenv(variable, value)
    try:
        code = serve(flags_of(WRONG[name], places))
    except SystemExit as ended:
        code = ended.code
    check(name, places, code, capsys.readouterr().err)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_saves_what_it_holds_and_ends_with_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with running_monitor(tmp_path) as monitor, Api(monitor.url) as api:
        api.report(rank_report("kept", 0, 1, iteration=3))
        api.change_policy("kept", max_restarts=5)
        # A live stream is open: it must not keep the monitor from ending.
        with api.stream("GET", "/api/v1/events") as stream:
            next(stream.iter_lines())
            monitor.process.send_signal(number)
            code = monitor.process.wait(15)
        assert code == 0, monitor.printed()
        assert f"the monitor has shut down ({number.name})" in monitor.printed()
    with running_monitor(tmp_path, database=monitor.database) as again, Api(again.url) as api:
        assert api.job("kept")["max_restarts"] == 5


def test_it_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with running_monitor(tmp_path, "--parent-pid", str(parent.pid)) as monitor:
            with Api(monitor.url) as api:
                assert api.get("/livez").status_code == 200
            parent.kill()
            parent.communicate()
            wait_for(lambda: monitor.process.poll() is not None, "the monitor ends after its parent")
            assert monitor.process.returncode == 0
            assert str(parent.pid) in monitor.printed()
            assert not (tmp_path / "ready.json").exists(), "nobody else removes it"
            assert monitor.database.exists(), "and nothing beside it"
    finally:
        parent.kill()
        parent.communicate()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl, to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = [openssl, "req", "-x509", *kind, *subject, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return cert, key


def test_https_with_a_self_made_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with running_monitor(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), "--token", "t") as monitor:
        assert monitor.url.startswith("https://127.0.0.1:")
        with Api(monitor.url, "t", verify=ssl.create_default_context(cafile=str(cert))) as api:
            api.report(rank_report("safe", 0, 1))
            assert [each["id"] for each in api.jobs()] == ["safe"]
        with Api(monitor.url, "t") as stranger, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.get("/livez")
        with Api(monitor.url.replace("https", "http"), "t") as unsafe, pytest.raises(httpx.RemoteProtocolError):
            unsafe.get("/livez")


def test_beyond_loopback_it_listens_with_a_token_and_warns_that_it_travels_in_clear(tmp_path: Path) -> None:
    with running_monitor(tmp_path, "--host", "0.0.0.0", settings={"RANKWATCH_TOKEN": "t"}) as monitor:
        with Api(monitor.url.replace("0.0.0.0", "127.0.0.1")) as api:
            assert api.get("/api/v1/jobs").status_code == 401
            assert api.get("/api/v1/jobs", headers={"Authorization": "Bearer t"}).status_code == 200
        wait_for(lambda: "clear" in monitor.printed(), "the warning is written")
        assert "--tls-cert" in monitor.printed()


def test_answers_on_a_kept_connection_come_at_once(tmp_path: Path) -> None:
    """Without TCP_NODELAY each would wait 40 ms for the client's delayed acknowledgement: that of each rank, too."""
    with running_monitor(tmp_path) as monitor, Api(monitor.url) as api:
        taken = []
        for _ in range(40):
            began = time.perf_counter()
            api.get("/livez")
            taken.append(time.perf_counter() - began)
        assert min(taken) < 0.02
