"""Both Dockerfiles and docker-compose.yml as they are, in a container engine: stack, demo, secrets, end.

``make test-containers`` runs it, with the published base images where the machine's own engine can have them, else with
:mod:`containers.stand_ins`. The tests build on each other, in this order.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from containers.engine import BUILD_SECONDS, PASSWORD, ROOT, VARIABLE, Docker, index_of_torch, running
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

MONITOR, DEMO = "rankwatch-monitor:0.1.0", "rankwatch-demo:0.1.0"
PROJECT = "rankwatch-test"
PORTS = {"RANKWATCH_PORT": "21560", "GRAFANA_PORT": "21300"}
"""Below 32768: above, outgoing connections of other processes take them."""
TOKENS = {
    "RANKWATCH_TOKEN": "token-for-everything",
    "RANKWATCH_READ_TOKEN": "token-to-read",
    "RANKWATCH_INGEST_TOKEN": "token-of-jobs",
    "GRAFANA_PASSWORD": "password-of-grafana",
}
HANGS_IN = 52
"""The step in which docker/demo.sh injects its hang."""
DEMO_SECONDS = 900.0
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


class Stack:
    """The compose project, brought up with the demo."""

    def __init__(self, docker: Docker, environment: Path) -> None:
        self.docker = docker
        self._file = environment

    def compose(self, *words: str, seconds: float = 120.0, check: bool = True) -> str:
        """Run docker compose for the project."""
        named = ("--project-name", PROJECT, "--env-file", str(self._file), "--profile", "demo")
        return self.docker("compose", *named, *words, seconds=seconds, check=check)

    def container(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        return self.docker.inspect(f"{PROJECT}-{service}-1")

    def get(self, port: str, path: str, token: str | None = None) -> httpx.Response:
        """Ask a published port."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.get(f"http://127.0.0.1:{PORTS[port]}{path}", headers=headers, timeout=15, trust_env=False)

    def monitor(self, path: str) -> Any:
        """Read the monitor's API with the read token."""
        answer = self.get("RANKWATCH_PORT", f"/api/v1{path}", TOKENS["RANKWATCH_READ_TOKEN"])
        assert answer.status_code == 200, answer.text
        return answer.json()

    def prometheus(self, path: str) -> Any:
        """Ask Prometheus, which is not published, from within its container."""
        program = ("wget", "-q", "-O", "-", f"http://127.0.0.1:9090/api/v1/{path}")
        return json.loads(self.docker("exec", f"{PROJECT}-prometheus-1", *program))["data"]

    def job(self) -> dict[str, Any]:
        """The demo's job."""
        jobs = self.monitor("/jobs")["jobs"]
        return jobs[0] if jobs else {}


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with running(
        {name: service["image"] for name, service in COMPOSE["services"].items() if "image" in service}
    ) as one:
        yield one


