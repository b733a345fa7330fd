"""Builds the manual, which the monitor serves at ``/manual``: ``python scripts/build_manual.py [FOLDER]``.

Builds of wheels and sdists call :func:`requirements` and :func:`build`, so that every installation has the manual of
its own version. As with the page, such a build fails if the manual cannot be built: an installation that lacks it would
be noticed much later, by a reader. ``RANKWATCH_BUILD_MANUAL=0`` takes the manual as it is, or none; ``rankwatch
doctor`` and the first lines of the monitor's log then state that it is missing. The build is strict only in ``make
docs``: a link that leads nowhere is a contributor's concern and stops no installation. An sdist carries the built
manual, so a wheel that is made from one needs none of the tools.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MANUAL: Final = Path("monitor", "rankwatch_monitor", "web", "manual")
SOURCES: Final = ("mkdocs.yml", "scripts/manual_hooks.py", "docs", "telemetry/rankwatch")
SUFFIXES: Final = (".md", ".py", ".yml", ".css", ".js", ".png")
SWITCH: Final = "RANKWATCH_BUILD_MANUAL"
"""``0`` takes the manual as it is, or none."""
MEND: Final = (
    f"Give the build {{tools}}, install a wheel that has been built already, or set {SWITCH}=0 for a monitor without a "
    "manual."
)


def requirements(root: Path = ROOT) -> list[str]:
    """The packages that :func:`build` needs, in the versions of the strict build; none if there is nothing to build."""
    return [] if os.environ.get(SWITCH) == "0" or up_to_date(root) else tools(root)


def tools(root: Path = ROOT) -> list[str]:
    """The group ``manual`` of pyproject.toml, pinned by constraints.txt."""
    asked = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]["manual"]
    constraints = root / "constraints.txt"
    lines = constraints.read_text().splitlines() if constraints.is_file() else []
    pins = {line.partition("==")[0].lower(): line.partition("==")[2] for line in lines if "==" in line}
    names = [re.split(r"[<>=!~; ]", each)[0] for each in asked]
    versions = [pins.get(name.partition("[")[0].lower()) for name in names]
    return [
        each if version is None else f"{name}=={version}"
        for each, name, version in zip(asked, names, versions, strict=True)
    ]


def build(root: Path = ROOT, folder: Path | None = None, *, strict: bool = False) -> None:
    """Build the manual into ``folder``, by default where the monitor looks for it, unless it is up to date there.

    Raises:
        SystemExit: it cannot be built; the message has the reason and the remedy. With ``strict`` that includes a link
            that leads nowhere, a page without an entry in ``nav``, and a signature that cannot be read.
    """
    if folder is None and (os.environ.get(SWITCH) == "0" or up_to_date(root)):
        return
    mend = MEND.format(tools=" and ".join(tools(root)))
    missing = [name for name in ("mkdocs", "material", "mkdocstrings") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"rankwatch: the manual cannot be built: no module {missing[0]}. {mend}")
    with tempfile.TemporaryDirectory(prefix="rankwatch-manual-") as made:  # a build that fails leaves no half of it
        site = Path(made, "manual")
        command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
        command += ["--strict"] if strict else ["--no-strict", "--quiet"]  # with --quiet no warning is counted
        # Material announces its successor in red at every build; the versions are pinned.
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO")]
            last = "\n".join(said[-20:]).strip()
            raise SystemExit(
                f"rankwatch: the manual cannot be built: mkdocs exited with {done.returncode}:\n{last}\n{mend}"
            )
        target = folder or root / MANUAL
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(site, target)
    (target / "index.html").touch()


def up_to_date(root: Path = ROOT) -> bool:
    """Whether the built manual is there and, except in an sdist, newer than its sources."""
    home = root / MANUAL / "index.html"
    if not home.is_file() or (root / "PKG-INFO").is_file():  # unpacking an sdist leaves no meaningful times
        return home.is_file()
    built = home.stat().st_mtime
    paths = [root / source for source in SOURCES]
    files = [*paths, *(file for path in paths for file in path.rglob("*"))]
    return all(file.stat().st_mtime <= built for file in files if file.suffix in SUFFIXES)


if __name__ == "__main__":
    build(folder=Path(sys.argv[1]).resolve() if sys.argv[1:] else None, strict=True)
