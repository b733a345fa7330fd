"""The dashboards: as the Python makes them, known names only, valid by Grafana's schema, and no expression is empty.

That Grafana draws them as meant is not tested: no Grafana server can be had where these tests run.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.scene import JOB, PROMETHEUS, SHORT, asked, prometheus, short_hang, tool, trouble
from rankwatch_monitor.publish.prometheus import names as names
from support.monitor_process import Api, running_monitor

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "dashboards" / "grafana"
STYLE = ROOT / "monitor" / "rankwatch_monitor" / "web" / "source" / "src" / "style"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
SCHEMA_VERSION = "12.1.0"
"""Of @grafana/schema: the version of the Grafana image in docker-compose.yml."""
FLEET = "rankwatch-fleet"
NOT_SHOWN: dict[str, str] = {}
"""Families that no dashboard shows, each with a reason that a reader would agree with."""

sys.path.insert(0, str(GRAFANA.parent))  # `grafana` is a folder of dashboards/, not a package that is installed
BUILD = runpy.run_path(str(GRAFANA.parent / "build.py"))
from grafana import layout, panels, queries  # noqa: E402
from grafana.empty import NO_JOB, NO_MONITOR, empty_because  # noqa: E402


def loaded(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def shown(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Its panels, headings of rows left out."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the PromQL, of every panel and annotation."""
    for path in FILES:
        board = loaded(path)
        for panel in shown(board):
            for target in panel["targets"]:
                yield f"{board['uid']}/{panel['id']}{target['refId']} {panel['title']}", target["expr"]
        for mark in board["annotations"]["list"]:
            yield f"{board['uid']}/{mark['name']}", mark["expr"]


EXPRESSIONS = dict(expressions())


def filled_in(expression: str, job: str = JOB) -> str:
    """The expression with the variables of a dashboard as they are once a job is chosen."""
    values = {"$job": job, "$instance": ".*", "$host": ".*", "$__rate_interval": "1m"}
    values |= {"$__range_s": "3600", "$__range": "1h"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


# As made ------------------------------------------------------------------------------------------------------------


def test_the_files_are_what_the_python_makes() -> None:
    assert BUILD["drift"](GRAFANA / "dashboards") == [], "run python dashboards/build.py"


def test_drift_is_reported_by_the_command(tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, str(copy / "build.py")]
    subprocess.run([*command, "--check"], check=True)
    changed = copy / "grafana" / "dashboards" / "rankwatch-job.json"
    changed.write_text(changed.read_text().replace("Goodput", "Badput"))
    done = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "out of date: rankwatch-job.json; run python dashboards/build.py\n")
    subprocess.run(command, check=True)
    subprocess.run([*command, "--check"], check=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_can_be_distinguished_and_states_what_it_shows(path: Path) -> None:
    board = loaded(path)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in shown(board):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len(why := panel["fieldConfig"]["defaults"]["noValue"]) > 10, panel["title"]
        assert panel["description"].endswith(f" Empty: {why}."), panel["title"]
    assert board["uid"] == path.stem
    assert "rankwatch" in board["tags"], "the links between dashboards go by this tag"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_fill_the_24_columns_and_none_lies_upon_another(path: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in loaded(path)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    bottom = max(y for _, y in taken)
    assert len(taken) == 24 * (bottom + 1), "there is a gap"


def test_a_dashboard_leads_to_the_others_and_to_the_page() -> None:
    uids = {loaded(path)["uid"] for path in FILES}
    assert uids == {"rankwatch-fleet", "rankwatch-job", "rankwatch-ranks", "rankwatch-monitor"}
    for path in FILES:
        text, variables = path.read_text(), {each["name"] for each in loaded(path)["templating"]["list"]}
        assert set(re.findall(r"/d/([\w-]+)", text)) <= uids
        used = set(re.findall(r"\$\{?(\w+)", text)) - {
            "__value",
            "__url_time_range",
            "__rate_interval",
            "__range",
            "__range_s",
            "__all",
        }
        assert used <= variables, "a variable that is not on the dashboard stays in the address as it is"
        assert any(link["url"].startswith("${page}/#/") for link in loaded(path)["links"] if link["type"] == "link")


def test_the_provisioned_data_source_is_the_one_that_dashboards_choose_first() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "rankwatch.yml").read_text())["datasources"]
    for path in FILES:
        first = loaded(path)["templating"]["list"][0]
        assert (first["type"], first["current"]["value"]) == ("datasource", source["uid"])
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped, "$__rate_interval is made of it"


