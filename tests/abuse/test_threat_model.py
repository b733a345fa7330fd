"""docs/security.md: each row of its tables that promises something names tests, and each of these exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "security.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str]]:
    """The rows of all tables that have a column for tests: what the row is about, and the cell with its tests."""
    found, tested = [], False
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            tested = False
        elif cells[-1] == "Tests":
            tested = True
        elif tested and not set(line) <= set("|- "):
            found.append((cells[0], cells[-1]))
    return found


@cache
def _names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_bytes())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


def test_the_document_has_its_tables() -> None:
    actors = [actor for actor, _ in rows()]
    for actor in ("someone on the network", "another user on the node", "a job of another team", "an operator"):
        assert actor in actors
    assert len(actors) > 30


@pytest.mark.parametrize(("what", "tests"), rows(), ids=lambda text: text[:40])
def test_a_row_names_tests_that_exist(what: str, tests: str) -> None:
    named = TEST.findall(tests)
    assert named, f"{what}: no test shows it"
    assert TEST.sub("", tests).strip() == "", f"{what}: a test is not named as `file::test`"
    assert [f"{path}::{name}" for path, name in named if name not in _names_in(path)] == []


def test_every_test_that_is_named_anywhere_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", DOCUMENT.read_text())
    missing = [path for path, name in named if not (ROOT / path).is_file() or (name and name not in _names_in(path))]
    assert missing == []
