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
SPECS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): closed(
        "selector endpoints", selector=closed(matchLabels=LABELS), jobLabel=TEXT, endpoints=several(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): closed(
        groups=several(closed("name", name=TEXT, interval=TEXT, rules=several(RULE)))
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
