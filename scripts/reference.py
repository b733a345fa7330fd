"""Writes docs/reference.md, docs/rest-api.md and the page's types.ts from the code, so that nothing stands twice.

``python scripts/reference.py`` writes them; with ``--check`` it only says whether they are up to date (exit code 1).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import page_types

from rankwatch import settings as rank_settings
from rankwatch.contract import enums, semconv
from rankwatch.contract.policy import ACTION_MEANINGS, LOST_STEPS, Policy
from rankwatch.inprocess.options import WrapperOptions
from rankwatch_launcher.options import Options
from rankwatch_monitor import settings as monitor_settings
from rankwatch_monitor.app import create_app
from rankwatch_monitor.ingest import limits
from rankwatch_monitor.publish.prometheus import names as prometheus
from rankwatch_monitor.publish.wandb import rows as wandb_rows
from rankwatch_monitor.service.monitor import Monitor

ROOT = Path(__file__).resolve().parent.parent
PAGE = "monitor/rankwatch_monitor/web/source"

HEAD = """# Reference

Made by `python scripts/reference.py` from the definitions in the code; a test fails when it is out of date.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "## Policy: how a job is judged and what is done\n\n"
        "Flags of `rankwatch run` (`--heartbeat-timeout 300`), variables (`RANKWATCH_HEARTBEAT_TIMEOUT`), and "
        "`rankwatch policy` while the job runs. `section_timeouts` is `--section-timeout NAME=SECONDS`, which may be "
        "repeated. `none` (`null` in the API) switches a limit off.\n",
        _table(
            ("name", "default", "meaning"),
            ((f"`{f.name}`", _default(f), f.metadata["meaning"]) for f in fields(Policy)),
        ),
        "## Options of the launcher\n\n"
        "Flags of `rankwatch run` besides torchrun's; each has a variable, `RANKWATCH_SPARES` for example. The "
        "spellings of `ft_launcher` and the exit codes stand in [restarts.md](restarts.md), `--standby` in "
        "[standby.md](standby.md).\n",
        _table(
            ("flag", "default", "meaning"),
            (
                (f"`--{f.name.replace('_', '-')}`", _default(f), f.metadata["meaning"])
                for f in fields(Options)
                if f.metadata
            ),
        ),
        "## Settings of a rank\n\n"
        "`rankwatch run` sets what it knows; else a person may. Of several variables the first that is set counts.\n",
        _table(
            ("variable", "default", "meaning"),
            (
                (", ".join(f"`{v}`" for v in f.metadata["environment"]), _default(f), f.metadata["meaning"])
                for f in fields(rank_settings.Settings)
                if f.metadata
            ),
        ),
        "## Restarts within the process\n\n"
        "Parameters of `rankwatch.inprocess.Wrapper` ([in-process.md](in-process.md)).\n",
        _table(
            ("parameter", "default", "meaning"),
            ((f"`{f.name}`", _default(f), f.metadata["meaning"]) for f in fields(WrapperOptions)),
        ),
        "## Settings of the monitor\n\n"
        f"Each has a variable: that of `--read-token` is `{monitor_settings.variable('read_token')}`.\n",
        _table(
            ("flag of `rankwatch monitor`", "default", "meaning"),
            (
                (f"`--{f.name.replace('_', '-')}`", _default(f), f.metadata["meaning"] + _other_variable(f))
                for f in fields(monitor_settings.Settings)
            ),
        ),
        "## Limits of the monitor\n\nWhat exceeds one is answered and counted; it never stops the monitor.\n",
        _table(
            ("limit", "value", "meaning"),
            (
                (f"`{each.name}`", f"{each.value:,} {each.unit.strip('{}')}", each.meaning)
                for each in limits.describe(limits.Limits())
            ),
        ),
        "## Reasons for which something is turned away\n\nThe label `reason` of `rankwatch_ingest_rejected_total`.\n",
        _list((f"`{reason}`", text) for reason, text in limits.REASONS.items()),
        "## OpenTelemetry metrics of a rank\n",
        _table(
            ("metric", "kind", "meaning"),
            ((f"`{m.name}`", f"{m.kind}, `{m.unit}`", m.meaning) for m in semconv.METRICS),
        ),
        "## Prometheus metrics of the monitor\n",
        "Those whose names end in `_total` are counters, the others gauges.\n",
        _table(
            ("metric{labels}", "meaning"),
            ((f"`{f.name}{{{','.join(f.labels)}}}`".replace("{}", ""), f.meaning) for f in prometheus.FAMILIES),
        ),
        "## Metrics in Weights & Biases\n\n"
        "Each job is one run; rows are drawn over the first of these. How to switch it on: [wandb.md](wandb.md).\n",
        _table(
            ("metric", "unit", "meaning"),
            ((f"`{m.name}`", f"`{m.unit}`", m.meaning) for m in wandb_rows.METRICS),
        ),
        f"## Actions\n\n{LOST_STEPS}\n",
        _list((f"`{each}`", meaning) for each, meaning in ACTION_MEANINGS.items()),
        "## Words\n",
        *(
            f"* {what}: " + ", ".join(f"`{word}`" for word in words)
            for what, words in (
                ("states of a job", enums.JobState),
                ("states of a rank", enums.RankState),
                ("kinds of verdicts", enums.VerdictKind),
                ("classes of culprits", enums.CulpritClass),
            )
        ),
    ]
    return "\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"* {name}: {text}\n" for name, text in rows)


