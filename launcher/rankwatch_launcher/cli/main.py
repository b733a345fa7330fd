"""``rankwatch run``: torchrun's own parser with Rankwatch's flags added.

torch is imported where it is needed, not at the top: with ``--job-retries`` this process stays, small, beside the job.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from rankwatch.cli.parser import Parser, close_flag, shorten_errors
from rankwatch.contract import access, job_id
from rankwatch.contract import env as environment
from rankwatch.contract.policy import Policy
from rankwatch_launcher.cli import flags, nvrx
from rankwatch_launcher.cli.nvrx import Translated
from rankwatch_launcher.cli.script import Mistake, mistake
from rankwatch_launcher.job import supervisor
from rankwatch_launcher.job.supervisor import RetryPlan, Supervision
from rankwatch_launcher.launch_line import launch_line
from rankwatch_launcher.log import logger, to_stderr
from rankwatch_launcher.node.learned_limits import LearnedLimitsFile
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import (
    CODE_DO_NOT_REQUEUE,
    CODE_FAILED,
    FAILED,
    OUTCOME_VARIABLE,
    Outcome,
    finished_flag_path,
    log_training_complete,
    training_complete,
)
from rankwatch_launcher.schedulers import kubernetes

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

    from rankwatch_launcher.job.launcher import Launcher

if find_spec("torch") is None:  # `rankwatch` prints what to install
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

SHOWN_ID: Final = 80
NO_ID: Final = ("", "none")
FT_STATE: Final = "RANKWATCH_FT_STATE"
FT_STATE_HELP: Final = (
    "file, or folder of ft_state.json, that keeps learned timeouts between runs; put it beside the checkpoints, where "
    "all nodes see it"
)
PROGRAM: Final = "rankwatch run"
_ELASTIC: Final = "torch.distributed.elastic"
HELP_ALL: Final = "--help-all"
USAGE: Final = f"{PROGRAM} [options] script [arguments of the script]"
WHAT: Final = """\
Runs a script on every rank as torchrun does, monitored: a rank that hangs or crashes is named with its reason, stacks
are captured, and all ranks are restarted. Every flag of torchrun is accepted.
"""
MOST_USED: Final = (
    ("--nproc-per-node N", "ranks on this node (torchrun's)"),
    ("--nnodes N", "nodes, or MIN:MAX (torchrun's)"),
    ("--rdzv-endpoint HOST:PORT", "where the nodes meet, with --rdzv-backend c10d (torchrun's)"),
    ("--auto", "watch a script that does not call Rankwatch"),
    ("--section-timeout NAME=SECONDS", "act as soon as a section takes longer, step=180 for example"),
    ("--on-hang ACTION", "restart (default), log, stop, ..."),
    ("--observe-only", "watch and tell, never act"),
    ("--max-restarts N", "restarts in all"),
    ("--monitor URL", "report to this monitor; without it one is started here"),
    ("--job-id ID", "identity of the job; runs with the same id continue its record"),
    ("--job-retries N", "launch the job again when it has failed"),
    ("--verbose", "log details, too"),
)
"""The flags of the short help, with what they mean."""
EXAMPLES: Final = f"""\
examples:
  {PROGRAM} --auto --nproc-per-node 8 train.py
      watch a script that does not call Rankwatch
  {PROGRAM} --nproc-per-node 8 --section-timeout step=180 --max-restarts 5 train.py --lr 1e-3
      act as soon as a step takes 180 s
  {PROGRAM} --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py
      the same command on each of two nodes
"""
DESCRIPTION: Final = f"{WHAT}\n{EXAMPLES}"
MORE: Final = f"{PROGRAM} --help-all lists every flag, torchrun's too. The manual is part of the page, at /manual."


def build_parser() -> argparse.ArgumentParser:
    """The parser: every flag of torchrun, then Rankwatch's, then those of ft_launcher."""
    from torch.distributed.run import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = PROGRAM
    shorten_errors(parser)
    parser.usage = USAGE
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
        restarts = next(action for action in parser._actions if action.dest == "max_restarts")
        restarts.help = f"{restarts.help} Default here: {Policy().max_restarts}."
    if "PET_MASTER_PORT" not in os.environ:
        parser.set_defaults(master_port=None)  # 29500 in torch before 2.12, so that two jobs of a node shared it
    theirs = [*parser._action_groups]
    add_flags(parser)
    ours = parser._action_groups[len(theirs) :]
    parser._optionals.title = "Flags of torchrun"
    parser._action_groups[:] = [*ours, *theirs]  # the help begins with what torchrun's does not have
    nvrx.add_flags(parser)
    return parser


