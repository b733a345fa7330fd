"""``rankwatch slurm batch``: the last line of an sbatch script. It runs the job's command and sees to what follows.

How this works
--------------
The script says ``exec rankwatch slurm batch -- srun ... rankwatch run ...``, so that this process *is* the batch
script: the one process that ``#SBATCH --signal=B:TERM@60`` signals.

=============================================  =========================================================================
what happens                                   what is done
=============================================  =========================================================================
SIGTERM, the job is RUNNING                    one launcher of each step on this host is sent SIGTERM: all launchers
                                               agree, the ranks save at the end of a step, and the job resumes
SIGTERM, the job is COMPLETING                 nothing: Slurm signals every process itself
the command ends                               ``retry_policy`` decides by what the launchers left
.. ``Done``, ``GiveUp``                        this process ends with the code; Slurm runs nothing again
.. ``Again``, ``--mode requeue``               ``scontrol requeue``: the same job starts again
.. ``Again``, ``--mode chain``                 the same script is submitted as a job of its own, to begin after this one
.. ``Again``, but the job was cancelled        this process ends with the code
=============================================  =========================================================================
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Final

from rankwatch.contract import env as environment
from rankwatch_launcher.cli.options import stop_signal, whole_number
from rankwatch_launcher.job import retry_policy
from rankwatch_launcher.job.outcome import Outcome
from rankwatch_launcher.job.retry_policy import Again
from rankwatch_launcher.log import logger, to_stderr
from rankwatch_launcher.node import procfs
from rankwatch_launcher.schedulers import slurm
from rankwatch_launcher.schedulers.slurm import Shown, SlurmError
from rankwatch_launcher.schedulers.slurm_launches import Launches, judged
from rankwatch_launcher.schedulers.slurm_steps import launchers

OUTCOME: Final = "RANKWATCH_OUTCOME"
ROOT: Final = "RANKWATCH_SLURM_ROOT"
"""Id of the first job of a chain."""
LAUNCHER_PATIENCE: Final = 20.0
"""Seconds to look for a launcher that can be asked to stop: one that just started still imports torch."""
LOOK_SECONDS: Final = 0.25
RUNNING: Final = "RUNNING"


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
        parser.error(f"this is no Slurm job ({slurm.JOB_ID} is not set): use it in a script given to sbatch")
    batch = Batch(options, os.environ, after)
    try:
        batch.launches.prepare()
    except OSError as error:
        parser.error(f"retries cannot be counted: {error}; name a folder that all nodes can write with --folder")
    return batch.run()


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of ``rankwatch slurm``."""
    parser = argparse.ArgumentParser(prog="rankwatch slurm", description="Helpers for jobs under Slurm.")
    batch = parser.add_subparsers(required=True, metavar="batch").add_parser(
        "batch",
        help="run a command within an sbatch script, and see to what follows",
        usage="exec rankwatch slurm batch [options] -- srun ... rankwatch run ...",
        description="Runs a command within an sbatch script, hands the signal before the time limit to the launchers "
        "as 'save and stop', and requeues or chains the job when it is to be resumed.",
    )
    batch.add_argument(
        "--mode",
        choices=("requeue", "chain"),
        default="requeue",
        help="how the job is run again: as the same job, or as another that begins after it (default: requeue)",
    )
    batch.add_argument("--job-retries", type=_count, default=2, metavar="N", help="retries after failures (default: 2)")
    batch.add_argument(
        "--max-no-progress",
        type=_count,
        default=3,
        metavar="N",
        help="launches in a row that get no further before the job is given up with exit code 93; 0: off (default: 3)",
    )
    batch.add_argument(
        "--signal",
        type=_signal,
        default=signal.SIGTERM,
        metavar="NAME",
        help="the signal that #SBATCH --signal=B:NAME@SECONDS names; SIGTERM is always understood (default: TERM)",
    )
    batch.add_argument(
        "--exclude-bad-nodes",
        action="store_true",
        help="keep further runs off the nodes that the launchers have excluded",
    )
    batch.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where launches are counted; all nodes must see it (default: slurm-JOBID.rankwatch where the job runs)",
    )
    return parser


