"""Every block of the documents is executed: here, by a test of its page, or it is listed with the reason why not.

Python blocks without a test of their own run here in a process each, as a job of one rank that reports to a real
monitor; what a page leaves to the reader (``loader``, ``model``) is given. Commands that read, change and replay run
against that monitor, which has the jobs of the pages. Commands that start something are read as far as their settings.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from support.forked import ForkedPopen
from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import reports_of_all
from test_docs_blocks import ROOT, SHELL, Block, blocks, commands

pytestmark = pytest.mark.timeout(240)

INTEGRATIONS = "tests/telemetry/integrations"
PAGES = {
    "docs/faults.md": "tests/e2e/test_fault_kinds.py",  # its calls end the process
    "docs/hugging-face.md": f"{INTEGRATIONS}/transformers/test_page.py::test_its_code_runs",
    "docs/in-process.md": "tests/telemetry/inprocess/test_docs.py",
    "docs/lightning.md": f"{INTEGRATIONS}/lightning/test_documents.py::test_its_code_runs",
    "docs/megatron.md": f"{INTEGRATIONS}/megatron/test_page.py",
    "docs/nemo-run.md": f"{INTEGRATIONS}/nemo_run/test_nemo_run.py::test_every_block_of_the_page_runs",
    "docs/other-emitters.md": "tests/e2e/test_lens.py",
    "docs/quick-ddp.md": "tests/examples/test_quickstart.py",
    "docs/quick-hugging-face.md": "tests/examples/test_quickstart.py",
    "docs/quick-lightning.md": "tests/examples/test_quickstart.py",
    "docs/quick-nvrx-slurm.md": "tests/examples/test_quickstart.py",
    "docs/rerun.md": "tests/telemetry/rerun/test_documentation.py",
}
"""Pages whose Python blocks a test of their own executes."""
NOT_PYTHON = {
    "docs/webhooks.md": "the receiver's package, standardwebhooks, is not installed here",
}
"""Pages whose Python blocks are not executed, and why."""
SCRIPTS = {
    "docs/megatron.md": f"{INTEGRATIONS}/megatron/test_page.py::test_the_launchers_flags_are_accepted",
    "docs/other-emitters.md": "tests/e2e/test_lens.py",
    "docs/quick-nvrx-slurm.md": "tests/examples/test_quickstart.py",
}
"""Pages with shell scripts, which a test of their own executes."""
PROGRAMS = {
    "alertmanager": "another project's service: dashboards/README.md",
    "cp": "copies a file of the repository",
    "curl": "tests/monitor/http",
    "docker": "tests/containers/test_compose.py",
    "export": "a variable of the commands below it",
    "git": "clones the repository",
    "kubectl": "tests/examples/test_kubernetes.py",
    "make": "tests/test_repository.py::test_documents_name_only_commands_that_exist",
    "nginx": "tests/e2e/test_many_monitors.py",
    "otelcol-contrib": "tests/dashboards/test_collector.py",
    "pip": "tests/test_wheel.py",
    "prometheus": "another project's service: dashboards/README.md",
    "py-spy": "tests/launcher/stacks",
    "python": "a script of the repository, whose own tests or figures cover it",
    "sbatch": "tests/examples/test_quickstart.py",
    "scripts/debian.sh": "tests/test_matrix.py",
    "torchfrtrace": "tests/launcher/stacks/test_flight_dumps.py",
    "torchrun": "tests/e2e/test_watched_only.py",
    "wandb": "another project's command: docs/wandb.md",
}
"""Programs of command lines that are not Rankwatch's own, and what covers them or why nothing does."""
STARTING = {
    "check": "tests/launcher/job/test_pair_check.py",
    "diagnose": "tests/e2e/test_diagnose.py",
    "doctor": "tests/telemetry/cli/test_doctor.py",
    "incidents JOB ID --flight-recorder": "tests/telemetry/cli/test_flight_dumps.py",
    "logs": "tests/e2e/test_logs.py",
    "open": "tests/telemetry/cli/test_past.py",
    "order gpt-sweep-17 restart_excluding_node": "tests/telemetry/cli/test_actions.py",
    "slurm": "tests/e2e/test_slurm.py",
    "status gpt-sweep-17 --watch": "tests/telemetry/cli/test_status.py",
    "replay trace.parquet --json": "tests/monitor/replay/traces",
    "replay traces/ --json": "tests/monitor/replay/traces",
    "replay trace.csv.gz --time-unit us": "tests/monitor/replay/traces",
}
"""Commands that start a job, a browser or a live display, need ranks or recorders, or read what others recorded."""
READ_ONLY_AS_FAR_AS_SETTINGS = ("run", "monitor")