REST_HEAD = """# REST API

Made by `python scripts/reference.py` from the application; a test fails when it is out of date.

* `/docs` of a running monitor has all parameters and fields, and sends requests; `/openapi.json` is for programs.
* A token goes into `Authorization: Bearer TOKEN`, or into `?token=` of a `GET`
  ([scopes](security.md#tokens-and-scopes)).
* Errors are `application/problem+json` (RFC 9457). 503 and 429 come with `Retry-After`.
* Fields are added, never renamed: ignore those that you do not know. `null`: unknown, or nothing.
* Streams (`/api/v1/events`, `/api/v1/jobs/{id}/events`) send `jobs`, or `job`, `grid`, `incident` and `performance`,
  when they change, and every 2 s `clock` with the monitor's time (`now`) and its last evaluation (`judged`).
* Answers over 16 KB and streams are compressed by gzip where the client accepts it.
* `POST /v1/metrics` and `/v1/traces` take OTLP over HTTP.

Fields of a job:

* `headline`, `title`, `since`: what is wrong in 90 and in 160 characters, since when (unix seconds).
* `tone`: `bad` (a person is needed), `waits` (what is needed follows), `warns` (it trains, with a loss), `calm` or
  `over`.
* `next`: what follows by itself, `text`, and when it is `due`. `advice`: what a person should do.
* `idle`, `lost`: ranks that complete no step; `seconds` that the incident costs each of `gpus`, growing from `since`.
* `checkpoint`: the last save, `step` (the least possible until loaded: `exact`), `at`.
* `steps_lost`, `steps_at_risk`: not done again; after the last checkpoint.
* `no_restart`, `repeated`: of a failed job, why no restart followed; a crash that came several times alike.

```console
$ curl -H "Authorization: Bearer $RANKWATCH_TOKEN" http://127.0.0.1:9560/api/v1/jobs
$ curl -X POST http://127.0.0.1:9560/api/v1/jobs/llama-8b/actions -H "Authorization: Bearer $RANKWATCH_TOKEN" \\
       -H 'content-type: application/json' -d '{"action": "capture", "reason": "looks stuck"}'
```
"""


def rest_page(description: Mapping[str, Any]) -> str:
    """The page of the REST API: a list for each tag."""
    tagged: dict[str, list[tuple[str, str]]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if method == "head":
                continue
            given = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            tagged.setdefault(operation.get("tags", ["telemetry"])[0], []).append(
                (f"`{method.upper()} {path}{'?' if given else ''}{'&'.join(given)}`", operation.get("summary", ""))
            )
    parts = [REST_HEAD]
    for tag, rows in tagged.items():
        parts += [f"## {tag.capitalize()}\n", _list(rows)]
    return "\n".join(parts)


def _default(setting: Any) -> str:
    """The default with its unit; of a setting without a default the unit alone."""
    value, unit = setting.default, setting.metadata.get("unit", "").strip("{}")
    if value is None or value == "" or not isinstance(value, (bool, int, float, str)):
        return str(unit)
    return f"`{str(value).lower() if isinstance(value, bool) else value}` {unit}".rstrip()


def _other_variable(setting: Any) -> str:
    return f" (`{monitor_settings.variable(setting.name)}`)" if setting.metadata.get("variable") else ""


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check, stale = parser.parse_args().check, False
    description = create_app(Monitor()).openapi()
    made = {
        "docs/reference.md": page(),
        "docs/rest-api.md": rest_page(description),
        f"{PAGE}/src/api/types.ts": page_types.types(description, ROOT / PAGE),
    }
    for name, text in made.items():
        if not check:
            (ROOT / name).write_text(text)
        elif (ROOT / name).read_text() != text:
            sys.stderr.write(f"{name} is out of date: run python scripts/reference.py\n")
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