@pytest.fixture(scope="module")
def built(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Docker:
    version = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert version is not None
    wheels = Path(tempfile.gettempdir()) / "rankwatch-torch-wheel"
    flags = ("build", "--network=host")
    docker(*flags, "--file", "docker/Dockerfile", "--tag", MONITOR, ".", seconds=BUILD_SECONDS)
    with index_of_torch(wheels, version[0]) as index:
        secret = ("--secret", "id=torch-index-url,env=TORCH_INDEX_URL")
        demo = ("--file", "docker/demo.Dockerfile", "--tag", DEMO, ".")
        docker(*flags, *secret, *demo, seconds=BUILD_SECONDS, TORCH_INDEX_URL=index)
    return docker


@pytest.fixture(scope="module")
def stack(built: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = tmp_path_factory.mktemp("compose") / "env"
    settings = {**TOKENS, **PORTS, "RANKWATCH_DEMO_STEPS": "100000"}
    environment.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    made = Stack(built, environment)
    try:
        made.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "300", seconds=400)
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5", seconds=200, check=False)


def test_all_services_come_up_healthy(stack: Stack) -> None:
    for service in ("monitor", "prometheus", "alertmanager", "grafana"):
        assert stack.container(service)["State"]["Health"]["Status"] == "healthy", service
    assert stack.container("demo")["State"]["Status"] == "running"


def test_the_image_of_the_monitor_has_the_page(stack: Stack) -> None:
    page = stack.get("RANKWATCH_PORT", "/")
    assert page.status_code == 200
    assert "<script" in page.text


def test_containers_are_hardened_and_the_demo_has_time_to_save(stack: Stack) -> None:
    for service in ("monitor", "prometheus", "alertmanager", "grafana", "demo"):
        container = stack.container(service)
        assert container["HostConfig"]["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in container["HostConfig"]["SecurityOpt"], service
        assert container["Config"]["User"] not in ("", "0", "root"), service
    assert stack.container("monitor")["HostConfig"]["ReadonlyRootfs"]
    assert stack.container("demo")["Config"]["StopTimeout"] == 90


def test_the_demo_hangs_is_found_by_its_stacks_and_resumes(stack: Stack) -> None:
    """py-spy reads the ranks though their container has no capability."""
    wait_for(lambda: stack.job().get("restarts"), "the demo hangs and is restarted", DEMO_SECONDS)
    wait_for(lambda: (stack.job()["iteration"] or 0) > HANGS_IN, "it passes the step of the hang", DEMO_SECONDS)
    job = stack.job()
    (listed,) = [each for each in stack.monitor(f"/jobs/{job['id']}/incidents")["incidents"] if each["confirmed"]]
    incident = stack.monitor(f"/jobs/{job['id']}/incidents/{listed['id']}")
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    assert [culprit["host"] for culprit in incident["culprits"]] == ["demo"]
    assert not incident["stack_errors"]
    assert {group["method"] for group in incident["stack_groups"]} == {"py-spy"}
    assert (job["state"], job["attempt"]) == ("running", 2)


def test_prometheus_scrapes_with_its_token_and_knows_alertmanager_and_the_rules(stack: Stack) -> None:
    def targets() -> list[str]:
        return [each["health"] for each in stack.prometheus("targets")["activeTargets"]]

    wait_for(lambda: targets() == ["up"], "the monitor is scraped")
    found = stack.prometheus("alertmanagers")["activeAlertmanagers"]
    assert [each["url"] for each in found] == ["http://alertmanager:9093/api/v2/alerts"]
    groups = stack.prometheus("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    query = "query?query=sum(rankwatch_job_restarts_total)"
    wait_for(lambda: stack.prometheus(query)["result"], "the restart is in Prometheus", 120)


def test_secrets_stay_secret(stack: Stack) -> None:
    assert stack.get("RANKWATCH_PORT", "/metrics").status_code == 401
    assert stack.get("RANKWATCH_PORT", "/api/v1/jobs", TOKENS["RANKWATCH_INGEST_TOKEN"]).status_code == 403
    assert stack.get("RANKWATCH_PORT", "/metrics", TOKENS["RANKWATCH_READ_TOKEN"]).status_code == 200
    environment = json.dumps(stack.container("prometheus")["Config"])
    assert not [token for token in TOKENS.values() if token in environment], "Prometheus has its token as a file"
    assert TOKENS["RANKWATCH_TOKEN"] not in json.dumps(stack.container("demo")["Config"]), "the demo may order nothing"
    for image in (MONITOR, DEMO):
        kept = stack.docker("history", "--no-trunc", image) + json.dumps(stack.docker.inspect(image))
        assert not [secret for secret in (*TOKENS.values(), PASSWORD) if secret in kept], image


def test_a_stop_lets_the_demo_save_and_end_with_0(stack: Stack) -> None:
    """Signals reach the launcher through the container's init; the engine's own patience would kill it in the save."""
    before = stack.job()
    stack.compose("stop", "demo", seconds=200)
    state = stack.container("demo")["State"]
    assert (state["Status"], state["ExitCode"], state["OOMKilled"]) == ("exited", 0, False)
    after = wait_for(lambda: (job := stack.job())["state"] != "running" and job, "the monitor knows of the end")
    assert (after["state"], after["restarts"]) == ("stopped", before["restarts"])
    saved = stack.compose("run", "--rm", "--no-deps", "--entrypoint", "find", "demo", "/runs", "-name", "step-*")
    steps = [int(step) for step in re.findall(r"step-0*(\d+)", saved)]
    # Steps are counted from 0: a checkpoint is named after the steps done, and the last one after the stop's.
    assert max(steps) == after["iteration"] + 1 > before["iteration"], "it has saved after the signal"


def test_settings_of_the_environment_are_needed(docker: Docker, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("RANKWATCH_TOKEN=x\n")
    printed = docker("compose", "--env-file", str(tmp_path / "env"), "config", check=False)
    assert re.search(r"required variable \w+ is missing a value: set \w+ in \.env", printed), printed


def test_the_variable_is_documented() -> None:
    assert VARIABLE in (ROOT / "docs/compose.md").read_text()
