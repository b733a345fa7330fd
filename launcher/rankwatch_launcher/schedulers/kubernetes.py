"""Kubernetes: facts about a pod from the downward API and from variables that Kubernetes sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rankwatch_launcher.outcome import PREEMPTED

CODE_RESUME: Final = 75
"""``EX_TEMPFAIL`` of sysexits.h: to be retried."""
IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"
"""Set by Kubernetes in every container."""
COMPLETION_INDEX: Final = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an Indexed Job: the pod's index, which its replacement gets, too."""

_FACTS: Final = {
    "kubernetes_namespace": "POD_NAMESPACE",
    "kubernetes_pod": "POD_NAME",
    "kubernetes_node": "NODE_NAME",
    "kubernetes_completion_index": COMPLETION_INDEX,
}
"""All but the last are set if the manifest passes them (``fieldRef``), as ``examples/kubernetes`` does."""


def facts(env: Mapping[str, str]) -> dict[str, str]:
    """Facts for the job's record; empty outside Kubernetes."""
    if not env.get(IN_A_POD):
        return {}
    return {"scheduler": "kubernetes"} | {name: env[variable] for name, variable in _FACTS.items() if env.get(variable)}


def node_name(env: Mapping[str, str]) -> str | None:
    """The name of the pod's node, if the manifest passes it; None outside Kubernetes."""
    return env.get("NODE_NAME") or None if env.get(IN_A_POD) else None


def node_rank(env: Mapping[str, str]) -> int | None:
    """The pod's index within an Indexed Job, for ``--node-rank``; None outside one."""
    index = env.get(COMPLETION_INDEX, "")
    return int(index) if env.get(IN_A_POD) and index.isdigit() else None


def exit_code(code: int, state: str, env: Mapping[str, str]) -> int:
    """The launcher's exit code, adapted to Kubernetes.

    A pod of an Indexed Job that exits with 0 completes its index. One that saved on a signal is to be resumed, so it
    exits with :data:`CODE_RESUME`.
    """
    return CODE_RESUME if code == 0 and state == PREEMPTED and node_rank(env) is not None else code
