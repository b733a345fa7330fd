"""Settings of webhooks and forwarding: repeated flags, their variables, and what makes no sense in words."""

from __future__ import annotations

import pytest

from rankwatch_monitor.settings import read, variable

NO_DATABASE = ("--database", "none")


def test_a_flag_that_may_be_repeated_is_a_list_also_in_its_variable() -> None:
    flags = read(["--webhook", "https://a/1", "--webhook", "json=https://b/2", *NO_DATABASE], {})
    assert flags.webhook == ("https://a/1", "json=https://b/2")
    reported = {
        "RANKWATCH_MONITOR_WEBHOOKS": " https://a/1,2  json=https://b/2\n",
        "RANKWATCH_MONITOR_FORWARD": "http://c http://d",
        "RANKWATCH_MONITOR_FORWARD_HEADER": "Authorization=Bearer x y, 2:B=c",
    }
    variables = read(NO_DATABASE, reported)
    assert variables.webhook == ("https://a/1,2", "json=https://b/2")
    assert variables.forward == ("http://c", "http://d")
    assert variables.forward_header == ("Authorization=Bearer x y", "2:B=c")
    assert read(["--webhook", "https://z", *NO_DATABASE], reported).webhook == ("https://z",), "a flag comes first"
    assert read(NO_DATABASE, {}).webhook == read(NO_DATABASE, {}).forward == ()


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
        (("--forward", "collector:4318/top-secret"), "--forward needs a whole URL"),
        (("--forward", "http://h", "--forward-header", "top-secret"), "--forward-header needs NAME=VALUE"),
        (("--forward-header", "A=top-secret"), "name a backend with --forward URL"),
        (("--forward", "http://h", "--forward-limit", "0"), "--forward-limit must be at least 1"),
    ],
)
def test_invalid_settings_are_errors_without_secrets(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        read([*NO_DATABASE, *flags], {})
    assert words in str(refused.value)
    assert "top-secret" not in str(refused.value)
