"""Both launchers play each scene; where they differ, the table in docs/torchrun.md has a row, and none too many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from launcher.conftest import FakeMonitor
from launcher.parity.scenes import SCENES, Scene
from launcher.parity.seen import Seen, play

PAGE: Final = Path(__file__).parents[3] / "docs" / "torchrun.md"
EVERYWHERE: Final = "Variables of ranks"
IN_SCENES: Final = "Differences by scene"


class Row(NamedTuple):
    """A documented difference; ``scenes`` are patterns of names."""

    scenes: str
    what: str
    torchrun: str
    rankwatch: str

    def holds_for(self, scene: Scene) -> bool:
        return any(fnmatchcase(scene.name, pattern.strip()) for pattern in self.scenes.split(","))


def table(title: str) -> list[list[str]]:
    """The rows of the table below a heading, without their backticks."""
    section = PAGE.read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip().strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.replace("`", "").strip() for cell in row] for row in rows[2:]]


ROWS: Final = [Row(*row[:4]) for row in table(IN_SCENES)]
VARIABLES: Final = [row[0] for row in table(EVERYWHERE)]


def differences(theirs: Seen, ours: Seen) -> Iterator[tuple[str, str, str]]:
    """What differs, and what only either has, as the table states it."""
    for what in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(what, {}), ours.get(what, {})
        if isinstance(a, dict) and isinstance(b, dict):
            for name in sorted(a.keys() | b.keys()):
                if a.get(name) != b.get(name) and not (what == "environment" and _differs_everywhere(name)):
                    yield f"{what} {name}".strip(), _short(a.get(name)), _short(b.get(name))
        elif isinstance(a, list) and isinstance(b, list) and a != b:
            yield what, _short([each for each in a if each not in b]), _short([each for each in b if each not in a])
        elif a != b:
            yield what, _short(a), _short(b)


def _differs_everywhere(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in VARIABLES)


def _short(value: Any) -> str:
    text = ", ".join(dict.fromkeys(map(str, value))) if isinstance(value, list) else str(value or "")
    return re.sub(r"\s+", " ", text)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", SCENES, ids=[scene.name for scene in SCENES])
def test_a_scene_ends_alike_but_for_the_documented_differences(
    scene: Scene, tmp_path: Path, monitor: FakeMonitor
) -> None:
    with ThreadPoolExecutor(2) as both:
        theirs, ours = both.map(lambda own: play(scene, own, tmp_path, monitor.url), (False, True))
    found = {(what, a, b) for what, a, b in differences(theirs, ours)}
    documented = {(row.what, row.torchrun, row.rankwatch) for row in ROWS if row.holds_for(scene)}
    assert found == documented, f"only found: {found - documented}; only documented: {documented - found}"


def test_each_row_is_about_a_scene() -> None:
    assert [row for row in ROWS if not any(row.holds_for(scene) for scene in SCENES)] == []


def test_there_are_as_many_scenes_as_torchruns_own_tests_have() -> None:
    assert len({scene.name for scene in SCENES}) == len(SCENES) >= 60