def help_flags(argv: Sequence[str]) -> bool | None:
    """Whether the command line asks for the help on every flag, or for the short one; None: for none."""
    own = flags.before_script(argv, add_flags(Parser(PROGRAM, add_help=False, allow_abbrev=False)))
    if HELP_ALL in own:
        return True
    return False if {"-h", "--help"} & {*own} else None


def short_help() -> str:
    """One screen: what it does, the flags that most jobs need, examples, and where the rest is."""
    rows = "".join(f"  {flag:<31} {meaning}\n" for flag, meaning in MOST_USED)
    return f"usage: {USAGE}\n\n{WHAT}\noptions:\n{rows}\n{EXAMPLES}\n{MORE}\n"


def add_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add Rankwatch's own flags, in groups; return the parser."""
    acts, limits, stragglers = flags.policy_groups()
    group = parser.add_argument_group("Job and monitor", "Each flag has a variable, RANKWATCH_MONITOR for example.")
    group.add_argument(
        "--monitor", metavar="URL", type=_url, help="the monitor to report to (default: one is started here)"
    )
    group.add_argument(
        "--no-monitor", action="store_true", help="plain torchrun, without a monitor and all else of Rankwatch"
    )
    group.add_argument("--token", metavar="TOKEN", help="the monitor's token; prefer RANKWATCH_TOKEN")
    group.add_argument("--job-id", metavar="ID", help="identity of the job; runs with the same id continue its record")
    group.add_argument("--job-name", metavar="NAME", help="displayed name of the job (default: the script's)")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument(
        "--quiet", dest="log_level", action="store_const", const="WARNING", help="log only what needs attention"
    )
    group.add_argument(HELP_ALL, action="store_true", help="show every flag")
    loudness.add_argument("--verbose", dest="log_level", action="store_const", const="DEBUG", help="log details, too")
    flags.add_flags(parser.add_argument_group("Script, restarts and end of the job"), Options)
    flags.add_flags(parser.add_argument_group("What is done about a hang"), Policy, acts)
    group = parser.add_argument_group("Limits; without any they are learned")
    flags.add_flags(group, Policy, limits)
    group.add_argument("--ft-state", metavar="FILE", help=FT_STATE_HELP)
    flags.add_flags(parser.add_argument_group("Stragglers and profiling"), Policy, stragglers)
    group = parser.add_argument_group("Prewarmed workers, rehearsals")
    flags.add_standby_flags(group)
    flags.add_inject_flag(group)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run a training script on every rank as torchrun does, monitored.

    Takes the arguments after ``rankwatch run`` and returns the exit code.
    """
    to_stderr()
    if (asked := help_flags(argv)) is not None:
        if asked:
            build_parser().print_help()
        else:
            sys.stdout.write(short_help())
        return 0
    supervision = supervisor.bind_to_supervisor(os.environ)
    if supervision is None and (plan := retry_plan(argv, os.environ)) is not None:
        if training_complete(plan.flag):
            log_training_complete(plan.flag)
            return 0
        return supervisor.supervise(plan, argv, os.environ)
    return _launch(argv, supervision)


def retry_plan(argv: Sequence[str], env: Mapping[str, str]) -> RetryPlan | None:
    """The supervisor's plan; None without ``--job-retries``. Imports no torch."""
    parser = Parser(PROGRAM, add_help=False, allow_abbrev=False)
    own = flags.before_script(argv, add_flags(parser))
    args, _ = parser.parse_known_args(own)
    try:
        options = flags.given(Options, args, env)
        no_progress = _no_progress(args, env)
    except ValueError as error:
        parser.error(str(error))
    if not options.get("job_retries"):
        return None
    return RetryPlan(
        budget=options["job_retries"],
        no_progress=no_progress,
        flag=finished_flag_path(options.get("finished_flag", ""), env),
        outcome=options.get("outcome", ""),
    )


