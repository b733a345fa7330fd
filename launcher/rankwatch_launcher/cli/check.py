"""``rankwatch check``: checks this node, and measures all nodes in groups of two.

Run it on every node at once, with the same ``--nnodes`` and ``--rdzv-endpoint``. Exit codes: 0 nothing is wrong; 3 a
node is at fault; 1 too few nodes came; 2 invalid flags.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rankwatch.cli.parser import Parser, argument_type
from rankwatch.contract.node_checks import CheckName, CheckResult, CheckState, sentence
from rankwatch.contract.schema import SECONDS
from rankwatch_launcher import options
from rankwatch_launcher.checks.check import CheckedNode
from rankwatch_launcher.checks.gate import variables_of
from rankwatch_launcher.checks.runner import LIMITS, CheckRun
from rankwatch_launcher.log import to_stderr

EXIT_FEW: Final = 1
EXIT_AT_FAULT: Final = 3
PROGRAM: Final = "rankwatch check"
NAMES: Final = tuple(name for name in LIMITS if name is not CheckName.GPU_MEMORY)
"""Without the one that ends processes of an earlier attempt of a launcher."""
JOIN_SECONDS: Final = 120.0
LAST_CALL_SECONDS: Final = 10.0


def check(argv: Sequence[str]) -> int:
    """Check this node, and measure all nodes in groups of two."""
    to_stderr()
    args = parser().parse_args(argv)
    results = _local(args)
    if not args.json:
        for each in results:
            sys.stdout.write(f"{each.state:<8} {_words(each)}\n")
        sys.stdout.flush()
    faulty = any(each.state is CheckState.FAILED for each in results)
    body: dict[str, Any] = {"checks": [asdict(each) for each in results]}
    code = EXIT_AT_FAULT if faulty else 0
    if args.nnodes[1] > 1:
        verdicts, name = _pairs(args)
        body |= {"node": name, "nodes": [asdict(each) for each in verdicts]}
        if not verdicts:
            code = code or EXIT_FEW
        if any(each.fault is not None for each in verdicts):
            code = EXIT_AT_FAULT
        if not args.json and verdicts:
            from rankwatch_launcher.checks.pairing import table

            sys.stdout.write("\n" + "\n".join(table(verdicts)) + "\n")
    if args.json:
        sys.stdout.write(json.dumps(body, indent=2) + "\n")
    return code


def _local(args: argparse.Namespace) -> tuple[CheckResult, ...]:
    run = CheckRun()
    paths = tuple(path for each in args.check_path for path in options.PATHS.read_text(each))
    node = CheckedNode(paths=paths, command=args.check_command, variables=variables_of(os.environ))
    run.begin(asdict(node), NAMES)
    return run.wait()


def _words(result: CheckResult) -> str:
    if result.state is not CheckState.PASSED:
        return sentence(result)
    figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result.evidence.items())
    return f"{result.name}: {figures}" if figures else str(result.name)


def _pairs(args: argparse.Namespace) -> tuple[tuple[Any, ...], str]:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters

    from rankwatch_launcher.coordination.membership import Member
    from rankwatch_launcher.coordination.rendezvous import Rendezvous
    from rankwatch_launcher.job.pair_check import Attendance, PairCheck

    least, most = args.nnodes
    parameters = RendezvousParameters("c10d", args.rdzv_endpoint, args.rdzv_id, least, most)
    name = args.node_name or f"{socket.gethostname()}-{os.getpid()}"
    rendezvous = Rendezvous(parameters, join_timeout=args.join_timeout)
    try:
        store, leads = rendezvous.connect()
    except RendezvousConnectionError as error:
        sys.stderr.write(f"{PROGRAM}: {args.rdzv_endpoint} cannot be reached: {error}\n")
        return (), name
    attendance = Attendance(least, most, LAST_CALL_SECONDS, args.join_timeout)
    me = Member(name, socket.gethostname(), args.nproc_per_node)
    return PairCheck(store, args.rdzv_id, me, attendance, leads=leads, seconds=args.round_timeout).run(), name


def parser(environment: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog=PROGRAM,
        description="Checks this node as 'rankwatch run' does before each attempt. With --nnodes, also measures the "
        "nodes in groups of two, in two rounds with other partners: the one that is slow or silent in both is named.",
        epilog="Exit codes: 0 nothing is wrong; 1 too few nodes came; 2 invalid flags; 3 a node is at fault.",
    )
    made.add_argument(
        "--nnodes", type=_nnodes, default=(1, 1), metavar="MIN[:MAX]", help="nodes to measure (default: 1)"
    )
    made.add_argument(
        "--rdzv-endpoint", default="127.0.0.1:29411", metavar="HOST:PORT", help="where the nodes meet, on one of them"
    )
    made.add_argument("--rdzv-id", default="check", metavar="ID", help="the same on all nodes (default: check)")
    made.add_argument(
        "--nproc-per-node",
        type=int,
        default=8,
        metavar="N",
        help="GPUs to measure on each node (default: all, up to 8)",
    )
    made.add_argument("--node-name", default="", metavar="NAME", help="of this node in the table (default: its host's)")
    made.add_argument(
        "--join-timeout",
        type=argument_type(SECONDS),
        default=JOIN_SECONDS,
        metavar="SECONDS",
        help="wait for the nodes (default: 120)",
    )
    made.add_argument(
        "--round-timeout",
        type=argument_type(SECONDS),
        default=10.0,
        metavar="SECONDS",
        help="limit of one round (default: 10)",
    )
    made.add_argument(
        "--check-path",
        action="append",
        default=[environment[name] for name in ("RANKWATCH_CHECK_PATH",) if environment.get(name)],
        metavar="PATH",
        help="folder to write to and read",
    )
    made.add_argument(
        "--check-command",
        default=environment.get("RANKWATCH_CHECK_COMMAND", ""),
        metavar="COMMAND",
        help="shell command that also checks the node",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def _nnodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"must be a number of nodes such as 4 or 2:4, not {text!r}")
    return found
