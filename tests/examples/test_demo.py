"""``rankwatch demo``: its story is true, it states what goes wrong, and it leaves no process behind."""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankwatch_launcher.demo import command

SECONDS = 400  # the demo takes two minutes on two cores that have nothing else to do


@dataclass
class Demo:
    """A running demo, whose processes are known by the folder of its runs: each has it in its command line."""

    process: subprocess.Popen[str]
    runs: Path
    story: Path

    def left_behind(self) -> list[str]:
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # ended meanwhile
                continue
            if str(self.runs) in line and int(file.parent.name) != self.process.pid:
                found.append(line)
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """The demo without a terminal; it is ended, and by it all that it started, whatever becomes of the test."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "OTEL_", "TORCHELASTIC_"))}
    runs, story = tmp_path / "runs", tmp_path / "demo-story.json"
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "rankwatch", "demo", "--runs", str(runs), "--story", str(story)],
        env=inherited | {"XDG_STATE_HOME": str(tmp_path / "state"), "RANKWATCH_TOKEN": "of another monitor"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    running = Demo(process, runs, story)
    yield running
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.stdout
    process.stdout.close()
    assert running.left_behind() == []


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
def test_the_hung_rank_is_named_and_training_goes_on(demo: Demo, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    demo.story.symlink_to(precious)
    output, _ = demo.process.communicate(timeout=SECONDS)
    assert demo.process.returncode == 0, output
    assert precious.read_text() == "keep", "the story follows no link"
    story = json.loads(demo.story.read_text())

    assert (story["culprit"]["rank"], story["culprit"]["class"]) == (2, "behind")
    assert story["culprit"]["host"]
    assert story["section"] == "step"
    assert story["limit"] == 10
    assert 10 <= story["elapsed"] < 20
    assert "ank 2" in story["reason"]
    assert story["reason"] in output

    assert story["stacks"]["culprit"][0].startswith("rankwatch_injected_hang")
    assert not any("rankwatch_injected_hang" in frame for frame in story["stacks"]["others"])
    assert any("backward" in frame or "all_reduce" in frame for frame in story["stacks"]["others"])
    for frames in story["stacks"].values():
        assert any("train_gpt.py" in frame for frame in frames)

    assert list(story["phases"]) == ["detect", "decide", "capture", "restart", "first_step"]
    assert all(seconds >= 0 for seconds in story["phases"].values())
    assert story["phases"]["detect"] >= story["limit"]
    assert story["phases"]["first_step"] > 0
    assert f"{story['phases']['detect']:.2f} s" in output

    assert story["attempts"] == [1, 2]
    assert story["exit_code"] == 0
    assert story["steps_lost"] == 52 - 40  # it hung in step 52 and went on from the checkpoint before step 40
    check_losses(story)


def check_losses(story: dict[str, Any]) -> None:
    first, second = (
        {line["step"]: line["loss"] for line in story["losses"] if line["attempt"] == attempt}
        for attempt in story["attempts"]
    )
    assert max(first) == 49
    assert min(second) == 44
    for step in first.keys() & second.keys():  # the same steps, done again from the checkpoint with the same batches
        assert second[step] == pytest.approx(first[step], rel=0.02)
    before, end = [loss for _, loss in sorted(first.items())][-3:], [loss for _, loss in sorted(second.items())][-3:]
    assert sum(end) < sum(before)
    assert story["final_loss"] == second[139] < first[4] - 1


def test_ended_early_it_leaves_nothing_behind(demo: Demo) -> None:
    assert demo.process.stdout
    deadline = time.monotonic() + 60
    while sum("train_gpt.py" in line for line in demo.left_behind()) < 5:  # the launcher and its four ranks
        assert demo.process.poll() is None, demo.process.stdout.read()
        assert time.monotonic() < deadline, "the ranks were not started"
        time.sleep(0.1)
    demo.process.send_signal(signal.SIGTERM)
    output, _ = demo.process.communicate(timeout=40)
    assert demo.process.returncode == 1
    assert "Interrupted" in output
    assert demo.left_behind() == []
    assert not demo.story.exists()


def test_other_users_reach_neither_its_monitor_nor_its_files(demo: Demo) -> None:
    deadline = time.monotonic() + 60
    while not (ready := list(demo.runs.glob("demo-*/monitor.json"))):
        assert demo.process.poll() is None
        assert time.monotonic() < deadline, "the monitor was not started"
        time.sleep(0.1)
    for folder in (demo.runs, ready[0].parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    stranger = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as refused:
        stranger.open(f"{json.loads(ready[0].read_text())['url']}/api/v1/jobs", timeout=60)
    refused.value.close()
    assert refused.value.code == 401


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of the user nobody")
def test_a_folder_for_runs_of_another_user_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, nobody = tmp_path / "runs", pwd.getpwnam("nobody").pw_uid
    runs.mkdir(mode=0o755)
    os.chown(runs, nobody, -1)
    assert command.demo(["--runs", str(runs), "--story", str(tmp_path / "story.json")]) == 2
    assert f"{runs} belongs to another user (uid {nobody}); name another --runs" in capsys.readouterr().err
    assert list(runs.iterdir()) == []


@pytest.mark.long
def test_a_job_that_fails_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """In a process of its own: the demo ends all children of its process, and tests share monitors that are theirs."""
    broken, story = tmp_path / "train_gpt.py", tmp_path / "story.json"
    broken.write_text("raise SystemExit('this is no training script')\n")
    changed = (
        "import pathlib, sys; from rankwatch_launcher.demo import command; "
        f"command.TRAIN = pathlib.Path({str(broken)!r}); sys.exit(command.demo(sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", changed, "--runs", str(tmp_path), "--story", str(story)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1, ended.stderr
    assert "The demo failed: rankwatch run ended with code 1" in ended.stderr
    assert "this is no training script" in ended.stderr
    assert not story.exists()


def test_uninformative_frames_are_left_out() -> None:
    def frame(function: str, file: str = "lib/deep.py") -> dict[str, Any]:
        return {"function": function, "file": file, "line": 7}

    deep = [frame(f"f{i}") for i in range(9)] + [frame("train", "examples/train_gpt.py"), frame("run", "lib/runpy.py")]
    groups = [
        {"ranks": [2], "is_culprit": True, "frames": [frame("hang")]},
        {"ranks": [1], "is_culprit": False, "frames": [frame("odd_one")]},
        {"ranks": [0, 3], "is_culprit": False, "frames": deep},
    ]
    assert command.innermost(groups, is_culprit=True) == ["hang (deep.py:7)"]
    others = command.innermost(groups, is_culprit=False)
    assert others == ["f0 (deep.py:7)", "f1 (deep.py:7)", "f2 (deep.py:7)", "f3 (deep.py:7)", "train (train_gpt.py:7)"]
    assert command.innermost([], is_culprit=True) == []
