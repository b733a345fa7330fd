"""The repository's own rules: what a newcomer relies on and what a machine's leftovers must not break."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rankwatch

ROOT = Path(__file__).parent.parent

TARGETS = (
    *("help", "demo", "dev", "test", "test-long", "test-gpu", "test-containers", "test-frameworks", "matrix"),
    *("check", "format", "bench", "bench-compare", "web", "docs", "release", "clean"),
)

# Homes, scratch folders and mounts of particular machines. Assembled, so that this file does not break its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:" + "|".join(("work", "root", "home", "Users", "tmp/bash")) + r")[/_.]")


@cache
def files() -> tuple[Path, ...]:
    """Every file that is, or could be, committed."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs git and a clone: the files to look at are those that git does not ignore")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
    return tuple(path for name in sorted(set(listing.split("\0"))) if name and (path := ROOT / name).is_file())


def named(suffix: str) -> list[Path]:
    return [path for path in files() if path.name.endswith(suffix)]


def text(path: Path) -> str:
    """The file's text, or nothing if it is a picture or another binary."""
    content = path.read_bytes()
    return "" if b"\0" in content or path.suffix == ".bin" else content.decode("utf-8")


def where(path: Path, position: int) -> str:
    return f"{path.relative_to(ROOT)}:{text(path).count(chr(10), 0, position) + 1}"


@pytest.mark.parametrize("folder", ["telemetry", "monitor", "launcher", "dashboards", "tests", "docs/adr", "."])
def test_every_part_states_what_it_is(folder: str) -> None:
    readme = ROOT / folder / "README.md"
    assert readme.is_file(), f"{folder} has no README.md"
    assert readme.read_text().startswith("# "), f"{folder}/README.md does not begin with a title"


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [f"{where(path, hit.start())}: {hit[0]}" for path in files() for hit in MACHINE_PATH.finditer(text(path))]
    assert not found


NO_OWN_INTERPRETER = {
    "telemetry/rankwatch/contract/interpreter.py": "the one place that starts one",
    "telemetry/rankwatch/contract/files.py": "looks for programs beside it",
    "launcher/rankwatch_launcher/shell/orphan_reaper.py": "-I, and it cannot import the helper",
    "launcher/rankwatch_launcher/job/launcher.py": "compares the user's command with it",
    "launcher/rankwatch_launcher/prewarm/pool.py": "compares the user's command with it",
    "launcher/rankwatch_launcher/prewarm/hook/sitecustomize.py": "names it",
}


def test_every_interpreter_is_started_without_the_current_folder() -> None:
    """``rankwatch.contract.interpreter`` gives -P or -I: whoever may write to that folder runs nothing."""
    packages = ("telemetry/", "monitor/", "launcher/", "examples/", "dashboards/", "docker/")
    found = {
        name
        for path in named(".py")
        if (name := str(path.relative_to(ROOT))).startswith(packages)
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert found == set(NO_OWN_INTERPRETER)


def test_no_command_line_loses_what_keeps_the_current_folder_out() -> None:
    """Neither the interpreter alone is taken from ``own_python(...)``, nor one given code or a module without that."""
    packages = ("telemetry/", "monitor/", "launcher/", "examples/", "dashboards/", "docker/")
    found = {
        f"{name}:{node.lineno}"
        for path in named(".py")
        if (name := str(path.relative_to(ROOT))).startswith(packages)
        for node in ast.walk(ast.parse(text(path)))
        if (isinstance(node, ast.Subscript) and "own_python(" in ast.unparse(node.value)) or _is_open(node)
    }
    assert found == set()


def _is_open(node: ast.AST) -> bool:
    """Whether it is the command line of an interpreter that looks into the current folder."""
    if not isinstance(node, ast.List | ast.Tuple):
        return False
    words = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
    begins = min((words.index(each) for each in ("-c", "-m") if each in words), default=0)
    python = begins > 0 and (words[0] is None or "python" in str(words[0]))
    return python and not {"-P", "-I"} & set(words[1:begins])


FOREIGN_TEXT = {
    "straggler/links.py": "names of process groups",
    "views/crash_advice.py": "errors that a process printed",
    "views/node_gpus.py": "names of functions",
    "views/rank_logs.py": "paths of logs",
}
"""What modules of the core look for a pattern in. None of it is a sentence about an incident: causes are records."""


def test_no_sentence_is_taken_apart_in_the_core() -> None:
    core = ROOT / "monitor/rankwatch_monitor/core"
    found = {str(path.relative_to(core)) for path in core.rglob("*.py") if re.search(r"^import re$", text(path), re.M)}
    assert found == set(FOREIGN_TEXT)


LARGE_FUNCTIONS = {
    "monitor/rankwatch_monitor/core/incident/state_machine.py:_write",
    "monitor/rankwatch_monitor/core/job.py:Job.__init__",
    "monitor/rankwatch_monitor/core/straggler/state.py:Performance._reset_attempt",
    "monitor/rankwatch_monitor/service/monitor.py:Monitor.__init__",
    "telemetry/rankwatch/faults/inject.py:simulate",
    "telemetry/rankwatch/integrations/lightning/stragglers.py:StragglerDetectionCallback.__init__",
    "telemetry/rankwatch/rerun/state_machine.py:RerunStateMachine.__init__",
    "telemetry/rankwatch/session.py:init",
}
"""Docs/adr/0015 has the reason of each."""
LONGEST, WIDEST = 60, 7


def functions(inside: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(inside):
        name = f"{scope}{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if name else scope)


def is_large(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
        return set(range(min(each.lineno for each in (node, *node.decorator_list)), (node.end_lineno or 0) + 1))

    nested = [lines(node) for _, node in functions(function)]
    own = set(range(function.lineno, (function.end_lineno or 0) + 1)).difference(*nested)
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    width = len(names) - (names[:1] in (["self"], ["cls"])) + (given.vararg is not None) + (given.kwarg is not None)
    return len(own) > LONGEST or width > WIDEST


def test_every_function_is_small_or_has_a_reason() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in named(".py")
        if str(path.relative_to(ROOT)).startswith(("telemetry/", "monitor/", "launcher/"))
        for name, function in functions(ast.parse(text(path)))
        if is_large(function)
    }
    assert found == LARGE_FUNCTIONS


def test_the_lock_file_leaves_the_registry_to_the_machine() -> None:
    locks = named("package-lock.json")
    assert locks, "the web page has no package-lock.json"
    for lock in locks:
        packages = json.loads(lock.read_text())["packages"]
        hosts = sorted(name for name, entry in packages.items() if "://" in entry.get("resolved", ""))
        assert not hosts, f"{lock}: made without `omit-lockfile-registry-resolved=true`"


def test_constraints_are_exact_and_name_no_place() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", pin)] == []
    names = [re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins]
    assert len(names) == len(set(names)), "a package is pinned twice"


def test_what_pyproject_asks_for_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["project"]["dependencies"],
        *(item for extra in ("monitor", "torch") for item in project["project"]["optional-dependencies"][extra]),
        *(item for item in project["dependency-groups"]["dev"] if isinstance(item, str)),
        *project["dependency-groups"]["manual"],
        *project["build-system"]["requires"],
    ]
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in text(ROOT / "constraints.txt").splitlines()}
    wanted = {re.split(r"[\[<>=!~; ]", item)[0].lower().replace("_", "-") for item in asked} - {"rankwatch"}
    assert wanted - pinned == set()


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert rankwatch.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize(("subject", "passes"), [("Name the rank", True), ("x" * 72, True), ("x" * 73, False)])
def test_a_commit_with_a_long_subject_is_refused(tmp_path: Path, subject: str, passes: bool) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nBecause.\n# comment\n")
    done = subprocess.run([ROOT / "scripts" / "check_message.sh", message], capture_output=True, check=False)
    assert (done.returncode == 0) is passes
    message.write_text(f"{subject}\nno empty line\n")
    assert subprocess.run([ROOT / "scripts" / "check_message.sh", message], capture_output=True, check=False).returncode


