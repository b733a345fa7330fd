"""Writes locks/*.txt: the packages of each set with the hashes of their files, for ``pip install --require-hashes``.

``python scripts/lock.py`` writes them with ``uv`` from the versions of constraints.txt, for Linux and Python 3.11.
torch and the GPU packages it brings are left out: which build of a version is served, CPU or CUDA, depends on the
index, and each build has other hashes. Their versions stay pinned by constraints.txt.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "locks"
WITHOUT: Final = re.compile(r"torch|triton|nvidia-(?!ml-py$).*|cuda-.*")
"""Normalized names that no lock has."""
HEAD: Final = """\
# Made by scripts/lock.py from pyproject.toml and constraints.txt, for {what}.
# Linux, Python 3.11. Without torch and its GPU packages, whose hashes depend on the index that serves the build.
"""
SETS: Final = {
    "base": ("a rank", ("rankwatch",)),
    "monitor": ("the image of the monitor", ("rankwatch[monitor,postgresql]",)),
    "demo": ("the image of the demo", ("rankwatch[torch]",)),
    "dev": ("development and tests", ("group:dev", "group:demo")),
    "build": ("the build of the wheel in the images", ("build-system", "pip")),
    "manual": ("the build of the manual in the image of the monitor", ("group:manual",)),
}


def requirements(asked: Sequence[str]) -> list[str]:
    """The requirements of other projects that ``asked`` comes to, sorted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return sorted(set(_expand(asked, project)))


def name_of(requirement: str) -> str:
    """The normalized name of a requirement or a pin."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


def _expand(asked: Sequence[str], project: dict[str, Any]) -> Iterator[str]:
    for each in asked:
        own = re.fullmatch(r"rankwatch(?:\[(.+)\])?", each)
        if own:
            yield from _expand(project["project"]["dependencies"], project)
            for extra in (own[1] or "").split(","):
                yield from _expand(project["project"]["optional-dependencies"].get(extra.strip(), ()), project)
        elif each.startswith("group:"):
            group = project["dependency-groups"][each.removeprefix("group:")]
            included = (entry if isinstance(entry, str) else f"group:{entry['include-group']}" for entry in group)
            yield from _expand(tuple(included), project)
        elif each == "build-system":
            yield from _expand(project["build-system"]["requires"], project)
        else:
            yield each


def lock(uv: str, what: str, asked: Sequence[str]) -> str:
    """The content of one lock.

    Raises:
        CalledProcessError: uv cannot resolve the set.
    """
    command = [
        *(uv, "pip", "compile", "-", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"),
        *("--python-version", "3.11", "--python-platform", "x86_64-unknown-linux-gnu", "--allow-unsafe"),
        *("--constraint", str(ROOT / "constraints.txt")),
    ]
    done = subprocess.run(command, input="\n".join(requirements(asked)), capture_output=True, text=True, check=True)
    pins = re.split(r"\n(?=\S)", done.stdout.strip())
    kept = [pin for pin in pins if not WITHOUT.fullmatch(name_of(pin))]
    return HEAD.format(what=what) + "\n".join(kept) + "\n"


def main() -> int:
    """Write all locks; 1 if that is impossible."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    uv = shutil.which("uv")
    if uv is None:
        print("uv is missing: pip install uv", file=sys.stderr)  # noqa: T201
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name, (what, asked) in SETS.items():
        try:
            (FOLDER / f"{name}.txt").write_text(lock(uv, what, asked))
        except subprocess.CalledProcessError as error:
            print(f"{name}: {error.stderr}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
