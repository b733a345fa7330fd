"""Converts between OTLP messages and their encodings, protobuf and OTLP/JSON.

OTLP/JSON is protobuf's JSON mapping with one exception: trace and span ids are hexadecimal instead of base64.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from rankwatch.contract import text
from rankwatch_monitor.ingest import json_body
from rankwatch_monitor.ingest.body import Format
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.rejection import Refusal, quote

AnyMessage = TypeVar("AnyMessage", bound=Message)

# Field name -> length of the id in hexadecimal. The base64 of 16 and 8 bytes has 24 and 12 characters, so the ids of
# senders that use plain protobuf JSON are recognised as well.
_ID_FIELDS: Final[Mapping[str, int]] = {"traceId": 32, "spanId": 16, "parentSpanId": 16}

# What json_format raises on a document of the wrong structure, besides its own ParseError.
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
    """Decode a message of type ``kind``.

    Raises:
        Refusal: 400, the bytes are not such a message; 413, its JSON has more objects than points are allowed.
    """
    if encoded == "protobuf":
        return parse_protobuf(body, kind)
    # A JSON object takes two microseconds to parse: five million empty ones, which compress to almost nothing, would
    # occupy a core for 12 s; as many empty lists keep the interpreter's lock for 5 s.
    if text.values(body) > 2 * limits.points_per_request:
        raise Refusal(
            413,
            "too_many_points",
            f"the JSON has more than {2 * limits.points_per_request} values (twice points_per_request): "
            "send smaller batches",
        )
    return _from_json(body, kind)


def encode(message: Message, encoded: Format) -> bytes:
    """Encode a message."""
    if encoded == "protobuf":
        return message.SerializeToString()
    return json_format.MessageToJson(message, indent=None).encode()


def parse_protobuf(body: bytes, kind: type[AnyMessage]) -> AnyMessage:
    """Decode a protobuf message of type ``kind``.

    Raises:
        Refusal: 400, the bytes are not such a message.
    """
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise Refusal(400, "bad_body", f"the body is not a valid protobuf {_name(kind)}: send it again") from None
    return message


def _from_json(body: bytes, kind: type[AnyMessage]) -> AnyMessage:
    try:
        document = json_body.decode(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "bad_body", f"the body is not JSON ({error}): send it again") from None
    if not isinstance(document, dict):
        raise Refusal(400, "bad_body", f"the body is JSON but not an object: send a {_name(kind)}")
    message = kind()
    try:
        _ids_to_base64(document)
        json_format.ParseDict(document, message, ignore_unknown_fields=True)
    except _SHAPE_ERRORS as error:
        raise Refusal(400, "bad_body", f"the JSON is not a {_name(kind)}: {quote(str(error))}") from None
    return message


def _name(kind: type[Message]) -> str:
    return str(kind.DESCRIPTOR.name)


def _ids_to_base64(document: Mapping[str, Any]) -> None:
    """Rewrite hexadecimal ids as base64, in place, as protobuf's JSON parser expects them."""
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
