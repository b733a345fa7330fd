"""``rankwatch run``: torchrun's own parser with Rankwatch's flags beside it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

from rankwatch.wire import environment
from rankwatch.wire.policy import Policy
from rankwatch_launcher import flags, inject, torch_seams
from rankwatch_launcher.ft_state import FtState
from rankwatch_launcher.launch import launch
from rankwatch_launcher.log import logger, to_stderr
from rankwatch_launcher.rendezvous import BACKENDS
from rankwatch_launcher.watch import Options

NO_ID: Final = ("", "none")
FT_STATE: Final = "RANKWATCH_FT_STATE"
FT_STATE_HELP: Final = (
    "file, or folder of ft_state.json, in which learned timeouts are kept from run to run; put it beside the "
    "checkpoints, where all nodes see it"
)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser: every flag of torchrun, then ours."""
    parser: argparse.ArgumentParser = torchrun.get_args_parser()
    parser.prog = "rankwatch run"
    parser.description = (
        "Runs a script on every rank as torchrun does, and has a monitor watch the ranks: one that hangs or crashes is "
        "named, its stack is kept, and all ranks are restarted."
    )
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
    group = parser.add_argument_group("Rankwatch", "Each has an environment variable, for example RANKWATCH_MONITOR.")
    group.add_argument(
        "--monitor", metavar="URL", type=_url, help="the monitor to report to; without it one is started here"
    )
    group.add_argument("--no-monitor", action="store_true", help="no monitor and nothing of Rankwatch: plain torchrun")
    group.add_argument("--token", metavar="TOKEN", help="the monitor's token; better given as RANKWATCH_TOKEN")
    group.add_argument("--job-id", metavar="ID", help="identity of the job; runs with the same one continue its record")
    group.add_argument("--job-name", metavar="NAME", help="name shown for the job (default: the script's)")
    group.add_argument("--ft-state", metavar="FILE", help=FT_STATE_HELP)
    inject.add_flag(group)
    flags.add_policy_flags(group)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run a training script on every rank as torchrun does, and have the ranks watched.

    Takes the arguments after ``rankwatch run`` and returns the exit code.
    """
    to_stderr()
    parser = build_parser()
    args = parser.parse_args(list(argv))
    try:
        inject.hand_down(args, os.environ)
    except ValueError as error:
        parser.error(str(error))
    complaint = torch_seams.complaint()
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
        options, max_restarts = read_options(args, os.environ, original_id)
        args.max_restarts = max_restarts
        if args.run_path:
            # A rank of its own interpreter does the same as runpy in a spawned one, and can be watched like any other.
            args.run_path = False
        config, entrypoint, arguments = torchrun.config_from_args(args)
        inject.check_ranks(os.environ, config.max_nodes * config.nproc_per_node)
    except (ValueError, AssertionError, RuntimeError) as error:
        parser.error(str(error))
    assert isinstance(entrypoint, str)
    ft_state = FtState(args.ft_state or os.environ.get(FT_STATE, ""))
    ft_state.read()
    try:
        return launch(options, config, entrypoint, arguments, ft_state) or 0
    except ChildFailedError as failed:
        sys.stderr.write(f"{failed}\n")
        return 1


def read_options(args: argparse.Namespace, env: Mapping[str, str], rendezvous_id: str) -> tuple[Options, int]:
    """Return our options and the restart budget.

    Raises:
        ValueError: an environment variable does not hold what it should.
    """
    policy: dict[str, Any] = flags.given_policy(args, env)
    if args.max_restarts is not None:
        policy["max_restarts"] = args.max_restarts
    checked = Policy().changed(policy)
    url = args.monitor or env.get(environment.MONITOR_URL, "")
    return (
        Options(
            monitor_url=url,
            token=args.token or env.get(environment.TOKEN, ""),
            job_id=_job_id(args, env, rendezvous_id),
            job_name=args.job_name or env.get(environment.JOB_NAME, "") or Path(args.training_script).stem or "train",
            policy=policy,
        ),
        checked.max_restarts,
    )


def settle_rendezvous(args: argparse.Namespace) -> None:
    """Choose the rendezvous as torchrun does: one node without an address meets with itself on a free port."""
    alone = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    if args.standalone or (alone and torchrun.parse_min_max_nnodes(args.nnodes)[1] == 1):
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid4())
    if args.master_port is None:
        args.master_port = 29500


def _job_id(args: argparse.Namespace, env: Mapping[str, str], rendezvous_id: str) -> str:
    given = args.job_id or env.get(environment.JOB_ID, "") or env.get("SLURM_JOB_ID", "")
    if given:
        return str(given)
    return "" if args.standalone or rendezvous_id in NO_ID else rendezvous_id


def _plain(args: argparse.Namespace) -> int:
    if args.max_restarts is None:
        args.max_restarts = 0
    record(torchrun.run)(args)
    return 0


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"must be like http://HOST:9560, not {text!r}")
    return text.rstrip("/")