# Known names --------------------------------------------------------------------------------------------------------


def test_every_family_is_shown_somewhere() -> None:
    found = set().union(*(queries.families_of(expression) for expression in EXPRESSIONS.values()))
    missing = {family.name for family in names.FAMILIES} - found
    assert missing == set(NOT_SHOWN), "show them, or list them in NOT_SHOWN with the reason"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: panels.query("rankwatch_job_sate"), "there is no metric rankwatch_job_sate"),
        (lambda: queries.of_job(names.JOB_STATE, colour="red"), "rankwatch_job_state has no label colour"),
        (lambda: queries.of_job(names.JOB_STATE, state="asleep"), "state is one of .*, not asleep"),
        (lambda: queries.of_job(names.TICK_SECONDS), "is not about jobs"),
        (lambda: queries.of_monitor(names.GOODPUT), "is about jobs"),
        (lambda: panels.query("sum by (host) (rankwatch_goodput_ratio)"), "nothing in .* has the label host"),
        (lambda: panels.query("sum by (job) (rankwatch_job_state)", "{{state}}"), "wants state, which"),
        (lambda: layout.chosen("v", "V", "rankwatch_goodput_ratio", "rank"), "has no label rank"),
        (
            lambda: panels.table("T", "D.", [panels.query("rankwatch_culprit", table=True)], {"cause": "Cause"}),
            "table 'T' has no cause",
        ),
        (lambda: panels.stat("T", "", panels.query("rankwatch_culprit")), "needs a title, a description"),
        (lambda: layout.placed([layout.Row("R", 4, [(13, {"title": "a"}), (12, {"title": "b"})])]), "'b' sticks out"),
        (lambda: layout.placed([layout.Row("R", 4, [(12, {"title": "a"})])]), "fills 12 of 24 columns"),
    ],
)
def test_what_there_is_not_cannot_be_built(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


def test_colours_know_every_word() -> None:
    from rankwatch.contract.enums import JobState, Part, RankState
    from rankwatch_monitor.core.goodput.intervals import Bucket

    assert set(panels.STATES) == set(JobState)
    assert set(panels.RANK_STATES) == set(RankState)
    assert set(panels.BUCKETS) == set(Bucket)
    assert set(panels.PARTS) == set(Part)


def test_parts_have_the_colours_of_the_page() -> None:
    tokens = (STYLE / "tokens.css").read_text().partition('[data-theme="dark"]')[0]
    page = dict(re.findall(r"--(?:part|bucket)-(\w+): (#[0-9a-f]{6});", tokens))
    assert {part: page[part] for part in panels.PARTS} == panels.PARTS
    of_bucket = {"productive": "compute", "checkpointing": "checkpoint", "stalled": "waiting"}
    for bucket in ("productive", "evaluation", "checkpointing", "stalled", "startup", "shutdown"):
        assert panels.BUCKETS[bucket] == page[of_bucket.get(bucket, bucket)]


def test_why_a_panel_is_empty_is_that_of_the_family_it_shows() -> None:
    assert empty_because(["sum(rankwatch_rank_lateness_seconds)"]) == "no rank has sent a window of steps yet"
    assert empty_because(["rankwatch_job_world_size"]) == NO_JOB
    assert empty_because(["rankwatch_tick_seconds"]) == NO_MONITOR


def test_marks_of_incidents_have_no_gap_where_no_rank_is_blamed() -> None:
    marks = [mark for path in FILES for mark in loaded(path).get("annotations", {}).get("list", [])]
    titles = [mark["titleFormat"] for mark in marks if "incident" in mark.get("name", "").lower()]
    assert titles
    assert not [title for title in titles if re.search(r"\{\{(rank|host|class)\}\}", title)]


def test_a_job_that_failed_long_ago_is_in_trouble_no_longer(tmp_path: Path) -> None:
    (expression,) = (text for board, title, text in targets() if (board, title) == (FLEET, "Jobs in trouble"))
    hours = 3

    def series(job: str, state: str, heard: int) -> list[dict[str, str]]:
        of = f'instance="m",job="{job}"'
        return [
            {"series": f'rankwatch_job_state{{{of},state="{state}"}}', "values": f"1x{60 * hours}"},
            {"series": f"rankwatch_job_last_heard_timestamp_seconds{{{of}}}", "values": f"{heard}x{60 * hours}"},
        ]

    jobs = [("hung", "hung", 0), ("lost", "lost", 0), ("old", "failed", 60), ("new", "failed", 3600 * hours - 60)]
    expected = [{"labels": "{}", "value": 3}]
    asked_at = {"expr": filled_in(expression, ".*"), "eval_time": f"{hours}h", "exp_samples": expected}
    test = {"interval": "1m", "input_series": [s for job in jobs for s in series(*job)], "promql_expr_test": [asked_at]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run([tool("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Run ----------------------------------------------------------------------------------------------------------------


def targets() -> Iterator[tuple[str, str, str]]:
    """Dashboard, title of the panel and PromQL of every query."""
    for path in FILES:
        for panel in shown(loaded(path)):
            yield from ((path.stem, panel["title"], target["expr"]) for target in panel["targets"])


def check_values(metrics: Api) -> None:
    """Every panel's values are 0 or more, of the job in trouble and of the one that hung for a moment."""
    for job in (JOB, SHORT):
        for board, title, expression in targets():
            values = [float(row["value"][1]) for row in asked(metrics, filled_in(expression, job))]
            assert not [value for value in values if value < 0], f"{board}: {title} of {job}"


def check_short_hang(metrics: Api) -> None:
    """A hang that had ended before the next scrape: in no state that was scraped, and on the job's dashboard."""
    assert not asked(metrics, f'max_over_time(rankwatch_job_state{{job="{SHORT}",state="hung"}}[1h]) > 0')
    of = {title: expression for board, title, expression in targets() if board == "rankwatch-job"}
    for board, title, expression in targets():
        if title == "Incidents in this range" and "timestamp" in expression and " * 1000" in expression:
            rows = [r["metric"] for r in asked(metrics, filled_in(expression, SHORT)) if r["metric"]["job"] == SHORT]
            assert [(r["kind"], r["rank"], r["host"]) for r in rows] == [("section_overrun", "1", "node-s")], board
            assert rows[0]["reason"].startswith("Rank 1 on node-s has been in section 'step'")
            assert rows[0]["outcome"] != "open"
    assert asked(metrics, filled_in(of["Incidents in this range, by kind"], SHORT))[0]["value"][1] == "1"
    entered = {r["metric"]["state"] for r in asked(metrics, filled_in(of["States entered in this range"], SHORT))}
    assert "hung" in entered
    (board,) = (loaded(path) for path in FILES if path.stem == "rankwatch-job")
    mark = next(mark for mark in board["annotations"]["list"] if mark["name"] == "Incidents")
    (marked,) = asked(metrics, filled_in(mark["expr"], SHORT))
    assert mark["useValueForTime"]
    assert abs(float(marked["value"][1]) / 1000 - time.time()) < 300


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_expression_has_an_answer_while_a_job_is_in_trouble(tmp_path: Path) -> None:
    """A real monitor that received a straggler, a restart and a hang, and a real Prometheus that scrapes it."""
    tool("prometheus")
    nowhere = ("--webhook", "http://127.0.0.1:9/")
    with (
        running_monitor(tmp_path / "monitor", *nowhere) as monitor,
        Api(monitor.url) as api,
        prometheus(tmp_path / "prometheus", monitor.url.removeprefix("http://")) as metrics,
    ):
        short_hang(api, metrics)
        trouble(api, metrics)
        empty = [
            where
            for where, expression in EXPRESSIONS.items()
            if not any(asked(metrics, filled_in(expression, job)) for job in (JOB, SHORT))
        ]
        assert empty == []
        check_short_hang(metrics)
        check_values(metrics)
        for path in FILES:
            for variable in loaded(path)["templating"]["list"]:
                if variable["type"] == "query":
                    series, label = re.fullmatch(r"label_values\((.*),(\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
                    reply = metrics.get(f"/api/v1/label/{label}/values", params={"match[]": filled_in(series)}).json()
                    assert reply["data"], variable["name"]
        for panel, tables in [
            (panel, panel["targets"]) for path in FILES for panel in shown(loaded(path)) if panel["type"] == "table"
        ]:
            there = {label for t in tables for row in asked(metrics, filled_in(t["expr"])) for label in row["metric"]}
            organize = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
            wanted = {name for name in organize["indexByName"] if not name.startswith("Value")}
            assert wanted <= there, f"{panel['title']}: no row has {wanted - there}"
