"""Tests that take turns: a run executes the share whose turn it is, and the shares of some runs are all of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def turn_of_commit(turns: int) -> int:
    """The turn of the commit that is checked out, 0 to ``turns - 1``; 0 where there is no git.

    It differs between commits and is the same for all runs of one.
    """
    try:
        found = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return int(found.stdout, 16) % turns if found.returncode == 0 else 0


def in_turn(files: set[str], turns: int, turn: int) -> set[str]:
    """The files whose turn it is: each has one turn, and no turn has two files more than another."""
    return set(sorted(files)[turn::turns])
