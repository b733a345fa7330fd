"""The documents agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rankwatch.contract.policy import Policy

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("telemetry", "monitor", "launcher")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])


def test_the_reference_is_made_from_the_code_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_flag_of_ours_in_a_document_exists() -> None:
    from rankwatch_launcher.cli.main import build_parser
    from rankwatch_monitor.settings import parser

    known = {
        "run": {option for action in build_parser()._actions for option in action.option_strings},
        "monitor": {option for action in parser()._actions for option in action.option_strings},
    }
    used = [
        (str(document.relative_to(ROOT)), command, flag)
        for document in DOCUMENTS
        for command, rest in re.findall(r"rankwatch (run|monitor)((?:[^\n`]|\\\n)*)", document.read_text())
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.split(".py")[0])
    ]
    assert len(used) > 50, "the pattern no longer finds the commands in the documents"
    assert [use for use in used if use[2] not in known[use[1]]] == []


def test_every_module_that_a_map_of_the_code_names_is_there() -> None:
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("*/rankwatch*/**/*.py")}
    maps = ["README.md", "docs/architecture.md", "docs/glossary.md", *(f"{p}/README.md" for p in PACKAGES)]
    named = [
        (document, name)
        for document in maps
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / document).read_text())
    ]
    assert len(named) > 50, "the pattern no longer finds the modules in the documents"
    gone = [use for use in named if not any(f"/{module}".endswith(f"/{use[1]}") for module in modules)]
    assert gone == []


def test_long_pages_begin_with_their_answer_in_five_lines() -> None:
    looked_up = ("architecture", "benchmarks", "glossary", "python-api", "reference", "rest-api", "troubleshooting")
    without = [
        page.stem
        for page in (ROOT / "docs").glob("*.md")
        if (text := page.read_text()).count("\n") > 80
        and page.stem not in looked_up
        and not page.stem.startswith("quick-")
        and re.findall(r"^(\d)\. ", text.split("\n## ")[0], flags=re.MULTILINE)[:5] != list("12345")
    ]
    assert without == []


def test_a_first_install_is_from_git_or_a_wheel() -> None:
    """There is nothing on PyPI yet; by name only the extras of an installed Rankwatch are added."""
    pages = [ROOT / "README.md", ROOT / "docs" / "index.md", *(ROOT / "docs").glob("quick-*.md")]
    commands = [
        line for page in pages for line in page.read_text().splitlines() if re.match(r"\$ pip .*rankwatch", line)
    ]
    assert len(commands) >= len(pages) - 1
    assert [line for line in commands if "git+https://" not in line and ".whl" not in line] == []


def test_the_shortest_learned_limit_is_stated_as_it_is() -> None:
    stated = re.compile(
        r"never below ([\d.]+) s nor 5 steps|`--learned-minimum` \(([\d.]+) s\)|times the longest, ([\d.]+) s"
    )
    found = {
        number
        for page in DOCUMENTS
        for groups in stated.findall(" ".join(page.read_text().split()))
        for number in groups
        if number
    }
    assert found == {f"{Policy().learned_minimum:g}"}


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page outside of blocks, tables and quotations, without names in code and targets of links."""
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "\n\n", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) |[#|])", text):
        if not block.lstrip().startswith(("#", "|", ":::", ">", "!")):
            yield from re.split(r"(?<=[.?!])[)*]* (?=[^a-z])", " ".join(block.split()))


def test_no_sentence_of_a_page_has_more_than_35_words() -> None:
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.stem not in ("reference", "rest-api")]
    found = [(page.stem, sentence) for page in pages for sentence in sentences(page.read_text())]
    assert len(found) > 1000, "the pattern no longer finds the sentences"
    assert [each for each in found if len(re.findall(r"[^\sX]*[a-z0-9]\S*", each[1])) > 35] == []
