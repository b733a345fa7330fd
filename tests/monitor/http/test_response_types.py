"""The types of responses have every field that views send, and no other: a reader of the description can rely on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import fastapi.routing
import pytest
from fastapi.encoders import jsonable_encoder
from starlette.testclient import TestClient

from monitor.core.scene import Scene
from monitor.http.test_reads_change_nothing import MOMENTS, readable
from rankwatch.contract.enums import Action
from rankwatch.contract.messages import NodeRegistration
from rankwatch.contract.node_checks import CheckName, CheckReason, CheckResult, CheckState
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.http import stream
from rankwatch_monitor.service import log_requests
from rankwatch_monitor.service.monitor import Monitor
from web import slow_scenes
from web.scene_monitor import StagedClock


def with_an_unfit_node() -> Scene:
    scene = Scene(4, hosts=2).run(20).hang(2).until_found()
    failed = CheckResult(CheckName.STORAGE, CheckState.FAILED, CheckReason.NOT_WRITABLE, {"path": "/ckpt"})
    scene.submit(NodeRegistration("node-1", "host-1", 10, 2, "gpt", checks=(failed,)))
    assert scene.incident.node_checks
    return scene


def crashed_again() -> Scene:
    scene = Scene(4, hosts=2, max_restarts=1).run(20).crash(3, "ValueError: bad").run(40).crash(3, "ValueError: bad")
    return scene.run(5)


def ordered() -> Scene:
    scene = Scene(4, hosts=2).run(20)
    scene.order(Action.RESTART, "try again")
    return scene.run(1)


SCENES: dict[str, Callable[[], Scene]] = MOMENTS | {
    "hung, with stacks": lambda: Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found().run(3),
    "an unfit node": with_an_unfit_node,
    "crashed again": crashed_again,
    "ordered": ordered,
}
SLOW = {"slow": slow_scenes.slow_input, "throttled": slow_scenes.throttled, "calm": slow_scenes.healthy}


def shown(name: str) -> tuple[Job, float]:
    """A job and the time at which it is read."""
    if name in SLOW:
        job = SLOW[name]("slow", 600)
        return job, job.created_at + 600
    scene = SCENES[name]()
    return scene.job, scene.now


@cache
def described() -> dict[str, Any]:
    """The same of every monitor."""
    return create_app(Monitor()).openapi()


@pytest.mark.parametrize("name", [*SCENES, *SLOW])
def test_responses_have_the_fields_that_the_description_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_requests, "ANSWER_SECONDS", 0.0)  # no launcher is there to answer
    job, now = shown(name)
    monitor = Monitor(clock=StagedClock(now), read_only=True)
    monitor.adopt(job)
    app = create_app(monitor)
    description = described()
    schemas = description["components"]["schemas"]
    viewed: list[Any] = []
    serialize = fastapi.routing.serialize_response

    async def noting(**given: Any) -> Any:
        """A view before FastAPI leaves out what its type has not."""
        viewed.append(given["response_content"])
        return await serialize(**given)

    monkeypatch.setattr(fastapi.routing, "serialize_response", noting)
    client, found = TestClient(app, base_url="http://127.0.0.1"), []
    for path, template in readable(job).items():
        viewed.clear()
        # Samples of the history have all that is kept of them, unless it is to be brief.
        answer = client.get(path, params={"brief": True} if template.endswith("/history") else {})
        content = description["paths"].get(template, {}).get("get", {}).get("responses", {}).get("200", {})
        schema = content.get("content", {}).get("application/json", {}).get("schema")
        if answer.status_code == 200 and schema:
            for view in viewed or [answer.json()]:
                found += differences(jsonable_encoder(view), schema, schemas, template)
    events = schemas["JobEvents"]["properties"]
    for _, event, data in stream._events(job, now, monitor.host_activity):
        found += differences(jsonable_encoder(data), events[event], schemas, event)
    assert sorted(set(found)) == []


def differences(value: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str) -> Iterator[str]:
    """Fields that a value has and its schema has not, and the other way round."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema and value is not None:
        several = (each for each in schema["anyOf"] if each.get("type") != "null")
        # Of several types that with the fewest differences is meant.
        yield from min((list(differences(value, each, schemas, path)) for each in several), key=len)
    elif isinstance(value, dict) and "properties" in schema:
        yield from (f"{path}.{field}" for field in set(value) - set(schema["properties"]))
        yield from (f"{path}.{field} is missing" for field in set(schema.get("required", ())) - set(value))
        for field in set(value) & set(schema["properties"]):
            yield from differences(value[field], schema["properties"][field], schemas, f"{path}.{field}")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for each in value:
            yield from differences(each, schema["items"], schemas, path)