def split(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Insert ``--`` before the script: else argparse may take its arguments for abbreviations of flags."""
    own = flags.before_script(argv, parser)
    rest = list(argv[len(own) :])
    rest = rest[1:] if rest[:1] == ["--"] else rest
    return [*own, "--", *rest] if rest else own


def _launch(argv: Sequence[str], supervision: Supervision | None) -> int:
    """Run this node's launcher."""
    parser = build_parser()
    args, given, foreign = _asked(argv, parser)
    flag = finished_flag_path(given.get("finished_flag", ""), os.environ)
    if training_complete(flag):
        log_training_complete(flag)
        return 0
    if supervision is None and given.get("job_retries"):  # an abbreviated flag, which retry_plan() does not know
        plan = RetryPlan(given["job_retries"], _no_progress(args, os.environ), flag, given.get("outcome", ""))
        return supervisor.supervise(plan, argv, os.environ)
    if (wrong := mistake(args, os.environ)) is not None:
        return _refuse(wrong, given.get("outcome", ""))
    _apply(*foreign, args)
    original_id, complaint = args.rdzv_id, None if args.no_monitor else _complaint()
    if complaint is None and not args.no_monitor:
        try:
            complaint = settle_rendezvous(args, spares=bool(given.get("spares")))
        except (ValueError, RuntimeError) as error:
            parser.error(str(error))
    if complaint is not None:
        logger.warning("%s; running plain torchrun: hangs will not be detected", complaint)
    if args.no_monitor or complaint is not None:
        return _plain(args)
    try:
        options, args.max_restarts = read_options(
            args, os.environ, original_id, foreign=foreign, supervision=supervision
        )
        config, entrypoint, arguments = _configured(args)
    except (ValueError, AssertionError, RuntimeError) as error:
        parser.error(str(error))
    _export(options)
    if options.send_logs:
        options = replace(options, launch=launch_line(PROGRAM, argv, os.getcwd()))
    launcher = _launcher(options, config, args)
    _run(launcher, entrypoint, arguments)
    code, other = launcher.outcome.code, _no_restart_code(*foreign)
    if code == CODE_DO_NOT_REQUEUE and other is not None:
        code = other
    return kubernetes.exit_code(code, launcher.outcome.state, os.environ)


def _asked(
    argv: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[argparse.Namespace, dict[str, Any], tuple[Translated, Translated]]:
    """The flags, the launcher's options among them and in the environment, and ft_launcher's flags and file."""
    if unknown := flags.unknown_flag(argv, parser):
        parser.error(f"there is no flag {unknown}{close_flag(parser, unknown)}")
    args = parser.parse_args(split(argv, parser))
    try:
        flags.export_faults(args, os.environ)
        foreign = nvrx.from_flags(args, os.environ), nvrx.from_file(args, os.environ)
        return args, flags.given(Options, args, os.environ), foreign
    except ValueError as error:
        parser.error(str(error))


def _configured(args: argparse.Namespace) -> tuple[LaunchConfig, str, list[str]]:
    """What torchrun makes of its flags: the launch, the script or program, and its arguments."""
    from torch.distributed.run import config_from_args

    # A rank in its own interpreter does the same as runpy in a spawned one, and can be monitored.
    args.run_path = False
    with _quiet("torch.distributed.run"):  # its banner about OMP_NUM_THREADS, which it sets: the link comes first
        config, entrypoint, arguments = config_from_args(args)
    flags.check_fault_ranks(os.environ, config.max_nodes * config.nproc_per_node)
    assert isinstance(entrypoint, str)
    return config, entrypoint, arguments


def _launcher(options: Options, config: LaunchConfig, args: argparse.Namespace) -> Launcher:
    from rankwatch_launcher import torch_compat
    from rankwatch_launcher.job.launcher import Launcher

    if (warning := torch_compat.untested()) is not None:
        logger.warning("%s", warning)
    learned_limits = LearnedLimitsFile(args.ft_state or os.environ.get(FT_STATE, ""))
    learned_limits.read()
    return Launcher(options, config, learned_limits)


def _run(launcher: Launcher, entrypoint: str, arguments: list[str]) -> None:
    """Run the job; in the end its summary is printed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    try:
        # Without a file of its own, record() would only log that it has none.
        run_job = record(launcher.run) if "TORCHELASTIC_ERROR_FILE" in os.environ else launcher.run
        # A line for each rank that it signals: what became of them is in the summary.
        with _quiet(f"{_ELASTIC}.agent.server.api", f"{_ELASTIC}.multiprocessing.api"):
            run_job(entrypoint, arguments)
    except ChildFailedError as failed:
        sys.stderr.write(f"{failed}\n")
    finally:
        if launcher.summary is not None:
            launcher.summary.show()


def _refuse(wrong: Mistake, outcome: str) -> int:
    """Print what is wrong with the script; the code is that with which torchrun ends."""
    sys.stderr.write(f"{PROGRAM}: {wrong.what}\n")
    if outcome:  # a supervisor must not launch it again
        refused = Outcome(FAILED, CODE_FAILED, wrong.what, cause=wrong.what, no_restart=wrong.kind)
        with contextlib.suppress(OSError):
            refused.write(Path(outcome.replace("{node}", socket.gethostname())))
    return CODE_FAILED


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep the warnings of these loggers of torch off the console, unless it is a verbose one."""
    loggers = [] if logger.isEnabledFor(logging.DEBUG) else [logging.getLogger(name) for name in names]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


def _complaint() -> str | None:
    """Why the launcher cannot work with this torch; None when it can."""
    import torch

    try:
        torch_compat: Any = importlib.import_module("rankwatch_launcher.torch_compat")
        importlib.import_module("rankwatch_launcher.job.launcher")  # with all that the launcher imports of torch
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} lacks a name that the launcher imports: {error}"
    complaint: str | None = torch_compat.complaint()
    return complaint


def read_options(
    args: argparse.Namespace,
    env: Mapping[str, str],
    rendezvous_id: str,
    *,
    foreign: tuple[Translated, Translated] | None = None,
    supervision: Supervision | None = None,
) -> tuple[Options, int]:
    """The launcher's options and the restart budget.

    ``foreign``: the translated flags and file of ft_launcher; without it both are read here.

    Raises:
        ValueError: an environment variable is invalid.
    """
    theirs, file = foreign or (nvrx.from_flags(args, env), nvrx.from_file(args, env))
    policy: dict[str, Any] = flags.given(Policy, args, env, foreign=theirs.policy, file=file.policy)
    if args.max_restarts is not None:
        policy["max_restarts"] = args.max_restarts
    checked = Policy().changed(policy)
    given = flags.given(Options, args, env, foreign=theirs.options, file=file.options)
    given["finished_flag"] = finished_flag_path(given.get("finished_flag", ""), env)
    name = args.job_name or env.get(environment.JOB_NAME, "") or Path(args.training_script).stem or "train"
    generated_id = job_id.usable(f"{name}-{supervision.job_suffix}") if supervision is not None else ""
    monitor_url, token = args.monitor or env.get(environment.MONITOR_URL, ""), args.token or env.get(environment.TOKEN)
    own = access.of(monitor_url) if monitor_url and not token else None
    return (
        Options(
            monitor_url=monitor_url,
            token=token or (own.token if own is not None else ""),
            job_id=_job_id(args, env, rendezvous_id) or generated_id,
            job_name=name,
            policy=policy,
            prewarm=flags.prewarm_settings(args, env),
            shutdown_timeout=_shutdown_timeout(args, env, theirs, file),
            **given,
        ),
        checked.max_restarts,
    )


def _shutdown_timeout(
    args: argparse.Namespace, env: Mapping[str, str], theirs: Translated, file: Translated
) -> float | None:
    """torchrun's, where it is given; a value that is none is refused with torch's own words later."""
    sources = getattr(args, "shutdown_timeout", None), theirs.shutdown_timeout, file.shutdown_timeout
    given = next((each for each in sources if each is not None), None)
    text = env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
    if given is None and text.isascii() and text.isdigit():
        given = int(text)
    return None if given is None else float(given)


def settle_rendezvous(args: argparse.Namespace, *, spares: bool = False) -> str | None:
    """Choose the rendezvous; return why only plain torchrun has the one that is asked for, None when it is not so.

    As with torchrun, a single node without an address uses a free local port. So does one without spares whose backend
    is not Rankwatch's own: there is nobody to meet.

    Raises:
        ValueError: ``--nnodes`` or ``--rdzv-conf`` is invalid.
        RuntimeError: the former, too.
    """
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
    from torch.distributed.run import parse_min_max_nnodes

    from rankwatch_launcher.coordination.rendezvous import BACKENDS
    from rankwatch_launcher.coordination.store_file import FILE, STORE_TYPE, TCP, store_type

    config = _parse_rendezvous_config(args.rdzv_conf)
    kind, backend = store_type(config), args.rdzv_backend
    if backend == "c10d" and kind not in (TCP, FILE):
        raise ValueError(f"--rdzv-conf {STORE_TYPE} must be {TCP} or {FILE}, not {kind!r}")
    single = parse_min_max_nnodes(args.nnodes)[1] == 1
    alone = backend == "static" and not args.rdzv_endpoint and args.master_port is None
    complaint = None
    if args.standalone or (alone and single):
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid4())
        args.rdzv_conf = _without(STORE_TYPE, config)
    elif (by_file := backend == "c10d" and kind == FILE) or backend not in BACKENDS:
        what = f"{STORE_TYPE}={FILE}" if by_file else f"the rendezvous backend {backend!r}"
        if single and not spares:
            logger.info("%s is not used: the job has one node, whose launcher has nobody to meet", what)
            args.rdzv_backend, args.rdzv_endpoint, args.rdzv_conf = "c10d", "localhost:0", _without(STORE_TYPE, config)
        elif by_file and not (args.rdzv_endpoint and os.path.isdir(Path(args.rdzv_endpoint).absolute().parent)):
            raise ValueError(f"{STORE_TYPE}={FILE} needs --rdzv-endpoint FILE, in a folder that all nodes share")
        elif not by_file:
            complaint = f"{what} is torchrun's alone, Rankwatch has {', '.join(BACKENDS)}"
    if args.master_port is None:
        args.master_port = 29500
    return complaint