def test_the_checks_before_a_commit_are_those_of_make() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    make = (ROOT / "Makefile").read_text()
    for command in ("ruff check", "ruff format --check", "lint-imports", "pytest -q tests/test_repository.py"):
        assert command in hooks
        assert command in make


def test_workflows_call_continuous_integration_and_make() -> None:
    workflows = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert "bash .ci/run" in workflows["ci.yml"]
    assert "make release" in workflows["release.yml"]


def test_the_licence_is_the_one_that_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licence = (ROOT / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_make_has_the_promised_targets_and_explains_each() -> None:
    described = set(re.findall(r"^([a-z-]+):.*## \S", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert described == set(TARGETS)


def test_long_tests_are_marked_where_make_looks_for_them() -> None:
    marked = [path for path in named(".py") if re.search(r"mark\.long\b", text(path))]
    assert all(path.name.startswith("test_") for path in marked), marked


def test_continuous_integration_runs_the_contributors_own_commands() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    ran = re.findall(r"^run make (.+)$", script.read_text(), flags=re.MULTILINE)
    assert ran == ["dev", "check", "test", "test-long PYTEST_ARGS=--turns=3"]


def test_the_readme_gives_the_two_commands_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any("make demo" in line for line in lines[:15]), "the first command stands by line 15"
    assert any("make test" in line for line in lines)
    assert sum(len(line.split()) for line in lines) <= 500


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("console", ("watching", "SUSPECT", "HANG", "restarting all ranks", "BACK", "DONE")),
        ("diagnose", ("IN TROUBLE", "rank 1", "ranks 0, 2-3", "Stacks, innermost first", "What to do", "kill ")),
    ],
)
def test_the_moving_pictures_are_small_and_have_the_words_of_the_console(name: str, words: tuple[str, ...]) -> None:
    picture = ROOT / "docs" / f"{name}.svg"
    drawn = "".join(ElementTree.parse(picture).getroot().itertext())
    assert picture.stat().st_size < 1 << 20
    assert [word for word in words if word not in drawn] == []


def test_documents_name_only_commands_that_exist() -> None:
    spoken = re.compile(r"(?:^\s*(?:\$ )?|`)make ([a-z][a-z-]*)", flags=re.MULTILINE)
    unknown = [
        f"{where(path, hit.start(1))}: make {hit[1]}"
        for path in named(".md")
        for hit in spoken.finditer(text(path))
        if hit[1] not in TARGETS
    ]
    assert not unknown


def test_links_between_documents_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)[^)]*\)")
    broken = [
        f"{where(path, hit.start())}: {hit[1]}"
        for path in named(".md")
        for hit in link.finditer(text(path))
        if not (path.parent / hit[1]).exists()
    ]
    assert not broken


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    folder = ROOT / "docs" / "adr"
    decisions = sorted(folder.glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(len(decisions)))
    listed = (folder / "README.md").read_text()
    assert [path.name for path in decisions if f"]({path.name})" not in listed] == []
