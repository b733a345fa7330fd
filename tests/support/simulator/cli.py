"""``python -m support.simulator``: plays a scene through the core and prints what the monitor would see and do."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Progress
from rankwatch.contract.enums import DirectiveKind
from rankwatch_monitor.core.effects import Changed, Effect, Issue, Slowed
from rankwatch_monitor.core.events import JobEvent
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import verdict
from rankwatch_monitor.replay.cli import add_common_options, incident_lines, policy_changes, print_json
from rankwatch_monitor.replay.recording import Entry, Writer, beginning
from support.simulator.outcome import Outcome, Simulation
from support.simulator.plan import Plan, parse_fault
from support.simulator.scene import START, Scene


class EventPrinter:
    """Prints events and decisions, each line with the seconds since the start of the scene."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._state = ""

    def hidden_event(self, at: float, text: str) -> None:
        """Print an event in the job that the monitor cannot see."""
        self._line(at, "*", text)

    def event(self, at: float, job: Job) -> None:
        """Print the job's state after an event when it has changed."""
        state, _ = verdict.job_state(job, at)
        if state != self._state:
            self._state = state
            self._line(at, " ", f"the job is {state}")

    def effect(self, at: float, effect: Effect) -> None:
        """Print a decision of the core."""
        if isinstance(effect, Changed | Slowed):
            if effect.message:
                self._line(at, ">", effect.message)
            return
        if not isinstance(effect, Issue):
            return
        directive = effect.directive
        if directive.kind is DirectiveKind.SETTINGS:
            limits = directive.settings.get("limits", {}).get("learned", {})
            pushed = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in sorted(limits.items()))
            self._line(at, ">", f"limits are pushed: {directive.reason}{f' ({pushed})' if pushed else ''}")
        else:
            self._line(at, ">", f"directive {directive.id} to the launchers: {directive.kind}")

    def _line(self, at: float, mark: str, text: str) -> None:
        self._write(f"{at - START:9.1f} s {mark} {text}")


def simulate(argv: Sequence[str]) -> int:
    """Rehearse faults, limits and policy without a cluster: what the monitor would see and do.

    The exit code is 0, and 2 when the scene or the policy is invalid.
    """
    asked = _parser().parse_args(argv)
    printer = None if asked.json else EventPrinter(lambda line: sys.stdout.write(line + "\n"))
    try:
        plan = plan_of(asked)
        scene = Scene(plan, on_event=printer.hidden_event if printer else None)
        policy = policy_changes(asked.policy)
        with contextlib.ExitStack() as stack:
            recorded = _recorder(asked.record, stack) if asked.record else None
            # The printed lines show the progress themselves.
            progress = stack.enter_context(Progress("simulating", plan.seconds)) if asked.json else None

            def on_event(at: float, job: Job, event: JobEvent) -> None:
                if recorded is not None:
                    recorded(at, job, event)
                if printer is not None:
                    printer.event(at, job)
                if progress is not None:
                    progress.at(at - START, f"{at - START:.0f} s of the scene")

            simulation = Simulation(scene, policy, on_event=on_event, on_effect=printer.effect if printer else None)
            outcome = simulation.run()
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot write {asked.record}: {error.strerror or error}")
    if asked.json:
        print_json({**outcome.to_json(), "incidents": [i.to_json() for i in simulation.incidents.values()]})
    else:
        sys.stdout.write(
            "\n".join(["", *incident_lines(list(simulation.incidents.values()), START), *_verdict(outcome)])
        )
        sys.stdout.write("\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m support.simulator",
        description="Play a simulated job through the monitor's core and print what it sees and does. Lines with * "
        "are events in the job, lines with > are decisions of the monitor.",
    )
    for setting in fields(Plan):
        if setting.name == "faults":
            continue
        flag = "--" + setting.name.replace("_", "-")
        unit, meaning = setting.metadata["unit"], setting.metadata["meaning"]
        text = f"{meaning} (default {setting.default}{f' {unit}' if unit else ''})"
        if isinstance(setting.default, bool):
            made.add_argument(flag, action=argparse.BooleanOptionalAction, default=setting.default, help=text)
        else:
            made.add_argument(
                flag, type=type(setting.default), default=setting.default, metavar=unit.upper() or "N", help=text
            )
    made.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="SPEC",
        help="kind=hang,rank=3,step=40; also section, attempt, seconds (it ends by itself); may be repeated",
    )
    made.add_argument("--record", metavar="FILE", help="write what reached the core here, for rankwatch replay")
    add_common_options(made)
    return made


def plan_of(asked: argparse.Namespace) -> Plan:
    """The plan of the command line.

    Raises:
        ValueError: the plan is invalid.
    """
    values: dict[str, Any] = {f.name: getattr(asked, f.name) for f in fields(Plan) if f.name != "faults"}
    plan = Plan(**values)
    return replace(plan, faults=tuple(parse_fault(text) for text in asked.fault)).checked()


def _fail(message: str) -> int:
    sys.stderr.write(f"simulator: {message}\n")
    return 2


def _recorder(path: str, stack: contextlib.ExitStack) -> Callable[[float, Job, JobEvent], None]:
    writer = Writer(path, START)
    stack.callback(writer.close)
    begun: list[str] = []

    def record(at: float, job: Job, event: JobEvent) -> None:
        if job.id not in begun:
            begun.append(job.id)
            writer.write(beginning(job, at))
        writer.write(Entry(at, job.id, event))

    return record


def _verdict(outcome: Outcome) -> list[str]:
    """Which detections were right and wrong."""
    counted = [_count(outcome.alarms, "alarm"), f"{_count(outcome.suspicions, 'suspicion')} without consequence"]
    counted.append(_count(outcome.restarts, "restart"))
    lines = ["", f"{outcome.events} events in {outcome.seconds:.0f} s; {', '.join(counted)}"]
    for finding in outcome.findings:
        what = f"fault {finding.kind} at {finding.at:.1f} s"
        if finding.latency is None:
            lines.append(f"{what}: NOT FOUND")
            continue
        named = "the right ranks were named" if finding.right else f"NAMED WRONGLY: {finding.named or 'none'}"
        lines.append(f"{what}: found after {finding.latency:.1f} s, {named}")
    lines += [f"FALSE ALARM: {reason}" for reason in outcome.false_alarms]
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
