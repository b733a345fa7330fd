"""The machine of a process, by the names that Megatron's code calls; and Megatron's own code pointed at it."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any, Final

from rankwatch.rerun.state_machine import RerunStateMachine

MODULE: Final = "megatron.core.rerun_state_machine"

_log = logging.getLogger("rankwatch")
_machine: RerunStateMachine | None = None


def initialize_rerun_state_machine(**settings: Any) -> None:
    """Make the machine of this process, with the settings of :class:`RerunStateMachine`.

    Raises:
        RuntimeError: there is one already.
    """
    global _machine
    if _machine is not None:
        raise RuntimeError("there is a re-run state machine already; call destroy_rerun_state_machine() first")
    _machine = RerunStateMachine(**settings)


def destroy_rerun_state_machine() -> None:
    """Forget the machine of this process."""
    global _machine
    _machine = None


def get_rerun_state_machine() -> RerunStateMachine:
    """The machine of this process; one in mode ``disabled`` is made where there is none."""
    global _machine
    if _machine is None:
        _machine = RerunStateMachine()
    return _machine


def replace_megatron() -> ModuleType:
    """Have Megatron's code use this machine: call it before anything else of Megatron is imported. Returns the module.

    From then on ``megatron.core.rerun_state_machine`` is :mod:`rankwatch.rerun`, for Megatron-LM, Megatron-Core and
    Megatron-Bridge alike.

    Raises:
        RuntimeError: it is too late; parts of Megatron have taken hold of their own machine.
    """
    package = sys.modules["rankwatch.rerun"]
    if sys.modules.get(MODULE, package) is not package:
        raise RuntimeError(
            f"{MODULE} has been imported before, and who imported it keeps it; call replace_megatron() in the first "
            "lines of the script, before any import of megatron"
        )
    sys.modules[MODULE] = package
    core = sys.modules.get("megatron.core")
    if core is not None:
        core.rerun_state_machine = package  # type: ignore[attr-defined]
    return package
