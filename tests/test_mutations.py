"""The mutations of scripts/mutations.toml: each breaks one line that there is, and names tests that there are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


spec = importlib.util.spec_from_file_location("mutations", ROOT / "scripts/mutations.py")
assert spec is not None
assert spec.loader is not None
mutations: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutations)


@pytest.mark.parametrize("mutation", mutations.read(mutations.MUTATIONS.read_text()), ids=lambda each: each.name)
def test_a_mutation_changes_one_line_and_its_tests_are_there(mutation: Any) -> None:
    source = (ROOT / mutation.file).read_text()
    before, after = source.splitlines(), mutations.mutated(source, mutation).splitlines()
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    for test in mutation.tests:
        folder = ROOT / mutations.PAGE / "source/tests" if test.endswith(".ts") else ROOT
        file, *names = test.split("::")
        text = (folder / file).read_text()
        assert all(re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE) for name in names), test


@pytest.mark.parametrize("source", ["a = 2\n", "a = 1\nif b:\n    a = 1\n"])
def test_a_line_that_is_not_there_once_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"the line is [02] times in x\.py: a = 1"):
        mutations.mutated(source, mutations.Mutation("m", Path("x.py"), "a = 1", "a = 3", ()))
