"""What can be set about a job, as an editor needs it: made from the fields of :class:`Policy` and nothing else."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from fastapi import APIRouter

from rankwatch.contract.policy import Policy


def policy_schema_routes() -> APIRouter:
    """``GET /policy/schema``."""
    routes = APIRouter(tags=["policy"])

    @routes.get("/policy/schema", summary="Every value of a policy: its kind, default, unit and meaning")
    async def schema() -> dict[str, Any]:
        return {"settings": described()}

    return routes


@cache
def described() -> list[dict[str, Any]]:
    """Each setting in the order in which it is declared.

    ``kind`` is ``switch``, ``choice`` (one of ``choices``), ``whole``, ``number``, ``text`` or ``seconds_by_name``;
    ``optional`` says that null switches it off.
    """
    hints, defaults = get_type_hints(Policy), Policy().to_json()
    rows = []
    for each in fields(Policy):
        kind, choices, optional = _kind(hints[each.name])
        rows.append(
            {
                "name": each.name,
                "kind": kind,
                "choices": choices,
                "optional": optional,
                "default": defaults[each.name],
                "unit": each.metadata["unit"],
                "meaning": each.metadata["meaning"],
            }
        )
    return rows


def _kind(hint: Any) -> tuple[str, list[str], bool]:
    """The kind of a setting, its choices, and whether it can be switched off."""
    optional = get_origin(hint) is types.UnionType and type(None) in get_args(hint)
    if optional:
        hint = next(each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is Mapping:
        return "seconds_by_name", [], optional
    if issubclass(hint, StrEnum):
        return "choice", [str(each) for each in hint], optional
    kinds: dict[type, str] = {bool: "switch", int: "whole", float: "number", str: "text"}
    return kinds[hint], [], optional
