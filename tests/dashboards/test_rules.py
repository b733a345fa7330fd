"""Rules and alerts: run by promtool; each alert with a twin that is silent, a runbook, and known names only."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch.contract.enums import JobState, StragglerVerdict, VerdictKind
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.publish.prometheus import names as names

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards" / "prometheus"
ALERTMANAGER = ROOT / "dashboards" / "alertmanager" / "alertmanager.yml"
RUNBOOK = ROOT / "docs" / "runbook.md"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
TESTS = sorted((FOLDER / "tests").glob("*.yml"))

FAMILIES = {family.name: set(family.labels) for family in names.FAMILIES}
OF_THE_SCRAPE = {"instance", "job"}
VALUES = {
    ("rankwatch_job_state", "state"): set(JobState),
    ("rankwatch_job_reason", "state"): set(JobState),
    ("rankwatch_job_verdict", "verdict"): set(StragglerVerdict),
    ("rankwatch_incidents_total", "kind"): set(VerdictKind),
    ("rankwatch_incident_open", "kind"): set(VerdictKind),
    ("rankwatch_incident_opened_timestamp_seconds", "kind"): set(VerdictKind),
    ("rankwatch_job_time_seconds_total", "bucket"): set(Bucket),
}
"""Labels whose values are words of ours: a rule that misspells one would never fire."""


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in loaded(path)["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDS = {rule["record"] for rule in rules() if "record" in rule}


def played() -> Iterator[tuple[str, bool, set[str]]]:
    """Alert, whether it is to fire, and the metrics that the scene plays, of every scene."""
    for path in TESTS:
        for scene in loaded(path)["tests"]:
            metrics = {re.split(r"[{ ]", series["series"])[0] for series in scene["input_series"]}
            for case in scene.get("alert_rule_test", ()):
                yield case["alertname"], bool(case["exp_alerts"]), metrics


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def accepted(*command: str, cwd: Path = FOLDER) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def anchors() -> dict[str, str]:
    """Anchor of each section of the runbook, and its text."""
    parts = re.split(r"^#{2,3} (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {title.strip().lower().replace(" ", "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


# Checked by the tools ------------------------------------------------------------------------------------------------


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    accepted(tool("promtool"), "check", "config", "prometheus.yml")
    accepted(tool("promtool"), "check", "rules", *map(str, RULES))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_do_what_their_scenes_state(path: Path) -> None:
    accepted(tool("promtool"), "test", "rules", path.name, cwd=path.parent)


def test_alertmanager_accepts_its_configuration_and_the_examples_in_its_comments(tmp_path: Path) -> None:
    accepted(tool("amtool"), "check-config", str(ALERTMANAGER))
    examples = re.sub(r"^    # ", "    ", ALERTMANAGER.read_text(), flags=re.MULTILINE)
    assert "    slack_configs:" in examples
    assert "    pagerduty_configs:" in examples
    (tmp_path / "alertmanager.yml").write_text(examples)
    accepted(tool("amtool"), "check-config", str(tmp_path / "alertmanager.yml"))


@pytest.mark.parametrize("severity", ["page", "ticket", "info"])
def test_each_severity_has_a_receiver_of_its_own(severity: str) -> None:
    command = ("config", "routes", "test", f"--config.file={ALERTMANAGER}", f"severity={severity}", "job=llama")
    assert accepted(tool("amtool"), *command).strip() == severity


# Complete -----------------------------------------------------------------------------------------------------------


def test_every_scene_is_about_an_alert_that_exists() -> None:
    assert {alert for alert, _, _ in played()} <= set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_fires_in_a_scene_and_is_silent_in_its_twin(alert: str) -> None:
    fires = [metrics for name, fired, metrics in played() if name == alert and fired]
    silent = [metrics for name, fired, metrics in played() if name == alert and not fired]
    assert fires, "no scene in which it fires"
    assert any(fires[0] <= metrics for metrics in silent), "no silent scene that plays the same metrics"


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_states_how_grave_it_is_what_it_means_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket", "info")
    assert rule["labels"]["scope"] in ("job", "monitor")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    base, anchor = rule["annotations"]["runbook_url"].split("#")
    assert base == "{{ $externalLabels.runbooks }}", "the base stands in prometheus.yml only"
    assert anchor == alert.lower()


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_section_in_the_runbook(alert: str) -> None:
    text = anchors()[alert.lower()]
    for part in ("**Means**", "**Confirm**", "**Do**", "**Do not**"):
        assert part in text, f"its section lacks {part}"
    assert "`" in text.split("**Confirm**")[1].split("**Do**")[0], "how to confirm it names no command"


def test_the_runbook_has_every_reason_for_which_telemetry_is_dropped() -> None:
    source = "".join(path.read_text() for path in (ROOT / "telemetry" / "rankwatch").rglob("*.py"))
    reasons = set(re.findall(r'(?:DROP_\w+: Final = |\.drop\()"(\w+)"', source))
    assert {"spans", "backlog", "pulse_error"} <= reasons
    assert reasons <= set(re.findall(r"`(\w+)`", anchors()["rankwatchtelemetrydropped"]))


@pytest.mark.parametrize("alert", [name for name, rule in ALERTS.items() if rule["labels"]["scope"] == "job"])
def test_no_alert_about_a_job_ends_while_the_monitor_is_restarted(alert: str) -> None:
    looks_back = {"RankwatchNodeLost", "RankwatchTelemetryDropped"}
    assert alert in looks_back or ALERTS[alert]["keep_firing_for"] == "6m"


def test_the_runbook_has_no_section_about_an_alert_that_is_gone() -> None:
    assert {anchor for anchor in anchors() if anchor.startswith("rankwatch")} == {name.lower() for name in ALERTS}


def test_few_alerts_wake_anybody() -> None:
    pages = {name for name, rule in ALERTS.items() if rule["labels"]["severity"] == "page"}
    assert len(pages) <= len(ALERTS) / 3


# Known names --------------------------------------------------------------------------------------------------------


def spoken(rule: dict[str, Any]) -> str:
    """The expression of a rule and the queries of its annotations, as PromQL."""
    asked = re.findall(r'printf "((?:[^"\\]|\\.)*)"', " ".join(rule.get("annotations", {}).values()))
    return "\n".join([rule["expr"], *(each.replace('\\"', '"') for each in asked)])


SELECTOR = re.compile(r"(?<![\w:])(rankwatch_\w+|\w+:rankwatch_\w+:\w+)(?:\{([^}]*)\})?")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule.get("record"))
def test_rules_use_only_metrics_labels_and_words_that_there_are(rule: dict[str, Any]) -> None:
    selected = SELECTOR.findall(spoken(rule))
    assert selected or rule.get("alert") == "RankwatchMonitorDown", "only this one asks Prometheus itself"
    for metric, matchers in selected:
        assert metric in FAMILIES or metric in RECORDS, f"there is no metric {metric}"
        labels = FAMILIES.get(metric, set().union(*FAMILIES.values())) | OF_THE_SCRAPE
        for label, given in re.findall(r'(\w+)\s*[=!]~?\s*(%q|"[^"]*")', matchers):
            assert label in labels, f"{metric} has no label {label}"
            if (metric, label) in VALUES and given != "%q":
                assert set(given.strip('"').split("|")) <= VALUES[metric, label]
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
        assert set(grouped.split(", ")) <= OF_THE_SCRAPE | set().union(*FAMILIES.values())


def test_the_scenes_play_only_series_that_the_monitor_can_publish() -> None:
    series = [each["series"] for path in TESTS for scene in loaded(path)["tests"] for each in scene["input_series"]]
    assert series
    for metric, matchers in (found for each in series for found in SELECTOR.findall(each)):
        labels = set(re.findall(r'(\w+)="', re.sub(r'="(?:[^"\\]|\\.)*"', '="', matchers)))
        assert labels == FAMILIES[metric] | OF_THE_SCRAPE, metric


# Shorter ------------------------------------------------------------------------------------------------------------


def test_shortened_rules_are_the_same_but_for_their_patience(tmp_path: Path) -> None:
    write = runpy.run_path(str(FOLDER / "shortened.py"))["write"]
    write(tmp_path, 60.0)
    accepted(tool("promtool"), "check", "rules", *map(str, sorted(tmp_path.glob("*.yml"))))
    quick = {
        rule["alert"]: rule
        for path in tmp_path.glob("*.yml")
        for group in loaded(path)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert (quick["RankwatchJobHung"]["for"], quick["RankwatchJobHung"]["keep_firing_for"]) == ("2s", "6s")
    assert quick["RankwatchObserveOnly"]["for"] == "1440s"
    for name, rule in ALERTS.items():
        same = {key: value for key, value in rule.items() if key not in ("for", "keep_firing_for")}
        assert {key: value for key, value in quick[name].items() if key not in ("for", "keep_firing_for")} == same
