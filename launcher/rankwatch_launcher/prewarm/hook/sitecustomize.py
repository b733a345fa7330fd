"""Imported by Python at startup: turns the interpreter into a prewarmed worker, prepares a rank, or both.

==============  ====================================================================================================
prewarmed       the launcher started it for a later attempt (``child.py`` beside this folder)
any rank        the exception that ends it is written into its error file
watched         ``rankwatch run --auto`` runs the script (``bootstrap.py`` beside this folder)
stand-in        ``rankwatch run --stand-in nvrx``: imports of another package find Rankwatch
==============  ====================================================================================================

Only interpreters that the launcher starts for one of these have this folder in PYTHONPATH.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Final

EXIT_HOOK_FAILED: Final = 70
WORKER: Final = "RANKWATCH_PREWARMED"
AUTO: Final = "RANKWATCH_AUTO_PARENT"
ERRORS: Final = "RANKWATCH_ERRORS_PARENT"
STAND_IN: Final = "RANKWATCH_STAND_IN"
_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))


def _serve() -> None:
    source = os.path.join(os.path.dirname(_FOLDER), "child.py")
    try:
        spec = importlib.util.spec_from_file_location("_rankwatch_prewarmed", source)
        assert spec is not None
        assert spec.loader is not None
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        program.serve()
    except BaseException as error:  # noqa: BLE001 - site would report it and run the script
        sys.stderr.write(f"the prewarmed worker failed: {type(error).__name__}: {error}\n")
        os._exit(EXIT_HOOK_FAILED)


def _remove_hook() -> None:
    """Remove the hook: neither the script nor its child processes see it."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)
    entries = os.environ.pop("PYTHONPATH", _FOLDER).split(os.pathsep)
    if rest := [entry for entry in entries if entry != _FOLDER]:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)


def _other_sitecustomize() -> ImportError | None:
    """Import the machine's own sitecustomize, as in a fresh process; return its ImportError for ``site``."""
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        return error
    return None


def _write_errors() -> None:
    """Load one file of Rankwatch, which imports nothing: the script may not use the rest."""
    try:
        package = importlib.util.find_spec("rankwatch")
        for folder in (package.submodule_search_locations or ()) if package is not None else ():
            source = os.path.join(folder, "liveness", "uncaught.py")
            spec = importlib.util.spec_from_file_location("_rankwatch_uncaught", source)
            if spec is not None and spec.loader is not None:
                program = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(program)
                program.install()
                return
    except Exception:  # noqa: BLE001 - the script must run in any case
        pass


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
        message = f"--stand-in needs rankwatch in the Python that runs the script ({sys.executable}): {error}\n"
        sys.stderr.write(message)
        return
    stand_in.install_as_asked()


_remove_hook()
_left = _other_sitecustomize()
if WORKER in os.environ:
    _serve()
    _remove_hook()  # the rank's environment may name it again
_auto, _errors = os.environ.pop(AUTO, ""), os.environ.pop(ERRORS, "")
_stands_in = bool(os.environ.get(STAND_IN))
if _errors == str(os.getppid()):
    _write_errors()
if _stands_in:
    _stand_in()
if _auto == str(os.getppid()):
    _watch()
if _left is not None:
    # The ImportError of the machine's own sitecustomize, usually because there is none; site expects it.
    raise _left
