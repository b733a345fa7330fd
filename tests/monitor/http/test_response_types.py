"""The types of responses have every field that views send, and no other: a reader of the description can rely on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from monitor.core.scene import Scene
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.views import incident_view, job_view
from rankwatch_monitor.service.monitor import Monitor


def test_views_have_the_fields_that_the_description_has() -> None:
    schemas = create_app(Monitor()).openapi()["components"]["schemas"]
    scene = Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found()
    job, now = scene.job, scene.now
    shown = {
        "JobSummary": job_view.summary(job, now),
        "Incident": incident_view.shown(job, scene.incident, now),
        "Goodput": job_view.goodput(job, now),
        "RankReport": job_view.ranks(job, now)[0],
    }
    for name, view in shown.items():
        assert list(differences(json.loads(json.dumps(view)), schemas[name], schemas, name)) == []


def differences(value: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str) -> Iterator[str]:
    """Fields that a value has and its schema has not, and the other way round."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema and value is not None:
        one, *more = (each for each in schema["anyOf"] if each.get("type") != "null")
        if not more:
            yield from differences(value, one, schemas, path)
    elif isinstance(value, dict) and "properties" in schema:
        yield from (f"{path}.{field}" for field in set(value) - set(schema["properties"]))
        yield from (f"{path}.{field} is missing" for field in set(schema["required"]) - set(value))
        for field in set(value) & set(schema["properties"]):
            yield from differences(value[field], schema["properties"][field], schemas, f"{path}.{field}")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for each in value:
            yield from differences(each, schema["items"], schemas, path)
