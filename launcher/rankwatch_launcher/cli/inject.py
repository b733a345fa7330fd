"""``rankwatch run --inject``: faults on purpose, checked before any rank starts and handed to the ranks.

The ranks find them in the environment; :func:`rankwatch.init` in each of them does the rest (:mod:`rankwatch.faults`).
"""

from __future__ import annotations

import argparse
from collections.abc import MutableMapping

from rankwatch.faults.spec import VARIABLE, parse_all
from rankwatch_launcher.log import logger


def add_flag(group: argparse._ArgumentGroup) -> None:
    """Add ``--inject``."""
    group.add_argument(
        "--inject",
        action="append",
        type=_faults,
        metavar="FAULT",
        help="let a rank go wrong on purpose, for example rank=2,step=52,kind=hang (docs/faults.md); may be repeated",
    )


def hand_down(args: argparse.Namespace, env: MutableMapping[str, str]) -> None:
    """Put the faults that were asked for, by flag or else by the environment, where the ranks find them, and say so.

    Raises:
        ValueError: the environment variable cannot be read; the text says why.
    """
    given = "; ".join(args.inject) if args.inject else env.get(VARIABLE, "")
    try:
        faults = parse_all(given)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
    if faults:
        env[VARIABLE] = given
    for fault in faults:
        logger.warning("a fault will be injected on purpose: %s", fault)


def check_ranks(env: MutableMapping[str, str], world_size: int) -> None:
    """See that the faults handed down are meant for ranks that there can be.

    Raises:
        ValueError: there is no such rank.
    """
    for fault in parse_all(env.get(VARIABLE, "")):
        if fault.rank is not None and fault.rank >= world_size:
            raise ValueError(f"no fault can be injected into rank {fault.rank}: ranks go from 0 to {world_size - 1}")


def _faults(text: str) -> str:
    try:
        faults = parse_all(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not faults:
        raise argparse.ArgumentTypeError("names no fault")
    return text.strip().rstrip(";")
