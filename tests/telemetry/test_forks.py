"""Processes that a watched script starts: they begin and work as they would without us, and none runs OpenTelemetry."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwatch.contract import env
from rankwatch_launcher.prewarm.bootstrap import Bootstrap
from support.processes import MARK, end_marked
from support.waiting import wait_for
from telemetry.receiver import Answer, Receiver

SCRIPT = Path(__file__).with_name("forking.py")
PROJECT = SCRIPT.parents[2] / "pyproject.toml"
PATIENCE = 250.0
"""Seconds for one script; up to three interpreters import torch one after the other, perhaps on a machine too busy."""
HOOK = re.compile(r".*\.<locals>\._after_in_child")
"""What a provider of the SDK registers: it looks whether there is still a provider, and calls it if so."""

Reported = dict[str, dict[str, list[str]]]
Run = Callable[..., Reported]


@pytest.fixture
def run(receiver: Receiver) -> Iterator[Run]:
    """Runs the script as a rank, or with ``watched=False`` by itself; what it has started ends with the test."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="rw") as folder:  # it holds a socket: pytest's folders are too long for it

        def begin(*flags: str, watched: bool = True, first_line: Bootstrap | None = None, path: str = "") -> Reported:
            variables = dict(os.environ) | {MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
            if watched:
                variables |= {env.MONITOR_URL: receiver.url, "RANKWATCH_EXPORT_INTERVAL": "0.05"}
                variables |= {env.SLOTS_DIR: folder, env.STOP_SIGNAL: "15"}
                receiver.answer = Answer(503)  # nothing has been exported when the script first starts processes
            log = Path(folder, "said")
            with log.open("wb") as printed:
                process = subprocess.Popen(
                    [sys.executable, "-u", str(SCRIPT), *flags],
                    env=(first_line or Bootstrap()).environment(variables),
                    stdin=subprocess.PIPE,
                    stdout=printed,
                    stderr=printed,
                )
            try:
                wait_for(lambda: b"again\n" in log.read_bytes() or process.poll() is not None, "all ran once", PATIENCE)
                assert process.poll() is None, log.read_text()
                receiver.answer = Answer()
                if watched and "--lightning" not in flags:  # whose session has ended with fit()
                    receiver.wait_for_report()
                process.communicate(b"\n", PATIENCE)
            finally:
                end_marked(mark)
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
            assert process.returncode == 0, log.read_text()
            assert watched is bool(receiver.reports)
            reported: Reported = json.loads(
                next(line for line in log.read_text().splitlines() if line.startswith('{"'))
            )
            return reported

        yield begin


def nothing_ran(reported: Reported) -> bool:
    """Whether the hooks of the SDK, if there were any, found nothing to call."""
    return all(HOOK.fullmatch(name) for names in reported["of the SDK"].values() for name in names)


@pytest.mark.timeout(600)
def test_workers_of_a_script_that_begins_with_init(run: Run) -> None:
    reported = run("--init")
    assert nothing_ran(reported), reported


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_of_a_script_that_was_never_touched(run: Run) -> None:
    reported = run("--all", first_line=Bootstrap(auto=True))
    assert nothing_ran(reported), reported


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flag", ["--late-init", "--nvrx", "--lightning", "--hugging-face"])
def test_workers_of_every_kind(run: Run, flag: str) -> None:
    for needed in {"--lightning": ["lightning"], "--hugging-face": ["transformers", "accelerate"]}.get(flag, []):
        pytest.importorskip(needed)
    reported = run("--all", flag, first_line=Bootstrap(stand_in="nvrx" if flag == "--nvrx" else ""))
    assert nothing_ran(reported), reported


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_of_every_kind_without_us(run: Run) -> None:
    """The silent twin: the script itself is not at fault."""
    reported = run("--all", watched=False)["of the SDK"]
    assert reported["fork"] == []
    assert "forkserver" in reported


def oldest_allowed() -> str:
    """The oldest minor version of the SDK that ``pyproject.toml`` allows."""
    needed = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    return next(found[1] for each in needed if (found := re.fullmatch(r"opentelemetry-sdk>=([\d.]+)", each)))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [f"=={oldest_allowed()}.*", f">={oldest_allowed()}"], ids=["oldest", "newest"])
def test_workers_beside_the_oldest_and_the_newest_sdk(run: Run, version: str, tmp_path: Path) -> None:
    wanted = [f"opentelemetry-{name}{version}" for name in ("sdk", "exporter-otlp-proto-common")]
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"{wanted} cannot be fetched here: {fetched.stderr.strip()[-300:]}")
    (installed,) = tmp_path.glob("opentelemetry_sdk-*.dist-info")
    for flags, first_line in (((), Bootstrap(auto=True)), (("--late-init",), Bootstrap())):
        reported = run(*flags, first_line=first_line, path=str(tmp_path))
        assert f"opentelemetry_sdk-{reported['sdk']}.dist-info" == installed.name
        assert nothing_ran(reported), reported
