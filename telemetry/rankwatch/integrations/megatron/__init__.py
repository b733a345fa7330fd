"""Megatron-LM and Megatron-Bridge: ``from rankwatch.integrations import megatron as fault_tolerance``.

Enters: the hooks that a training loop calls. Leaves: sections, steps, and learned timeouts beside the checkpoints.
Open :mod:`~rankwatch.integrations.megatron.hooks` first.
"""

from rankwatch.integrations.megatron.config import FaultToleranceConfig, NVRxStragglerDetectionConfig
from rankwatch.integrations.megatron.hooks import (
    maybe_setup_simulated_fault,
    on_checkpoint_loaded,
    on_checkpointing_end,
    on_checkpointing_start,
    on_eval_step_end,
    on_eval_step_start,
    on_training_step_end,
    on_training_step_start,
    setup,
    shutdown,
)

__all__ = [
    "FaultToleranceConfig",
    "NVRxStragglerDetectionConfig",
    "maybe_setup_simulated_fault",
    "on_checkpoint_loaded",
    "on_checkpointing_end",
    "on_checkpointing_start",
    "on_eval_step_end",
    "on_eval_step_start",
    "on_training_step_end",
    "on_training_step_start",
    "setup",
    "shutdown",
]