TOKEN = "a control token of this test"
JOBS = ("llama-8b", "mesh", "gpt-sweep-17", "train-5f3a9c1e", "ID", "JOB")
"""The jobs that the pages ask about."""
GIVEN = """
from types import SimpleNamespace
import torch
loader = [torch.randn(4, 8) for _ in range(3)]
model = torch.nn.Linear(8, 8)
start, steps = 0, 3
called = []
save = save_checkpoint = train_on = lambda *given: called.append(given)
"""
"""What pages leave to the reader."""


def page_of(block: Block) -> str:
    return block.place.rpartition(":")[0]


# Nothing is left out -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A command line of a block."""

    place: str
    program: str
    text: str


PROMPT = re.compile(r"^[\w@-]*\$ ")
VARIABLE = re.compile(r"^(?:\w+=(?:\$\([^)]*\)|'[^']*'|\"[^\"]*\"|\S)*\s+)+(?=\S)")


def command_lines(block: Block) -> Iterator[Line]:
    """The command lines of a block, those of Rankwatch too; blocks of output have none."""
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    prompted = any(PROMPT.match(line) for line in lines)
    words = {*PROGRAMS, "rankwatch"}
    if not prompted and block.language not in ("bash", "sh", "console"):
        first = [VARIABLE.sub("", line).partition(" ")[0] for line in lines if line.strip() and line[0] != "#"]
        if not first or not set(first) & words:
            return  # output, or a drawing
    for line in lines:
        if prompted and not PROMPT.match(line):
            continue  # what a command prints
        text = VARIABLE.sub("", PROMPT.sub("", line)).strip()
        if text and not text.startswith("#"):
            yield Line(block.place, text.partition(" ")[0], text)


def test_every_block_is_executed_or_listed() -> None:
    unknown = []
    for block in blocks():
        page = page_of(block)
        if block.language == "python":
            if page not in PAGES and page not in NOT_PYTHON and block not in PYTHON:
                unknown.append(f"{block.place}: python")
        elif block.language in ("json", "yaml", "yml"):
            continue  # data: parsed by test_docs_blocks.py
        elif block.language not in SHELL:
            unknown.append(f"{block.place}: a block of {block.language}")
        elif not (block.language == "bash" or block.text.startswith("#!")) or page not in SCRIPTS:
            unknown += [
                f"{line.place}: {line.text}"
                for line in command_lines(block)
                if line.program != "rankwatch" and line.program not in PROGRAMS
            ]
    assert not unknown, "neither executed nor listed:\n" + "\n".join(unknown)


def test_what_is_listed_is_there() -> None:
    """Each test that a reason names exists, and nothing is listed that no document has any more."""
    for reason in {*PAGES.values(), *SCRIPTS.values(), *PROGRAMS.values(), *STARTING.values()}:
        if reason.startswith("tests/"):
            file, _, name = reason.partition("::")
            assert (ROOT / file).exists(), reason
            assert not name or f"def {name}(" in (ROOT / file).read_text(), reason
    pages = {page_of(block) for block in blocks() if block.language == "python"}
    assert {*PAGES, *NOT_PYTHON} - pages == set()
    used = {line.program for block in blocks() if block.language in SHELL for line in command_lines(block)}
    assert set(PROGRAMS) - used == set()
    words = {shlex.join(words) for _, words in CALLS}
    assert {
        name for name in STARTING if not any(each == name or each.startswith(f"{name} ") for each in words)
    } == set()


# Python --------------------------------------------------------------------------------------------------------------

