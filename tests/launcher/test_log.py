"""The launcher's log lines on the terminal."""

from __future__ import annotations

import logging
import re

import pytest

from rankwatch_launcher import log


def test_a_line_has_the_products_name_and_the_time_and_appears_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.to_stderr()
    log.logger.info("rank %d hangs", 3)
    assert re.fullmatch(r"\[rankwatch\] \d\d:\d\d:\d\d rank 3 hangs\n", capsys.readouterr().err)
    assert not log.logger.propagate, "a handler of the root logger would print it again"


def test_a_level_that_was_chosen_survives_a_second_call(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.logger.setLevel(logging.DEBUG)
    log.to_stderr()
    log.logger.debug("details")
    assert "details" in capsys.readouterr().err


def test_what_a_rank_has_written_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.logger.info("%s", "oops\x1b[2J\x07")
    written = capsys.readouterr().err
    assert "oops" in written
    assert not {"\x1b", "\x07"} & {*written}
