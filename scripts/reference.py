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
from rankwatch_launcher.options import Options
from rankwatch_monitor import settings as monitor_settings
from rankwatch_monitor.app import create_app
from rankwatch_monitor.ingest import limits
from rankwatch_monitor.publish.prometheus import names as prometheus
from rankwatch_monitor.publish.wandb import rows as wandb_rows
from rankwatch_monitor.service.monitor import Monitor

ROOT = Path(__file__).resolve().parent.parent

HEAD = """# Reference

Made by `python scripts/reference.py` from the definitions in the code; a test fails when it is out of date.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "## Policy: how a job is judged and what is done\n\n"
        "Flags of `rankwatch run` (`--heartbeat-timeout 300`), environment variables (`RANKWATCH_HEARTBEAT_TIMEOUT`), "
        "and `GET`/`PATCH /api/v1/jobs/{id}/policy` while the job runs. `section_timeouts` is the flag "
        "`--section-timeout NAME=SECONDS`, which may be repeated. `null` (as a flag: `none`) switches a limit off.\n",
        _table(
            ("name", "default", "unit", "meaning"),
            ((f"`{f.name}`", _default(f), f.metadata["unit"], f.metadata["meaning"]) for f in fields(Policy)),
        ),
        "## Options of the launcher\n\n"
        "Flags of `rankwatch run` besides torchrun's; each has a variable, `RANKWATCH_SPARES` for example. The "
        "spellings of `ft_launcher` and the exit codes stand in [restarts.md](restarts.md), `--standby` in "
        "[standby.md](standby.md).\n",
        _table(
            ("flag", "default", "unit", "meaning"),
            (
                (f"`--{f.name.replace('_', '-')}`", _default(f), f.metadata["unit"], f.metadata["meaning"])
                for f in fields(Options)
                if f.metadata
            ),
        ),
        "## Settings of a rank\n\n"
        "`rankwatch run` sets what it knows; else a person may. Of several variables the first that is set counts.\n",
        _table(
            ("name", "variables", "default", "unit", "meaning"),
            (
                (
                    f"`{f.name}`",
                    ", ".join(f"`{v}`" for v in f.metadata["environment"]),
                    _default(f),
                    f.metadata["unit"],
                    f.metadata["meaning"],
                )
                for f in fields(rank_settings.Settings)
                if f.metadata
            ),
        ),
        "## Settings of the monitor\n",
        _table(
            ("flag of `rankwatch monitor`", "variable", "default", "meaning"),
            (
                (
                    f"`--{f.name.replace('_', '-')}`",
                    f"`{monitor_settings.variable(f.name)}`",
                    _default(f),
                    f.metadata["meaning"],
                )
                for f in fields(monitor_settings.Settings)
            ),
        ),
        "## Limits of the monitor\n\nWhat exceeds one is answered and counted; it never stops the monitor.\n",
        _table(
            ("limit", "value", "unit", "meaning"),
            (
                (f"`{each.name}`", f"{each.value:,}", each.unit, each.meaning)
                for each in limits.describe(limits.Limits())
            ),
        ),
        "## Reasons for which something is turned away\n\nThe label `reason` of `rankwatch_ingest_rejected_total`.\n",
        _table(("reason", "meaning"), ((f"`{reason}`", text) for reason, text in limits.REASONS.items())),
        "## OpenTelemetry metrics of a rank\n",
        _table(
            ("metric", "kind", "unit", "meaning"),
            ((f"`{m.name}`", m.kind, f"`{m.unit}`", m.meaning) for m in semconv.METRICS),
        ),
        "## Prometheus metrics of the monitor\n",
        _table(
            ("metric", "type", "labels", "meaning"),
            (
                (f"`{f.name}`", f.kind, ", ".join(f"`{label}`" for label in f.labels), f.meaning)
                for f in prometheus.FAMILIES
            ),
        ),
        "## Metrics in Weights & Biases\n\n"
        "Each job is one run; rows are drawn over the first of these. How to switch it on: [wandb.md](wandb.md).\n",
        _table(
            ("metric", "unit", "meaning"),
            ((f"`{m.name}`", f"`{m.unit}`", m.meaning) for m in wandb_rows.METRICS),
        ),
        f"## Actions\n\n{LOST_STEPS}\n",
        _table(("action", "what it does"), ((f"`{each}`", meaning) for each, meaning in ACTION_MEANINGS.items())),
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


REST_HEAD = """# REST API

Made by `python scripts/reference.py` from the application; a test fails when it is out of date.

