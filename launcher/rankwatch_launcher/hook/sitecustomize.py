"""Python imports a module of this name at its start; this one parks the interpreter (see ``parked.py`` beside it).

Only an interpreter that the launcher starts to be parked finds it: PYTHONPATH names this folder for it alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Final

EXIT_HOOK_FAILED: Final = 70


def _park() -> ImportError | None:
    folder = os.path.dirname(os.path.abspath(__file__))
    source = os.path.join(os.path.dirname(folder), "parked.py")
    try:
        spec = importlib.util.spec_from_file_location("_rankwatch_parked", source)
        assert spec is not None
        assert spec.loader is not None
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        left: ImportError | None = program.park(folder)
    except BaseException as error:  # noqa: BLE001 - whatever it is, site would report it and go on to run the script
        sys.stderr.write(f"parking failed: {type(error).__name__}: {error}\n")
        os._exit(EXIT_HOOK_FAILED)
    return left


_left = _park()
if _left is not None:
    # What the import of the machine's own sitecustomize raised. "There is none" is the usual case; site expects it.
    raise _left
