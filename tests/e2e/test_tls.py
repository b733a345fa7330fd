"""TLS with an authority of one's own: a monitor's own certificate, and nginx that wants one of each client."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from rankwatch.contract import env
from rankwatch.contract.messages import NodeRegistration
from rankwatch.contract.semconv import OTLP_METRICS_PATH
from rankwatch.export.transport import OtlpClient, SendStatus
from rankwatch.settings import load
from rankwatch_launcher.monitor.link import MonitorLink
from support.monitor_process import environment, running_monitor
from support.nginx import running_mtls
from support.waiting import wait_for

RANK = """
import rankwatch
rankwatch.init()
for _ in range(5):
    with rankwatch.step():
        pass
rankwatch.shutdown()
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``ca.pem`` and, signed by it, ``server`` and ``client``: each a ``.pem`` and a ``.key``."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    folder.chmod(0o755)

    def openssl(*words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=our authority", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return folder


def registration() -> NodeRegistration:
    return NodeRegistration(node="n", host="n", launcher_pid=1, local_world_size=1, attempt=0)


def status(url: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwatch", "status", "--monitor", url]
    given = environment(RANKWATCH_TOKEN="t", **settings)
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=100, check=False)


def sent(url: str, **settings: str) -> SendStatus:
    client = OtlpClient(url + OTLP_METRICS_PATH, load({"monitor": url, "token": "t", "otlp_timeout": 10}, settings)[0])
    try:
        return client.post(b"").status
    finally:
        client.close()


def test_a_monitor_with_a_certificate_of_an_own_authority(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = str(certificates / "ca.pem")
    own = ("--tls-cert", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key"))
    with running_monitor(tmp_path, "--token", "t", *own) as monitor:
        assert monitor.url.startswith("https://")
        found = status(monitor.url, RANKWATCH_CA_FILE=ca)
        assert (found.returncode, found.stderr) == (0, "")
        stranger = status(monitor.url)
        assert stranger.returncode == 1
        assert "certificate" in stranger.stderr
        missing = status(monitor.url, RANKWATCH_CA_FILE=f"{ca}.missing")
        assert missing.returncode == 2
        assert "RANKWATCH_CA_FILE" in missing.stderr

        assert sent(monitor.url, RANKWATCH_CA_FILE=ca) is SendStatus.DELIVERED
        assert sent(monitor.url) is SendStatus.RETRY_LATER

        monkeypatch.setenv(env.CA_FILE, ca)
        link = MonitorLink("job", registration)
        try:
            link.connect(monitor.url, "t")
            wait_for(link._registered.is_set, "the launcher is registered", 60)
        finally:
            link.close(1.0)


def test_a_missing_file_does_not_end_the_launcher_s_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(env.CA_FILE, str(tmp_path / "missing.pem"))
    link = MonitorLink("job", registration)
    try:
        link.connect("https://127.0.0.1:1")
        wait_for(lambda: "does not answer" in caplog.text, "the reason is logged", 60)
        assert "missing.pem" in caplog.text
        assert all(thread.is_alive() for thread in link._threads)
    finally:
        link.close(1.0)


@pytest.mark.timeout(400)
def test_behind_nginx_only_clients_with_a_certificate_get_through(certificates: Path, tmp_path: Path) -> None:
    given = {
        env.CA_FILE: str(certificates / "ca.pem"),
        env.CLIENT_CERTIFICATE: str(certificates / "client.pem"),
        env.CLIENT_KEY: str(certificates / "client.key"),
    }
    script = tmp_path / "train.py"
    script.write_text(RANK)
    with (
        running_monitor(tmp_path / "monitor", "--token", "t") as monitor,
        running_mtls(tmp_path / "nginx", monitor.url, certificates) as url,
    ):
        trusting = ssl.create_default_context(cafile=given[env.CA_FILE])
        with httpx.Client(verify=trusting, trust_env=False) as stranger:
            answer = stranger.get(f"{url}/api/v1/jobs", headers={"Authorization": "Bearer t"})
        assert answer.status_code == 400
        assert "No required SSL certificate" in answer.text

        command = [sys.executable, "-m", "rankwatch", "run", "--standalone", "--nproc-per-node", "1", "--monitor", url]
        done = subprocess.run(
            [*command, "--job-id", "behind", str(script)],
            env=environment(RANKWATCH_TOKEN="t", **given),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = status(url, **given)
        assert found.returncode == 0, found.stderr
        with httpx.Client(base_url=monitor.url, trust_env=False, headers={"Authorization": "Bearer t"}) as api:
            job = api.get("/api/v1/jobs/behind").json()
            ranks = api.get("/api/v1/jobs/behind/ranks").json()["ranks"]
        assert job["state"] == "finished"
        assert [rank["iteration"] for rank in ranks] == [4]
