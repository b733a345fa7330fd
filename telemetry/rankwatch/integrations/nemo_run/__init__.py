"""NeMo-Run: FaultTolerancePlugin and PreemptionPlugin, for scripts and recipes, on any executor.

Enters: a task and its executor. Leaves: the same task started by ``rankwatch run``, with its callbacks and flags.
Open :mod:`~rankwatch.integrations.nemo_run.plugins` first; ``commands`` needs no NeMo-Run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwatch.integrations.nemo_run.plugins import (
        FaultTolerancePlugin,
        FaultTolerancePluginScriptArgs,
        PreemptionPlugin,
        PreemptionPluginScriptArgs,
        RankwatchLauncher,
        straggler_det_callback,
    )

__all__ = [
    "FaultTolerancePlugin",
    "FaultTolerancePluginScriptArgs",
    "PreemptionPlugin",
    "PreemptionPluginScriptArgs",
    "RankwatchLauncher",
    "straggler_det_callback",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # on demand: only the plugins need NeMo-Run
        from rankwatch.integrations.nemo_run import plugins

        return getattr(plugins, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
