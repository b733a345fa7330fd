"""The Kubernetes manifests fit Kubernetes' own schemas and what the programs understand. Without a cluster."""

from __future__ import annotations

import argparse
import re
import runpy
import tomllib
from importlib.metadata import version
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from sqlalchemy import make_url

from examples.custom_resources import validate
from examples.manifests import (
    FILES,
    FOLDER,
    IMAGES,
    KUSTOMIZATIONS,
    ROOT,
    VERSIONS,
    documents,
    one,
    pod_of,
    pods,
    put_together,
    secrets_of,
)
from rankwatch.contract import env
from rankwatch_launcher import outcome
from rankwatch_launcher.cli import main
from rankwatch_launcher.schedulers import kubernetes
from rankwatch_monitor import settings

JOB, LAUNCHER = one("Job", "gpt")["spec"], pod_of("Job", "gpt")["containers"][0]
MONITOR = pod_of("Deployment", "rankwatch-monitor")["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_manifests_fit_the_schemas(path: Path, version: str) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        validate(document, version)


def test_the_checker_would_see_a_mistake() -> None:
    job = one("Job", "gpt")
    job["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(job, VERSIONS[-1])
    monitor = one("ServiceMonitor", "rankwatch-monitor")
    monitor["spec"]["endpoints"][0]["bearer"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        validate(monitor, VERSIONS[-1])


def test_kustomizations_name_every_manifest_and_image() -> None:
    for path in KUSTOMIZATIONS:
        kustomization = yaml.safe_load(path.read_text())
        own = {each.name for each in path.parent.glob("*.yaml")} - {path.name}
        named = set(kustomization["resources"])
        assert {each for each in named if each.endswith(".yaml")} == own, path
        for folder in named - own:
            assert (path.parent / folder / path.name).resolve() in KUSTOMIZATIONS, f"{path}: {folder}"
        for image in kustomization.get("images", ()):
            assert image["name"] in IMAGES
            assert image["newTag"] == version("rankwatch")
    assert {LAUNCHER["image"], MONITOR["image"]} == set(IMAGES)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_kustomize_makes_manifests_that_fit_the_schemas(path: Path) -> None:
    for document in put_together(path.parent):
        validate(document, VERSIONS[-1])
        assert re.search(r"image: rankwatch-\w+\n", yaml.safe_dump(document)) is None, "no registry is named"


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


@pytest.mark.parametrize("name", pods())
def test_pods_pass_the_restricted_pod_security_standard(name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards, for what these pods use."""
    pod = pods()[name]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["fsGroup"] > 0, "a volume belongs to root, and none of these is root"
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod.keys()
    kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
    assert kinds <= {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not {"privileged", "procMount", "runAsUser", "seccompProfile"} & own.keys()
        assert not [port for port in container.get("ports", ()) if "hostPort" in port]


def test_a_migration_of_ten_minutes_is_not_ended_by_the_liveness_probe() -> None:
    startup, liveness = MONITOR["startupProbe"], MONITOR["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


def test_nothing_is_scraped_without_a_token() -> None:
    # A scrape without one is turned away each time, which raises RankwatchIngestRejected.
    everything = list(documents())
    assert everything
    for document in everything:
        assert "prometheus.io/" not in yaml.safe_dump(document), document["metadata"]["name"]


def test_prometheus_scrapes_the_monitor_with_the_read_token_and_as_the_job_that_alerts_ask_for() -> None:
    spec, front = one("ServiceMonitor", "rankwatch-monitor")["spec"], one("Service", "rankwatch-monitor")
    (endpoint,) = spec["endpoints"]
    assert spec["selector"]["matchLabels"].items() <= front["metadata"]["labels"].items()
    assert endpoint["port"] == front["spec"]["ports"][0]["name"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == secrets_of(MONITOR)[settings.variable("read_token")]
    shipped = yaml.safe_load((ROOT / "dashboards" / "prometheus" / "prometheus.yml").read_text())
    (scraped,) = shipped["scrape_configs"]
    assert front["metadata"]["labels"][spec["jobLabel"]] == scraped["job_name"]
    assert endpoint["honorLabels"] is scraped["honor_labels"]


def test_the_prometheus_rule_is_the_shipped_rules() -> None:
    script = runpy.run_path(str(ROOT / "dashboards" / "prometheus" / "prometheus_rule.py"))
    assert script["WRITTEN"].read_text() == script["prometheus_rule"](), "run dashboards/prometheus/prometheus_rule.py"
    files = sorted((ROOT / "dashboards" / "prometheus" / "rules").glob("*.yml"))
    shipped = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    assert one("PrometheusRule", "rankwatch")["spec"]["groups"] == shipped


def test_the_monitor_uses_postgresql_and_no_volume() -> None:
    documents = put_together(FOLDER / "postgresql")
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    database = found["StatefulSet", "rankwatch-postgresql"]["spec"]["template"]["spec"]["containers"][0]
    pod = found["Deployment", "rankwatch-monitor"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [volume["name"] for volume in pod["volumes"]] == [mount["name"] for mount in container["volumeMounts"]]
    assert "PersistentVolumeClaim" not in {kind for kind, _ in found}

    given = {variable["name"]: variable.get("value") for variable in database["env"]}
    address = make_url(next(v["value"] for v in container["env"] if v["name"] == settings.variable("database")))
    assert (address.username, address.database) == (given["POSTGRES_USER"], given["POSTGRES_DB"])
    assert address.password is None
    front = found["Service", address.host]["spec"]
    labels = found["StatefulSet", "rankwatch-postgresql"]["spec"]["template"]["metadata"]["labels"]
    assert front["selector"].items() <= labels.items()
    assert front["ports"][0]["targetPort"] == database["ports"][0]["name"]
    assert secrets_of(container)["PGPASSWORD"] == secrets_of(database)["POSTGRES_PASSWORD"] == "rankwatch-postgresql"
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert database["image"] == compose["postgres"]["image"]


def instructions(path: Path) -> list[str]:
    """Instructions of a Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line]


def test_the_monitor_s_image_has_the_page() -> None:
    made = instructions(IMAGES["rankwatch-monitor"])
    static = "monitor/rankwatch_monitor/web/static/"
    assert any(line.startswith("FROM node:") and line.endswith(" AS page") for line in made)
    assert "RUN npm run build" in made
    assert f"COPY --from=page /source/{static} {static}" in made


def test_the_training_image_takes_rankwatch_from_its_wheel_and_the_code_from_the_context() -> None:
    made = instructions(IMAGES["rankwatch-training"])
    (install,) = [line for line in made if "pip install" in line]
    assert "--mount=from=rankwatch-wheel,source=/wheels,target=/wheels " in install
    monitor = instructions(IMAGES["rankwatch-monitor"])
    stage = next(index for index, line in enumerate(monitor) if line.endswith(" AS wheel"))
    assert "--wheel-dir /wheels" in next(line for line in monitor[stage:] if line.startswith("RUN pip wheel"))
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", install)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras
    assert extra not in {"all", "monitor"}, "the monitor is another image"

    (code,) = [line for line in made if line.startswith("COPY ")]
    assert code == "COPY --chown=1000:1000 . /workspace"
    assert made[-2:] == ["USER 1000", "WORKDIR /workspace"]
    script = next(word for word in LAUNCHER["command"][2:] if not word.startswith("-"))
    assert (ROOT / "examples" / script).is_file()
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    for command in re.findall(r"docker build .*", IMAGES["rankwatch-training"].read_text()):
        assert command in text


def test_secrets_are_named_never_written_down_and_jobs_have_the_one_that_may_ingest() -> None:
    assert secrets_of(LAUNCHER) == {env.TOKEN: "rankwatch-ingest"}
    assert secrets_of(MONITOR) == {
        env.TOKEN: "rankwatch",
        settings.variable("ingest_token"): "rankwatch-ingest",
        settings.variable("read_token"): "rankwatch-read",
    }
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    for secret in {
        secret for pod in pods().values() for each in pod["containers"] for secret in secrets_of(each).values()
    }:
        assert f"kubectl create secret generic {secret} " in text
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


def test_only_pods_of_the_namespace_and_prometheus_reach_the_monitor() -> None:
    policy, monitor = one("NetworkPolicy", "rankwatch-monitor")["spec"], one("Deployment", "rankwatch-monitor")["spec"]
    labels = monitor["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [port["name"] for port in MONITOR["ports"]]
    assert {"podSelector": {}} in rule["from"], "the launchers and ranks of the namespace"
    assert all(each.get("podSelector") == {} or each["namespaceSelector"]["matchLabels"] for each in rule["from"])