PYTHON = [
    block
    for block in blocks()
    if block.language == "python" and page_of(block) not in PAGES and page_of(block) not in NOT_PYTHON
]


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    """A monitor with the jobs of the pages: rank 2 of each hangs, and its stacks have been taken."""
    folder = tmp_path_factory.mktemp("documents")
    recorded = ("--record", str(folder / "run.jsonl.zst"))
    token = {"RANKWATCH_MONITOR_TOKEN": TOKEN}
    with running_monitor(folder, *recorded, settings=token) as running, Api(running.url, TOKEN) as api:
        for job in JOBS:
            launcher = PlayedLauncher(api, job)
            launcher.register(policy={"section_timeouts": {"step": 10}, "on_hang": "capture"})
            launcher.start(1)
            for overdue in (None, 12.5):
                more = {} if overdue is None else {"overdue": overdue}
                api.report(*reports_of_all(job, 4, **more))
            capture = launcher.next_directive("capture")
            launcher.send_stacks(capture, {0: WAITING, 1: WAITING, 2: AT_WORK, 3: WAITING})
            launcher.acknowledge(capture)
        yield running


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_python_runs_as_a_rank(block: Block, monitor: RunningMonitor, tmp_path: Path) -> None:
    code = block.text
    try:
        ast.parse(code)
        compile(code, block.place, "exec")
    except SyntaxError:  # the inside of a loop
        code = "for _ in range(1):\n" + textwrap.indent(code, "    ")
    if "import rankwatch" not in code:
        code = f"import rankwatch\nrankwatch.init()\n{code}"
    script = tmp_path / "block.py"
    script.write_text(f"{GIVEN}\n{code}\nrankwatch.shutdown()\n")
    job = re.sub(r"\W+", "-", block.place)
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    variables = rank | {"RANKWATCH_MONITOR": monitor.url, "RANKWATCH_TOKEN": TOKEN, "RANKWATCH_JOB_ID": job}
    with ForkedPopen(
        [sys.executable, str(script)],
        env=os.environ | variables,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed.decode()
    with Api(monitor.url, TOKEN) as api:
        assert job in [each["id"] for each in api.jobs()], f"it has not reported: {printed.decode()}"


# Commands of Rankwatch -----------------------------------------------------------------------------------------------

CALLS = [(block.place, words) for block in blocks() if block.language in SHELL for words in commands(block)]


def is_call(words: list[str], of: str) -> bool:
    return f"{shlex.join(words)} ".startswith(f"{of} ")


def starts(words: list[str]) -> bool:
    return words[0] in READ_ONLY_AS_FAR_AS_SETTINGS or any(is_call(words, each) for each in STARTING)


def filled_in(words: list[str], folder: Path) -> list[str]:
    """A call with what the reader has to fill in."""
    if words[:3] == ["incidents", "JOB", "ID"]:
        words = [*words[:2], "1", *words[3:]]
    if words[0] == "order" and "--yes" not in words:
        words = [*words, "--yes"]  # the answer of a person at a terminal
    recorded = ("run.jsonl.zst", "events.jsonl")
    return [str(folder / recorded[0]) if word in recorded else word.replace("…", "abc") for word in words]


EXECUTED = [
    (block, [words for words in commands(block) if not starts(words)])
    for block in blocks()
    if block.language in SHELL and any(not starts(words) for words in commands(block))
]


@pytest.mark.parametrize(("block", "calls"), EXECUTED, ids=[block.place for block, _ in EXECUTED])
def test_commands_answer(
    block: Block,
    calls: list[list[str]],
    monitor: RunningMonitor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("RANKWATCH_MONITOR", monitor.url)
    monkeypatch.setenv("RANKWATCH_TOKEN", TOKEN)
    for call in calls:
        words = filled_in(call, monitor.log.parent)
        [command] = entry_points(group="rankwatch.commands", name=words[0])
        try:
            code = command.load()(words[1:])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        expected = (0, 3) if words[0] == "status" else (0,)  # 3: a job is in trouble
        shown = f"{block.place}: rankwatch {shlex.join(words)}: {code}\n{printed.err or printed.out}"
        assert code in expected, shown
        assert printed.out.strip() or printed.err.strip(), shown


def settings_of(words: list[str], environment: dict[str, str]) -> None:
    """Read a command's settings as it does before it starts anything.

    Raises:
        ValueError: one is invalid.
    """
    name, *arguments = words
    if name == "monitor":
        from rankwatch_monitor import settings

        settings.read(arguments, environment)
        return
    from rankwatch_launcher.cli import main

    parser = main.build_parser()
    main.read_options(parser.parse_args(main.split(arguments, parser)), environment, "")


def test_settings_of_what_is_started_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server.pem", "server.key", "cert.pem", "key.pem"):
        (tmp_path / name).touch()
    environment = {"RANKWATCH_MONITOR_TOKEN": "t" * 32, "RANKWATCH_MONITOR_READ_TOKEN": "r" * 32}
    environment |= {"RANKWATCH_MONITOR_INGEST_TOKEN": "i" * 32, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    wrong = []
    for place, words in CALLS:
        if words[0] not in READ_ONLY_AS_FAR_AS_SETTINGS:
            continue
        stderr = io.StringIO()
        try:
            with contextlib.redirect_stderr(stderr):
                settings_of(filled_in(words, tmp_path), environment)
        except (ValueError, SystemExit) as refused:
            wrong.append(f"{place}: rankwatch {shlex.join(words)}: {refused} {stderr.getvalue()}")
    assert not wrong, "\n".join(wrong)


def test_each_command_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in sorted({words[0] for _, words in CALLS if not words[0].startswith("-")}):
        [command] = entry_points(group="rankwatch.commands", name=name)
        with contextlib.suppress(SystemExit):
            command.load()(["--help"])
        assert "usage: rankwatch" in capsys.readouterr().out, name
