"""The manifests of examples/kubernetes, and what kubectl makes of their folders."""

from __future__ import annotations

import copy
import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
FILES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
IMAGES = {
    "rankwatch-monitor": ROOT / "docker" / "Dockerfile",
    "rankwatch-training": FOLDER / "training.Dockerfile",
}
"""The images that the manifests name, and what makes each."""
VERSIONS = ("1.31", "1.37")
"""The first in which podFailurePolicy is stable, and the newest that the checker knows."""


@functools.cache
def _read() -> list[dict[str, Any]]:
    return [document for path in FILES for document in yaml.safe_load_all(path.read_text())]


def documents() -> Iterator[dict[str, Any]]:
    """All documents, each the reader's own to change."""
    yield from copy.deepcopy(_read())


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents() if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def pods() -> dict[str, dict[str, Any]]:
    """The pod of everything that starts one, by kind and name."""
    found = {}
    for document in documents():
        name, spec = f"{document['kind']}-{document['metadata']['name']}", document["spec"]
        if document["kind"] in {"Deployment", "Job", "StatefulSet"}:
            found[name] = spec["template"]["spec"]
        elif document["kind"] == "JobSet":
            for part in spec["replicatedJobs"]:
                found[f"{name}-{part['name']}"] = part["template"]["spec"]["template"]["spec"]
        elif document["kind"] == "PyTorchJob":
            for part, replica in spec["pytorchReplicaSpecs"].items():
                found[f"{name}-{part}"] = replica["template"]["spec"]
    return found


def pod_of(kind: str, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = one(kind, name)["spec"]["template"]["spec"]
    return pod


def secrets_of(container: dict[str, Any]) -> dict[str, str]:
    """The names of its secrets by variable."""
    found = {variable["name"]: variable.get("valueFrom", {}).get("secretKeyRef") for variable in container["env"]}
    return {name: secret["name"] for name, secret in found.items() if secret}


def put_together(folder: Path) -> list[dict[str, Any]]:
    """What ``kubectl apply -k`` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, for its kustomize")
    made = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))
