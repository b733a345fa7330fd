"""What the checks of a node are told, and what is measured together with others before the first attempt."""

from __future__ import annotations

import os
from collections.abc import Callable

from rankwatch_launcher import torch_compat
from rankwatch_launcher.checks.check import CheckedNode
from rankwatch_launcher.checks.gate import Named, NodeGate, paths_of, variables_of
from rankwatch_launcher.checks.pairing import table
from rankwatch_launcher.coordination.membership import Member
from rankwatch_launcher.job.pair_check import Attendance, PairCheck
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.node.session import MonitorSession
from rankwatch_launcher.options import Options


def gate_of(options: Options, me: Identity, files: AttemptFiles, session: MonitorSession) -> NodeGate | None:
    """The checks of this node before each attempt; None: they are switched off."""
    if options.node_check == "off":
        return None
    paths = paths_of(options.check_path, (options.finished_flag, session.learned_limits.path))

    def checked() -> CheckedNode:
        return CheckedNode(
            paths=paths,
            command=options.check_command,
            monitor=session.monitor_url,
            slots=str(files.folder.path),
            variables=variables_of(os.environ),
        )

    def named() -> Named:
        return Named(me.name, me.host, session.job_id)

    return NodeGate(checked, session.checked, named=named, on_bad_node=options.on_bad_node)


def measure_pairs(
    run_id: str,
    me: Member,
    expected: Attendance,
    gate: NodeGate,
    store: torch_compat.Store,
    leads: bool,
    pause: Callable[[float], None],
) -> None:
    """Measure the nodes in groups of two before the first attempt; one at fault takes no part in this launch.

    ``store``, ``leads`` and ``pause`` are what the rendezvous passes.
    """
    verdicts = PairCheck(store, run_id, me, expected, leads=leads, pause=pause).run()
    if leads:
        for line in table(verdicts):
            logger.info("%s", line)
    for verdict in verdicts:
        if verdict.node == me.node and verdict.fault is not None:
            gate.keep_out(verdict.fault)
