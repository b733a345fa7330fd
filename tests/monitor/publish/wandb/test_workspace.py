"""The view of a W&B project is that of W&B's own package; it names what the monitor logs, and failures are one line."""

from __future__ import annotations

import dataclasses
import json
import re
import sys

import pytest

from monitor.publish.scored import scored
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.wandb import rows, workspace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pydantic", "ignore:Pydantic V1 style")  # W&B's own

ASKED = ("--entity", "team", "--project", "training-health")


def shown(capsys: pytest.CaptureFixture[str]) -> dict:
    assert workspace.save_workspace([*ASKED, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_each_chart_shows_numbers_that_are_logged_over_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    assert (found["entity"], found["project"], found["displayName"]) == ("team", "training-health", "Rankwatch")
    sections = found["spec"]["section"]["panelBankConfig"]["sections"]
    panels = [panel for section in sections for panel in section["panels"]]
    plots = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert {plot["xAxis"] for plot in plots} == {rows.ITERATION}
    drawn = {name for plot in plots for name in plot["metrics"]}
    job = scored()
    logged = set()
    for on_cpu in (False, True):
        logged |= set(rows.row(dataclasses.replace(snapshot(job, 0.0), on_cpu=on_cpu), rows.CURATED))
    known = {f"{rows.PREFIX}{name}" for name in rows.CURATED_NAMES}
    known |= {name.replace("gpu", "cpu") for name in known}
    assert drawn == known - {rows.ITERATION}, "all curated numbers, each once"
    assert logged <= known


def test_each_table_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(shown(capsys))
    assert set(re.findall(rf'"({rows.PREFIX}(?:worst_ranks|incidents|stragglers))"', text)) == {
        rows.WORST_RANKS,
        rows.INCIDENTS,
        rows.STRAGGLERS,
    }


@pytest.mark.parametrize("timeout", ["60", "0.01"])
def test_a_server_that_does_not_answer_is_one_line_and_leaves_no_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert workspace.save_workspace([*ASKED, "--timeout", timeout]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(f"{workspace.COMMAND}: W&B did not save it: ")
    assert written.err.count("\n") == 1
    assert ("within 0.01 s" in written.err) == (timeout == "0.01")


@pytest.mark.parametrize("kind", ["saved", "failed"])
def test_what_the_server_writes_is_escaped_and_cut_and_a_library_that_prints_much_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    program = (
        f"import os, sys; os.write(2, b'x' * 500_000); print('{kind} \\x1b]0;owned\\x07' + 'y' * 500_000, flush=True)"
    )
    monkeypatch.setattr(workspace, "own_python", lambda *_: [sys.executable, "-P", "-c", program])
    assert workspace.save_workspace(ASKED) == (0 if kind == "saved" else 1)
    written = "".join(capsys.readouterr())
    assert r"\x1b]0;owned\x07" in written
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", written)
    assert len(written) < 25_000


def test_the_project_comes_from_the_environment() -> None:
    variables = {"WANDB_ENTITY": "team", "RANKWATCH_MONITOR_WANDB_PROJECT": "p", "WANDB_PROJECT": "other"}
    found = workspace.parser(variables).parse_args([])
    assert (found.entity, found.project) == ("team", "p")
