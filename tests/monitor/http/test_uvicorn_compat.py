"""The internals of uvicorn that the monitor extends exist in the pinned version, and a missing one ends the start."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankwatch_monitor import cli
from rankwatch_monitor.http import uvicorn_compat
from rankwatch_monitor.http.deadlines import BoundedProtocol
from rankwatch_monitor.http.fastlane.protocol import FastLaneProtocol

ROOT = Path(__file__).parents[3]


def test_the_pinned_version_fits() -> None:
    assert uvicorn_compat.complaint() is None
    pinned = re.search(r"^uvicorn==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] == uvicorn_compat.TESTED


@pytest.mark.parametrize("kind", [BoundedProtocol, FastLaneProtocol])
def test_whatever_is_used_of_the_protocol_is_checked(kind: type) -> None:
    tree = ast.parse(inspect.getsource(kind))
    of_self = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]
    own = {name for each in (BoundedProtocol, FastLaneProtocol) for name in vars(each)} - set(dir(H11Protocol))
    checked = {*uvicorn_compat.METHODS[H11Protocol], *uvicorn_compat.ATTRIBUTES[H11Protocol]}
    own |= {
        "waiting_since",
        "_deadline",
        "_awaited",
        "_unread",
        "_refusal",
        "_socket_transport",
        "_lanes",
        "_lane",
        "_request",
        "_waiting",
        "_polling",
        "_reading",
        "_pipelined",
        "_others",
        "_in_turn",
        "_host",
    }
    assert {node.attr for node in of_self} - own <= checked


def test_a_version_without_one_of_them_ends_the_start_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(uvicorn_compat.METHODS, H11Protocol, ("data_received", "renamed_method"))
    monkeypatch.setitem(uvicorn_compat.ATTRIBUTES, H11Protocol, ("conn", "renamed_attribute"))
    assert cli.serve([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "lacks H11Protocol.renamed_method, H11Protocol.renamed_attribute" in line
    assert f"pip install 'uvicorn=={uvicorn_compat.TESTED}.*'" in line
