"""``rankwatch slurm batch``: the last line of an sbatch script. Runs the job's command, then requeues or chains it.

The script ends with ``exec rankwatch slurm batch -- srun ... rankwatch run ...``, so that this process *is* the batch
script: the one process that ``#SBATCH --signal=B:TERM@60`` signals.

=============================================  =========================================================================
event                                          effect
=============================================  =========================================================================
SIGTERM, the job is RUNNING                    one launcher of each step on this host gets SIGTERM: all ranks save after
                                               the same step and stop, and the job resumes
SIGTERM, the job is COMPLETING                 none: Slurm signals every process itself
the command ends                               ``retry_policy`` decides by the launchers' outcomes
.. ``Done``, ``GiveUp``                        this process exits with the code; Slurm runs nothing again
.. ``Again``, ``--mode requeue``               ``scontrol requeue``: the same job starts again
.. ``Again``, ``--mode chain``                 the same script is submitted as another job, to begin after this one
.. ``Again``, but the job was cancelled        this process exits with the code
=============================================  =========================================================================
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rankwatch.cli.parser import Parser
from rankwatch.contract import env as environment
from rankwatch.contract.files import append, check_unshared, read_file
from rankwatch.contract.messages import read
from rankwatch.contract.text import decoded
from rankwatch_launcher import procfs, retry_policy
from rankwatch_launcher.log import logger, to_stderr
from rankwatch_launcher.options import COUNT, stop_signal
from rankwatch_launcher.outcome import (
    CODE_FAILED,
    FAILED,
    OUTCOME_VARIABLE,
    PREEMPTED,
    Outcome,
    log_training_complete,
    training_complete,
)
from rankwatch_launcher.retry_policy import Again, Done, GiveUp, Progress
from rankwatch_launcher.schedulers import slurm
from rankwatch_launcher.schedulers.slurm import RUNNING, JobInfo, SlurmError

ROOT: Final = "RANKWATCH_SLURM_ROOT"
"""Variable with the id of the first job of a chain."""
LAUNCHER_SEARCH_SECONDS: Final = 20.0
"""How long a launcher that handles SIGTERM is searched for: one that just started still imports torch."""
SEARCH_INTERVAL: Final = 0.25
END_INTERVAL: Final = 5.0
"""Seconds between two looks whether the launcher here has ended."""
LEAVE_SECONDS: Final = 30.0
"""How long srun may last after it, like ``srun --wait=30``: where a node is dead, srun waits for it until Slurm gives
it up, minutes later, and the job holds all nodes for so long."""
SRUN_SECONDS: Final = 10.0
LAUNCHES: Final = "launches.jsonl"
LARGEST_HISTORY: Final = 16 << 20
"""Bytes of it; a launch takes one or two thousand."""
NODE: Final = "{node}"
"""Placeholder in the name of an outcome file, so that no launcher overwrites another's."""


