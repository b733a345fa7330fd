"""The file of learned timeouts: read at the start, written by the launcher of rank 0, and no harm in whatever fails."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.conftest import FakeMonitor, Launcher, wait_for
from launcher.here import Here
from rankwatch.contract import ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.learned_limits import AT_END, MAX_BYTES, NOW, LearnedLimitsFile


def content(step: float) -> dict[str, Any]:
    return ft_state.write(LearnedTimeouts({"step": step}), {"save": 60.0}, None)


def kept(path: Path) -> Any:
    """What the file holds, None when there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:  # it may be put aside at any time
        return None


def read_from(path: Path | str) -> LearnedLimitsFile:
    state = LearnedLimitsFile(str(path))
    state.read()
    return state


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ft_state.json"


@pytest.fixture(autouse=True)
def no_writer_left() -> Iterator[None]:
    yield
    wait_for(lambda: not any(t.name == "rankwatch-ft-state" for t in threading.enumerate()))


# Reading --------------------------------------------------------------------------------------------------------------


def test_what_was_learned_is_read_and_what_was_configured_is_not(file: Path) -> None:
    file.write_text(json.dumps(content(42.5)))
    loaded = read_from(file).loaded
    assert ft_state.read(loaded) == LearnedTimeouts({"step": 42.5})
    assert "save" not in json.dumps(loaded)


def test_a_folder_stands_for_the_file_in_it(file: Path) -> None:
    file.write_text(json.dumps(content(42.5)))
    assert read_from(file.parent).loaded == read_from(f"{file.parent}/").loaded == read_from(file).loaded