* `/docs` of a running monitor has all parameters and fields, and sends requests; `/openapi.json` is for programs.
* A token goes into `Authorization: Bearer TOKEN`, or into `?token=` of a `GET`; its scopes are in
  [security.md](security.md#tokens-and-scopes).
* Errors are `application/problem+json` (RFC 9457); `detail` is a sentence. 503 and 429 come with `Retry-After`.
* Fields are added, never renamed: ignore those that you do not know.
* `/api/v1/events` and `/api/v1/jobs/{id}/events` are streams of server-sent events: `jobs`, or `job`, `grid`,
  `incident` and `performance`, each when it has changed, and every 2 s `clock` with the monitor's time (`now`) and the
  time at which it last evaluated its jobs (`judged`). A client that receives no `clock` for 5 s shows a past.
* An incident has its `reason` (the whole sentence) and a `headline` of at most 90 characters. An open one that is read
  by its id also has the job's `advice`. A job's `headline` is that of its open incident, of a lost one its silence;
  its `trouble_since` is since when it hangs, recovers, is suspected, lost, failed or slow (unix seconds;
  null: it is not), its `recovering_since` since when it is being restarted, its `checkpoint` the last one that its
  ranks saved in a section `checkpointing`: after which `step` (the least that it can be, until an attempt has loaded
  it: `exact`), and when (`at`); null: none is known. A lost job also has the time of the last report, `last_heard`.
  A job's `advice` is what a person should do about it, or what happens without one (null: nothing): in one line
  (`text`), step by step with commands (`steps`), whether no person is needed now (`waits`), `until` when that is waited
  for and what then (`otherwise`), the `orders` that may be given now, whether the first one is `proposed` and under
  which `condition`, what follows from each output of the first command (`alternatives`), and the section of the
  `runbook` in the manual; `rule` is the row of the playbook that made it.
  A launcher's `min_nodes` is the minimum of `--nnodes` (null: unknown).
  Of a job that stands, `steps_lost` are the steps that were thrown away and not done
  again, `steps_at_risk` those after its last checkpoint, also while an open incident or suspicion holds it up;
  `goodput_notes` has them in words, also that no checkpoint is known, and the steps of a finished job of which no save
  is known.
  `steps_thrown_away` are those of all its restarts, also where they were done again.
  While no step completes, `step_seconds` is how long one usually took (null: unknown, or steps complete).
  `iteration_before` is the furthest step of the attempt before an open incident, while the new attempt has completed
  none.
  A failed job has why no restart followed (`no_restart`) and the crash that came several times alike (`repeated`: how
  often, in how many seconds, after which step, and its whole cost, of it `lost_steps_s` for `steps_lost`), and a job
  with an open incident the hosts of which nothing is received, although their silence is not certain yet
  (`quiet_host`); where other jobs are heard from them (`other_jobs`), they are up.
* Answers over 16 KB and streams are compressed by gzip where the client accepts it.
* `POST /v1/metrics` and `/v1/traces` take OTLP over HTTP.

```console
$ curl -H "Authorization: Bearer $RANKWATCH_TOKEN" http://127.0.0.1:9560/api/v1/jobs
$ curl -X POST http://127.0.0.1:9560/api/v1/jobs/llama-8b/actions -H "Authorization: Bearer $RANKWATCH_TOKEN" \\
       -H 'content-type: application/json' -d '{"action": "capture", "reason": "looks stuck"}'
```
"""


def rest_page(description: Mapping[str, Any]) -> str:
    """The page of the REST API: a table for each tag."""
    tagged: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if method == "head":
                continue
            given = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            tagged.setdefault(operation.get("tags", ["telemetry"])[0], []).append(
                (
                    f"`{method.upper()} {path}`",
                    ", ".join(f"`{name}`" for name in given),
                    operation.get("summary", ""),
                )
            )
    parts = [REST_HEAD]
    for tag, rows in tagged.items():
        parts += [f"## {tag.capitalize()}\n", _table(("request", "query", "what it does"), rows)]
    return "\n".join(parts)


def _default(setting: Any) -> str:
    value = setting.default
    if value is None or value == "":
        return ""
    if not isinstance(value, (bool, int, float, str)):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check, stale = parser.parse_args().check, False
    description = create_app(Monitor()).openapi()
    made = {
        "docs/reference.md": page(),
        "docs/rest-api.md": rest_page(description),
        "monitor/rankwatch_monitor/web/source/src/api/types.ts": page_types.types(description),
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
