"""``rankwatch run``: torchrun's own parser with Rankwatch's flags beside it.

torch is imported by what needs it, not at the top: with ``--job-retries`` this process stays beside the job, small.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from rankwatch.contract import env as environment
from rankwatch.contract.policy import Policy
from rankwatch_launcher.cli import flags, ft_file, inject, nvrx, standby_flags
from rankwatch_launcher.cli.nvrx import Given
from rankwatch_launcher.cli.options import Options
from rankwatch_launcher.job import finished, supervisor
from rankwatch_launcher.job.supervisor import Plan, Tie
from rankwatch_launcher.log import logger, to_stderr
from rankwatch_launcher.node.learned_limits import FtState
from rankwatch_launcher.schedulers import kubernetes

if find_spec("torch") is None:  # `rankwatch` says what to install
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

NO_ID: Final = ("", "none")
FT_STATE: Final = "RANKWATCH_FT_STATE"
FT_STATE_HELP: Final = (
    "file, or folder of ft_state.json, in which learned timeouts are kept from run to run; put it beside the "
    "checkpoints, where all nodes see it"
)
PROGRAM: Final = "rankwatch run"


def build_parser() -> argparse.ArgumentParser:
    """Make the parser: every flag of torchrun, then ours, then those of ft_launcher."""
    from torch.distributed.run import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = PROGRAM
    parser.description = (
        "Runs a script on every rank as torchrun does, and has a monitor watch the ranks: one that hangs or crashes is "
        "named, its stack is kept, and all ranks are restarted."
    )
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
    add_flags(parser)
    nvrx.add_flags(parser)
    return parser


def add_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add Rankwatch's own flags, in a group that is returned."""
    group = parser.add_argument_group("Rankwatch", "Each has an environment variable, for example RANKWATCH_MONITOR.")
    group.add_argument(
        "--monitor", metavar="URL", type=_url, help="the monitor to report to; without it one is started here"
    )
    group.add_argument("--no-monitor", action="store_true", help="no monitor and nothing of Rankwatch: plain torchrun")
    group.add_argument("--token", metavar="TOKEN", help="the monitor's token; better given as RANKWATCH_TOKEN")
    group.add_argument("--job-id", metavar="ID", help="identity of the job; runs with the same one continue its record")
    group.add_argument("--job-name", metavar="NAME", help="name shown for the job (default: the script's)")
    group.add_argument("--ft-state", metavar="FILE", help=FT_STATE_HELP)
    standby_flags.add(group)
    inject.add_flag(group)
    flags.add_option_flags(group)
    flags.add_policy_flags(group)
    return group


def run(argv: Sequence[str]) -> int:
    """Run a training script on every rank as torchrun does, and have the ranks watched.

    Takes the arguments after ``rankwatch run`` and returns the exit code.
    """
    to_stderr()
    tie = supervisor.take_tie(os.environ)
    if tie is None and (plan := retry_plan(argv, os.environ)) is not None:
        if finished.exists(plan.flag):
            finished.refuse(plan.flag)
            return 0
        return supervisor.supervise(plan, argv, os.environ)
    return _launch(argv, tie)


def retry_plan(argv: Sequence[str], env: Mapping[str, str]) -> Plan | None:
    """What a supervisor has to know; None when no retries are asked for. Imports no torch."""
    parser = argparse.ArgumentParser(PROGRAM, f"{PROGRAM} [options] script ...", add_help=False, allow_abbrev=False)
    group = add_flags(parser)
    own = flags.before_script(argv, group)
    if {"-h", "--help"} & set(own):
        return None
    args, _ = parser.parse_known_args(own)
    try:
        options = flags.given_options(args, env)
        no_progress = _no_progress(args, env)
    except ValueError as error:
        parser.error(str(error))
    if not options.get("job_retries"):
        return None
    return supervisor.Plan(
        budget=options["job_retries"],
        no_progress=no_progress,
        flag=finished.flag_file(options.get("finished_flag", ""), env),
        outcome=options.get("outcome", ""),
    )


