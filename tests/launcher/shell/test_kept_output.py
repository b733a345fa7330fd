"""Where output is kept: only of the newest launches, and nowhere where it could not be given back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import LogsDest

from rankwatch_launcher.node.rank_output import RankOutput
from rankwatch_launcher.shell import kept_output
from rankwatch_launcher.shell.kept_output import LAUNCHES, OutputKeeper

ENVS = {0: {"RANK": "4"}, 1: {"RANK": "5"}}


@pytest.fixture(autouse=True)
def no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kept_output, "_may_replace", lambda _: True)
    monkeypatch.setattr(kept_output, "_same_file", lambda *_: False)


def placed(keeper: OutputKeeper) -> LogsDest:
    keeper.begin(1)
    return keeper.place(LogsDest({0: "", 1: ""}, {0: "", 1: "/own/stderr.log"}), ENVS)


def test_each_stream_that_torch_does_not_redirect_gets_a_file_named_by_the_rank() -> None:
    keeper = OutputKeeper(RankOutput("n"), 1 << 20)
    dest = placed(keeper)
    keeper.close()
    assert [Path(path).name for path in (dest.stdouts[0], dest.stdouts[1], dest.stderrs[0])] == [
        "rank_4.stdout.log", "rank_5.stdout.log", "rank_4.stderr.log",
    ]  # fmt: skip
    assert dest.stderrs[1] == "/own/stderr.log"


def test_of_earlier_launches_the_newest_stay_and_those_that_run(tmp_path: Path) -> None:
    running = OutputKeeper(RankOutput("n"), 1 << 20)
    folders = [running.folder]
    for _ in range(LAUNCHES + 2):
        keeper = OutputKeeper(RankOutput("n"), 1 << 20)
        stream = keeper.stream(placed(keeper).stdouts[0])
        assert stream is not None
        with stream:
            stream.write(b"said\n")
        folders.append(keeper.folder)
        keeper.close()
    left = [folder for folder in folders if folder is not None and folder.exists()]
    assert folders[0] in left
    assert left[-1] == folders[-1]
    assert len(left) <= LAUNCHES + 1
    running.close()


def test_where_the_file_system_cannot_give_back_the_beginning_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_output, "_punch", lambda *_: False)
    keeper = OutputKeeper(RankOutput("n"), 1 << 20)
    assert keeper.folder is None
    assert placed(keeper).stdouts == {0: "", 1: ""}
    keeper.close()