def test_a_missing_file_is_no_news(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (file, f"{file.parent}/missing/", ""):
        assert read_from(path).loaded == {}
    assert not caplog.records


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b'{"current_timeouts": ', "it is not JSON: line 1"),
        (b"\xff\xfe\x00", "decode"),
        (b"[1]", "not a JSON object"),
        (b'{"model": 3}', "no current_timeouts"),
        (b'{"current_timeouts": {"section": 3}}', "section must be an object"),
        (b'{"current_timeouts": {"heartbeat": {"initial": NaN}}}', "NaN is not a JSON number"),
        (b"[" * 200_000, "nested too deeply"),
        (b" " * (MAX_BYTES + 1), "larger than"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_another_content_is_reported_and_passed_over(
    file: Path, body: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(body)
    assert read_from(file).loaded == {}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(file) in record.getMessage()
    assert words in record.getMessage()


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert read_from(loop).loaded == {}
    assert "timeouts are learned from scratch" in caplog.text


# Writing --------------------------------------------------------------------------------------------------------------


def test_the_launcher_of_rank_0_writes_what_it_is_reported(file: Path) -> None:
    state = LearnedLimitsFile(str(file))
    state.take({NOW: content(10), "limits": {}})
    state.set_writer(True)
    wait_for(lambda: kept(file) == content(10))
    state.take({NOW: content(11), AT_END: content(12)})
    wait_for(lambda: kept(file) == content(11))
    state.close()
    assert kept(file) == content(11), "what is meant for the end is not written before"
    assert os.listdir(file.parent) == [file.name], "nothing temporary is left"


def test_the_end_has_its_own_content_where_one_was_reported(file: Path) -> None:
    state = LearnedLimitsFile(str(file))
    state.set_writer(True)
    state.take({NOW: content(11), AT_END: content(12)})
    state.finish()
    state.close()
    assert kept(file) == content(12)
    state.take({NOW: content(13)})
    state.close()
    assert kept(file) == content(12), "a word that comes late does not undo the end"


def test_an_end_without_content_of_its_own_keeps_the_last(file: Path) -> None:
    state = LearnedLimitsFile(str(file))
    state.set_writer(True)
    state.take({NOW: content(11)})
    state.finish()
    state.close()
    assert kept(file) == content(11)


def test_other_launchers_write_nothing_until_rank_0_is_theirs(file: Path) -> None:
    state = LearnedLimitsFile(str(file))
    state.set_writer(False)
    state.take({NOW: content(10)})
    state.finish()
    state.close()
    assert not file.exists()
    state.set_writer(True)
    wait_for(lambda: kept(file) == content(10))


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = LearnedLimitsFile()
    state.read()
    state.set_writer(True)
    state.take({NOW: content(10)})
    state.close()
    assert os.listdir(tmp_path) == []


def test_nothing_odd_is_written(file: Path) -> None:
    state = LearnedLimitsFile(str(file))
    state.set_writer(True)
    for odd in (None, [], "x", {}, 3):
        state.take({NOW: odd, AT_END: odd})
    state.finish()
    state.close()
    assert not file.exists()


def test_a_write_that_fails_is_reported_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "checkpoints" / "ft_state.json"
    state = LearnedLimitsFile(str(file))
    state.set_writer(True)
    for seconds in (10, 11):
        state.take({NOW: content(seconds)})
        wait_for(lambda: state._writer is None)
    (record,) = caplog.records
    assert "learned timeouts cannot be written" in record.getMessage()
    assert "No such file" in record.getMessage()
    file.parent.mkdir()
    state.finish()
    state.close()
    assert kept(file) == content(11)


def test_a_file_system_that_hangs_blocks_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    replace = os.replace

    def hang(*paths: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        replace(*paths)

    monkeypatch.setattr(os, "replace", hang)
    state = LearnedLimitsFile(str(file))
    state.set_writer(True)
    state.take({NOW: content(10)})
    try:
        assert entered.wait(60)
        for seconds in range(11, 30):
            state.take({NOW: content(seconds)})
        assert sum(t.name == "rankwatch-ft-state" for t in threading.enumerate()) == 1
    finally:
        go_on.set()
    wait_for(lambda: kept(file) == content(29))


def test_what_could_not_be_understood_is_put_aside_not_lost(file: Path) -> None:
    file.write_text('{"model": 3}')
    state = read_from(file)
    state.set_writer(True)
    state.take({NOW: content(10)})
    wait_for(lambda: kept(file) == content(10))
    assert (file.parent / "ft_state.json.unreadable").read_text() == '{"model": 3}'


# On the way -----------------------------------------------------------------------------------------------------------


def test_a_node_reports_what_it_read_and_keeps_the_files_content_from_its_ranks(file: Path) -> None:
    file.write_text(json.dumps(content(42.5)))
    with Here(learned_limits=read_from(file)) as node:
        assert ft_state.read(node.session.registration().ft_state) == LearnedTimeouts({"step": 42.5})
        node.session.apply_settings({"limits": {"heartbeat": 3.0}, NOW: content(50), AT_END: content(51)})
        assert node.files.settings == {"limits": {"heartbeat": 3.0}}
        node.files.prepare(1)
        node.session.started(node.files.started([RankProcess(0, 0, os.getpid())], 1))
        wait_for(lambda: kept(file) == content(50))
        node.session.learned_limits.finish()
        wait_for(lambda: kept(file) == content(51))


def test_a_node_without_the_file_reports_nothing() -> None:
    with Here() as node:
        assert node.session.registration().ft_state == {}


def test_a_run_reads_it_and_leaves_it_behind(
    start: Callable[..., Launcher], script: Callable[[str], str], monitor: FakeMonitor, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    file = folder / "ft_state.json"
    file.write_text(json.dumps(content(42.5)))
    monitor.settings = {"limits": {}, NOW: content(50), AT_END: content(51)}
    body = "import json\nown = Own()\nwhile own.slots.settings() in (None, (0, {})): time.sleep(0.01)\n"
    body += f"while json.load(open({str(file)!r})) != {content(50)!r}: time.sleep(0.01)\n"
    body += 'say(f"settings {own.slots.settings()[1]}")\nfinish()\n'
    launcher = start(
        *("--monitor", monitor.url, "--nproc-per-node", "1", script(body)),
        env={"RANKWATCH_FT_STATE": str(folder)},
    )
    assert launcher.wait() == 0, launcher.output
    assert ft_state.read(monitor.of("nodes")[0]["ft_state"]) == LearnedTimeouts({"step": 42.5})
    assert "settings {'limits': {}}>" in launcher.output, "the file's content does not reach the slots"
    assert kept(file) == content(51)
