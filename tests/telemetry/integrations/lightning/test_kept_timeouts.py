from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.integrations.lightning import kept_timeouts
from rankwatch.wire.ft_state import FILE_NAME, LearnedTimeouts
from rankwatch.wire.policy import Policy


def test_what_is_written_is_read_again_and_is_a_policy(tmp_path: Path) -> None:
    learned = LearnedTimeouts({"step": 12.0, "setup": 300.0}, 60.0, 900.0, 100.0)
    path = kept_timeouts.write(tmp_path / "new" / "folder", learned)
    assert [each.name for each in path.parent.iterdir()] == [FILE_NAME]
    assert kept_timeouts.read(path.parent) == learned
    policy = Policy().changed(kept_timeouts.as_policy(learned))
    assert policy.section_timeouts == {"step": 12.0, "setup": 300.0}
    assert (policy.out_of_section_timeout, policy.initial_heartbeat_timeout, policy.heartbeat_timeout) == (60, 900, 100)


def test_nothing_is_there_before_the_first_job(tmp_path: Path) -> None:
    assert kept_timeouts.read(tmp_path) is None
    assert kept_timeouts.as_policy(LearnedTimeouts({"step": 3.0})) == {"section_timeouts": {"step": 3.0}}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"weights": []}')
    with pytest.raises(ValueError, match="current_timeouts"):
        kept_timeouts.read(tmp_path)


def test_what_was_calculated_before_counts_half() -> None:
    old = LearnedTimeouts({"step": 10.0, "setup": 100.0, "checkpointing": 40.0}, 30.0)
    new = LearnedTimeouts({"step": 20.0, "checkpointing": 60.0, "evaluation": 5.0}, heartbeat=8.0)
    kept = kept_timeouts.merged(new, old, background=False)
    assert kept.sections == {"step": 15.0, "setup": 100.0, "checkpointing": 50.0, "evaluation": 5.0}
    assert (kept.out_of_section, kept.heartbeat) == (30.0, 8.0)
    assert kept_timeouts.merged(new, None, background=True).sections == {"step": 20.0, "evaluation": 5.0}
