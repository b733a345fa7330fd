"""Settings of webhooks: repeated flags, their variables, and what makes no sense in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.contract.policy import Policy
from rankwatch_monitor.settings import read, variable

NO_DATABASE = ("--database", "none")


def test_a_flag_that_may_be_repeated_is_a_list_also_in_its_variable() -> None:
    flags = read(["--webhook", "https://a/1", "--webhook", "json=https://b/2", *NO_DATABASE], {})
    assert flags.webhook == ("https://a/1", "json=https://b/2")
    reported = {
        "RANKWATCH_MONITOR_WEBHOOKS": " https://a/1,2  json=https://b/2\n",
    }
    variables = read(NO_DATABASE, reported)
    assert variables.webhook == ("https://a/1,2", "json=https://b/2")
    assert read(["--webhook", "https://z", *NO_DATABASE], reported).webhook == ("https://z",), "a flag comes first"
    assert read(NO_DATABASE, {}).webhook == ()


def test_the_names_of_variables() -> None:
    assert variable("webhook") == "RANKWATCH_MONITOR_WEBHOOKS"
    assert variable("webhook_secret") == "RANKWATCH_MONITOR_WEBHOOK_SECRET"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--webhook", "hooks.slack.com/services/top-secret"), "--webhook needs a whole URL"),
        (("--webhook", "https://h/x", "--webhook-events", "everything"), "'everything' is not an event"),
        (("--webhook", "https://h/x", "--webhook-format", "teams"), "--webhook-format must be slack or json"),
        (("--webhook", "https://h/x", "--webhook-secret", "top-secret"), "--webhook-secret must be whsec_"),
        (("--webhook-events", "job"), "--webhook-events is about webhooks, but there is none"),
        (("--external-url", "monitor"), "--external-url needs a whole URL"),
    ],
)
def test_invalid_settings_are_errors_without_secrets(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        read([*NO_DATABASE, *flags], {})
    assert words in str(refused.value)
    assert "top-secret" not in str(refused.value)


def test_the_policy_of_new_jobs_is_json_or_a_file_of_it(tmp_path: Path) -> None:
    text = '{"section_timeouts": {"step": 180}, "on_hang": "log"}'
    file = tmp_path / "policy.json"
    file.write_text(text)
    for given in (text, str(file)):
        policy = read(["--policy", given, *NO_DATABASE], {}).job_policy()
        assert (policy.section_timeouts, policy.on_hang) == ({"step": 180.0}, "log")
        assert read(NO_DATABASE, {"RANKWATCH_MONITOR_POLICY": given}).job_policy() == policy
    assert read(NO_DATABASE, {}).job_policy() == Policy()


@pytest.mark.parametrize("given", ["nowhere.json", "{", '{"no_such_limit": 1}', '{"on_hang": "dance"}'])
def test_a_policy_that_cannot_be_used_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="--policy: "):
        read(["--policy", given, *NO_DATABASE], {})