def _without(key: str, config: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in config.items() if name != key)


def _apply(theirs: Translated, file: Translated, args: argparse.Namespace) -> None:
    """Apply the settings of ft_launcher's flags, then of its file, that concern this process."""
    for source in (theirs, file):
        for note in source.notes:
            logger.warning("%s", note)
        if getattr(args, "shutdown_timeout", None) is None:  # torch has the flag since 2.12
            args.shutdown_timeout = source.shutdown_timeout
    level = file.log_level if theirs.log_level is None else theirs.log_level
    level = args.log_level or level
    if level is not None:
        logger.setLevel(level)


def _no_restart_code(theirs: Translated, file: Translated) -> int | None:
    return file.no_restart_code if theirs.no_restart_code is None else theirs.no_restart_code


def _export(options: Options) -> None:
    """Set the ranks' environment, and remove what they must not inherit."""
    if options.finished_flag:
        os.environ[environment.FINISHED_FLAG] = options.finished_flag
    os.environ.pop(OUTCOME_VARIABLE, None)


def _no_progress(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    return Policy().changed(flags.given(Policy, args, env)).max_no_progress


def _job_id(args: argparse.Namespace, env: Mapping[str, str], rendezvous_id: str) -> str:
    """The job's id; empty: none was given.

    Raises:
        ValueError: the given one cannot be an id.
    """
    for name, given in (("--job-id", args.job_id), (environment.JOB_ID, env.get(environment.JOB_ID, ""))):
        if given and (wrong := job_id.problem(given)) is not None:
            raise ValueError(f"{name} {given[:SHOWN_ID]!r} cannot be the id of a job: {wrong}")
        if given:
            return str(given)
    if env.get("SLURM_JOB_ID", ""):
        return env["SLURM_JOB_ID"]
    if args.standalone or rendezvous_id in NO_ID:
        return ""
    # torchrun takes any text, and so does this: all launchers of the job derive the same id from it.
    if (made := job_id.usable(rendezvous_id)) != rendezvous_id:
        logger.info("the job's id is %s, since --rdzv-id %r cannot be one", made, rendezvous_id[:SHOWN_ID])
    return made


def _plain(args: argparse.Namespace) -> int:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import record

    if args.max_restarts is None:
        args.max_restarts = 0
    if args.master_port is None:
        args.master_port = torchrun.get_args_parser().get_default("master_port")
    record(torchrun.run)(args)
    return 0


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"must be like http://HOST:9560, not {text!r}")
    return text.rstrip("/")
