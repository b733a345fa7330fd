"""Server-sent events: the picture at once, then what changes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from support.monitor_process import Api
from support.otlp import PROTOBUF, body, rank_report

WORLD = 3


def send(api: Api, job: str, iteration: int, seconds: float = 0.1) -> None:
    reports = [
        rank_report(
            job, rank, WORLD, iteration=iteration - (rank == 1 and seconds > 1), open_sections={"step": seconds}
        )
        for rank in range(WORLD)
    ]
    assert api.post("/v1/metrics", content=body(*reports), headers=PROTOBUF).status_code == 200


Event = tuple[str, dict[str, Any]]


@contextmanager
def stream(api: Api, path: str) -> Iterator[Iterator[Event]]:
    """The events of a stream; one that stays away fails with httpx's own timeout."""
    with api.stream("GET", f"/api/v1{path}", timeout=httpx.Timeout(10.0)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


def events(answer: httpx.Response) -> Iterator[Event]:
    name, data = "message", []
    for line in answer.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not line and data:
            yield name, json.loads("\n".join(data))
            name, data = "message", []


def first(found: Iterator[Event], name: str, **wanted: Any) -> dict[str, Any]:
    """The first event of this name whose data hold ``wanted``; the stream's timeout bounds the search."""
    return next(data for kind, data in found if kind == name and wanted.items() <= data.items())


def states(grid: dict[str, Any]) -> list[str]:
    return [grid["legend"][code] for code in base64.b64decode(grid["states"])]


def test_a_jobs_stream_begins_with_the_picture_and_goes_on_with_what_changes(api: Api, job: str) -> None:
    send(api, job, 7)
    with stream(api, f"/jobs/{job}/events") as found:
        kinds = [next(found) for _ in range(2)]
        assert [kind for kind, _ in kinds] == ["job", "grid"]
        summary, grid = kinds[0][1], kinds[1][1]
        assert (summary["id"], summary["state"], summary["iteration"]) == (job, "running", 7)
        assert summary == api.jobs()[0], "the stream and the list show the same"
        assert states(grid) == ["running"] * WORLD
        assert (grid["attempt"], grid["world_size"], grid["iterations"]) == (0, WORLD, {"min": 7, "max": 7})
        assert grid["legend"] == ["unseen", "running", "waiting", "hung", "silent", "stopped", "dead", "finished"]

        send(api, job, 8)
        assert first(found, "grid")["iterations"] == {"min": 8, "max": 8}

        api.change_policy(job, section_timeouts={"step": 2.0})
        send(api, job, 9, seconds=3.0)
        opened = first(found, "incident")
        assert (opened["phase"], opened["closed_at"]) == ("detected", None)
        assert [c["rank"] for c in opened["culprits"]] == [1]
        assert opened in api.incidents(job)

        send(api, job, 10)
        closed = first(found, "incident", phase="closed")
        assert closed["id"] == opened["id"]


def test_an_open_incident_is_part_of_the_first_picture(api: Api, job: str) -> None:
    send(api, job, 7)
    api.change_policy(job, section_timeouts={"step": 2.0})
    send(api, job, 9, seconds=3.0)
    api.judge_now(job)
    with stream(api, f"/jobs/{job}/events") as found:
        begun = dict(next(found) for _ in range(3))
        assert set(begun) == {"job", "grid", "incident"}
        assert begun["job"]["state"] == "hung"
        assert states(begun["grid"]) == ["waiting", "hung", "waiting"]
        assert begun["incident"] == api.incidents(job)[0]


def test_the_fleets_stream_begins_with_all_jobs_and_reports_a_new_one(api: Api, job: str) -> None:
    send(api, job, 7)
    with stream(api, "/events") as found:
        kind, picture = next(found)
        assert kind == "jobs"
        assert [each["id"] for each in picture["jobs"]] == [each["id"] for each in api.jobs()]
        send(api, f"{job}-another", 1)
        while f"{job}-another" not in [each["id"] for each in picture["jobs"]]:
            picture = first(found, "jobs")


def test_the_stream_of_an_unknown_job_is_a_404_not_an_empty_stream(api: Api) -> None:
    with api.stream("GET", "/api/v1/jobs/nobody/events") as answer:
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert "nobody" in json.loads(answer.read())["detail"]


def test_a_reader_that_goes_away_is_forgotten(api: Api, job: str) -> None:
    send(api, job, 7)
    for _ in range(20):
        with stream(api, f"/jobs/{job}/events") as found:
            next(found)
    assert api.get("/readyz").status_code == 200
