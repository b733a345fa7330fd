"""The process-wide state machine under the names that Megatron calls, and the replacement of Megatron's own module."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from rankwatch.rerun.state_machine import RerunStateMachine

MODULE: Final = "megatron.core.rerun_state_machine"

_machine: RerunStateMachine | None = None


def initialize_rerun_state_machine(**settings: Any) -> None:
    """Create the machine of this process, with the arguments of :class:`RerunStateMachine`.

    Raises:
        RuntimeError: it exists already.
    """
    global _machine
    if _machine is not None:
        raise RuntimeError("the re-run state machine exists already; call destroy_rerun_state_machine() first")
    _machine = RerunStateMachine(**settings)


def destroy_rerun_state_machine() -> None:
    """Drop the machine of this process."""
    global _machine
    _machine = None


def get_rerun_state_machine() -> RerunStateMachine:
    """Return the machine of this process; creates one in mode ``disabled`` if there is none."""
    global _machine
    if _machine is None:
        _machine = RerunStateMachine()
    return _machine


def replace_megatron() -> ModuleType:
    """Make Megatron use this machine; call it before any import of Megatron. Returns the module.

    Afterwards ``megatron.core.rerun_state_machine`` is :mod:`rankwatch.rerun`, for Megatron-LM, Megatron-Core and
    Megatron-Bridge alike.

    Raises:
        RuntimeError: Megatron's own machine was imported before.
    """
    package = sys.modules["rankwatch.rerun"]
    if sys.modules.get(MODULE, package) is not package:
        raise RuntimeError(
            f"{MODULE} was imported before, and its importers keep it; call replace_megatron() at the top of the "
            "script, before any import of megatron"
        )
    sys.modules[MODULE] = package
    core = sys.modules.get("megatron.core")
    if core is not None:
        core.rerun_state_machine = package  # type: ignore[attr-defined]
    return package
