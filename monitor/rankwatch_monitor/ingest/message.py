"""Inflated bytes -> an OTLP message, from protobuf or from OTLP's own flavour of JSON, and answers back.

OTLP/JSON is protobuf's JSON with one exception: trace and span ids are written in hexadecimal, not base64.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from rankwatch_monitor.ingest.body import Format
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.rejection import Refusal, quote

AnyMessage = TypeVar("AnyMessage", bound=Message)

# Field name -> length of the id in hexadecimal. The base64 of 16 and 8 bytes has 24 and 12 characters, so a sender that
# uses plain protobuf JSON can be told from one that follows the OTLP specification.
_ID_FIELDS: Final[Mapping[str, int]] = {"traceId": 32, "spanId": 16, "parentSpanId": 16}

# What json_format lets through on a document of the wrong shape, beside its own ParseError.
_SHAPE_ERRORS: Final = (
    json_format.ParseError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def decode(body: bytes, encoded: Format, kind: type[AnyMessage], limits: Limits) -> AnyMessage:
    """Return the message of type ``kind`` that stands in ``body``.

    Raises:
        Refusal: 400, the bytes are not such a message; 413, there are more objects in its JSON than points may come.
    """
    if encoded == "protobuf":
        return parsed(body, kind)
    # Each object of JSON takes two microseconds to read: five million empty ones, which compress to next to nothing,
    # would keep a core busy for 12 s.
    if body.count(b"{") > limits.points_per_request:
        raise Refusal(
            413,
            "too_many_points",
            f"the JSON has more than {limits.points_per_request} objects (points_per_request): send smaller batches",
        )
    return _from_json(body, kind)


def encode(message: Message, encoded: Format) -> bytes:
    """Return ``message`` in the encoding its reader used."""
    if encoded == "protobuf":
        return message.SerializeToString()
    return json_format.MessageToJson(message, indent=None).encode()


def parsed(body: bytes, kind: type[AnyMessage]) -> AnyMessage:
    """Return the message of type ``kind`` that stands in ``body`` as protobuf.

    Raises:
        Refusal: 400, the bytes are not such a message.
    """
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise Refusal(400, "bad_body", f"the body is not a whole protobuf {_name(kind)}: send it again whole") from None
    return message


def _from_json(body: bytes, kind: type[AnyMessage]) -> AnyMessage:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "bad_body", f"the body is not JSON ({error}): send it again whole") from None
    if not isinstance(document, dict):
        raise Refusal(400, "bad_body", f"the body is JSON but no object: send a {_name(kind)}")
    message = kind()
    try:
        _ids_to_base64(document)
        json_format.ParseDict(document, message, ignore_unknown_fields=True)
    except _SHAPE_ERRORS as error:
        raise Refusal(400, "bad_body", f"the JSON is no {_name(kind)}: {quote(str(error))}") from None
    return message


def _name(kind: type[Message]) -> str:
    return str(kind.DESCRIPTOR.name)


def _ids_to_base64(document: Mapping[str, Any]) -> None:
    """Rewrite hexadecimal ids in place, so that protobuf's JSON reader understands them."""
    for resource in _objects(document, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            for span in _objects(scope, "spans"):
                _rewrite(span)
                for link in _objects(span, "links"):
                    _rewrite(link)


def _objects(parent: Mapping[str, Any], name: str) -> Sequence[dict[str, Any]]:
    children = parent.get(name)
    return [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []


def _rewrite(holder: dict[str, Any]) -> None:
    for name, length in _ID_FIELDS.items():
        value = holder.get(name)
        if isinstance(value, str) and len(value) == length:
            holder[name] = b64encode(bytes.fromhex(value)).decode()
