"""The first program of ``rankwatch.pyz``: puts what has to lie in files into a folder of its own, and runs the command.

``python rankwatch.pyz -m MODULE`` runs a module of the archive, as ``python -m MODULE`` does where it is installed.
"""

from __future__ import annotations

import os
import platform
import runpy
import signal
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NATIVE: Final = "native/"
ARCHIVE: Final = os.path.abspath(sys.path[0])


def main() -> None:
    """Run the command."""
    if sys.version_info < (3, 11):  # noqa: UP036 - nothing has checked that before, as pip would have
        sys.exit(f"rankwatch needs Python 3.11 or newer; this is {platform.python_version()}")
    from rankwatch.contract import interpreter
    from rankwatch.contract.files import find_program

    sys.path[0] = interpreter.archive = ARCHIVE
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # below nohup it is ignored
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    arguments = sys.argv[1:]
    collects = arguments[:1] == ["-m"] or "--report" in arguments
    wanted = [] if collects or find_spec("numpy") is not None else ["numpy/", "numpy.libs/"]
    wanted += [] if find_program("py-spy") else ["bin/"]
    with tempfile.TemporaryDirectory(prefix="rankwatch-pyz-", dir=folder()) as name:
        extract(Path(name), wanted)
        sys.path.append(name)
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{name}/bin"
        if arguments[:1] == ["-m"]:
            sys.argv[:] = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            from rankwatch.cli.main import main as command

            sys.exit(command(arguments))


def folder() -> str | None:
    """Where temporary files may be executed; None: nobody knows such a place."""
    places = (tempfile.gettempdir(), "/dev/shm", os.path.expanduser("~/.cache"), os.path.expanduser("~"))
    return next((each for each in places if usable(each)), None)


def usable(path: str) -> bool:
    """Whether programs may be written to a folder and run there."""
    try:
        return os.access(path, os.W_OK) and not os.statvfs(path).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def extract(place: Path, wanted: list[str]) -> None:
    """Write these parts of the archive, without what is compiled for another Python."""
    own = f".cpython-{sys.version_info.major}{sys.version_info.minor}-"
    with zipfile.ZipFile(ARCHIVE) as archive:
        if wanted and (machine := archive.read(f"{NATIVE}machine").decode()) != platform.machine():
            sys.exit(f"{ARCHIVE} is for {machine}, and this is {platform.machine()}")
        for name in archive.namelist():
            part = name.removeprefix(NATIVE)
            if part == name or not part.startswith(tuple(wanted)) or (".cpython-" in part and own not in part):
                continue
            file = place / part
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(name))
            file.chmod(0o700 if part.startswith("bin/") else 0o600)


main()
