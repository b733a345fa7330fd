"""The command line of ``rankwatch diagnose``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Final

from rankwatch.cli.common import EXIT_TROUBLE, print_text
from rankwatch.cli.formatting import printable
from rankwatch.cli.parser import EXIT_USAGE, Parser
from rankwatch.contract.files import replace_file
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.text import one_line
from rankwatch_monitor.diagnose import nodes

EXIT_UNKNOWN: Final = 4
SECONDS: Final = 6.5
PROFILE_SECONDS: Final = 30.0
PROFILES_LATE: Final = 15.0
"""Seconds that a collector may take longer for its profiles: 5 for each slice, on a node without a free CPU."""
LONGEST: Final = 600.0


def diagnose(argv: Sequence[str]) -> int:
    """Name the rank for which a running job waits, however the job was started."""
    arguments = parser().parse_args(argv)
    flags = [word for pid in arguments.pid for word in ("--pid", str(pid))]
    seconds = arguments.seconds if arguments.slow is None else arguments.slow
    flags += ["--seconds", f"{seconds:g}", *(["--profile"] if arguments.slow is not None else [])]
    flags += ["--native"] if arguments.native else []
    if arguments.job is not None:
        flags += ["--job", arguments.job]
    if arguments.report is not None:
        return subprocess.call(own_python(*nodes.COLLECTOR, "--report", arguments.report, *flags))
    if find_spec("numpy") is None:
        return _fail("the verdict needs numpy: pip install numpy; '--report FILE' does not")
    if arguments.record is not None and any(find_spec(name) is None for name in ("sqlalchemy", "zstandard")):
        return _fail("--record needs the monitor's packages: pip install 'rankwatch[monitor]'")
    try:
        return _print(arguments, _answers(arguments, flags, seconds))
    except OSError as error:  # of --flame
        return _fail(f"cannot write {arguments.flame}: {error.strerror or error}")
    except ValueError as error:  # nodes.NodeError too
        return _fail(str(error))


def _answers(arguments: argparse.Namespace, flags: Sequence[str], seconds: float) -> nodes.Answers:
    if arguments.files:
        return nodes.from_files(arguments.files)
    remote = arguments.remote_command
    if arguments.hosts:
        places = nodes.by_ssh(arguments.hosts.split(","), flags, remote)
    elif arguments.slurm_job:
        places = nodes.by_slurm(arguments.slurm_job, flags, remote)
    elif arguments.kubernetes:
        places = nodes.by_kubernetes(arguments.kubernetes, arguments.namespace, flags, remote)
    else:
        places = nodes.here(flags)
    # As long as a look takes the import of what judges, with numpy: it is made meanwhile.
    Thread(target=import_module, args=("rankwatch_monitor.diagnose.screen",), daemon=True).start()
    return nodes.ask(places, seconds if arguments.slow is None else seconds + PROFILES_LATE)


def _print(arguments: argparse.Namespace, answers: nodes.Answers) -> int:
    from rankwatch_monitor.diagnose import judge, screen, slow, words  # with numpy, which a collector does without

    judged = judge.judge(answers.reports, [host for host, _ in answers.failed], only=arguments.job)
    seen = {each.job for report in answers.reports for each in report.ranks if arguments.job in (None, each.job)}
    left_out = sorted(seen - {each.name for each in judged})
    answers.failed.extend((f"job {one_line(name, 100)}", words.TOO_LARGE) for name in left_out)
    judged.sort(key=lambda each: judge.WORST_FIRST.index(each.verdict))
    if arguments.record is not None:
        from rankwatch_monitor.diagnose import record

        record.write(Path(arguments.record), judged)
    if arguments.flame is not None:
        profiled = [rank for each in judged[:1] for rank in each.ranks]
        replace_file(Path(arguments.flame), slow.folded(profiled), mode=0o600)  # it may show other users' scripts
    obstacles = [each for report in answers.reports for each in report.obstacles]
    if arguments.json:
        print_text(json.dumps(screen.to_json(judged, answers.failed, obstacles), indent=2) + "\n")
    elif judged:
        print_text("".join(f"{line}\n" for line in screen.lines(judged, answers.failed, obstacles)))
    else:
        none = words.no_ranks(len(answers.reports), answers.failed, obstacles)
        print_text("".join(f"{printable(line)}\n" for line in none))
    worst = judge.worst(judged)
    codes = {
        judge.Verdict.HEALTHY: 0,
        judge.Verdict.TROUBLE: EXIT_TROUBLE,
        judge.Verdict.SLOW: EXIT_TROUBLE,
    }
    return EXIT_UNKNOWN if worst is None else codes.get(worst, EXIT_UNKNOWN)


def _fail(message: str) -> int:
    sys.stderr.write(f"rankwatch diagnose: {one_line(message)}\n")
    return EXIT_USAGE


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog="rankwatch diagnose",
        description="Looks at the ranks of a running job for some seconds, however it was started, and says whether it "
        "hangs, which rank the others wait for, where, and what to do. Nothing is sent to the ranks, and nothing has "
        "to be set up in the job. Exit code: 0 healthy, 3 in trouble or slow, 4 it cannot be told.",
    )
    made.add_argument("--job", metavar="NAME", help="of several jobs on the nodes, this one")
    made.add_argument("--pid", action="append", type=_pid, default=[], help="look at this process; may be repeated")
    made.add_argument(
        "--seconds", type=_seconds, default=SECONDS, help="how long to look (default: %(default)s, at least 6.5)"
    )
    made.add_argument(
        "--slow",
        type=_seconds,
        nargs="?",
        const=PROFILE_SECONDS,
        metavar="SECONDS",
        help="profile every rank for so long (default: %(const)s): which one the others wait for, and what it does "
        "that they do not",
    )
    made.add_argument(
        "--flame",
        metavar="FILE",
        help="with --slow or its reports: write the profiles as folded stacks, for flame graphs",
    )
    made.add_argument(
        "--native",
        action="store_true",
        help="also show native frames: each rank is stopped while they are read, a second or more",
    )
    which = made.add_mutually_exclusive_group()
    which.add_argument("--hosts", metavar="HOST,HOST", help="look at these nodes, by ssh, instead of this one")
    which.add_argument("--slurm-job", metavar="ID", help="look at the nodes of this Slurm job, by 'srun --overlap'")
    which.add_argument("--kubernetes", metavar="SELECTOR", help="look at the pods with these labels, by kubectl exec")
    which.add_argument(
        "--report", metavar="FILE", help="only write what is seen of this node ('-': to standard output)"
    )
    which.add_argument("--from", metavar="FILE", dest="files", nargs="+", help="judge these reports of nodes together")
    made.add_argument("--namespace", help="of the pods")
    made.add_argument(
        "--remote-command",
        metavar="COMMAND",
        help="what 'rankwatch diagnose' is called on the other nodes (default: this Python at the same path; in pods "
        "'rankwatch diagnose'; rankwatch.pyz sends itself, which needs Python alone)",
    )
    made.add_argument(
        "--record",
        metavar="FILE",
        help="also write it as a record, which 'rankwatch open --database FILE' shows; needs the extra 'monitor'",
    )
    made.add_argument("--json", action="store_true", help="print everything as JSON")
    return made


def _seconds(text: str) -> float:
    seconds = float(text)
    if not SECONDS <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"must be from {SECONDS:g} to {LONGEST:g}")
    return seconds


def _pid(text: str) -> int:
    pid = int(text)
    if pid < 1:
        raise argparse.ArgumentTypeError("must be a process id")
    return pid
