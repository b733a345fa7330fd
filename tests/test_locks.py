"""The locks: every package of a set, at the version of constraints.txt, with the hashes of its files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_script", ROOT / "scripts" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
CONSTRAINTS = {
    SCRIPT.name_of(line): line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
}


def pins(name: str) -> dict[str, tuple[str, list[str]]]:
    """By normalized name, the version and the options of each package of a lock."""
    text = (ROOT / "locks" / f"{name}.txt").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {SCRIPT.name_of(words[0]): (words[0].partition("==")[2], words[1:]) for words in lines}


def test_there_is_a_lock_for_each_set_and_no_other() -> None:
    assert {path.stem for path in (ROOT / "locks").iterdir()} == set(SCRIPT.SETS)


@pytest.mark.parametrize("name", SCRIPT.SETS)
def test_locked_packages_have_the_versions_of_constraints_and_hashes(name: str) -> None:
    found = pins(name)
    assert {package: version for package, (version, _) in found.items()} == {
        package: CONSTRAINTS.get(package) for package in found
    }
    wrong = [
        package
        for package, (_, options) in found.items()
        if not options or not all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", SCRIPT.SETS)
def test_what_pyproject_asks_for_is_locked(name: str) -> None:
    asked = {SCRIPT.name_of(each) for each in SCRIPT.requirements(SCRIPT.SETS[name][1])}
    assert {each for each in asked if not SCRIPT.WITHOUT.fullmatch(each)} - pins(name).keys() == set()


def test_images_install_nothing_but_torch_without_hashes() -> None:
    files = list((ROOT / "docker").glob("*Dockerfile"))
    assert files
    for path in files:
        installs = re.findall(r"pip install [^&]*", path.read_text().replace("\\\n", ""))
        assert installs, path
        for command in installs:
            assert "--require-hashes" in command or "/build/wheels/" in command or "torch" in command, command


def test_images_run_no_install_script_of_an_npm_package() -> None:
    files = [path for path in (ROOT / "docker").glob("*Dockerfile*") if "npm " in path.read_text()]
    assert files
    assert "ignore-scripts=true" in (ROOT / "monitor/rankwatch_monitor/web/source/.npmrc").read_text().splitlines()
    for path in files:
        before, *installs = re.split(r"^RUN npm (?=ci|install)", path.read_text(), flags=re.MULTILINE)
        assert installs, path
        assert all(each.splitlines()[0].split()[1] == "--ignore-scripts" for each in installs), path
        assert ".npmrc" in before, f"{path}: the registry and the rules of the page's own file"
