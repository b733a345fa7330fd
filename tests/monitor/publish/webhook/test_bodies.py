"""Bodies that Slack takes, plain JSON, links, and a signature that the libraries of Standard Webhooks accept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from monitor.core.accounted import Accounted
from rankwatch_monitor.publish.webhook.bodies import headers, page, render, secret_key
from rankwatch_monitor.publish.webhook.notices import Announced, new_notices


def notice(**changes: Any) -> dict[str, Any]:
    scene = Accounted(ranks=4).run(20)
    scene.hang(2).until_found()
    body = next(n.body for n in new_notices(scene.job, Announced(), scene.now) if n.body["event"] == "incident_opened")
    return body | changes


def slack(body: dict[str, Any], url: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(render("slack", body, url))
    return made


def test_slack_gets_a_text_and_blocks_within_its_limits() -> None:
    body = notice()
    made = slack(body, "https://monitor.example/")
    assert body["text"] in made["text"]
    sentence, facts, foot = made["blocks"]
    assert body["text"] in sentence["text"]["text"]
    assert any(
        field["text"] == "*To blame*\nrank 2 on " + body["incident"]["culprits"][0]["host"] for field in facts["fields"]
    )
    assert f"<{page(body, 'https://monitor.example')}|" in foot["elements"][0]["text"]
    for block in made["blocks"]:
        assert len(block.get("text", {}).get("text", "")) <= 3000
        assert len(block.get("fields", [])) <= 10


def test_names_from_outside_call_no_rank_and_stay_within_the_limits() -> None:
    evil = "<!channel> & \x1b[2J" + "<" * 5000
    body = notice(text=evil)
    body["job"] = body["job"] | {"name": evil}
    made = slack(body)
    for text in (made["text"], made["blocks"][0]["text"]["text"]):
        assert "<!channel>" not in text
        assert "\x1b" not in text
        assert len(text) <= 3000
        assert "&lt;!channel&gt; &amp;" in text


def test_json_is_the_notice_with_its_link() -> None:
    body = notice()
    made = json.loads(render("json", body, "http://m:9560"))
    assert made == json.loads(json.dumps(body)) | {"url": page(body, "http://m:9560")}


def test_links_lead_to_the_page_of_the_incident_or_of_the_job() -> None:
    body = notice()
    body["job"] = body["job"] | {"id": "team/gpt 4"}
    incident = body["incident"]["id"]
    assert page(body, "http://m/") == f"http://m/#/jobs/team%2Fgpt%204/incidents/{incident}"
    del body["incident"]
    assert page(body, "http://m") == "http://m/#/jobs/team%2Fgpt%204"
    assert page(body, None) is None


SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


def test_the_signature_covers_id_time_and_body() -> None:
    made = headers("rankwatch_1", b'{"a":1}', 1614265330.9, secret_key(SECRET))
    assert (made["webhook-id"], made["webhook-timestamp"]) == ("rankwatch_1", "1614265330")
    content = b'rankwatch_1.1614265330.{"a":1}'
    digest = hmac.new(b"0123456789abcdef01234567", content, hashlib.sha256).digest()
    assert made["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert made["Idempotency-Key"] == '"rankwatch_1"'
    assert "webhook-signature" not in headers("rankwatch_1", b"", 0.0, None)


@pytest.mark.parametrize("secret", ["", "abc", "whsec_", "whsec_%%%", "whsec_c2hvcnQ="])
def test_a_secret_of_another_form_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="openssl rand -base64 32") as refused:
        secret_key(secret)
    assert len(secret) < 7 or secret not in str(refused.value)
