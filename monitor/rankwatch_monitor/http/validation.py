"""Validates what launchers report: numbers in range, names that are text. Called before any of it is applied.

A name that is too long is refused; what a process said is cut, since the end of a job must not be lost by its length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from fastapi import HTTPException

from rankwatch.contract import flight, text, topology
from rankwatch.contract.messages import (
    DirectiveAck,
    Evidence,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RankStack,
)
from rankwatch.contract.node_checks import MAX_CHECKS

LARGEST: Final = 2**63 - 1
"""The largest value of a column over ranks."""
SIGNED: Final = ("exit_code",)
FROM_MINUS_ONE: Final = ("enqueued", "completed", "member", "pid")
"""Numbers of which -1 means that there is none, or that it is unknown."""
DEEPEST: Final = 8
"""Levels of mappings and lists within each other."""
NAMES: Final = ("node", "host", "job_name", "lost_node", "signal", "incident_id")
"""Names that are shown and logged: no control characters."""
LONG_NAMES: Final = ("file", "function", "group", "operation", "calls", "method", "stream", "path", "launch")
"""Names that may be longer than others, by :data:`LONGER`."""
SENTENCES: Final = ("reason", "role_reason", "cause", "why_none", "message", "detail")
"""Text of ranks and launchers that is shown and logged; :func:`clean` cuts it."""
CODES: Final = ("signal", "no_restart", "notice")
"""Short text that a newer launcher may know more of; :func:`clean` cuts it."""
LONGER: Final = 64
"""Sentences and long names may be longer than names by this factor."""
OF_ANY_LENGTH: Final = frozenset((*SENTENCES, *CODES, "error", "lines", "target", "through", "data"))
"""The core cuts ``error`` and ``lines``, :func:`clean_evidence` what follows."""
Message = TypeVar("Message", ProcessEvent, NodeObservation, DirectiveAck, NodeRegistration)
_names_of: Final[dict[type, tuple[str, ...]]] = {}
"""Field names of dataclasses, cached."""


def check(value: Any, where: str, longest: int, depth: int = 0) -> None:
    """Check a message, or a value in it, ``depth`` levels down; names may have ``longest`` characters.

    Raises:
        HTTPException: 422, the first invalid value.
    """
    if depth > DEEPEST:
        raise HTTPException(422, f"{where} is nested more than {DEEPEST} levels deep")
    if _plainly_valid(value, where, longest):
        return
    kind = type(value)
    if (named := _names_of.get(kind)) is None and is_dataclass(value):
        named = _names_of[kind] = tuple(each.name for each in fields(value))
    if named is not None:
        for name in named:
            item = getattr(value, name)
            if not _plainly_valid(item, name, longest):
                check(item, name, longest, depth + 1)
    elif isinstance(value, str):
        _check_text(value, where, longest)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            check(name, f"a name in {where}", longest)
            check(item, f"{where} {name[:60]!r}", longest, depth + 1)
    elif isinstance(value, float):
        if not (math.isfinite(value) and value >= 0):
            raise HTTPException(422, f"{where} must be a finite number from 0 up, not {value}")
    elif isinstance(value, int):
        if abs(value) > LARGEST or value < _least(where):
            raise HTTPException(422, f"{where} must be a whole number from 0 up that fits 64 bits, not {value}"[:200])
    elif isinstance(value, Sequence):
        if where == "ranks" and value and type(value[0]) is int:  # those of a group: as many as the job has
            value = (min(value), max(value))
        for each in value:
            check(each, where, longest, depth + 1)


def _plainly_valid(value: Any, where: str, longest: int) -> bool:
    """Whether a value is one of the usual ones, thousands a second, which need no closer look."""
    kind = type(value)
    if kind is str:
        usual = len(value) <= longest and value.isascii() and "\0" not in value
        return usual and (where not in NAMES or (value != "" and value.isprintable()))
    if kind is int:
        return bool(0 <= value <= LARGEST)
    if kind is float:
        return bool(0.0 <= value < math.inf)
    return not value or kind is bool or isinstance(value, Enum)


def check_evidence(captured: Evidence, longest: int) -> None:
    """Check evidence; its frames, most of it, all at once.

    Raises:
        HTTPException: 422, the first invalid value.
    """
    for each in fields(Evidence):
        if each.name != "stacks":
            check(getattr(captured, each.name), each.name, longest)
    for stack in captured.stacks:
        for name in _STACK_FIELDS:
            check(getattr(stack, name), name, longest)
    frames = [frame for stack in captured.stacks for frame in stack.frames]
    if not frames:
        return
    for where, texts in (("function", [f.function for f in frames]), ("file", [f.file for f in frames])):
        check(max(texts, key=len), where, longest)
        check_unicode("".join(texts), where)
    numbers = [frame.line for frame in frames]
    check((min(numbers), max(numbers)), "line", longest)


def clean(message: Message, longest: int) -> Message:
    """The message with its sentences cut and their control characters escaped, line feeds apart; see :func:`check`."""
    changed: dict[str, Any] = {}
    for name in SENTENCES:
        words = getattr(message, name, "")
        if len(words) > LONGER * longest or not words.isprintable():
            changed[name] = text.lines(words, LONGER * longest)
    for name in CODES:
        if len(words := getattr(message, name, "") or "") > longest:
            changed[name] = words[:longest]
    if isinstance(message, NodeRegistration) and any(len(words) > longest for words in message.facts.values()):
        changed["facts"] = {name: words[:longest] for name, words in message.facts.items()}
    if isinstance(message, NodeRegistration) and len(message.launch) > LONGER * longest:
        changed["launch"] = ""  # a part of a command is none
    if isinstance(message, NodeRegistration) and message.topology:
        changed["topology"] = topology.valid(message.topology)
    if isinstance(message, NodeRegistration) and message.checks:
        changed["checks"] = tuple(each.bounded() for each in message.checks[:MAX_CHECKS])
    return replace(message, **changed) if changed else message


def clean_evidence(captured: Evidence) -> Evidence:
    """The evidence with what other processes named cut and escaped: lines of logs, and what ranks wait for."""
    return replace(
        captured,
        stacks=tuple(_clean_stack(stack) for stack in captured.stacks),
        logs=tuple(log.bounded() for log in captured.logs),
        dumps=tuple(
            replace(each, size=len(each.data)) for each in captured.dumps if 0 < len(each.data) <= flight.MAX_DATA
        )[: flight.MAX_RANKS],
        ras=None if captured.ras is None else captured.ras.bounded(),
    )


def _clean_stack(stack: RankStack) -> RankStack:
    usage = stack.usage
    if usage is None or usage.wait is None or (wait := usage.wait.bounded()) is usage.wait:
        return stack
    return replace(stack, usage=replace(usage, wait=wait))


_STACK_FIELDS: Final = tuple(each.name for each in fields(RankStack) if each.name != "frames")


def _least(where: str) -> int:
    if where in SIGNED:
        return -LARGEST
    return -1 if where in FROM_MINUS_ONE else 0


def check_unicode(value: str, where: str) -> None:
    """Check that a text can be encoded.

    Raises:
        HTTPException: 422, it contains a lone surrogate.
    """
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        raise HTTPException(422, f"{where} contains a lone surrogate, which is not text") from None


def _check_text(value: str, where: str, longest: int) -> None:
    bound = LONGER * longest if where in LONG_NAMES else longest
    if len(value) > bound and where not in OF_ANY_LENGTH:
        raise HTTPException(422, f"{where} has {len(value)} characters, the limit is {bound}")
    check_unicode(value, where)
    if (where in NAMES and not value.isprintable()) or (where == "node" and not value):
        raise HTTPException(422, f"{where} must not be empty or contain control characters")
    if "\0" in value and where not in OF_ANY_LENGTH:
        raise HTTPException(422, f"{where} contains a NUL character, which cannot be stored")
