"""Which of Lightning's two packages the callbacks belong to: ``lightning``, or ``pytorch_lightning`` by itself.

Both may be installed, and their classes are not the same; what the script has imported before us decides, and if that
is neither, ``lightning`` goes first.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _found() -> str:
    """The package to take.

    Raises:
        ImportError: there is none.
    """
    wanted = sorted(PACKAGES, key=lambda name: name not in sys.modules)  # a stable sort: what was imported comes first
    for name in wanted:
        try:
            importlib.import_module(f"{name}.callbacks")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("lightning", "pytorch_lightning"):
                raise  # it is there, and lacks something of its own
            continue
        return name
    raise ImportError(
        "rankwatch.integrations.lightning needs Lightning: pip install lightning (or pytorch-lightning)",
        name="lightning",
    )


if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
else:
    PACKAGE = _found()
    Callback = importlib.import_module(f"{PACKAGE}.callbacks").Callback
    LightningModule = Trainer = Any

__all__ = ["Callback", "LightningModule", "Trainer", "graceful_exit", "logger_named"]


def graceful_exit(trainer: Trainer) -> type[BaseException] | None:
    """The exception that ends ``fit`` at once as if it had come to its end; None where this version has none.

    It has no public name. It is looked up in the package that the trainer is of, whose code has to catch it.
    """
    launcher = getattr(trainer.strategy, "launcher", None)
    if "MultiProcessing" in type(launcher).__name__:
        return None  # ranks that Lightning forks or spawns are not caught there: it would count as a crash
    for package in PACKAGES:
        if any(f"{cls.__module__}.".startswith(f"{package}.") for cls in type(trainer).__mro__):
            exceptions = importlib.import_module(f"{package}.utilities.exceptions")
            found: type[BaseException] | None = getattr(exceptions, "_TunerExitException", None)
            return found
    return None


def logger_named(name: str | None) -> logging.Logger:
    """The logger of a callback, which is heard: where nobody has set up logging, it writes to stderr from INFO on."""
    logger = logging.getLogger(name)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger
