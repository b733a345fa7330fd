"""``rankwatch wandb-workspace``: saves a view of a W&B project with the charts and tables that the monitor publishes.

The view is described with W&B's own package ``wandb-workspaces`` and saved by its API, once, when this command asks for
it; the monitor itself needs neither.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from rankwatch.cli.common import print_text
from rankwatch.cli.parser import Parser
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.text import LONGEST, one_line
from rankwatch.monitor_client import EXIT_AWAY, EXIT_WRONG
from rankwatch_monitor.publish.wandb.rows import INCIDENTS, ITERATION, PREFIX, STRAGGLERS, WORST_RANKS

COMMAND: Final = "rankwatch wandb-workspace"
NAME: Final = "Rankwatch"
_ADDRESS: Final = "saved"


class Chart(NamedTuple):
    """One line plot over the step."""

    title: str
    names: tuple[str, ...]
    """Of numbers, without the prefix. W&B draws those that a run has; without GPUs, ``cpu`` stands for ``gpu``."""


def _spread(score: str) -> tuple[str, ...]:
    return tuple(f"{device}_{score}_{part}" for device in ("gpu", "cpu") for part in ("min", "median", "max"))


CHARTS: Final[Mapping[str, tuple[Chart, ...]]] = {
    "Progress": (
        Chart("Steps per second", ("steps_per_second",)),
        Chart("Time of a step, s", ("step_seconds",)),
        Chart("Goodput", ("goodput",)),
    ),
    "Trouble": (
        Chart("Open incidents", ("open_incidents",)),
        Chart("Restarts", ("restarts",)),
        Chart("Open stragglers", ("open_stragglers",)),
    ),
    "Stragglers": (
        Chart("Lateness of the latest rank, s", ("lateness_max",)),
        Chart("Lowest robust score, 1 is usual", ("gpu_robust_min", "cpu_robust_min")),
        Chart("Relative score over ranks, 1 is as the fastest", _spread("relative")),
        Chart("Individual score over ranks, 1 is its own best", _spread("individual")),
    ),
}
"""The sections of the view: the curated numbers, without those that only ``--wandb-series all`` logs."""
TABLES: Final = (INCIDENTS, STRAGGLERS, WORST_RANKS)


def save_workspace(argv: Sequence[str]) -> int:
    """Save a view of a Weights & Biases project with the charts and tables of Rankwatch."""
    arguments = parser(os.environ).parse_args(argv)
    if find_spec("wandb_workspaces") is None:
        sys.stderr.write(
            f"{COMMAND}: it needs wandb-workspaces, which is not installed: pip install 'rankwatch[wandb]'\n"
        )
        return EXIT_WRONG
    if arguments.json:
        print_text(specification(workspace(arguments.entity, arguments.project)) + "\n")
        return 0
    address, reason = _saved(arguments.entity, arguments.project, arguments.timeout)
    if not address:
        sys.stderr.write(f"{COMMAND}: W&B did not save it: {reason}\n")
        return EXIT_AWAY
    print_text(f"{address}\n")
    return 0


def _saved(entity: str, project: str, seconds: float) -> tuple[str, str]:
    """Address of the saved view, else the reason.

    W&B's library starts a process, ``wandb-core``, and may wait for it for ever as it exits: so it runs in a session of
    its own, which is killed in the end.
    """
    program = f"import {__name__} as own, sys; own.save_here(*sys.argv[1:])"
    command = own_python("-c", program, entity, project)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        assert child.stdout is not None
        ended = threading.Timer(seconds, lambda: os.killpg(child.pid, signal.SIGKILL))
        ended.start()
        try:
            line = one_line(child.stdout.readline(LONGEST).decode(errors="replace").strip())  # W&B's server wrote it
        finally:
            ended.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    kind, _, text = line.partition(" ")
    if kind == _ADDRESS:
        return text, ""
    return "", text or f"it did not answer within {seconds:g} s"


def save_here(entity: str, project: str) -> None:
    """Save the view in this process; its address or the reason is the only line of stdout."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # W&B's library prints
    try:
        made = workspace(entity, project)
        made.save()
        print(_ADDRESS, made.url, file=out, flush=True)
    except Exception as error:  # noqa: BLE001 - W&B raises errors of its own, of requests and of GraphQL
        reason = str(error).strip().splitlines() or [type(error).__name__]
        print("failed", reason[0], file=out, flush=True)


def workspace(entity: str, project: str) -> Any:
    """The view, as ``wandb_workspaces.workspaces.Workspace``.

    Raises:
        ImportError: ``wandb-workspaces`` is not installed.
    """
    from wandb_workspaces import workspaces
    from wandb_workspaces.reports.v2 import interface as v2

    def chart(of: Chart) -> Any:
        return v2.LinePlot(title=of.title, x=ITERATION, y=[f"{PREFIX}{name}" for name in of.names])

    sections = [
        workspaces.Section(name=name, panels=[chart(each) for each in charts], is_open=True)
        for name, charts in CHARTS.items()
    ]
    tables: list[Any] = [v2.WeavePanelSummaryTable(table_name=name) for name in TABLES]
    sections.append(workspaces.Section(name="Tables", panels=tables, is_open=True))
    settings = workspaces.WorkspaceSettings(x_axis=ITERATION)
    return workspaces.Workspace(entity=entity, project=project, name=NAME, sections=sections, settings=settings)


def specification(made: Any) -> str:
    """The view as JSON, as it is sent to W&B."""
    text: str = made._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
    return text


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    entity = variables.get("WANDB_ENTITY")
    project = variables.get("RANKWATCH_MONITOR_WANDB_PROJECT") or variables.get("WANDB_PROJECT")
    made = Parser(
        prog=COMMAND,
        description="Saves a view of a W&B project: speed, goodput, incidents, restarts and stragglers of its runs, "
        "and their tables. Each call saves another view. The key is that of 'wandb login', or WANDB_API_KEY.",
        epilog="Exit codes: 0 saved, its address is printed; 1 W&B did not save it; 2 rejected.",
    )
    made.add_argument(
        "--project",
        metavar="NAME",
        default=project,
        required=not project,
        help="project of the runs (default: RANKWATCH_MONITOR_WANDB_PROJECT, else WANDB_PROJECT)",
    )
    made.add_argument(
        "--entity",
        metavar="NAME",
        default=entity,
        required=not entity,
        help="user or team of the project (default: WANDB_ENTITY)",
    )
    made.add_argument(
        "--timeout", metavar="S", type=float, default=60.0, help="seconds to wait for W&B (default: %(default)g)"
    )
    made.add_argument("--json", action="store_true", help="print what would be sent, and send nothing")
    return made
