"""Whole dashboards: places of panels on the 24 columns, variables, links between dashboards, annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana.incidents import marked
from grafana.panels import DATASOURCE, Json
from grafana.queries import checked, labels_of, of_job
from rankwatch_monitor.publish.prometheus import names as names

COLUMNS: Final = 24
PAGE: Final = "http://127.0.0.1:9560"
"""Where the monitor's page is, unless the variable ``page`` says otherwise."""
DATASOURCE_UID: Final = "rankwatch-prometheus"
"""Of the data source that is provisioned beside the dashboards."""
TO_JOB: Final = (
    "/d/rankwatch-job?${datasource:queryparam}&${instance:queryparam}&${page:queryparam}&${__url_time_range}"
)
"""Address of the job's dashboard, but for the job."""


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it, each with its width; a line breaks where the widths say so."""

    title: str
    height: int
    panels: Sequence[tuple[int, Json]]
    collapsed: bool = False


def placed(rows: Sequence[Row]) -> list[Json]:
    """All panels with a number and a place, from top to bottom.

    Raises:
        ValueError: a panel is wider than the dashboard, or a line is not filled.
    """
    found: list[Json] = []
    top, number = 0, 1
    for row in rows:
        place: Json = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        heading: Json = {"type": "row", "title": row.title, "id": number, "gridPos": place, "panels": []}
        found.append({**heading, "collapsed": row.collapsed})
        number, top = number + 1, top + 1
        for line in _lines(row):
            left = 0
            for width, panel in line:
                grid = {"h": row.height, "w": width, "x": left, "y": top}
                found.append({**panel, "id": number, "gridPos": grid})
                number, left = number + 1, left + width
            top += row.height
    return found


def _lines(row: Row) -> Iterator[list[tuple[int, Json]]]:
    line: list[tuple[int, Json]] = []
    for width, panel in row.panels:
        line.append((width, panel))
        used = sum(each for each, _ in line)
        if used > COLUMNS:
            raise ValueError(f"row {row.title!r}: {panel['title']!r} sticks out, {used} of {COLUMNS} columns")
        if used == COLUMNS:
            yield line
            line = []
    if line:
        raise ValueError(f"row {row.title!r}: the last line fills {sum(w for w, _ in line)} of {COLUMNS} columns")


# Variables ----------------------------------------------------------------------------------------------------------


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {"text": "Rankwatch", "value": DATASOURCE_UID, "selected": True},
        "refresh": 1,
        "hide": 0,
        "options": [],
        "regex": "",
        "multi": False,
        "includeAll": False,
    }


def chosen(name: str, label: str, expression: str, of: str, *, several: bool = False) -> Json:
    """A variable whose values are those of the label ``of``.

    Raises:
        ValueError: no series of the expression has that label.
    """
    if of not in labels_of(checked(expression)):
        raise ValueError(f"{expression} has no label {of}")
    made: Json = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": f"label_values({expression},{of})", "refId": f"variable-{name}"},
        "definition": f"label_values({expression},{of})",
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "options": [],
        "regex": "",
        "multi": several,
        "includeAll": several,
    }
    if several:
        made |= {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"], "selected": True}}
    return made


def variables(*more: Json, job: bool) -> list[Json]:
    """Data source, monitors, the job (on dashboards about one), further ones, and where the monitor's page is."""
    found = [_datasource(), chosen("instance", "Monitor", names.BUILD_INFO.name, "instance", several=True)]
    if job:
        found.append(chosen("job", "Job", f'{names.JOB_STATE.name}{{instance=~"$instance"}}', "job"))
    page = {"name": "page", "label": "Monitor's page", "type": "textbox", "query": PAGE, "hide": 0}
    page |= {"current": {"text": PAGE, "value": PAGE, "selected": True}, "options": []}
    return [*found, *more, page]


# Links and annotations ----------------------------------------------------------------------------------------------


def links(*, job: bool) -> list[Json]:
    """The other dashboards, and the monitor's own page about the same thing."""
    common: Json = {"tooltip": "", "asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False}
    others = {**common, "type": "dashboards", "title": "Rankwatch", "tags": ["rankwatch"], "icon": "external link"}
    address = "${page}/#/jobs/${job:percentencode}" if job else "${page}/#/"
    page = {**common, "type": "link", "title": "Monitor's page", "url": address, "icon": "bolt", "tags": []}
    page |= {"includeVars": False, "keepTime": False, "targetBlank": True}
    page["tooltip"] = "Every rank, stacks, timeline, policy and actions"
    return [others, page]


def marks() -> list[Json]:
    """Incidents, restarts and alerts of a job, marked on every chart."""
    restarts = f"increase({of_job(names.JOB_RESTARTS)}[1m]) > 0"
    firing = 'ALERTS{job="$job",alertstate="firing"}'
    all_of_them = [
        *marked(),
        ("Restarts", "orange", restarts, "Restart", "a new attempt began", False),
        ("Alerts", "purple", firing, "{{alertname}}", "severity {{severity}}", False),
    ]
    made: list[Json] = [
        {
            "name": name,
            "datasource": DATASOURCE,
            "enable": name != "Alerts",
            "hide": False,
            "iconColor": colour,
            "expr": checked(expression),
            "titleFormat": title,
            "textFormat": text,
            "step": "15s",
            "useValueForTime": value_is_time,
        }
        for name, colour, expression, title, text, value_is_time in all_of_them
    ]
    return made


def dashboard(uid: str, title: str, description: str, rows: Sequence[Row], *more: Json, job: bool) -> Json:
    """A dashboard; ``more`` are further variables, ``job`` says whether it is about one job."""
    made: dict[str, Any] = {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["rankwatch"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "preload": False,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "links": links(job=job),
        "annotations": {"list": marks() if job else []},
        "templating": {"list": variables(*more, job=job)},
        "panels": placed(rows),
    }
    return made