class Batch:
    """One run of the batch script."""

    def __init__(self, options: argparse.Namespace, env: MutableMapping[str, str], command: Sequence[str]) -> None:
        self._options, self._env, self._command = options, env, list(command)
        self._job = env[slurm.JOB_ID]
        self._root = env.get(ROOT) or self._job
        self._here = slurm.node_name(env) or socket.gethostname()
        self.launches = Launches(options.folder or Path(f"slurm-{self._root}.rankwatch"))
        self._asked = ""
        """Why the launchers were asked to stop; empty: they were not."""
        self._search_ends: float | None = None
        """Until when a launcher is looked for that can be asked; None: there is nothing to ask."""

    def run(self) -> int:
        """Run the command, decide what follows and have it done; return the exit code."""
        flag = self._env.get(environment.FINISHED_FLAG, "")
        if flag and Path(flag).exists():
            logger.info("training is complete (%s exists): nothing is started; remove it to train again", flag)
            return 0
        if not _is_batch_script():
            logger.warning("write 'exec' before 'rankwatch slurm batch': Slurm's signal would end the shell around it")
        past = self.launches.past(self._options.max_no_progress)
        logger.info(
            "launch %d of Slurm job %s on %s; %d of %d retries are used",
            past.launches + 1,
            self._root,
            self._env.get("SLURM_JOB_NODELIST", self._here),
            past.used,
            self._options.job_retries,
        )
        code = self._run_command()
        outcome = judged(self.launches.outcome(self._here), code, self._asked)
        finished = bool(flag) and Path(flag).exists()
        progress = past.progress.then(outcome)
        verdict = retry_policy.after(outcome, code, finished, past.used, self._options.job_retries, progress)
        place = {"job": self._job, "run": str(slurm.restart_count(self._env)), "node": self._here}
        self.launches.keep(outcome, code, verdict, place)
        if not isinstance(verdict, Again):
            word = "done" if isinstance(verdict, retry_policy.Done) else "given up"
            logger.info("%s: %s", word, verdict.reason)
            return verdict.code
        ended = outcome.code if outcome is not None else retry_policy.exit_status(code)
        return self._again(verdict, outcome, ended)

    # While the command runs -------------------------------------------------------------------------------------------

    def _run_command(self) -> int:
        """Run the command to its end, acting on signals; return its code as ``Popen`` gives it."""
        heard, waker = os.pipe()
        for end in (heard, waker):
            os.set_blocking(end, False)
        for number in {signal.SIGTERM, self._options.signal}:
            # What to do is decided in the loop. The handler stays: a late signal must not cut off what follows.
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        child = self._start()
        if child is None:
            return 127
        ended = os.pidfd_open(child.pid)
        try:
            while True:
                searching = self._search_ends is not None
                ready, _, _ = select.select([heard, ended], [], [], LOOK_SECONDS if searching else None)
                if heard in ready:
                    for number in os.read(heard, 64):
                        self._heard(signal.Signals(number))
                if ended in ready:
                    return child.wait()
                if self._search_ends is not None:
                    self._ask_launchers(self._search_ends)
        finally:
            os.close(ended)

    def _start(self) -> subprocess.Popen[bytes] | None:
        env = dict(self._env) | {OUTCOME: self.launches.outcome_pattern()}
        env.setdefault(environment.JOB_ID, self._root)
        try:
            return subprocess.Popen(self._command, env=env)
        except OSError as error:
            logger.error("'%s' cannot be started: %s", self._command[0], error.strerror)
            return None

    def _heard(self, number: signal.Signals) -> None:
        if number not in (signal.SIGTERM, self._options.signal) or self._asked:
            return
        try:
            state = self._shown().state
        except SlurmError as error:
            logger.warning("%s; the job is taken to be running", error)
            state = RUNNING
        if state != RUNNING:
            self._asked = f"Slurm ends job {self._job} ({number.name})"
            logger.info("Slurm ends the job: it signals every process itself, and the launchers save if there is time")
            return
        self._asked = f"the batch script of job {self._job} on {self._here} got {number.name}"
        self._search_ends = time.monotonic() + LAUNCHER_PATIENCE

    def _ask_launchers(self, until: float) -> None:
        """Ask one launcher of each step to save and stop; all processes of the steps if none is found until then."""
        found = [each for each in launchers(self._job) if procfs.catches(each.pid, signal.SIGTERM)]
        if not found and time.monotonic() < until:
            return
        self._search_ends = None
        for launcher in found:
            logger.info("%s: launcher %d is asked to save and stop", self._asked, launcher.pid)
            try:
                os.kill(launcher.pid, signal.SIGTERM)
            except ProcessLookupError:
                logger.info("launcher %d has ended by itself", launcher.pid)
        if not found:
            logger.warning(
                "%s: no launcher runs here, so all processes of the job's steps are sent SIGTERM", self._asked
            )
            try:
                slurm.ask(slurm.signal_steps(self._job, "TERM"))
            except SlurmError as error:
                logger.error("%s; the ranks may be killed without saving", error)

    # Afterwards -------------------------------------------------------------------------------------------------------

    def _again(self, verdict: Again, outcome: Outcome | None, code: int) -> int:
        try:
            shown = self._shown()
            if shown.state != RUNNING and shown.restarts > slurm.restart_count(self._env):
                logger.info("%s; Slurm itself has requeued the job", verdict.reason)
                return 0
            if shown.state != RUNNING and not shown.at_limit:
                logger.info("not run again: job %s was cancelled, or is being ended by Slurm", self._job)
                return code
            off = self._nodes_to_avoid(outcome)
            return self._requeue(verdict, shown, off) if self._requeues else self._chain(verdict, shown, off, code)
        except (SlurmError, OSError) as error:
            logger.error("it should be run again (%s), but that failed: %s", verdict.reason, error)
            return code or 1

    @property
    def _requeues(self) -> bool:
        return bool(self._options.mode == "requeue")

    def _requeue(self, verdict: Again, shown: Shown, off: Sequence[str]) -> int:
        if not shown.requeue:
            raise SlurmError("the job was submitted with --no-requeue; write '#SBATCH --requeue', or use --mode chain")
        logger.info("requeued: %s%s", verdict.reason, _without(off))
        # Slurm now ends all processes of this script, these commands too, unless they inherit that SIGTERM is ignored.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        slurm.ask(slurm.requeue(self._job))
        # The job waits already, so that its nodes can be chosen; SIGKILL comes KillWait later.
        if off:
            slurm.ask(slurm.exclude(self._job, shown, off))
        return 0

    def _chain(self, verdict: Again, shown: Shown, off: Sequence[str], code: int) -> int:
        script = self.launches.folder / "script.sh"
        slurm.ask(slurm.batch_script(self._job, str(script)))
        env = slurm.outside(self._env) | {ROOT: self._root}
        env.setdefault(environment.JOB_ID, self._root)
        name = self._env.get("SLURM_JOB_NAME", "")
        words = [*([f"--job-name={name}"] if name else []), f"--chdir={Path.cwd()}", str(script), *shown.arguments]
        job = slurm.ask(slurm.chain(self._job, shown, off, words), env).strip().partition(";")[0]
        logger.info("job %s will go on: %s%s", job, verdict.reason, _without(off))
        return code

    def _nodes_to_avoid(self, outcome: Outcome | None) -> list[str]:
        """The nodes of this job that the launchers have excluded, by the names that Slurm knows."""
        if outcome is None or not outcome.excluded or not self._options.exclude_bad_nodes:
            return []
        ours = slurm.ask(slurm.node_names(self._env.get("SLURM_JOB_NODELIST", self._here))).split()
        hosts = {name for _, host, _ in outcome.excluded for name in (host, host.partition(".")[0])}
        return [name for name in ours if name in hosts]

    def _shown(self) -> Shown:
        return Shown.parse(slurm.ask(slurm.show(self._job)))


def _without(nodes: Sequence[str]) -> str:
    return f"; it will not run on {', '.join(nodes)}" if nodes else ""


def _is_batch_script() -> bool:
    """Whether this process was started by Slurm's step daemon itself, so that it is what Slurm signals."""
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
        return whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _signal(text: str) -> signal.Signals:
    try:
        return signal.Signals[stop_signal(text) or "SIGTERM"]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
