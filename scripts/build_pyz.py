"""Makes ``rankwatch.pyz`` of a wheel: one file that diagnoses where nothing is installed.

    python scripts/build_pyz.py dist/rankwatch-0.1.0-py3-none-any.whl dist/rankwatch.pyz [words for pip]

``python rankwatch.pyz diagnose`` needs Python 3.11 or newer and no more. The file holds Rankwatch without its page, and
what ``diagnose`` uses of others: numpy for every Python that Rankwatch runs on, py-spy, nvidia-ml-py and
typing_extensions, all for this machine's kind of processor. What is in none of them, such as the monitor's packages,
the command that needs it names.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
NATIVE: Final = "native/"
"""Of the archive: what has to lie in files."""
LEFT_OUT: Final = re.compile(
    r"rankwatch_monitor/web/(static|manual)/|numpy/(f2py|_pyinstaller|_core/include|_core/lib|random/lib)/"
    r"|/tests?/|\.pyi$|\.(a|h|pxd|pyx)$|\.data/(?!scripts/py-spy$)"
)
MAIN: Final = "scripts/pyz_main.py"


def main(wheel: str, archive: str, *pip: str) -> None:
    """Download what belongs into the archive, and write it."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    machine = platform.machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for version in PYTHONS:
            # glibc 2.28 is that of RHEL 8; the first names of a platform are those of older glibc.
            platforms = [w for tag in ("_2_28", "_2_27", "2014") for w in ("--platform", f"manylinux{tag}_{machine}")]
            which = ["--implementation", "cp", "--python-version", version, *platforms]
            _download(folder, [f"numpy=={pinned['numpy']}", *which, *pip])
        _download(
            folder, [f"{each}=={pinned[each]}" for each in ("py-spy", "nvidia-ml-py", "typing_extensions")] + list(pip)
        )
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
            made.write(ROOT / MAIN, "__main__.py")
            made.writestr(f"{NATIVE}machine", machine)
            for each in (Path(wheel), *sorted(folder.glob("*.whl"))):
                _add(made, each)
    content = Path(archive).read_bytes()
    Path(archive).write_bytes(b"#!/usr/bin/env python3\n" + content)
    Path(archive).chmod(0o755)


def _download(folder: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--only-binary=:all:", "--dest", str(folder), *words], check=True)


def _add(made: zipfile.ZipFile, wheel: Path) -> None:
    """Add a wheel's files; those of numpy for several Pythons are the same but for compiled ones."""
    there = set(made.namelist())
    with zipfile.ZipFile(wheel) as read:
        for name in read.namelist():
            if LEFT_OUT.search(name) or name.endswith("/"):
                continue
            if name.endswith("/py-spy"):
                place = f"{NATIVE}bin/py-spy"
            else:
                place = f"{NATIVE}{name}" if wheel.name.startswith("numpy") else name
            if place not in there:
                made.writestr(place, read.read(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
