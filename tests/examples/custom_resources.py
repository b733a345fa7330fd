"""Schemas of resources that Kubernetes itself does not know, as far as the examples use them: no other field passes."""

from __future__ import annotations

from typing import Any, Final

import jsonschema
import kubernetes_validate

TEXT: Final = {"type": "string"}


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties and no other."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


LABELS: Final = {"type": "object", "additionalProperties": TEXT}
CREDENTIALS: Final = closed("name key", name=TEXT, key=TEXT)
ENDPOINT: Final = closed(
    port=TEXT,
    path=TEXT,
    interval={"type": "string", "pattern": r"^\d+s$"},
    honorLabels={"type": "boolean"},
    authorization=closed("credentials", credentials=CREDENTIALS),
)
RULE: Final = closed(
    "expr",
    alert=TEXT,
    record=TEXT,
    expr=TEXT,
    labels=LABELS,
    annotations=LABELS,
    keep_firing_for=TEXT,
    **{"for": TEXT},
)
NUMBER: Final = {"type": "integer", "minimum": 0}
FLAG: Final = {"type": "boolean"}
TEMPLATE: Final = {"type": "object"}
"""Of a Job or a pod: checked by Kubernetes' own schema."""
FAILURE_RULE: Final = closed(
    "name action",
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action={"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
    onJobFailureReasons=several({"enum": ["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"]}),
)
REPLICA: Final = closed("replicas template", replicas=NUMBER, restartPolicy={"enum": ["ExitCode"]}, template=TEMPLATE)
SPECS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): closed(
        "selector endpoints", selector=closed(matchLabels=LABELS), jobLabel=TEXT, endpoints=several(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): closed(
        groups=several(closed("name", name=TEXT, interval=TEXT, rules=several(RULE)))
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): closed(
        "replicatedJobs",
        network=closed(enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG),
        failurePolicy=closed(maxRestarts=NUMBER, rules=several(FAILURE_RULE)),
        replicatedJobs=several(closed("name template", name=TEXT, replicas=NUMBER, template=TEMPLATE)),
    ),
    ("kubeflow.org/v1", "PyTorchJob"): closed(
        "pytorchReplicaSpecs",
        runPolicy=closed(backoffLimit=NUMBER, cleanPodPolicy={"enum": ["None", "Running", "All"]}),
        pytorchReplicaSpecs=closed("Master", Master=REPLICA, Worker=REPLICA),
    ),
}


def validate(document: dict[str, Any], version: str) -> None:
    """Check a resource: by Kubernetes' own schema of that version, else by the one here.

    Raises:
        jsonschema.ValidationError, kubernetes_validate.ValidationError: it does not fit.
    """
    spec = SPECS.get((document["apiVersion"], document["kind"]))
    if spec is None:
        kubernetes_validate.validate(document, version, strict=True)
        return
    metadata = closed("name", name=TEXT, labels=LABELS)
    jsonschema.validate(document, closed("spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec))
    for part in document["spec"].get("replicatedJobs", ()):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **part["template"]}
        kubernetes_validate.validate(job, version, strict=True)
    for replica in document["spec"].get("pytorchReplicaSpecs", {}).values():
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "x"},
            "template": replica["template"],
        }
        kubernetes_validate.validate(template, version, strict=True)
