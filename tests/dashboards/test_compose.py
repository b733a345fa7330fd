"""docker-compose.yml and the images: valid, pinned, closed; what the Dockerfiles do is done here without an engine.

These tests need no container engine: they check the files, the wheel made from exactly the files that the Dockerfile
copies, and the commands.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from dashboards.scene import ROOT, tool
from rankwatch.contract import semconv
from rankwatch_launcher.job.launcher import LEAVE_SECONDS
from rankwatch_launcher.options import Options
from rankwatch_monitor import settings
from support.monitor_process import Api, environment, running_monitor
from support.processes import MARK, end_marked
from support.waiting import wait_for

COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
DOCKERFILES = sorted((ROOT / "docker").glob("*ockerfile"))
SECRETS = {"RANKWATCH_TOKEN": "t", "RANKWATCH_READ_TOKEN": "r", "RANKWATCH_INGEST_TOKEN": "i", "GRAFANA_PASSWORD": "g"}
ENGINELESS = {"collector": "its image has no shell", "demo": "it ends by itself"}
"""Services without a health check, and why."""


def instructions(path: Path) -> list[tuple[str, str]]:
    """Word and rest of each instruction, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied(path: Path) -> list[str]:
    """What a Dockerfile copies from the build's context."""
    found: list[str] = []
    for word, rest in instructions(path):
        words = [each for each in shlex.split(rest) if not each.startswith("--chmod")]
        if word == "COPY" and not words[0].startswith("--from"):
            found += words[:-1]
    return found


# docker-compose.yml -------------------------------------------------------------------------------------------------


