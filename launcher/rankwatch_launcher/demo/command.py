"""Hang one rank of a real training run on purpose and watch Rankwatch find it, name it and get the job going again.

This is ``rankwatch demo``, and ``make demo``. It starts a monitor and ``rankwatch run`` with four ranks of
``train_gpt.py``, one of which is made to hang, follows the job over the monitor's REST API, and prints the events as
they occur. The monitor is started here rather than by ``rankwatch run`` only so that its page can stay open when the
job is over.

On a terminal the page then stays until Ctrl-C; otherwise the result is written as JSON and the exit code is 0. On an
error the reason is printed and the exit code is 1. No process is left behind either way.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from rankwatch.cli.open_page import address_of
from rankwatch.contract import access, env
from rankwatch.contract.access import MonitorAccess
from rankwatch.contract.files import check_own, make_folders, replace_file
from rankwatch.contract.interpreter import own_python
from rankwatch.monitor_client import MonitorClient, MonitorError
from rankwatch_launcher import procfs

for _needed in ("torch", "fastapi"):  # `rankwatch` prints what to install
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)

IN_WHEEL = Path(__file__).with_name("train_gpt.py")
IN_REPOSITORY = Path(__file__).parents[3] / "examples" / "train_gpt.py"
TRAIN = Path(os.path.relpath(IN_WHEEL if IN_WHEEL.is_file() else IN_REPOSITORY))  # as a person would type it
RANKS = 4
CULPRIT = 2
STEPS = 140
HANG_STEP = 52  # not just after a checkpoint, so that the restart has something to lose
CHECKPOINT_EVERY = 20
LOG_EVERY = 5
STEP_LIMIT = 10  # seconds; a step takes about 0.15 s on two cores
QUIET = 240.0  # seconds without anything new after which the demo has failed, however slow the machine is
PHASES = {  # name of the phase -> the time at which it ends; each begins where the one before it ended
    "detect": "detected",
    "decide": "decided",
    "capture": "captured",
    "restart": "restarted",
    "first_step": "first_step",
}

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

T = TypeVar("T")


class DemoError(Exception):
    """The demo failed; the text is the reason."""


@dataclass(frozen=True)
class Story:
    """What happened, as ``demo-story.json`` holds it. Times are in seconds."""

    job_id: str
    culprit: dict[str, Any]
    """rank, host, class"""
    section: str | None
    limit: float | None
    elapsed: float | None
    reason: str
    phases: dict[str, float]
    steps_lost: int | None
    attempts: list[int]
    stacks: dict[str, list[str]]
    """The innermost frames of the culprit and of the others"""
    losses: list[dict[str, Any]]
    """attempt, step, loss: the mean over the last steps and all ranks"""
    final_loss: float
    exit_code: int
    page: str


class Processes:
    """The processes of this demo. Leaving the block ends every one of them and all that they started."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        # Orphans become children of the demo, and can be found at the end, even when the launcher dies in between.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                # Tokens and settings of another monitor are not meant for this one.
                env={name: value for name, value in env.of_ranks(os.environ).items() if name != env.TOKEN},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends the others in order
            )
        self._started.append(process)
        return process

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):  # the launcher before the monitor that it talks to
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        while left := descendants(os.getpid()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, including those that were not waited for yet."""
    found: list[int] = []
    for task in procfs.tasks(pid):
        with contextlib.suppress(OSError):  # ended meanwhile
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


class Job:
    """One job as the monitor shows it over REST."""

    def __init__(self, monitor: MonitorAccess, job_id: str) -> None:
        self.monitor, self.job_id = monitor, job_id
        self.client = MonitorClient(monitor.url, monitor.token, timeout=5.0)

    def get(self, path: str = "") -> dict[str, Any] | None:
        """Return the decoded answer, or None when the monitor does not know of it yet."""
        try:
            decoded: dict[str, Any] = self.client.read(f"/jobs/{self.job_id}{path}")
        except MonitorError as error:
            if error.unknown:
                return None
            raise
        return decoded

    def incident(self) -> dict[str, Any] | None:
        """Return the first incident of the job: the answer lists the newest first."""
        incidents = (self.get("/incidents") or {}).get("incidents") or [None]
        first: dict[str, Any] | None = incidents[-1]
        return first


class Clock:
    """Seconds since the demo began, and since something new was last seen."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._news = 0.0

    def progress(self) -> None:
        """Note that something new was seen: the machine is slow, and nothing has stopped."""
        self._news = self()

    def __call__(self) -> float:
        return time.monotonic() - self._began

    def wait(self, what: str, condition: Callable[[], T | None]) -> T:
        """Ask until the condition has an answer, and return it."""
        began = self()
        while (answer := condition()) is None:
            if (quiet := self() - max(began, self._news)) > QUIET:
                raise DemoError(f"{what} did not come, and nothing has happened for {quiet:.0f} s")
            time.sleep(0.2)
        self.progress()
        return answer


class Teller:
    """Prints each sentence once, with the time since the demo began."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._reported: set[str] = set()

    def report(self, sentence: str, key: str | None = None) -> None:
        if (key or sentence) not in self._reported:
            self._reported.add(key or sentence)
            self.clock.progress()
            print(f"{self.clock():6.1f} s  {sentence}", flush=True)


# Starting -----------------------------------------------------------------------------------------------------------


def start_monitor(processes: Processes, folder: Path, clock: Clock) -> MonitorAccess:
    """Start a monitor on a free port and return its address and tokens."""
    ready = folder / "monitor.json"
    command = own_python("-m", "rankwatch", "monitor", "--port", "0", "--ready-file", str(ready))
    command += ["--database", str(folder / "monitor.db"), "--parent-pid", str(os.getpid())]
    process = processes.start(command, folder / "monitor.log")

    def listening() -> MonitorAccess | None:
        if process.poll() is not None:
            raise DemoError(f"the monitor ended with code {process.returncode}; see {folder / 'monitor.log'}")
        return access.of(json.loads(ready.read_text())["url"]) if ready.exists() else None

    return clock.wait("the monitor's address", listening)


def run_command(monitor: str, job_id: str, folder: Path) -> list[str]:
    """The ``rankwatch run`` that this demo is about."""
    return [
        *("run", "--standalone", "--nproc-per-node", str(RANKS), "--section-timeout", f"step={STEP_LIMIT}"),
        *("--learned-minimum", f"{STEP_LIMIT}"),  # the story is that of the configured limit
        *("--monitor", monitor, "--job-id", job_id),
        *(str(TRAIN), "--preset", "cpu", "--steps", str(STEPS), "--log-every", str(LOG_EVERY)),
        *("--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", str(CHECKPOINT_EVERY)),
        *("--metrics-file", str(folder / "metrics.jsonl")),
        *("--inject", f"rank={CULPRIT},step={HANG_STEP},kind=hang"),
    ]


# Following ----------------------------------------------------------------------------------------------------------


def follow(
    job: Job, launcher: subprocess.Popen[bytes], metrics: Path, report: Callable[..., None], clock: Clock
) -> int:
    """Print what happens until the launcher ends, and return its exit code."""

    def ended() -> int | None:
        code = launcher.poll()  # asked first, so that the last look at the job comes after the end
        for line in read_losses(metrics):
            if (line["step"] + 1) % 20 == 0:
                report(f"attempt {line['attempt']}, step {line['step']}: loss {line['loss']:.3f}")
        summary, incident = job.get(), job.incident()
        if summary and summary["state"] == "running" and summary["ranks_reporting"] == RANKS:
            report(f"all {RANKS} ranks are training", key=f"training {summary['attempt']}")
        if incident:
            print_incident(incident, report)
        return code

    return clock.wait("the end of the job", ended)


def print_incident(incident: dict[str, Any], report: Callable[..., None]) -> None:
    times, key = incident["timeline"], incident["id"]
    # The sentence may become a better one once the stacks are known.
    found = "THE STACKS SHOW" if times.get("captured") else "HANG FOUND"
    report(f"{found}: {incident['reason']}", key=f"{key} {incident['reason']}")
    if times.get("decided"):
        report(f"decided: {incident['action']}; {incident['action_reason']}", key=f"{key} decided")
    if times.get("captured"):
        report("the stacks of all ranks are in", key=f"{key} captured")
    if times.get("restarted"):
        report("the ranks were killed and started again", key=f"{key} restarted")
    if times.get("first_step"):
        report("the first new step is done", key=f"{key} first step")


def read_losses(metrics: Path) -> list[dict[str, Any]]:
    """The complete lines that the training script has written so far."""
    text = metrics.read_text() if metrics.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# The story ----------------------------------------------------------------------------------------------------------


def make_story(job: Job, exit_code: int, losses: list[dict[str, Any]], clock: Clock) -> Story:
    """Put together what the monitor and the training script recorded."""

    def complete() -> dict[str, Any] | None:
        incident = job.incident()
        return incident if incident and all(incident["timeline"].get(end) for end in PHASES.values()) else None

    if job.incident() is None:
        raise DemoError("the monitor saw no incident, although a rank was made to hang")
    incident = clock.wait("the incident's last time", complete)
    if not incident["culprits"]:
        raise DemoError(f"no rank was named: {incident['reason']}")
    details = job.get(f"/incidents/{incident['id']}") or {}
    return Story(
        job_id=job.job_id,
        culprit={key: incident["culprits"][0][key] for key in ("rank", "host", "class")},
        section=incident["section"],
        limit=incident["limit"],
        elapsed=incident["elapsed"],
        reason=incident["reason"],
        phases=dict(phase_durations(incident["timeline"])),
        steps_lost=incident["steps_lost"],
        attempts=sorted({line["attempt"] for line in losses}),
        stacks={
            "culprit": innermost(details.get("stack_groups", []), is_culprit=True),
            "others": innermost(details.get("stack_groups", []), is_culprit=False),
        },
        losses=losses,
        final_loss=losses[-1]["loss"],
        exit_code=exit_code,
        page=f"{job.monitor.url}/",
    )


def phase_durations(timeline: dict[str, float]) -> Iterator[tuple[str, float]]:
    """How long each phase took; the first begins with what went wrong, so it holds the limit too."""
    begin = timeline["since"]
    for phase, end in PHASES.items():
        yield phase, round(timeline[end] - begin, 3)
        begin = timeline[end]


def innermost(groups: list[dict[str, Any]], *, is_culprit: bool) -> list[str]:
    """The few frames of the largest such group that show most: the innermost, and those of the user's own files."""
    chosen = [group for group in groups if group["is_culprit"] is is_culprit]
    if not chosen:
        return []
    frames = max(chosen, key=lambda group: len(group["ranks"]))["frames"]
    telling = frames[:4] + [frame for frame in frames[4:] if Path(frame["file"]).name == TRAIN.name]
    return [f"{frame['function']} ({Path(frame['file']).name}:{frame['line']})" for frame in telling[:6]]


def print_story(story: Story) -> None:
    """Print the whole of it, a label and a line for each part."""
    culprit, phases = story.culprit, story.phases
    before = [line for line in story.losses if line["attempt"] == story.attempts[0]][-1]
    after = next(line for line in story.losses if line["attempt"] == story.attempts[-1])
    limit, elapsed = story.limit or 0.0, story.elapsed or 0.0
    lines = [
        ("who", f"rank {culprit['rank']} on {culprit['host']}, class {culprit['class']!r}"),
        ("where", f"section {story.section!r}, open for {elapsed:.1f} s, {elapsed - limit:.1f} s past its limit"),
        *continued("why", textwrap.wrap(story.reason, 100)),
        *continued("its stack", story.stacks["culprit"] or ["not captured"], "  called by "),
        *continued("others'", story.stacks["others"] or ["not captured"], "  called by "),
        ("detect", f"{phases['detect']:.2f} s after the step began, the limit of {limit:g} s among them"),
        ("decide", f"{phases['decide']:.2f} s"),
        ("capture", f"{phases['capture']:.2f} s"),
        ("restart", f"{phases['restart']:.2f} s"),
        ("first step", f"{phases['first_step']:.2f} s later"),
        ("steps lost", "unknown" if story.steps_lost is None else str(story.steps_lost)),
        ("loss", f"{before['loss']:.3f} before the hang (step {before['step']})"),
        ("", f"{after['loss']:.3f} after the restart (step {after['step']}), from the checkpoint"),
        ("", f"{story.final_loss:.3f} at the end (step {story.losses[-1]['step']})"),
        ("exit code", f"{story.exit_code}, attempts {', '.join(map(str, story.attempts))}"),
    ]
    print("\nThe story")
    for label, text in lines:
        print(f"  {label:<10}  {text}")
    sys.stdout.flush()


def continued(label: str, lines: list[str], mark: str = "") -> list[tuple[str, str]]:
    """Several lines under one label, each but the first after a mark; of a stack, the innermost frame comes first."""
    return [(label, lines[0]), *(("", mark + line) for line in lines[1:])]


def tail(log: Path, lines: int = 60) -> str:
    """The end of a log, for diagnosing a failed demo."""
    if not log.exists():
        return ""
    return "\n".join([f"The end of {log}:", *log.read_text(errors="replace").splitlines()[-lines:]])


def tell_demo(folder: Path, story_file: Path) -> None:
    """The whole demo; raises :class:`DemoError` when it does not go as it should."""
    clock = Clock()
    report = Teller(clock).report
    with Processes() as processes:
        monitor = start_monitor(processes, folder, clock)
        job = Job(monitor, folder.name)
        command = run_command(monitor.url, job.job_id, folder)
        print(f"$ rankwatch {' '.join(command)}\n", flush=True)
        report(f"{RANKS} ranks start; rank {CULPRIT} will hang in step {HANG_STEP}, in the first attempt only")
        report(f"watch it live: {address_of(job.client, None)} (opens once, within a minute; then 'rankwatch open')")
        launcher = processes.start(own_python("-m", "rankwatch", *command), folder / "launcher.log")
        metrics = folder / "metrics.jsonl"
        exit_code = follow(job, launcher, metrics, report, clock)
        losses = read_losses(metrics)
        if exit_code != 0 or not losses:
            raise DemoError(f"rankwatch run ended with code {exit_code}, {len(losses)} losses were logged")
        story = make_story(job, exit_code, losses, clock)
        print_story(story)
        replace_file(story_file, json.dumps(asdict(story), indent=2) + "\n")
        if sys.stdout.isatty():
            print(f"\nThe page stays until Ctrl-C: 'rankwatch open --monitor {monitor.url}' opens it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that SIGTERM, too, passes through Processes.__exit__


def demo(argv: Sequence[str]) -> int:
    """Train a small GPT on four ranks, hang one of them, and show what happens."""
    parser = argparse.ArgumentParser(prog="rankwatch demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder in which the run gets one of its own")
    parser.add_argument("--story", type=Path, default=Path("demo-story.json"), help="where the story goes")
    options = parser.parse_args(argv)
    folder: Path = options.runs / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        make_folders(options.runs)
        check_own(options.runs)  # whoever owns it could replace the checkpoint, which is unpickled
        folder.mkdir(mode=0o700)
    except OSError as error:
        words = f"{folder} cannot be made: {error.strerror or error}"
        print(f"rankwatch demo: {words}; name another --runs", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _terminated)
    try:
        tell_demo(folder, options.story)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 1
    except (DemoError, MonitorError, OSError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        print(tail(folder / "launcher.log"), file=sys.stderr)
        return 1
    return 0
