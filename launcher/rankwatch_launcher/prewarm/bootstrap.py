"""Runs code in a rank's interpreter before its script, by way of its environment.

Python imports a module ``sitecustomize`` from PYTHONPATH before it opens the script; ours is in ``hook/``. It acts only
in the process that the launcher started: processes that this one starts get an environment without it.

==================  ================================================================================================
always              an exception that ends the rank is written into its error file, without an import of Rankwatch
                    (:mod:`rankwatch.liveness.uncaught`)
``--auto``          the script is watched without changes to it (:mod:`rankwatch.integrations.autorun.attach`)
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
"""Process id of the launcher. A process with another parent is not the rank."""
ERRORS: Final = "RANKWATCH_ERRORS_PARENT"
"""The same, of a rank whose uncaught exception is written down."""
STAND_IN: Final = "RANKWATCH_STAND_IN"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What runs before the script."""

    auto: bool = False
    stand_in: str = ""
    errors: bool = False

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The rank's environment with it."""
        made = dict(environment)
        if self.auto:
            made[AUTO] = str(os.getpid())
        if self.stand_in:
            made[STAND_IN] = self.stand_in
        if self.errors:
            made[ERRORS] = str(os.getpid())
        return with_hook(made) if self.auto or self.stand_in or self.errors else made


def with_hook(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the folder of the hook first in PYTHONPATH."""
    path = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": f"{HOOK}{os.pathsep}{path}" if path else str(HOOK)}
