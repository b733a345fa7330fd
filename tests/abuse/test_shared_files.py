"""What another user may have put where a launcher or a rank looks for a file: a pipe, or a sparse file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rankwatch.contract.ft_state import FILE_NAME
from rankwatch.integrations.shared import state_file
from rankwatch_launcher.node.learned_limits import LearnedLimitsFile
from rankwatch_launcher.outcome import Outcome
from rankwatch_launcher.schedulers.slurm_batch import LAUNCHES, LaunchHistory


def learned_limits(folder: Path) -> None:
    limits = LearnedLimitsFile(str(folder))
    limits.read()
    assert not limits.loaded


def outcome(folder: Path) -> None:
    assert Outcome.read(folder / "outcome.json") is None


def state_of_an_integration(folder: Path) -> None:
    assert state_file.StateFile(folder / FILE_NAME, logging.getLogger("rankwatch")).read() is None


def launches(folder: Path) -> None:
    with pytest.raises(OSError, match=f"{LAUNCHES}|directory"):
        LaunchHistory(folder).prepare()


READERS: Final[dict[str, tuple[str, Callable[[Path], None]]]] = {
    "learned limits": (FILE_NAME, learned_limits),
    "outcome": ("outcome.json", outcome),
    "state of an integration": (FILE_NAME, state_of_an_integration),
    "launches": (LAUNCHES, launches),
}


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, sparse, os.mkdir], ids=["a pipe", "a sparse file", "a folder"])
@pytest.mark.parametrize(("name", "read"), READERS.values(), ids=READERS)
def test_what_is_no_file_of_a_run_is_refused_at_once(
    name: str,
    read: Callable[[Path], None],
    plant: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_file, "with_timeout", lambda action, *_: action())
    plant(tmp_path / name)
    read(tmp_path)