def slurm_command(argv: Sequence[str]) -> int:
    """Run a training job within an sbatch script, and requeue or chain it when it is to be resumed."""
    to_stderr()
    before, after = _split(argv)
    parser = build_parser()
    options = parser.parse_args(before)
    if not after:
        parser.error(
            "give the command to run after --, for example: -- srun --ntasks-per-node=1 rankwatch run train.py"
        )
    if not os.environ.get(slurm.JOB_ID):
        parser.error(f"not a Slurm job ({slurm.JOB_ID} is not set): use this in a script submitted with sbatch")
    batch = Batch(options, os.environ, after)
    try:
        batch.history.prepare()
    except OSError as error:
        parser.error(f"launches cannot be recorded: {error}; give a folder that all nodes can write to with --folder")
    return batch.run()


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``rankwatch slurm``."""
    parser = Parser(prog="rankwatch slurm", description="Helpers for jobs under Slurm.")
    batch = parser.add_subparsers(required=True, metavar="batch").add_parser(
        "batch",
        help="run a command within an sbatch script, then requeue or chain the job",
        usage="exec rankwatch slurm batch [options] -- srun ... rankwatch run ...",
        description="Runs a command within an sbatch script, turns the signal before the time limit into a graceful "
        "stop, and requeues or chains the job when it is to be resumed.",
    )
    batch.add_argument(
        "--mode",
        choices=("requeue", "chain"),
        default="requeue",
        help="resume as the same job, or as another one that begins after it (default: requeue)",
    )
    batch.add_argument("--job-retries", type=_count, default=2, metavar="N", help="retries after failures (default: 2)")
    batch.add_argument(
        "--max-no-progress",
        type=_count,
        default=3,
        metavar="N",
        help="launches in a row without progress before giving up with exit code 93; 0: unlimited (default: 3)",
    )
    batch.add_argument(
        "--signal",
        type=_signal,
        default=signal.SIGTERM,
        metavar="NAME",
        help="the signal given in #SBATCH --signal=B:NAME@SECONDS; SIGTERM is always handled (default: TERM)",
    )
    batch.add_argument(
        "--exclude-bad-nodes",
        action="store_true",
        help="do not resume on nodes that the launchers have excluded",
    )
    batch.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where launches are recorded; all nodes must see it (default: ./slurm-JOBID.rankwatch)",
    )
    return parser


class Batch:
    """One run of the batch script."""

    def __init__(self, options: argparse.Namespace, env: MutableMapping[str, str], command: Sequence[str]) -> None:
        self._options, self._env, self._command = options, env, list(command)
        self._job = env[slurm.JOB_ID]
        self._root = env.get(ROOT) or self._job
        self._here = slurm.node_name(env) or socket.gethostname()
        self.history = LaunchHistory(options.folder or Path(f"slurm-{self._root}.rankwatch"))
        self._stop_reason = ""
        """Why the launchers were requested to stop; empty: they were not."""
        self._search_ends: float | None = None
        """When the search for a launcher to signal ends; None: there is no search."""
        self._over_since: float | None = None
        """When the job was first seen to be over; None: it was not."""

    def run(self) -> int:
        """Run the command, then requeue or chain the job, or end; return the exit code."""
        flag = self._env.get(environment.FINISHED_FLAG, "")
        if training_complete(flag):
            log_training_complete(flag)
            return 0
        if not _is_batch_script():
            logger.warning("write 'exec' before 'rankwatch slurm batch': Slurm's signal would end the enclosing shell")
        past = self.history.past(self._options.max_no_progress)
        logger.info(
            "launch %d of Slurm job %s on %s; %d of %d retries are used",
            past.launches + 1,
            self._root,
            self._env.get("SLURM_JOB_NODELIST", self._here),
            past.used,
            self._options.job_retries,
        )
        code = self._run_command()
        outcome = reconcile(self.history.outcome(self._here), code, self._stop_reason)
        finished = training_complete(flag)
        progress = past.progress.then(outcome)
        verdict = retry_policy.after(outcome, code, finished, past.used, self._options.job_retries, progress)
        place = {"job": self._job, "run": str(slurm.restart_count(self._env)), "node": self._here}
        self.history.record(outcome, code, verdict, place)
        if not isinstance(verdict, Again):
            word = "done" if isinstance(verdict, retry_policy.Done) else "given up"
            logger.info("%s: %s", word, verdict.reason)
            return verdict.code
        ended = outcome.code if outcome is not None else retry_policy.exit_status(code)
        return self._resume(verdict, outcome, ended)

    # While the command runs -------------------------------------------------------------------------------------------

    def _run_command(self) -> int:
        """Run the command to its end, handling signals; return its code as ``Popen`` does."""
        received, waker = os.pipe()
        for end in (received, waker):
            os.set_blocking(end, False)
        for number in {signal.SIGTERM, self._options.signal}:
            # Handled in the loop. The handler stays: a late signal must not interrupt requeueing.
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        child = self._start()
        if child is None:
            return 127
        ended = procfs.open_pidfd(child.pid)
        watched = [received] if ended is None else [received, ended]
        is_srun = os.path.basename(self._command[0]) == "srun"  # another command may have more to do
        try:
            while True:
                looks = ended is None or self._search_ends is not None
                rests = END_INTERVAL if is_srun else None
                ready, _, _ = select.select(watched, [], [], SEARCH_INTERVAL if looks else rests)
                if received in ready:
                    for number in os.read(received, 64):
                        self._on_signal(signal.Signals(number))
                if (code := child.poll()) is not None:
                    return code
                if is_srun and self._outlasts_the_job():
                    logger.warning("the job is over, and srun still waits for a node: it is ended")
                    return _end(child)
                if self._search_ends is not None:
                    self._signal_launchers(self._search_ends)
        finally:
            if ended is not None:
                os.close(ended)

    def _outlasts_the_job(self) -> bool:
        """Whether the job has been over for :data:`LEAVE_SECONDS`: the launcher here has ended and said how."""
        now = time.monotonic()
        if self._over_since is None and self.history.job_is_over(self._here):
            here = slurm.node_name(self._env) or ""
            self._over_since = None if slurm.launchers(self._job, node=here) else now
        return self._over_since is not None and now - self._over_since >= LEAVE_SECONDS

    def _start(self) -> subprocess.Popen[bytes] | None:
        env = dict(self._env) | {OUTCOME_VARIABLE: self.history.outcome_pattern()}
        env.setdefault(environment.JOB_ID, self._root)
        try:
            return subprocess.Popen(self._command, env=env)
        except OSError as error:
            logger.error("'%s' cannot be started: %s", self._command[0], error.strerror)
            return None

    def _on_signal(self, number: signal.Signals) -> None:
        if number not in (signal.SIGTERM, self._options.signal) or self._stop_reason:
            return
        try:
            state = self._job_info().state
        except SlurmError as error:
            logger.warning("%s; assuming that the job is running", error)
            state = RUNNING
        if state != RUNNING:
            self._stop_reason = f"Slurm ends job {self._job} ({number.name})"
            logger.info("Slurm ends the job and signals every process itself; the ranks save if there is time")
            return
        self._stop_reason = f"the batch script of job {self._job} on {self._here} got {number.name}"
        self._search_ends = time.monotonic() + LAUNCHER_SEARCH_SECONDS

    def _signal_launchers(self, until: float) -> None:
        """Send SIGTERM to one launcher of each step; to all processes of the steps if none is found in time."""
        found = [each for each in slurm.launchers(self._job) if procfs.catches(each.pid, signal.SIGTERM)]
        if not found and time.monotonic() < until:
            return
        self._search_ends = None
        for launcher in found:
            logger.info("%s: requesting a graceful stop from launcher %d", self._stop_reason, launcher.pid)
            try:
                os.kill(launcher.pid, signal.SIGTERM)
            except ProcessLookupError:
                logger.info("launcher %d has already ended", launcher.pid)
        if not found:
            logger.warning(
                "%s: no launcher runs here, sending SIGTERM to all processes of the job's steps", self._stop_reason
            )
            try:
                slurm.run(slurm.signal_steps(self._job, "TERM"))
            except SlurmError as error:
                logger.error("%s; the ranks may be killed without saving", error)

    # After the command ------------------------------------------------------------------------------------------------

    def _resume(self, verdict: Again, outcome: Outcome | None, code: int) -> int:
        try:
            info = self._job_info()
            if info.state != RUNNING and info.restarts > slurm.restart_count(self._env):
                logger.info("%s; Slurm has requeued the job itself", verdict.reason)
                return 0
            if info.state != RUNNING and not info.at_limit:
                logger.info("not resumed: job %s was cancelled, or is being ended by Slurm", self._job)
                return code
            excluded = self._excluded_nodes(outcome)
            if self._options.mode == "requeue":
                return self._requeue(verdict, info, excluded)
            return self._chain(verdict, info, excluded, code)
        except (SlurmError, OSError) as error:
            logger.error("the job should be resumed (%s), but that failed: %s", verdict.reason, error)
            return code or 1

    def _requeue(self, verdict: Again, info: JobInfo, excluded: Sequence[str]) -> int:
        if not info.requeue:
            raise SlurmError("the job was submitted with --no-requeue; add '#SBATCH --requeue', or use --mode chain")
        logger.info("requeued: %s%s", verdict.reason, _without(excluded))
        # Slurm now ends all processes of this script, these commands too unless they inherit an ignored SIGTERM.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        slurm.run(slurm.requeue(self._job))
        # The job is pending, so that its nodes can be changed; SIGKILL follows KillWait later.
        if excluded:
            slurm.run(slurm.exclude(self._job, info, excluded))
        return 0

    def _chain(self, verdict: Again, info: JobInfo, excluded: Sequence[str], code: int) -> int:
        env = slurm.environment_outside(self._env) | {ROOT: self._root}
        env.setdefault(environment.JOB_ID, self._root)
        name = self._env.get("SLURM_JOB_NAME", "")
        named = [f"--job-name={name}"] if name else []
        with tempfile.TemporaryDirectory(prefix="rankwatch.") as folder:  # sbatch reads the script before it returns
            script = os.path.join(folder, "script.sh")
            slurm.run(slurm.batch_script(self._job, script))
            words = [*named, f"--chdir={Path.cwd()}", script, *info.arguments]
            job = slurm.run(slurm.chain(self._job, info, excluded, words), env).strip().partition(";")[0]
        logger.info("job %s resumes: %s%s", job, verdict.reason, _without(excluded))
        return code

    def _excluded_nodes(self, outcome: Outcome | None) -> list[str]:
        """The nodes of this job that the launchers have excluded, by their names in Slurm."""
        if outcome is None or not outcome.excluded or not self._options.exclude_bad_nodes:
            return []
        ours = slurm.run(slurm.node_names(self._env.get("SLURM_JOB_NODELIST", self._here))).split()
        hosts = {name for _, host, _ in outcome.excluded for name in (host, host.partition(".")[0])}
        return [name for name in ours if name in hosts]

    def _job_info(self) -> JobInfo:
        return JobInfo.parse(slurm.run(slurm.show(self._job)))


# The history of launches ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PastLaunches:
    """Totals over the earlier launches."""

    launches: int
    used: int
    """Counted retries."""
    progress: Progress


class LaunchHistory:
    """The folder that holds a job's launches over requeues and chained jobs; all nodes must see it.

    ``launches.jsonl`` has one line per launch. ``outcome-NODE.json`` is what each launcher writes when it ends; they
    are read once and removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def prepare(self) -> None:
        """Create the folder, and remove outcomes of an earlier launch.

        Raises:
            OSError: it cannot be created or written, or others than this user can write to it.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_unshared(self.folder)
        append(self.folder / LAUNCHES, "")
        self._lines()  # too many are refused now
        self._take_outcomes()

    def outcome_pattern(self) -> str:
        """The value of ``--outcome`` for the launchers."""
        return str(self.folder / f"outcome-{NODE}.json")

    def past(self, limit: int) -> PastLaunches:
        """Totals over the recorded launches; ``limit`` is the number of launches in a row without progress."""
        launches, used, progress = 0, 0, Progress(limit)
        for line in self._lines():
            try:
                record: Any = decoded(line)
                outcome = read(Outcome, record["outcome"]) if record["outcome"] else None
                counted = bool(record["counted"])
            except (ValueError, KeyError, TypeError):
                continue  # truncated by a full disk, or edited
            launches, used, progress = launches + 1, used + counted, progress.then(outcome)
        return PastLaunches(launches, used, progress)

    def _lines(self) -> list[str]:
        try:
            return read_file(self.folder / LAUNCHES, LARGEST_HISTORY, errors="replace", own=True).splitlines()
        except ValueError as error:
            raise OSError(errno.EFBIG, str(error), str(self.folder / LAUNCHES)) from None

    def record(
        self, outcome: Outcome | None, code: int, verdict: Done | Again | GiveUp, place: Mapping[str, str]
    ) -> None:
        """Append a launch that has ended; ``place`` holds further facts about it.

        Raises:
            OSError: it cannot be written.
        """
        line = {
            **place,
            "code": code,
            "outcome": asdict(outcome) if outcome is not None else None,
            "verdict": type(verdict).__name__,
            "counted": isinstance(verdict, Again) and verdict.counted,
            "reason": verdict.reason,
        }
        append(self.folder / LAUNCHES, json.dumps(line) + "\n")  # on disk: Slurm kills this process next

    def outcome(self, here: str) -> Outcome | None:
        """The launchers' outcomes combined; None: there are none. ``here`` is the node of the batch script."""
        found = self._take_outcomes()
        if not found:
            return None
        name = f"outcome-{here}.json"
        first = found.get(name) or found[min(found)]
        steps = [outcome.iteration for outcome in found.values() if outcome.iteration is not None]
        excluded = dict.fromkeys(item for outcome in found.values() for item in outcome.excluded)
        return replace(
            first,
            iteration=max(steps, default=None),
            complete=any(outcome.complete for outcome in found.values()),
            excluded=tuple(excluded),
        )

    def job_is_over(self, here: str) -> bool:
        """Whether the launcher of this node has left the outcome of the job, and not only its own."""
        outcome = Outcome.read(self.folder / f"outcome-{here}.json")
        # One that fails by itself knows no cause: it has lost the store, and the others may train on.
        return outcome is not None and (outcome.state != FAILED or bool(outcome.cause))

    def _take_outcomes(self) -> dict[str, Outcome]:
        found = {}
        for file in sorted(self.folder.glob("outcome-*.json")):
            outcome = Outcome.read(file)
            file.unlink(missing_ok=True)
            if outcome is not None:
                found[file.name] = outcome
        return found


