"""Renders a notice as the body of a webhook, for Slack-compatible receivers or as plain JSON, and signs it.

Signatures follow Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over ``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import quote

from rankwatch.cli.formatting import printable, when
from rankwatch.contract.enums import JobState, VerdictKind
from rankwatch_monitor.core.incident_record import Ended
from rankwatch_monitor.publish.webhook.notices import Event

FORMATS: Final = ("slack", "json")
SECRET_PREFIX: Final = "whsec_"

GOOD_ENDS: Final = (Ended.RECOVERED, Ended.WENT_ON, Ended.HANDLED, Ended.CAPTURED)
"""After these the job goes on; green means that alone."""
_LONGEST_SECTION: Final = 2900
"""Characters; Slack's limit is 3000, and escaping makes some longer."""
_LONGEST_FIELD: Final = 1900
_TITLES: Final = {
    Event.INCIDENT_OPENED: ("\N{LARGE RED CIRCLE}", "incident"),
    Event.INCIDENT_CLOSED: ("\N{LARGE GREEN CIRCLE}", "incident over"),
    Event.STRAGGLER_FOUND: ("\N{LARGE ORANGE CIRCLE}", "slow rank"),
    Event.STRAGGLER_ENDED: ("\N{LARGE GREEN CIRCLE}", "slow rank as fast as its peers again"),
    Event.JOB_FINISHED: ("\N{LARGE GREEN CIRCLE}", "job finished"),
    Event.JOB_FAILED: ("\N{LARGE RED CIRCLE}", "job failed"),
    Event.JOB_STOPPED: ("\N{LARGE ORANGE CIRCLE}", "job stopped"),
    Event.JOB_LOST: ("\N{LARGE RED CIRCLE}", "job lost"),
    Event.JOB_BACK: ("\N{LARGE GREEN CIRCLE}", "job reports again"),
}


def render(form: str, body: Mapping[str, Any], external_url: str | None) -> bytes:
    """The body to post for a notice's body.

    Args:
        form: one of :data:`FORMATS`.
        body: of the notice.
        external_url: of the monitor; without it there is no link.
    """
    url = page(body, external_url)
    made = dict(body) | {"url": url} if form == "json" else _slack(body, url)
    return json.dumps(made, ensure_ascii=False, allow_nan=False, default=str).encode(errors="replace")


def is_for(form: str, body: Mapping[str, Any], chosen: Collection[Event] = tuple(Event)) -> bool:
    """Whether receivers of a format get a notice: people get one message for each crash and each end, programs all.

    ``chosen``: the events that are announced; of a job that ends, the message of its end has the crash in it.
    """
    event = body["event"]
    if form != "slack" or event not in (Event.INCIDENT_OPENED, Event.INCIDENT_CLOSED):
        return True
    incident, crash = body["incident"], body["incident"]["kind"] == VerdictKind.PROCESS_EXITED
    if event == Event.INCIDENT_CLOSED:
        return not crash and (incident["ended"] != Ended.JOB_ENDED or Event.JOB_FAILED not in chosen)
    return not (crash and body["job"]["state"] == JobState.FAILED and Event.JOB_FAILED in chosen)


def page(body: Mapping[str, Any], external_url: str | None) -> str | None:
    """URL of the page that shows the subject of a notice."""
    if not external_url:
        return None
    place = f"{external_url.rstrip('/')}/#/jobs/{_quoted(body['job']['id'])}"
    incident = body.get("incident")
    return f"{place}/incidents/{_quoted(incident['id'])}" if incident else place


def secret_key(secret: str) -> bytes:
    """The key in a secret of the form ``whsec_BASE64``.

    Raises:
        ValueError: it is malformed; the message names the command that creates one.
    """
    try:
        if not secret.startswith(SECRET_PREFIX):
            raise ValueError
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        if len(key) < 16:
            raise ValueError
    except (ValueError, binascii.Error):
        raise ValueError(
            "--webhook-secret must be whsec_ followed by at least 16 bytes in base64; create one with: "
            f"echo {SECRET_PREFIX}$(openssl rand -base64 32)"
        ) from None
    return key


def headers(key: str, body: bytes, now: float, secret: bytes | None) -> dict[str, str]:
    """The headers of one delivery at ``now`` (unix seconds); retries have the same key."""
    stamp = str(int(now))
    made = {
        "Content-Type": "application/json",
        "User-Agent": "rankwatch",
        "webhook-id": key,
        "webhook-timestamp": stamp,
        "Idempotency-Key": f'"{key}"',
    }
    if secret is not None:
        digest = hmac.new(secret, f"{key}.{stamp}.".encode() + body, hashlib.sha256).digest()
        made["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return made


# Slack ----------------------------------------------------------------------------------------------------------------


def _slack(body: Mapping[str, Any], url: str | None) -> dict[str, Any]:
    job = body["job"]
    mark, title = _TITLES.get(body["event"], ("", str(body["event"])))
    if body["event"] == Event.INCIDENT_CLOSED and body["incident"]["ended"] not in GOOD_ENDS:
        mark = "\N{LARGE ORANGE CIRCLE}"
    name = job["name"] if job["name"] == job["id"] else f"{job['name']} ({job['id']})"
    head = f"{mark} *{_escaped(f'{name}: {title}', 300)}*"
    fields = [{"type": "mrkdwn", "text": f"*{what}*\n{_escaped(text, _LONGEST_FIELD)}"} for what, text in _facts(body)]
    foot = when(body["at"]) + (f"  <{url}|Open its page>" if url else "")
    blocks: list[dict[str, Any]] = [_section(f"{head}\n{_escaped(body['text'], _LONGEST_SECTION - len(head))}")]
    if fields:
        blocks.append({"type": "section", "fields": fields})
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": foot}]})
    return {"text": f"{mark} {_escaped(f'{name}: {title}. ' + body['text'], _LONGEST_SECTION)}", "blocks": blocks}


def _facts(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Short facts shown below the sentence."""
    incident = body.get("incident")
    if incident is None:
        return []
    culprits, more = incident["culprits"], incident["culprits_count"] - len(incident["culprits"])
    shown = [f"rank {c['rank']}" + (f" on {c['host']}" if c["host"] else "") for c in culprits[:4]]
    more += len(culprits) - len(shown)
    named = ", ".join(shown) + (f" and {more} more" if more else "")
    facts = [
        ("To blame", named or "none"),
        ("Action", incident["action"].replace("_", " ")),
        ("Attempt", str(incident["attempt"])),
    ]
    if incident["steps_lost"] is not None:
        facts.append(("Steps lost", str(incident["steps_lost"])))
    return facts


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _escaped(text: str, longest: int) -> str:
    """Text escaped for Slack: names are untrusted, and ``<!channel>`` would notify everyone."""
    made: list[str] = []
    size = 0
    for character in printable(text):
        safe = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)
        size += len(safe)
        if size >= longest:
            return "".join(made) + "…"
        made.append(safe)
    return "".join(made)


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="replace")
