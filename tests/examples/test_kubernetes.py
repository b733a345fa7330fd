"""The Kubernetes manifests fit Kubernetes' own schemas and say what the programs understand. No cluster is there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rankwatch.contract import env
from rankwatch_launcher import outcome
from rankwatch_launcher.cli import main
from rankwatch_launcher.schedulers import kubernetes
from rankwatch_monitor import settings

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
VERSIONS = ("1.31", "1.37")
"""The first in which podFailurePolicy is stable, and the newest that the checker knows."""


def documents() -> Iterator[dict[str, Any]]:
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text())


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents() if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def pod_of(kind: str, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = one(kind, name)["spec"]["template"]["spec"]
    return pod


JOB, LAUNCHER = one("Job", "gpt")["spec"], pod_of("Job", "gpt")["containers"][0]
MONITOR = pod_of("Deployment", "rankwatch-monitor")["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_manifests_fit_the_schemas(path: Path, version: str) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_checker_would_see_a_mistake() -> None:
    job = one("Job", "gpt")
    job["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_the_kustomization_names_every_manifest_and_image() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [path.name for path in FILES]
    assert [image["name"] for image in kustomization["images"]] == [LAUNCHER["image"]] == [MONITOR["image"]]


def test_flags_are_those_of_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def understood(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
        return parser.parse_args([word.replace("=gpu", "=8") for word in words])

    assert LAUNCHER["command"][:2] == ["rankwatch", "run"]
    assert MONITOR["command"][:2] == ["rankwatch", "monitor"]
    args = understood(main.build_parser(), LAUNCHER["command"][2:])
    understood(settings.parser(), MONITOR["command"][2:])
    assert (int(args.nnodes), args.rdzv_endpoint) == (JOB["completions"], "gpt-0.gpt:29400")
    assert JOB["parallelism"] == JOB["completions"], "launchers wait for each other"
    assert JOB["template"]["spec"]["terminationGracePeriodSeconds"] >= float(args.stop_grace) + 30


def test_exit_codes_mean_to_kubernetes_what_they_mean_to_the_launcher() -> None:
    actions = {
        code: rule["action"]
        for rule in JOB["podFailurePolicy"]["rules"]
        for code in rule.get("onExitCodes", {}).get("values", [])
    }
    assert actions == {
        outcome.CODE_DO_NOT_REQUEUE: "FailJob",
        outcome.CODE_RESULT_REJECTED: "FailJob",
        kubernetes.CODE_RESUME: "Ignore",
    }
    assert outcome.CODE_FAILED not in actions, "a plain failure counts, up to backoffLimit"
    containers = {
        rule["onExitCodes"]["containerName"] for rule in JOB["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    }
    assert containers == {LAUNCHER["name"]}
    assert JOB["template"]["spec"]["restartPolicy"] == "Never"


def test_a_pod_that_saved_on_a_signal_does_not_complete_its_index() -> None:
    pod = {kubernetes.IN_A_POD: "10.0.0.1", kubernetes.COMPLETION_INDEX: "0"}
    assert kubernetes.exit_code(0, outcome.PREEMPTED, pod) == kubernetes.CODE_RESUME
    assert kubernetes.exit_code(0, outcome.FINISHED, pod) == 0
    assert kubernetes.exit_code(0, outcome.STOPPED, pod) == 0
    assert kubernetes.exit_code(93, outcome.FAILED, pod) == 93
    assert kubernetes.exit_code(0, outcome.PREEMPTED, {}) == 0


def test_names_lead_from_one_manifest_to_the_other() -> None:
    ranks, front = one("Service", "gpt"), one("Service", "rankwatch-monitor")
    assert ranks["spec"]["selector"] == {"job-name": "gpt"}
    assert pod_of("Job", "gpt")["subdomain"] == ranks["metadata"]["name"]
    assert (
        front["spec"]["selector"].items()
        <= one("Deployment", "rankwatch-monitor")["spec"]["template"]["metadata"]["labels"].items()
    )
    assert f"--monitor=http://rankwatch-monitor:{front['spec']['ports'][0]['port']}" in LAUNCHER["command"]
    assert MONITOR["ports"][0]["name"] == front["spec"]["ports"][0]["targetPort"]
    claims = {d["metadata"]["name"] for d in documents() if d["kind"] == "PersistentVolumeClaim"}
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in (pod_of("Job", "gpt"), pod_of("Deployment", "rankwatch-monitor"))
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert used == claims


def test_no_variable_of_ours_is_overwritten_by_a_service() -> None:
    # For a Service rankwatch-monitor Kubernetes sets RANKWATCH_MONITOR_PORT, which the monitor takes for its own.
    for kind, name in (("Job", "gpt"), ("Deployment", "rankwatch-monitor")):
        assert pod_of(kind, name)["enableServiceLinks"] is False


def secrets_of(container: dict[str, Any]) -> dict[str, str]:
    """The names of its secrets by variable."""
    found = {variable["name"]: variable.get("valueFrom", {}).get("secretKeyRef") for variable in container["env"]}
    return {name: secret["name"] for name, secret in found.items() if secret}


def test_secrets_are_named_never_written_down_and_jobs_have_the_one_that_may_ingest() -> None:
    assert secrets_of(LAUNCHER) == {env.TOKEN: "rankwatch-ingest"}
    assert secrets_of(MONITOR) == {env.TOKEN: "rankwatch", settings.variable("ingest_token"): "rankwatch-ingest"}
    assert [d for d in documents() if d["kind"] == "Secret"] == []


def test_the_facts_of_a_pod_are_passed_on() -> None:
    given = {variable["name"]: "x" for variable in LAUNCHER["env"]}
    facts = kubernetes.facts(given | {kubernetes.IN_A_POD: "10.0.0.1", kubernetes.COMPLETION_INDEX: "0"})
    assert set(facts) == {
        "scheduler",
        "kubernetes_namespace",
        "kubernetes_pod",
        "kubernetes_node",
        "kubernetes_completion_index",
    }
