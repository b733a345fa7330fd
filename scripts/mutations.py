"""Breaks single lines of the product, which the short tests must notice: ``python scripts/mutations.py [NAME ...]``.

Each entry of ``mutations.toml`` names a line, what it is replaced by, and the tests that must fail then. The tracked
files are copied to a temporary folder; there the tests first run unchanged and must pass, then once with each mutation.
A mutation *survives* if they still pass: the exit status is 1, and a test is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
MUTATIONS: Final = Path(__file__).with_suffix(".toml")
PRODUCT: Final = ("telemetry", "monitor", "launcher")
PAGE: Final = Path("monitor/rankwatch_monitor/web")
SECONDS: Final = 120.0
"""A mutation may make the product wait for ever, which the tests notice, too."""


class Mutation(NamedTuple):
    """One line of the product, and what it is replaced by."""

    name: str
    file: Path
    line: str
    """Without indentation; it is in the file once."""
    mutated: str
    tests: tuple[str, ...]
    """Some of which must fail: arguments of pytest, or files of the page's tests."""


def read(text: str) -> list[Mutation]:
    """The mutations of a TOML document: one table a mutation, by its name."""
    return [
        Mutation(name, Path(each["file"]), each["line"], each["mutated"], tuple(each["tests"]))
        for name, each in tomllib.loads(text).items()
    ]


def mutated(source: str, mutation: Mutation) -> str:
    """The source with the line replaced.

    Raises:
        ValueError: the line is not in it exactly once.
    """
    lines = source.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if line.strip() == mutation.line]
    if len(found) != 1:
        raise ValueError(f"{mutation.name}: the line is {len(found)} times in {mutation.file}: {mutation.line}")
    lines[found[0]] = lines[found[0]].replace(mutation.line, mutation.mutated)
    return "".join(lines)


def copy(root: Path, to: Path) -> None:
    """Copy the tracked files, and link what ``make`` has built of the page."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)
    for built in (PAGE / "static", PAGE / "manual", PAGE / "source/node_modules"):
        (to / built).symlink_to(root / built)


def environment(copied: Path) -> Mapping[str, str]:
    """The environment in which the copy is imported, with its bytecode beside it."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    imported = os.pathsep.join(str(copied / each) for each in PRODUCT)
    return {**os.environ, "PATH": path, "PYTHONPATH": imported, "PYTHONPYCACHEPREFIX": str(copied / "build")}


def passes(tests: Iterable[str], copied: Path) -> bool:
    """Whether these tests pass in the copy.

    Raises:
        RuntimeError: they could not be run.
    """
    ours, of_page = [], []
    for test in tests:
        (of_page if test.endswith(".ts") else ours).append(test)
    try:
        return all(_succeeds(command, folder, copied) for command, folder in _commands(ours, of_page, copied))
    except subprocess.TimeoutExpired:
        return False


def _commands(ours: Sequence[str], of_page: Sequence[str], copied: Path) -> Iterator[tuple[Sequence[str], Path]]:
    if ours:
        yield [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *ours], copied
    if of_page:
        source = copied / PAGE / "source"
        bundle = ["node", "node_modules/vite/bin/vite.js", "build", "--config", "vite.tests.ts", "--outDir", "build"]
        subprocess.run(bundle, cwd=source, env=environment(copied), check=True, capture_output=True)
        yield ["node", "--test", *(f"build/{Path(test).stem}.js" for test in of_page)], source


def _succeeds(command: Sequence[str], folder: Path, copied: Path) -> bool:
    done = subprocess.run(
        command, cwd=folder, env=environment(copied), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.returncode == 0


@contextmanager
def applied(mutation: Mutation, copied: Path) -> Iterator[None]:
    """The mutation in the copy, until the block ends."""
    file = copied / mutation.file
    before = file.read_text()
    file.write_text(mutated(before, mutation))
    try:
        yield
    finally:
        file.write_text(before)


def main() -> int:
    """Run the mutations, print a table, and return how many survived."""
    parser = argparse.ArgumentParser(description="Break single lines; the short tests must notice.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="run these mutations only")
    names = parser.parse_args().names
    mutations = [each for each in read(MUTATIONS.read_text()) if not names or each.name in names]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copied = Path(folder)
        copy(ROOT, copied)
        if not passes(sorted({test for each in mutations for test in each.tests}), copied):
            print("the tests fail without a mutation")
            return 1
        width = max((len(each.name) for each in mutations), default=0)
        for each in mutations:
            begin = time.monotonic()
            with applied(each, copied):
                caught = not passes(each.tests, copied)
            survived += not caught
            word = "caught" if caught else "SURVIVED"
            print(f"{each.name:<{width}}  {word:<8}  {time.monotonic() - begin:5.1f} s", flush=True)
    print(f"{len(mutations) - survived} of {len(mutations)} were caught")
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
