"""Python imports a module of this name at its start. This one parks the interpreter, or prepares a rank, or both.

==============  ====================================================================================================
parked          the launcher has started it to wait for a later attempt (``child.py`` beside this folder)
watched         the script is run by ``rankwatch run --auto`` (``bootstrap.py`` beside this folder)
stand-in        ``rankwatch run --stand-in nvrx``: imports of another package find Rankwatch
==============  ====================================================================================================

Only an interpreter that the launcher starts for one of these finds it: PYTHONPATH names this folder for it alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Final

EXIT_HOOK_FAILED: Final = 70
PARK: Final = "RANKWATCH_PARKED"
AUTO: Final = "RANKWATCH_AUTO_PARENT"
STAND_IN: Final = "RANKWATCH_STAND_IN"
_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))


def _park() -> ImportError | None:
    source = os.path.join(os.path.dirname(_FOLDER), "child.py")
    try:
        spec = importlib.util.spec_from_file_location("_rankwatch_parked", source)
        assert spec is not None
        assert spec.loader is not None
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        left: ImportError | None = program.park(_FOLDER)
    except BaseException as error:  # noqa: BLE001 - whatever it is, site would report it and go on to run the script
        sys.stderr.write(f"parking failed: {type(error).__name__}: {error}\n")
        os._exit(EXIT_HOOK_FAILED)
    return left


def _forget() -> None:
    """Take back what brought us here: neither the script nor what it starts is to see it."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)
    entries = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    if rest := [entry for entry in entries if entry != _FOLDER]:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)


def _other_sitecustomize() -> ImportError | None:
    """The machine's own runs first, as it does in a fresh process; what it raises is for site to deal with."""
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        return error
    return None


def _watch() -> None:
    try:
        from rankwatch.integrations.autorun import attach
    except ImportError as error:
        sys.stderr.write(f"--auto needs rankwatch in the Python that runs the script ({sys.executable}): {error}\n")
        return
    attach.begin()


def _stand_in() -> None:
    try:
        from rankwatch.integrations.nvrx import stand_in
    except ImportError as error:
        words = f"--stand-in needs rankwatch in the Python that runs the script ({sys.executable}): {error}\n"
        sys.stderr.write(words)
        return
    stand_in.install_as_asked()


_left: ImportError | None = None
_parks = PARK in os.environ
if _parks:
    _left = _park()
_auto = os.environ.pop(AUTO, "")
_stands_in = bool(os.environ.get(STAND_IN))
if not _parks or _auto or _stands_in:
    _forget()
if not _parks:
    _left = _other_sitecustomize()
if _stands_in:
    _stand_in()
if _auto == str(os.getppid()):
    _watch()
if _left is not None:
    # What the import of the machine's own sitecustomize raised. "There is none" is the usual case; site expects it.
    raise _left
