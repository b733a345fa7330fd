"""The API describes itself, and states whether it is alive and ready."""

from __future__ import annotations

import rankwatch
from support.monitor_process import Api

PROMISED = {
    "/api/v1/jobs": {"get"},
    "/api/v1/jobs/{job_id}": {"get"},
    "/api/v1/jobs/{job_id}/ranks": {"get"},
    "/api/v1/jobs/{job_id}/goodput": {"get"},
    "/api/v1/jobs/{job_id}/report": {"get"},
    "/api/v1/jobs/{job_id}/scores": {"get"},
    "/api/v1/jobs/{job_id}/scores/report": {"get"},
    "/api/v1/jobs/{job_id}/stragglers": {"get"},
    "/api/v1/jobs/{job_id}/incidents": {"get"},
    "/api/v1/jobs/{job_id}/incidents/{incident_id}": {"get"},
    "/api/v1/jobs/{job_id}/policy": {"get", "patch"},
    "/api/v1/jobs/{job_id}/actions": {"post"},
    "/api/v1/jobs/{job_id}/events": {"get"},
    "/api/v1/events": {"get"},
    "/api/v1/jobs/{job_id}/nodes": {"post"},
    "/api/v1/jobs/{job_id}/directives": {"get"},
    "/api/v1/jobs/{job_id}/directives/{directive}/acks": {"post"},
    "/api/v1/jobs/{job_id}/process-events": {"post"},
    "/api/v1/jobs/{job_id}/observations": {"post"},
    "/api/v1/jobs/{job_id}/evidence": {"post"},
    "/metrics": {"get"},
    "/livez": {"get"},
    "/readyz": {"get"},
}


def test_openapi_lists_every_promised_route_with_a_summary(api: Api) -> None:
    described = api.get("/openapi.json").json()
    assert described["info"]["title"] == "Rankwatch monitor"
    found = {path: set(methods) for path, methods in described["paths"].items()}
    assert {path: found.get(path) for path in PROMISED} == PROMISED
    unexplained = [
        f"{method} {path}"
        for path, methods in described["paths"].items()
        for method, each in methods.items()
        if not each.get("summary")
    ]
    assert unexplained == []


def test_alive_and_ready(api: Api) -> None:
    assert api.get("/livez").json() == {"status": "alive", "rankwatch": rankwatch.__version__}
    assert (api.get("/readyz").status_code, api.get("/readyz").json()) == (200, {"status": "ready"})


def test_an_unknown_address_answers_where_the_api_is_described(api: Api) -> None:
    answer = api.get("/no/such/page")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert (answer.json()["detail"], answer.json()["remedy"]) == (
        "there is nothing at /no/such/page",
        "the API is described at /docs",
    )
    assert api.get("/docs").status_code == 200
