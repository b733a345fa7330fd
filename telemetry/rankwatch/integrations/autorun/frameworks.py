"""Evaluations and checkpoints of frameworks as sections: wrappers of the methods that do the whole of one.

Torch's events show single batches and writes. What a framework does in between (metrics, gathering of weights, uploads)
would fall outside of all sections, where the limit of the other ranks' step applies.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from rankwatch.contract.semconv import CHECKPOINTING_SECTION, EVALUATION_SECTION
from rankwatch.integrations.autorun.errors import between
from rankwatch.integrations.autorun.training_loop import TrainingLoop

_LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")
PHASES: Final = {
    **{f"{name}.loops.evaluation_loop": (("_EvaluationLoop", "run", EVALUATION_SECTION),) for name in _LIGHTNING},
    **{f"{name}.trainer.trainer": (("Trainer", "save_checkpoint", CHECKPOINTING_SECTION),) for name in _LIGHTNING},
    "transformers.trainer": (
        ("Trainer", "evaluate", EVALUATION_SECTION),
        ("Trainer", "predict", EVALUATION_SECTION),
        ("Trainer", "_save_checkpoint", CHECKPOINTING_SECTION),
    ),
    "accelerate.accelerator": (("Accelerator", "save_state", CHECKPOINTING_SECTION),),
}
"""By module: class, method and section."""


def hook(module: ModuleType, loop: TrainingLoop) -> None:
    """Wrap the methods of a framework's module that was just imported; one that this version lacks is left out."""
    for of, method, section in PHASES[module.__name__]:
        holder = getattr(module, of, None)
        plain = getattr(holder, method, None)
        if plain is not None:
            setattr(holder, method, _wrapped(plain, section, loop))


def _wrapped(plain: Callable[..., Any], section: str, loop: TrainingLoop) -> Callable[..., Any]:
    thread = threading.main_thread().ident

    @functools.wraps(plain)
    def phase(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return plain(*args, **kwargs)
        begins = functools.partial(loop.phase_begins, section)
        return between(begins, functools.partial(plain, *args, **kwargs), loop.phase_ended)

    return phase
