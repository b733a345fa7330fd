"""Selects the Lightning package of the callbacks: ``lightning`` or ``pytorch_lightning``.

Both may be installed, with different classes. The one that the script has imported is taken, else ``lightning``.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _select_package() -> str:
    """Return the package.

    Raises:
        ImportError: neither is installed.
    """
    wanted = sorted(PACKAGES, key=lambda name: name not in sys.modules)  # stable: imported ones come first
    for name in wanted:
        try:
            importlib.import_module(f"{name}.callbacks")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("lightning", "pytorch_lightning"):
                raise  # installed, but a dependency of it is missing
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
    PACKAGE = _select_package()
    Callback = importlib.import_module(f"{PACKAGE}.callbacks").Callback
    LightningModule = Trainer = Any

__all__ = ["Callback", "LightningModule", "Trainer", "graceful_exit", "logger_named"]


def graceful_exit(trainer: Trainer) -> type[BaseException] | None:
    """Return the exception that ends ``fit`` at once without an error; None if this version has none.

    It is not public. It is taken from the trainer's package, whose code must catch it.
    """
    launcher = getattr(trainer.strategy, "launcher", None)
    if "MultiProcessing" in type(launcher).__name__:
        return None  # not caught in ranks that Lightning spawns, where it would count as a crash
    for package in PACKAGES:
        if any(f"{cls.__module__}.".startswith(f"{package}.") for cls in type(trainer).__mro__):
            exceptions = importlib.import_module(f"{package}.utilities.exceptions")
            found: type[BaseException] | None = getattr(exceptions, "_TunerExitException", None)
            return found
    return None


def logger_named(name: str | None) -> logging.Logger:
    """Return the logger of a callback; if logging is not configured, it writes to stderr from INFO on."""
    logger = logging.getLogger(name)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger
