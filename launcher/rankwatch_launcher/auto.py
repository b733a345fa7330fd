"""``--auto``: the environment with which a rank's interpreter watches a script that was never touched.

Python looks into PYTHONPATH for a module ``sitecustomize`` before it opens the script; ours is in ``hook/``. It begins
in the process that the launcher has started, and in none that this starts: those see an environment without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HOOK: Final = Path(__file__).parent / "hook"
VARIABLE: Final = "RANKWATCH_AUTO_PARENT"
"""Process id of the launcher. A process that has another parent is not the rank."""


def hooked(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank that is to be watched without a line of its script."""
    path = environment.get("PYTHONPATH", "")
    return {
        **environment,
        "PYTHONPATH": f"{HOOK}{os.pathsep}{path}" if path else str(HOOK),
        VARIABLE: str(os.getpid()),
    }
