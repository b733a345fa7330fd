"""What happens in a rank's interpreter before the first line of its script, and the environment that brings it about.

Python looks into PYTHONPATH for a module ``sitecustomize`` before it opens the script; ours is in ``hook/``. It does
its work in the process that the launcher has started, and in none that this one starts: what they see is without it.

==================  ================================================================================================
``--auto``          the script is watched without a line of it (:mod:`rankwatch.integrations.autorun.attach`)
``--stand-in``      imports of another package find Rankwatch (:mod:`rankwatch.integrations.nvrx.stand_in`)
==================  ================================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOOK: Final = Path(__file__).parent / "hook"
AUTO: Final = "RANKWATCH_AUTO_PARENT"
"""Process id of the launcher. A process that has another parent is not the rank."""
STAND_IN: Final = "RANKWATCH_STAND_IN"
STAND_INS: Final = ("nvrx",)
"""Packages that Rankwatch can stand in for, by the names that people give them."""


@dataclass(frozen=True, slots=True)
class FirstLine:
    """What is to be done before it."""

    auto: bool = False
    stand_in: str = ""

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a rank in which it is done."""
        made = dict(environment)
        if self.auto:
            made[AUTO] = str(os.getpid())
        if self.stand_in:
            made[STAND_IN] = self.stand_in
        if self.auto or self.stand_in:
            path = made.get("PYTHONPATH", "")
            made["PYTHONPATH"] = f"{HOOK}{os.pathsep}{path}" if path else str(HOOK)
        return made


def stand_in(text: str) -> str:
    """The name of a package to stand in for; empty: none.

    Raises:
        ValueError: Rankwatch cannot stand in for it.
    """
    name = text.strip().lower()
    if name in ("", "none", "off"):
        return ""
    if name not in STAND_INS:
        raise ValueError(f"Rankwatch can stand in for {', '.join(STAND_INS)} (nvidia-resiliency-ext), not for {text!r}")
    return name
