"""Panels, variables and links as Grafana's dashboard schema (version 41, Grafana 12) wants them.

Every panel needs a title, a unit and a description; :mod:`grafana.layout` gives it a number and a place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from grafana.empty import empty_because
from grafana.queries import checked, result_labels

Json = dict[str, Any]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
STATES: Final = {
    "running": "green",
    "starting": "blue",
    "suspected": "yellow",
    "slow": "yellow",
    "no step": "yellow",
    "restarting": "orange",
    "stopping": "purple",
    "hung": "red",
    "lost": "dark-orange",
    "failed": "dark-red",
    "stopped": "purple",
    "finished": "text",
}
"""Colour of each state of a job. The place in this list is the number that panels show it by."""
RANK_STATES: Final = {
    "running": "green",
    "waiting": "yellow",
    "hung": "red",
    "suspected": "orange",
    "silent": "dark-orange",
    "stopped": "purple",
    "dead": "dark-red",
    "finished": "text",
    "ended": "light-purple",
    "unseen": "blue",
}
BUCKETS: Final = {
    "productive": "#3f89ac",
    "waiting": "#cabd82",
    "evaluation": "#4fa39b",
    "checkpointing": "#86ad55",
    "startup": "#9fb4c2",
    "shutdown": "#b9bdb8",
    "lost_steps": "#c96a86",
    "stalled": "#cabd82",
    "hang": "#d6410b",
    "handling": "#c99a1e",
    "restart": "#4c9a52",
    "down": "dark-red",
    "unseen": "text",
    "unmeasured": "light-purple",
}
"""As the page has them in its bar of goodput."""
PARTS: Final = {"data": "#d08a2c", "host": "#84929b", "compute": "#3f89ac", "communication": "#8d6cc4"}
"""As the page has them in its charts."""


def query(expression: str, legend: str = "", *, now: bool = False, table: bool = False) -> Json:
    """A query of a panel.

    Args:
        expression: PromQL.
        legend: name of each series, with ``{{label}}``.
        now: only the newest value, not the course over time.
        table: as rows with the labels as columns.

    Raises:
        ValueError: the legend or the expression names what there is not.
    """
    expression = checked(" ".join(expression.split()))
    for label in re.findall(r"\{\{(\w+)\}\}", legend):
        if label not in result_labels(expression):
            raise ValueError(f"the legend {legend!r} wants {label}, which {expression!r} does not give")
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expression,
        "legendFormat": legend or "__auto",
        "format": "table" if table else "time_series",
        "instant": now or table,
        "range": not (now or table),
    }


def thresholds(*steps: tuple[float, str], base: str = "green") -> Json:
    """Colours from a value on; ``base`` below the first."""
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in steps)],
    }


def mapping(texts: Mapping[str, tuple[str, str]]) -> Json:
    """Words and colours for values."""
    options = {
        value: {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    return {"type": "value", "options": options}


def colours(by_name: Mapping[str, str]) -> list[Json]:
    """Overrides that give each series the colour of its word."""
    return [override(name, {"color": {"mode": "fixed", "fixedColor": colour}}) for name, colour in by_name.items()]


def override(name: str, properties: Mapping[str, Any], *, matcher: str = "byName") -> Json:
    """Properties of the field of this name."""
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


STATE_WORDS: Final = mapping({str(number): (state, colour) for number, (state, colour) in enumerate(STATES.items())})


def _panel(
    kind: str, title: str, description: str, unit: str, queries: Sequence[Json], none: str | None = None, **more: Any
) -> Json:
    """``none``: why there is no result, by default that of :mod:`grafana.empty`."""
    if not (title and description and unit and queries):
        raise ValueError(f"panel {title!r} needs a title, a description, a unit and a query")
    why = none or empty_because([each["expr"] for each in queries])
    defaults = {"unit": unit, "noValue": why, **more.pop("defaults", {})}
    overrides = more.pop("overrides", [])
    return {
        "type": kind,
        "title": title,
        "description": f"{description} Empty: {why}.",
        "datasource": DATASOURCE,
        "targets": [{**each, "refId": chr(ord("A") + number)} for number, each in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        **more,
    }


def stat(
    title: str,
    description: str,
    asked: Json,
    *,
    unit: str = "short",
    steps: Json | None = None,
    mappings: Sequence[Json] = (),
    text: str = "auto",
    decimals: int | None = None,
    graph: bool = False,
    none: str | None = None,
) -> Json:
    """One figure; ``text`` "name" shows the legend instead, ``none`` stands where there is no series."""
    defaults: Json = {"thresholds": steps or thresholds(base="text"), "mappings": list(mappings)}
    defaults["color"] = {"mode": "thresholds"}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "colorMode": "value" if steps is None and not mappings else "background",
        "graphMode": "area" if graph else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": text,
        "wideLayout": True,
    }
    return _panel("stat", title, description, unit, [asked], none, defaults=defaults, options=options)


def lines(
    title: str,
    description: str,
    queries: Sequence[Json],
    *,
    unit: str = "short",
    stacked: bool = False,
    percent: bool = False,
    colors: Mapping[str, str] | None = None,
    steps: bool = False,
    low: float | None = 0,
    high: float | None = None,
    mappings: Sequence[Json] = (),
    none: str | None = None,
) -> Json:
    """A course over time; ``stacked`` areas, ``percent`` of their sum, ``steps`` where values jump."""
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if steps else "linear",
        "lineWidth": 1 if stacked else 2,
        "fillOpacity": 70 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "percent" if percent else "normal" if stacked else "none", "group": "A"},
    }
    defaults: Json = {"custom": custom, "color": {"mode": "palette-classic-by-name"}, "mappings": list(mappings)}
    defaults |= {key: value for key, value in (("min", low), ("max", high)) if value is not None}
    options = {
        "legend": {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": stacked},
    }
    return _panel(
        "timeseries",
        title,
        description,
        unit,
        queries,
        none,
        defaults=defaults,
        options=options,
        overrides=colours(colors or {}),
    )


def states(title: str, description: str, asked: Json) -> Json:
    """One band for each series, coloured by the state of a job."""
    defaults = {
        "custom": {"fillOpacity": 80, "lineWidth": 0},
        "color": {"mode": "thresholds"},
        "mappings": [STATE_WORDS],
    }
    options = {
        "alignValue": "left",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return _panel("state-timeline", title, description, "short", [asked], defaults=defaults, options=options)


def bars(
    title: str,
    description: str,
    asked: Json,
    *,
    unit: str,
    colors: Mapping[str, str] | None = None,
    none: str | None = None,
) -> Json:
    """One bar for each series, longest first as the query sorts them."""
    defaults = {"color": {"mode": "palette-classic-by-name"}, "min": 0}
    options = {
        "displayMode": "basic",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "maxVizHeight": 300,
        "minVizHeight": 16,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    return _panel(
        "bargauge",
        title,
        description,
        unit,
        [asked],
        none,
        defaults=defaults,
        options=options,
        overrides=colours(colors or {}),
    )


def table(
    title: str,
    description: str,
    queries: Sequence[Json],
    columns: Mapping[str, str],
    *,
    unit: str = "short",
    overrides: Sequence[Json] = (),
    sort: str | None = None,
    none: str | None = None,
) -> Json:
    """Rows made of labels and values.

    Args:
        title: of the panel.
        description: of the panel.
        queries: joined on the labels that they share; the value of the first is the column ``Value #A``.
        columns: label or value -> heading, in order; all others are hidden.
        unit: of values that no override speaks of.
        overrides: properties of columns, by heading.
        sort: heading to sort by, falling.
        none: why there is no row.

    Raises:
        ValueError: a column is neither a label of a result nor the value of a query.
    """
    numbers = {f"Value #{chr(ord('A') + number)}": each for number, each in enumerate(queries)}
    there = {label for each in queries for label in result_labels(each["expr"])} | set(numbers)
    if missing := set(columns) - there:
        raise ValueError(f"table {title!r} has no {', '.join(sorted(missing))}; it has {', '.join(sorted(there))}")
    single = {"Value #A": "Value"} if len(queries) == 1 else {}
    hidden = ({"Time", "__name__"} | there) - set(columns)
    organize = {
        "excludeByName": {single.get(name, name): True for name in sorted(hidden)},
        "includeByName": {},
        "indexByName": {single.get(name, name): place for place, name in enumerate(columns)},
        "renameByName": {single.get(name, name): heading for name, heading in columns.items()},
    }
    transformations = [{"id": "merge", "options": {}}] if len(queries) > 1 else []
    transformations.append({"id": "organize", "options": organize})
    defaults = {
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False, "inspect": False},
        "color": {"mode": "thresholds"},
        "thresholds": thresholds(base="text"),
    }
    options: Json = {"showHeader": True, "cellHeight": "sm"}
    if sort:
        options["sortBy"] = [{"displayName": sort, "desc": True}]
    return _panel(
        "table",
        title,
        description,
        unit,
        queries,
        none,
        defaults=defaults,
        options=options,
        overrides=list(overrides),
        transformations=transformations,
    )


SENTENCE: Final = {"custom.cellOptions": {"type": "auto", "wrapText": True}, "custom.minWidth": 300}
"""Properties of a column that holds a sentence."""


def coloured(words: Mapping[str, tuple[str, str]], width: int = 110) -> Json:
    """Properties of a column whose words have colours."""
    return {
        "mappings": [mapping(words)],
        "custom.cellOptions": {"type": "color-background", "mode": "basic"},
        "custom.width": width,
    }


def link(title: str, url: str, *, new_tab: bool = False) -> Json:
    """A link of a cell."""
    return {"title": title, "url": url, "targetBlank": new_tab}
