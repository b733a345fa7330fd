"""The flags of ``rankwatch run`` that ask for a warm standby, and the environment variables beside them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Final

from rankwatch.contract.env import parse_bool
from rankwatch_launcher.log import logger
from rankwatch_launcher.node import memory
from rankwatch_launcher.prewarm.pool import MEMORY, StandbySettings

WANTED: Final = "RANKWATCH_STANDBY"
MODULES: Final = "RANKWATCH_STANDBY_MODULES"
SIZE: Final = "RANKWATCH_STANDBY_MEMORY"
DEFAULT_SIZE: Final = f"{MEMORY / memory.GIB:g}"
MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def add(group: argparse._ArgumentGroup) -> None:
    """Add the flags. The modules have one of their own: after a bare ``--standby`` comes the script's name."""
    group.add_argument(
        "--standby",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep one interpreter per local rank parked, torch imported, for the next attempt to start in "
        f"(default: off, or {WANTED})",
    )
    group.add_argument(
        "--standby-modules",
        metavar="MODULE,MODULE",
        type=_modules,
        help="what parked interpreters import beside torch; asks for --standby",
    )
    group.add_argument(
        "--standby-memory",
        metavar="GIB",
        type=_size,
        help=f"the most that one parked interpreter may have (default: {DEFAULT_SIZE} GiB)",
    )


def chosen(args: argparse.Namespace, env: Mapping[str, str]) -> StandbySettings | None:
    """Return what was chosen, flags before environment variables; None where no standby is wanted or possible.

    Raises:
        ValueError: an environment variable does not hold what it should; the text names it.
    """
    word = env.get(WANTED, "")
    try:
        switched_on = parse_bool(word) if word else None
    except ValueError as error:
        raise ValueError(f"{WANTED}: {error}") from None
    try:
        modules = args.standby_modules if args.standby_modules is not None else _modules(env.get(MODULES, ""))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{MODULES}: {error}") from None
    try:
        size = args.standby_memory if args.standby_memory is not None else _size(env.get(SIZE, "") or DEFAULT_SIZE)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{SIZE}: {error}") from None
    wanted = next((given for given in (args.standby, switched_on) if given is not None), bool(modules))
    if not wanted:
        return None
    from rankwatch_launcher.agent import torch_compat  # which imports torch: the job-retry loop must not

    if (complaint := torch_compat.standby_complaint()) is not None:
        logger.warning("standby is off: %s", complaint)
        return None
    return StandbySettings(modules, size)


def _modules(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not MODULE.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{name!r} is no module's name; write them as numpy,transformers")
    return tuple(dict.fromkeys(name for name in names if name != "torch"))


def _size(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.1 <= size < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of GiB, such as 2 or 0.5, not {text!r}")
    return int(size * memory.GIB)