def split(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Put ``--`` before the script: else argparse takes an argument of the script's for an abbreviation of a flag."""
    own = flags.before_script(argv, parser)
    rest = list(argv[len(own) :])
    rest = rest[1:] if rest[:1] == ["--"] else rest
    return [*own, "--", *rest] if rest else own


def _launch(argv: Sequence[str], tie: Tie | None) -> int:
    """Be the launcher of this node."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.run import config_from_args

    from rankwatch_launcher.agent import torch_compat
    from rankwatch_launcher.coordination.rendezvous import BACKENDS
    from rankwatch_launcher.job.launcher import Launch

    parser = build_parser()
    args = parser.parse_args(split(argv, parser))
    try:
        inject.hand_down(args, os.environ)
        foreign = nvrx.from_flags(args, os.environ), ft_file.from_file(args, os.environ)
        given = flags.given_options(args, os.environ)
    except ValueError as error:
        parser.error(str(error))
    flag = finished.flag_file(given.get("finished_flag", ""), os.environ)
    if finished.exists(flag):
        finished.refuse(flag)
        return 0
    if tie is None and given.get("job_retries"):  # an abbreviation of the flag, which retry_plan() does not know
        plan = Plan(given["job_retries"], _no_progress(args, os.environ), flag, given.get("outcome", ""))
        return supervisor.supervise(plan, argv, os.environ)
    _follow(*foreign, args)
    complaint = torch_compat.complaint()
    if complaint is None and not args.no_monitor:
        original_id = args.rdzv_id
        settle_rendezvous(args)
        if args.rdzv_backend not in BACKENDS:
            complaint = f"the rendezvous backend {args.rdzv_backend!r} is not one of {', '.join(BACKENDS)}"
    if args.no_monitor or complaint is not None:
        if complaint is not None:
            logger.warning("%s; running plain torchrun: hangs will not be found", complaint)
        return _plain(args)
    try:
        options, max_restarts = read_options(args, os.environ, original_id, foreign=foreign, tie=tie)
        args.max_restarts = max_restarts
        if args.run_path:
            # A rank of its own interpreter does the same as runpy in a spawned one, and can be watched like any other.
            args.run_path = False
        config, entrypoint, arguments = config_from_args(args)
        inject.check_ranks(os.environ, config.max_nodes * config.nproc_per_node)
    except (ValueError, AssertionError, RuntimeError) as error:
        parser.error(str(error))
    assert isinstance(entrypoint, str)
    _hand_down(options)
    ft_state = FtState(args.ft_state or os.environ.get(FT_STATE, ""))
    ft_state.read()
    launch = Launch(options, config, ft_state)
    try:
        record(launch.run)(entrypoint, arguments)
    except ChildFailedError as failed:
        sys.stderr.write(f"{failed}\n")
    return kubernetes.exit_code(launch.outcome.code, launch.outcome.state, os.environ)


def read_options(
    args: argparse.Namespace,
    env: Mapping[str, str],
    rendezvous_id: str,
    *,
    foreign: tuple[Given, Given] | None = None,
    tie: Tie | None = None,
) -> tuple[Options, int]:
    """Return our options and the restart budget.

    ``foreign`` is what ft_launcher's flags and its file say; without it both are read here.

    Raises:
        ValueError: an environment variable does not hold what it should.
    """
    theirs, file = foreign or (nvrx.from_flags(args, env), ft_file.from_file(args, env))
    policy: dict[str, Any] = flags.given_policy(args, env, foreign=theirs.policy, file=file.policy)
    if args.max_restarts is not None:
        policy["max_restarts"] = args.max_restarts
    checked = Policy().changed(policy)
    given = flags.given_options(args, env, foreign=theirs.options, file=file.options)
    given["finished_flag"] = finished.flag_file(given.get("finished_flag", ""), env)
    name = args.job_name or env.get(environment.JOB_NAME, "") or Path(args.training_script).stem or "train"
    made_up = f"{name}-{tie.word}" if tie is not None else ""
    return (
        Options(
            monitor_url=args.monitor or env.get(environment.MONITOR_URL, ""),
            token=args.token or env.get(environment.TOKEN, ""),
            job_id=_job_id(args, env, rendezvous_id) or made_up,
            job_name=name,
            policy=policy,
            standby=standby_flags.chosen(args, env),
            **given,
        ),
        checked.max_restarts,
    )


def settle_rendezvous(args: argparse.Namespace) -> None:
    """Choose the rendezvous as torchrun does: one node without an address meets with itself on a free port."""
    from torch.distributed.run import parse_min_max_nnodes

    alone = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    if args.standalone or (alone and parse_min_max_nnodes(args.nnodes)[1] == 1):
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid4())
    if args.master_port is None:
        args.master_port = 29500


def _follow(theirs: Given, file: Given, args: argparse.Namespace) -> None:
    """Do what ft_launcher's flags, and below them its file, ask of this process."""
    for source in (theirs, file):
        for note in source.notes:
            logger.warning("%s", note)
        if args.shutdown_timeout is None:
            args.shutdown_timeout = source.shutdown_timeout
    level = file.log_level if theirs.log_level is None else theirs.log_level
    if level is not None:
        logger.setLevel(level)


def _hand_down(options: Options) -> None:
    """What ranks find in their environment, and what they must not find there."""
    if options.finished_flag:
        os.environ[environment.FINISHED_FLAG] = options.finished_flag
    os.environ.pop(supervisor.OUTCOME, None)


def _no_progress(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    return Policy().changed(flags.given_policy(args, env)).max_no_progress


def _job_id(args: argparse.Namespace, env: Mapping[str, str], rendezvous_id: str) -> str:
    given = args.job_id or env.get(environment.JOB_ID, "") or env.get("SLURM_JOB_ID", "")
    if given:
        return str(given)
    return "" if args.standalone or rendezvous_id in NO_ID else rendezvous_id


def _plain(args: argparse.Namespace) -> int:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import record

    if args.max_restarts is None:
        args.max_restarts = 0
    record(torchrun.run)(args)
    return 0


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"must be like http://HOST:9560, not {text!r}")
    return text.rstrip("/")
