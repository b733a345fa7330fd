"""The documents say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])


def test_the_reference_is_made_from_the_code_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_flag_of_ours_in_a_document_exists(document: Path) -> None:
    from rankwatch_launcher.cli.main import build_parser
    from rankwatch_monitor.settings import parser

    known = {
        "run": {option for action in build_parser()._actions for option in action.option_strings},
        "monitor": {option for action in parser()._actions for option in action.option_strings},
    }
    commands = re.findall(r"rankwatch (run|monitor)((?:[^\n`]|\\\n)*)", document.read_text())
    unknown = [
        (command, flag)
        for command, rest in commands
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.split(".py")[0])
        if flag not in known[command]
    ]
    assert not unknown
