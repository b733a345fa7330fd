"""Writes the exception that ends a rank into torch's error file, where its launcher reads why the rank exited.

The file and its format are those of ``torch.distributed.elastic.multiprocessing.errors.record``, whose own file is left
as it is. Standard library only, and without imports of this package: the launcher's ``sitecustomize`` loads this file
by itself, in ranks whose scripts do not use Rankwatch.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torch's agent sets it for each rank."""
MAX_MESSAGE = 4_000
MAX_TRACEBACK = 60_000
MAX_FRAMES = 64
"""Innermost frames of each traceback of the chain."""
_MARK = "_rankwatch_error_file"
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Of OSError: a path is wrong. The others are about a file system or a network, which may recover."""


def install() -> None:
    """Write uncaught exceptions of this process into its error file, before the present hook prints them.

    Does nothing without such a file, and in a process that does so already. Never raises.
    """
    path, plain, pid = os.environ.get(ERROR_FILE), sys.excepthook, os.getpid()
    if not path or getattr(plain, _MARK, None) == path:
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        if os.getpid() == pid and issubclass(kind, Exception):  # neither a forked child nor Ctrl-C
            _write(path, kind, error, trace)
        return plain(kind, error, trace)

    setattr(excepthook, _MARK, path)
    sys.excepthook = excepthook


def _write(path: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        import json  # loaded only when the process ends anyway
        import traceback

        try:
            text = f"{kind.__name__}: {error}"
        except Exception:  # noqa: BLE001 - a __str__ of the script
            text = kind.__name__
        shown = "".join(traceback.format_exception(kind, error, trace, limit=-MAX_FRAMES))
        extra = {"py_callstack": shown[-MAX_TRACEBACK:], "timestamp": str(int(time.time()))}
        more = {"at": time.time(), "passing": isinstance(error, OSError) and not isinstance(error, _LASTING)}
        body = {"message": {"message": text[:MAX_MESSAGE], "extraInfo": extra, "rankwatch": more}}
        if not os.path.exists(path):
            made = f"{path}.{os.getpid()}"
            with open(made, "w") as file:
                json.dump(body, file)
            os.replace(made, path)  # read while this process still runs
    except Exception:  # noqa: BLE001 - the exception of the script must be printed in any case
        pass
