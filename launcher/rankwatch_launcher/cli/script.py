"""Refuses a script that no rank could run, before anything is started."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rankwatch.contract.enums import NoRestart
from rankwatch.contract.text import did_you_mean, one_line

COMPILED: Final = (".pyc", ".pyz", ".zip")


class Mistake(NamedTuple):
    """What is wrong with the script, and as what it counts."""

    what: str
    kind: NoRestart


def mistake(args: argparse.Namespace, env: Mapping[str, str]) -> Mistake | None:
    """What is wrong with the script, module or program; None: nothing that can be known before it runs.

    Another interpreter (``PYTHON_EXEC``) may find other modules, and compile what this one does not.
    """
    name, another = str(args.training_script), bool(env.get("PYTHON_EXEC"))
    if args.no_python:
        found = shutil.which(name) is not None
        return None if found else Mistake(f"there is no program {name!r}", NoRestart.SCRIPT_MISSING)
    if args.module:
        top = name.partition(".")[0]
        missing = not another and not _has_module(top)
        return Mistake(f"there is no module {top!r}", NoRestart.SCRIPT_MISSING) if missing else None
    return _of_file(Path(name), compiles=not another)


def _has_module(name: str) -> bool:
    """Whether ``python -m`` would find it; nothing is imported."""
    here = importlib.machinery.PathFinder.find_spec(name, [os.getcwd(), *sys.path])
    try:
        return here is not None or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a module without a spec: it is there
        return name in sys.modules


def _of_file(path: Path, *, compiles: bool) -> Mistake | None:
    if not path.exists():
        beside = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        return Mistake(f"there is no script {str(path)!r}{did_you_mean(path.name, beside)}", NoRestart.SCRIPT_MISSING)
    if path.is_dir():
        main = path / "__main__.py"
        missing = Mistake(f"{str(path)!r} is a folder without a __main__.py", NoRestart.SCRIPT_MISSING)
        return _of_file(main, compiles=compiles) if main.exists() else missing
    try:
        source = path.read_bytes()
    except OSError as error:
        return Mistake(f"the script {str(path)!r} cannot be read: {error.strerror or error}", NoRestart.SCRIPT_MISSING)
    if not compiles or path.suffix in COMPILED or zipfile.is_zipfile(path):
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        what = one_line(f"{path}:{error.lineno or 1}: {error.msg}{line}", 300)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
        what = f"{path}: {error}"
    else:
        return None
    return Mistake(f"the script does not compile: {what}", NoRestart.SCRIPT_BROKEN)