def reconcile(outcome: Outcome | None, code: int, requested: str) -> Outcome | None:
    """The outcome, corrected by the command's exit code and by whether the batch script requested a stop.

    ``requested`` is why it did, empty when it did not. A launcher that was ended with SIGTERM because another one died
    reports a preemption; only the command's exit code distinguishes the two, and an uncounted retry for each such death
    would repeat forever.
    """
    if requested and outcome is None:
        return Outcome(PREEMPTED, code, f"{requested}; the launchers wrote no outcome")
    if outcome is not None and outcome.state == PREEMPTED and code and not requested:
        reason = f"the command ended with exit code {code}, and its launchers were terminated without a stop request"
        return replace(outcome, state=FAILED, code=code if 0 < code < 128 else CODE_FAILED, reason=reason)
    return outcome


def _end(srun: subprocess.Popen[bytes]) -> int:
    """End srun, which ends its step; 0, since the launchers have said how the job ended."""
    srun.terminate()
    try:
        srun.wait(SRUN_SECONDS)
    except subprocess.TimeoutExpired:
        srun.kill()
        srun.wait()
    return 0


def _without(nodes: Sequence[str]) -> str:
    return f"; excluding {', '.join(nodes)}" if nodes else ""


def _is_batch_script() -> bool:
    """Whether this process was started by slurmstepd, so that Slurm signals it."""
    try:
        parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    except OSError:
        return True
    return parent.startswith("slurmstepd")


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _count(text: str) -> int:
    try:
        return int(COUNT.read_text(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _signal(text: str) -> signal.Signals:
    try:
        return signal.Signals[stop_signal(text) or "SIGTERM"]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
