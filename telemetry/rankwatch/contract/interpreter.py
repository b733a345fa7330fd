"""The command line of every interpreter that Rankwatch starts for itself."""

from __future__ import annotations

import sys

archive: str | None = None
"""The file that Rankwatch runs from, where it is not installed: ``rankwatch.pyz``, which sets this."""


def own_python(*arguments: str) -> list[str]:
    """This Python with ``arguments``, never with the current folder in ``sys.path``.

    With ``-m`` and ``-c`` Python looks there first, so whoever may write to the folder that a command is typed in would
    give it the package to run.
    """
    return [sys.executable, "-P", *([archive] if archive else []), *arguments]


def isolated_python(code: str, *arguments: str, python: str | None = None) -> list[str]:
    """``python``, else this one, that runs ``code``, which imports nothing but the standard library.

    Pythons before 3.11 have -I but not -P: so what ``code`` starts can say that they are too old.
    """
    return [python or sys.executable, "-I", "-c", code, *arguments]
