"""Builds the manual, which the monitor serves at ``/manual``: ``python scripts/build_manual.py [FOLDER]``.

Separate from the build of the page, since it needs other tools: a build of the wheel calls :func:`requirements` and
:func:`build`. An sdist carries the built manual, so a wheel that is made from one needs neither.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MANUAL: Final = Path("monitor", "rankwatch_monitor", "web", "manual")
TOOLS: Final = ("mkdocs-material>=9.6,<10", "mkdocstrings[python]>=1.0,<2")
SOURCES: Final = ("mkdocs.yml", "scripts/manual_hooks.py", "docs", "telemetry/rankwatch")
SUFFIXES: Final = (".md", ".py", ".yml", ".css", ".js", ".png")


def requirements(root: Path = ROOT) -> list[str]:
    """The packages that :func:`build` needs; none if the manual is up to date."""
    return [] if up_to_date(root) else list(TOOLS)


def build(root: Path = ROOT, folder: Path | None = None) -> bool:
    """Build the manual into ``folder``, by default where the monitor looks for it, unless it is up to date there.

    Returns:
        Whether there is a manual now; False where the tools are not installed.

    Raises:
        SystemExit: a link leads nowhere, a page is missing, or a signature cannot be read.
    """
    if folder is None and up_to_date(root):
        return True
    if find_spec("mkdocs") is None or find_spec("material") is None or find_spec("mkdocstrings") is None:
        return False
    target = folder or root / MANUAL
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    # Material announces its successor in red at every build; the versions are pinned.
    done = subprocess.run(command, cwd=root, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode:
        raise SystemExit("rankwatch: the manual cannot be built; the lines above name the pages")
    (target / "index.html").touch()
    return True


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
    if not build(folder=Path(sys.argv[1]).resolve() if sys.argv[1:] else None):
        raise SystemExit(f"rankwatch: the manual needs {' and '.join(TOOLS)}")
