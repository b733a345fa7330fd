"""The command line of every interpreter that Rankwatch starts for itself."""

from __future__ import annotations

import sys


def own_python(*arguments: str) -> list[str]:
    """This Python with ``arguments``, never with the current folder in ``sys.path``.

    With ``-m`` and ``-c`` Python looks there first, so whoever may write to the folder that a command is typed in would
    give it the package to run.
    """
    return [sys.executable, "-P", *arguments]
