"""The shipped nginx configurations let through what a monitor takes, and no more."""

from __future__ import annotations

import contextlib
import json
import ssl
from pathlib import Path

import httpx
import pytest

from e2e.test_tls import certificates  # noqa: F401 - a fixture
from rankwatch_monitor.http.request_gate import LARGEST_EVIDENCE
from support.monitor_process import running_monitor
from support.nginx import running_mtls, running_nginx

NODE = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}
EVIDENCE = json.dumps({"node": "n", "attempt": 1, "incident_id": None, "stacks": []}).encode()


@pytest.mark.parametrize("name", ["nginx.conf", "nginx-mtls.conf"])
def test_the_largest_evidence_passes_the_proxy_and_more_is_refused_by_it(
    name: str,
    tmp_path: Path,
    certificates: Path,  # noqa: F811
) -> None:
    with contextlib.ExitStack() as on:
        monitor = on.enter_context(running_monitor(tmp_path / "monitor", "--token", "t"))
        if name == "nginx.conf":
            url = on.enter_context(running_nginx(tmp_path / "nginx", [monitor.url, monitor.url]))
            through = httpx.Client(trust_env=False)
        else:
            url = on.enter_context(running_mtls(tmp_path / "nginx", monitor.url, certificates))
            trusting = ssl.create_default_context(cafile=certificates / "ca.pem")
            trusting.load_cert_chain(certificates / "client.pem", certificates / "client.key")
            through = httpx.Client(verify=trusting, trust_env=False)
        on.enter_context(through)
        through.headers.update({"Authorization": "Bearer t", "Content-Type": "application/json"})
        job = f"{url}/api/v1/jobs/j"
        assert through.post(f"{job}/nodes", json=NODE).status_code == 200
        largest = EVIDENCE + b" " * (LARGEST_EVIDENCE - len(EVIDENCE))
        assert through.post(f"{job}/evidence", content=largest, timeout=60).status_code == 204
        answer = through.post(f"{job}/evidence", content=largest + b" ", timeout=60)
        assert (answer.status_code, answer.headers["server"].partition("/")[0]) == (413, "nginx")