def composed(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``docker compose`` as far as it goes without an engine."""
    command = [shutil.which("docker-compose") or tool("docker-compose"), "--env-file", os.devnull, *arguments]
    own = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("profile", ["", "demo", "postgres", "collector", "*"])
def test_compose_accepts_the_file(profile: str) -> None:
    done = composed("--profile", profile, "config", "--quiet", **SECRETS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", SECRETS)
def test_compose_states_what_is_missing(missing: str) -> None:
    done = composed("config", "--quiet", **{name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert f"set {missing} in .env" in done.stderr


def test_the_file_is_one_by_the_compose_specification() -> None:
    beside = Path(sys.executable).with_name("check-jsonschema")
    command = [str(beside) if beside.exists() else tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, COMPOSE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_images_are_pinned_and_ours_have_our_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.[\w.-]+", service["image"]), f"{name}: {service['image']} may change"
        if "build" in service:
            assert service["image"].endswith(f":{version}")
    for path in DOCKERFILES:
        stages = {match[1] for match in re.finditer(r"^FROM \S+ AS (\w+)", path.read_text(), flags=re.MULTILINE)}
        for word, rest in instructions(path):
            assert word != "FROM" or rest.split()[0] in stages or re.search(r":\d+\.\d+", rest), f"{path.name}: {rest}"


def test_everything_is_published_on_loopback_only() -> None:
    assert any("ports" in service for service in SERVICES.values())
    for name, service in SERVICES.items():
        assert service.get("network_mode") is None, name
        for port in service.get("ports", ()):
            assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-(\d+)\}:\1", port), f"{name}: {port}"


def test_what_asks_for_no_password_is_not_published() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"monitor", "grafana", "collector"}


def test_every_service_can_be_asked_how_it_is() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == set(ENGINELESS)


def test_what_is_mounted_is_there_and_named_volumes_are_declared() -> None:
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), volume
                assert volume.endswith(":ro"), f"{volume}: a container must not change the repository"
            else:
                used.add(source)
    assert used == declared


def test_every_variable_is_in_the_example_and_the_example_has_no_other() -> None:
    asked = set(re.findall(r"(?:\$\{|environment: )([A-Z_]+)", COMPOSE.read_text()))
    tunable = {"PROMETHEUS_RETENTION", "RANKWATCH_DEMO_STEPS"} | {name for name in asked if name.endswith("_PORT")}
    example = (ROOT / ".env.example").read_text()
    assert set(re.findall(r"^(?:# )?([A-Z_]+)=", example, flags=re.MULTILINE)) == asked - tunable
    assert re.findall(r"^([A-Z_]+)=(.+)$", example, flags=re.MULTILINE) == [], "no secret stands in the example"
    reported = (ROOT / "docs" / "compose.md").read_text()
    assert [name for name in asked if name not in reported] == []


def test_only_the_monitor_has_the_control_token_and_jobs_the_one_that_may_ingest() -> None:
    given = {name: service.get("environment", {}) for name, service in SERVICES.items()}
    holders = [name for name, variables in given.items() if "${RANKWATCH_TOKEN" in str(variables)]
    assert holders == ["monitor"]
    for variable in (given["demo"]["RANKWATCH_TOKEN"], given["monitor"]["RANKWATCH_MONITOR_INGEST_TOKEN"]):
        assert variable.startswith("${RANKWATCH_INGEST_TOKEN:?")


def test_the_demo_has_a_name_and_the_time_to_save() -> None:
    demo = SERVICES["demo"]
    assert demo["hostname"] == "demo"
    grace = float(re.fullmatch(r"(\d+)s", demo["stop_grace_period"])[1])  # type: ignore[index]
    assert "--stop-grace" not in (ROOT / "docker" / "demo.sh").read_text()
    assert grace >= Options.stop_grace + LEAVE_SECONDS, "the engine kills what has not ended by then"


def test_the_monitor_s_variables_are_settings_of_the_monitor() -> None:
    known = {settings.variable(name) for name in settings.Settings.__dataclass_fields__} | {"RANKWATCH_TOKEN"}
    assert set(SERVICES["monitor"]["environment"]) <= known


def test_prometheus_of_the_stack_is_the_shipped_one_with_a_token(tmp_path: Path) -> None:
    own = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())
    (scraped,) = own["scrape_configs"]
    credentials = scraped.pop("authorization")["credentials_file"]
    assert own == yaml.safe_load((ROOT / "dashboards" / "prometheus" / "prometheus.yml").read_text())
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert credentials == f"/run/secrets/{secret}"
    hosts = [each for path in (ROOT / "docker" / "targets").glob("*.yml") for each in yaml.safe_load(path.read_text())]
    assert {host.split(":")[0] for each in hosts for host in each["targets"]} == {"monitor", "alertmanager"}

    (tmp_path / "token").write_text("r")
    text = (ROOT / "docker" / "prometheus.yml").read_text().replace(credentials, str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copytree(ROOT / "docker" / "targets", tmp_path / "targets")
    shutil.copytree(ROOT / "dashboards" / "prometheus" / "rules", tmp_path / "rules")
    command = [tool("promtool"), "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_collector_s_pipelines_use_what_is_declared() -> None:
    config = yaml.safe_load((ROOT / "dashboards" / "collector" / "collector.yml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind, members in pipeline.items():
            assert set(members) <= set(config[kind])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    given = SERVICES["collector"]["environment"]
    assert set(re.findall(r"\$\{env:(\w+)\}", json.dumps(config))) == set(given)
    receiver = config["receivers"]["otlp"]["protocols"]["http"]
    assert receiver["auth"]["authenticator"] in config["extensions"], "it listens beyond loopback"


def test_the_collector_of_a_node_keeps_jobs_apart_and_states_which_it_sends() -> None:
    config = yaml.safe_load((ROOT / "dashboards" / "collector" / "node.yml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind, members in pipeline.items():
            assert set(members) <= set(config[kind])
    passed_on = [each for each in config["extensions"]["headers_setter"]["headers"] if "from_context" in each]
    assert [(each["key"], each["from_context"]) for each in passed_on] == [(semconv.JOB_HEADER, semconv.JOB_HEADER)]
    assert config["processors"]["batch"]["metadata_keys"] == [semconv.JOB_HEADER]
    receiver = config["receivers"]["otlp"]["protocols"]["http"]
    assert receiver["include_metadata"] is True
    assert receiver["endpoint"].startswith("127.0.0.1:"), "it asks for no token"
    exporter = config["exporters"]["otlphttp/rankwatch"]
    assert exporter["auth"]["authenticator"] in config["service"]["extensions"]


# Images -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_dockerfile_copies_is_there_and_not_ignored(path: Path) -> None:
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert copied(path)
    for source in copied(path):
        assert (ROOT / source).exists(), source
        assert any(source.rstrip("/") == each or source.startswith(f"{each}/") for each in allowed), source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_as_a_user_without_rights(path: Path) -> None:
    after = [word for word, _ in instructions(path)]
    users = [rest for word, rest in instructions(path) if word == "USER"]
    assert users == ["rankwatch"]
    assert after.index("USER") < after.index("ENTRYPOINT")
    assert after[after.index("USER") :].count("RUN") == 0


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_nothing_of_an_index_s_address_stays_in_an_image(path: Path) -> None:
    reported = instructions(path)
    assert [rest for word, rest in reported if word in {"ARG", "ENV"} and re.search("URL|TOKEN|PASSWORD", rest)] == []
    for service in SERVICES.values():
        assert "args" not in service.get("build", {}), "arguments of a build stay in the history"


@pytest.mark.parametrize("address", ["", "https://user:word@index.example/cpu"])
def test_the_demo_s_build_takes_the_index_from_a_secret(address: str, tmp_path: Path) -> None:
    (secret,) = SERVICES["demo"]["build"]["secrets"]
    assert yaml.safe_load(COMPOSE.read_text())["secrets"][secret] == {"environment": "TORCH_INDEX_URL"}
    (step,) = [rest for word, rest in instructions(ROOT / "docker" / "demo.Dockerfile") if "torch==" in rest]
    mount, _, script = step.partition(" ")
    assert mount == f"--mount=type=secret,id={secret}"

    # The step itself, with a pip that writes down how it is called.
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "rankwatch-1.whl").touch()
    (tmp_path / "constraints.txt").write_text("torch==2\n")
    (tmp_path / "pip").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    (tmp_path / "pip").chmod(0o755)
    if address:
        (tmp_path / secret).write_text(address)
    script = script.replace("/run/secrets", str(tmp_path)).replace("/build", str(tmp_path))
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-euc", script], env=own, timeout=60, check=True)
    calls = (tmp_path / "called").read_text().splitlines()
    indexed = "--index-url https://user:word@index.example/cpu " if address else ""
    assert calls[1] == f"install --no-cache-dir --no-deps {indexed}torch==2"
    assert [call for call in calls if "--index-url" in call] == ([calls[1]] if address else [])


def test_the_monitor_s_image_asks_livez() -> None:
    (check,) = [rest for word, rest in instructions(ROOT / "docker" / "Dockerfile") if word == "HEALTHCHECK"]
    assert "127.0.0.1:9560/livez" in check
    assert "torch" not in " ".join(rest for word, rest in instructions(ROOT / "docker" / "Dockerfile") if word == "RUN")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder that the Dockerfile's steps make, of the files that it copies, without an engine."""
    path, folder = ROOT / "docker" / "Dockerfile", tmp_path_factory.mktemp("image")
    page = "monitor/rankwatch_monitor/web/static"
    if not (ROOT / page / "index.html").is_file():
        pytest.skip("the page was not built: make web")
    context = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "static", "manual")
    own_files = [source for source in copied(path) if not source.startswith(("/", "monitor/rankwatch_monitor/web"))]
    assert {"pyproject.toml", "telemetry/", "docs/", "scripts/build_page.py", "scripts/build_manual.py"} <= {*own_files}
    for source in own_files:
        if source.endswith("/"):
            shutil.copytree(ROOT / source, context / source, ignore=ignored, dirs_exist_ok=True)
        else:
            (context / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, context / source)
    shutil.copytree(ROOT / page, context / page)
    venv.create(folder / "builder", with_pip=True)
    variables = dict(rest.split("=", 1) for word, rest in instructions(path) if word == "ENV" and "BUILD_PAGE" in rest)
    own = environment(PATH=f"{folder / 'builder' / 'bin'}:{os.environ['PATH']}", **variables)
    places = {
        "/build/wheels": str(folder / "wheels"),
        "/build/locks": str(context / "locks"),
        " /wheels": f" {folder / 'wheels'}",
        "/opt/rankwatch": str(folder / "rankwatch"),
    }
    steps = [rest for word, rest in instructions(path) if word == "RUN" and "pip" in rest]
    assert len(steps) == 3, "what builds it installed, the wheel built, the wheel installed"
    for script in steps:
        for there, here in places.items():
            script = script.replace(there, here)
        done = subprocess.run(["sh", "-euc", script], cwd=context, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "rankwatch" / "bin"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_image_s_monitor_starts_without_torch_and_is_healthy(image: Path, tmp_path: Path) -> None:
    reported = dict(instructions(ROOT / "docker" / "Dockerfile"))
    command = [*json.loads(reported["ENTRYPOINT"]), *json.loads(reported["CMD"])]
    assert subprocess.run([image / "python", "-c", "import torch"], capture_output=True, check=False).returncode != 0
    assert subprocess.run([image / "python", "-c", "import psycopg"], capture_output=True, check=False).returncode == 0

    command[command.index("/state/rankwatch.db")] = str(tmp_path / "rankwatch.db")
    bare = subprocess.run(
        [image / command[0], *command[1:]], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert bare.returncode == 2
    assert "listening on 0.0.0.0 needs a token" in bare.stderr

    ready = tmp_path / "ready.json"
    command[command.index("0.0.0.0")], command[command.index("9560")] = "127.0.0.1", "0"
    command += ["--ready-file", str(ready), "--parent-pid", str(os.getpid())]
    own = environment(RANKWATCH_TOKEN="t", RANKWATCH_MONITOR_READ_TOKEN="r", RANKWATCH_MONITOR_INGEST_TOKEN="")
    with subprocess.Popen([image / command[0], *command[1:]], env=own, stderr=subprocess.DEVNULL) as monitor:
        try:
            wait_for(ready.exists, "the monitor listens", 40)
            url = json.loads(ready.read_text())["url"]
            for part in ("", "/manual/", "/manual/compose.html"):
                with urlopen(url + part) as page:
                    assert b"<!doctype html>" in page.read()[:100].lower()
            check = json.loads(reported["HEALTHCHECK"].partition("CMD ")[2])
            for test in (check, SERVICES["monitor"]["healthcheck"]["test"][1:]):
                script = test[-1].replace("http://127.0.0.1:9560", url.rstrip("/"))
                asked = [image / "python", "-c", script]
                wait_for(lambda: subprocess.run(asked, check=False).returncode == 0, script, 30)  # noqa: B023
            with Api(url, "r") as reader, Api(url) as anonymous:
                assert reader.get("/metrics").status_code == 200
                assert anonymous.get("/metrics").status_code == 401
        finally:
            monitor.terminate()
    assert monitor.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_demo_job_hangs_is_found_and_finishes(tmp_path: Path) -> None:
    """What the demo's container runs, here: two real ranks under the launcher, against a monitor with a token."""
    mark = f"compose-{os.getpid()}"
    tokens = ("--token", "t", "--ingest-token", "i")
    with running_monitor(tmp_path / "monitor", *tokens) as monitor, Api(monitor.url, "t") as api:
        own = environment(
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            RANKWATCH_TOKEN="i",
            RANKWATCH_DEMO_MONITOR=monitor.url,
            RANKWATCH_DEMO_SCRIPT=str(ROOT / "examples" / "train_gpt.py"),
            RANKWATCH_DEMO_STEPS="70",
            OMP_NUM_THREADS="1",
            **{MARK: mark},
        )
        try:
            done = subprocess.run(
                ["sh", ROOT / "docker" / "demo.sh"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=200,
                check=False,
            )  # fmt: skip
        finally:
            end_marked(mark)
        assert done.returncode == 0, done.stderr[-3000:]
        (job,) = api.jobs()
        (incident,) = api.incidents(job["id"])
        assert job["state"] == "finished"
        assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
        assert job["restarts"] == 1


@pytest.mark.parametrize("missing", ["RANKWATCH_DEMO_MONITOR", "RANKWATCH_TOKEN"])
def test_the_demo_states_what_it_needs(missing: str) -> None:
    given = {"RANKWATCH_DEMO_MONITOR": "http://127.0.0.1:9", "RANKWATCH_TOKEN": "t", "PATH": os.environ["PATH"]}
    del given[missing]
    command = ["sh", str(ROOT / "docker" / "demo.sh")]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert missing in done.stderr
