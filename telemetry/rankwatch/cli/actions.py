"""``rankwatch order`` and ``rankwatch policy``: act on a running job, or change its policy.

The monitor validates both, and the reason of a rejection is printed. Both need a token that may control, if the monitor
has tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from rankwatch.cli.common import add_monitor_flags, print_error, print_result
from rankwatch.cli.formatting import count, printable
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Cell, Column, Terminal, is_terminal, terminal_of
from rankwatch.contract.enums import Action
from rankwatch.contract.policy import ACTION_MEANINGS, LOST_STEPS, SHARES, Policy, changes_of
from rankwatch.contract.text import operands
from rankwatch.monitor_client import EXIT_WRONG, MonitorClient, MonitorError, path_of

ORDER: Final = "rankwatch order"
POLICY: Final = "rankwatch policy"
ACTIONS: Final = tuple(str(action) for action in Action if action is not Action.LOG)

_EFFECTS: Final[Mapping[str, str]] = {
    Action.RESTART: "kills and restarts",
    Action.RESTART_EXCLUDING_NODE: "kills, and restarts without the excluded nodes,",
    Action.SAVE_AND_STOP: "stops, after a checkpoint,",
    Action.STOP: "kills at once",
}


def order(argv: Sequence[str]) -> int:
    """Order a capture of stacks, a restart or a stop of a job's ranks."""
    arguments = order_parser(os.environ).parse_args(argv)
    if arguments.action != Action.CAPTURE and not arguments.yes and not is_terminal(sys.stdin):
        words = f"{arguments.action} ends work that is not saved, and stdin is no terminal: add --yes to confirm"
        return print_error(ORDER, MonitorError(words, EXIT_WRONG))

    def ask(client: MonitorClient) -> tuple[str, int]:
        if arguments.action != Action.CAPTURE and not arguments.yes and not _confirmed(client, arguments):
            return "nothing was ordered\n", EXIT_WRONG
        content = {
            "action": arguments.action,
            "reason": arguments.reason,
            "ranks": arguments.rank,
            "nodes": arguments.node,
        }
        answer = client.send("POST", f"{path_of(arguments.job)}/actions", content)
        if arguments.json:
            return json.dumps(answer, indent=2) + "\n", 0
        command = f"rankwatch incidents {operands(arguments.job, str(answer['incident_id']))}"
        return f"ordered; '{printable(command)}' shows its progress\n", 0

    return print_result(ORDER, arguments, ask)


def policy(argv: Sequence[str]) -> int:
    """Show or change the policy of a job: limits, and actions on problems."""
    arguments = policy_parser(os.environ).parse_args(argv)

    def ask(client: MonitorClient) -> tuple[str, int]:
        if arguments.job is not None and "=" in arguments.job and not arguments.change:
            words = f"the job is missing before the changes: {POLICY} JOB {arguments.job}"
            raise MonitorError(words, EXIT_WRONG)
        job = arguments.job or client.newest_job()
        try:
            changes = changes_of(arguments.change)
        except ValueError as error:
            raise MonitorError(str(error), EXIT_WRONG) from None
        path = f"{path_of(job)}/policy"
        found = client.send("PATCH", path, changes) if changes else client.read(path)
        if not isinstance(found, dict):
            raise client.not_a_monitor()
        if arguments.json:
            return json.dumps(found, indent=2) + "\n", 0
        only = frozenset(changes) or None
        return "".join(f"{line}\n" for line in lines(found, terminal_of(sys.stdout), only)), 0

    return print_result(POLICY, arguments, ask)


def lines(found: Mapping[str, Any], terminal: Terminal, only: frozenset[str] | None = None) -> list[str]:
    """A policy as a table, or ``only`` some settings; values other than the default are marked."""
    known = {each.name: each for each in fields(Policy)}
    default = Policy().to_json()
    rows = []
    for name, value in found.items():
        if only is not None and name not in only:
            continue
        unit = known[name].metadata["unit"].strip("{}") if name in known else ""
        meaning = known[name].metadata["meaning"] if name in known else ""
        style = "" if value == default.get(name) else "bold"
        shown = f"{100 * value:.4g} %" if name in SHARES and isinstance(value, float) else _shown(value)
        arguments = f"{shown} {unit}".strip() if value is not None else shown
        rows.append([Cell(name, style), Cell(arguments, style), Cell("" if not style else "*"), Cell(meaning, "dim")])
    columns = (Column("NAME"), Column("VALUE", least=8), Column(""), Column("MEANING", least=20))
    made = terminal.table(columns, rows)
    changed = any(row[2].text for row in rows)
    return made + (["", terminal.paint("* is not the default", "dim")] if changed else [])


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _confirmed(client: MonitorClient, arguments: argparse.Namespace) -> bool:
    """Ask for confirmation on the terminal."""
    job = client.read(path_of(arguments.job))
    step = "" if job["iteration"] is None else f", step {job['iteration']}"
    effect = f"{arguments.action} {_EFFECTS[arguments.action]} all {count(job['world_size'], 'rank')}"
    prompt = f"{effect} of job {arguments.job!r} ({job['state']}{step}). Do it? [y/N] "
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return False


def order_parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser of ``rankwatch order``."""
    made = Parser(
        prog=ORDER,
        description=f"Orders an action on a job's ranks. {LOST_STEPS} Every action but capture asks for confirmation.",
        epilog="Exit codes: 0 ordered; 1 the monitor is unreachable; 2 rejected, or not confirmed.",
    )
    made.add_argument("job", metavar="JOB", help="the job's id")
    meanings = "; ".join(f"{each}: {ACTION_MEANINGS[Action(each)]}" for each in ACTIONS)
    made.add_argument("action", choices=ACTIONS, metavar="ACTION", help=meanings)
    made.add_argument("--reason", default="", metavar="WORDS", help="why; shown with the incident")
    made.add_argument(
        "--rank",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="restart_excluding_node: leave out the node that runs this rank; may be repeated",
    )
    made.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="X",
        help="restart_excluding_node: leave out this node, by name or host; may be repeated",
    )
    made.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    add_monitor_flags(made, variables, "control")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def policy_parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser of ``rankwatch policy``."""
    made = Parser(
        prog=POLICY,
        description="Shows the policy of a job, or changes values of it, with immediate effect; none disables a limit.",
        epilog="Exit codes: 0 shown or changed; 1 the monitor is unreachable; 2 rejected.",
    )
    made.add_argument("job", nargs="?", metavar="JOB", help="the job's id; without it the newest job's is shown")
    made.add_argument(
        "change",
        nargs="*",
        metavar="NAME=VALUE",
        help="what to change, for example observe_only=true or section_timeouts=step=30,save=none",
    )
    add_monitor_flags(made, variables, "read, or control to change it")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made
