"""What ranks print is kept by rank and attempt, within its bound, and still appears where the launcher prints."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.conftest import RUN, SOURCES, FakeMonitor, Launcher, wait_for
from rankwatch.contract.messages import KEPT_OUTPUT
from rankwatch_launcher.shell.kept_output import MOST_BEHIND
from support.processes import without

Start = Callable[..., Launcher]

TALKS = """
import os, sys
rank, attempt = os.environ["RANK"], os.environ["RANKWATCH_ATTEMPT"]
for number in range(200):
    print(f"rank {rank} attempt {attempt} line {number}", flush=True)
    print(f"rank {rank} attempt {attempt} error {number}", file=sys.stderr)
if rank == "1" and attempt == "1":
    raise ValueError("bad batch")
"""
QUIET = "--no-node-check", "--no-standby"


def kept(folder: Path) -> Path:
    (found,) = folder.glob(f"rankwatch.{os.geteuid()}/output/*")
    return found


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    made = tmp_path / "temporary"
    made.mkdir()
    return made


Run = Callable[..., Launcher]


@pytest.fixture
def run(start: Start, monitor: FakeMonitor, tmp_path: Path, temporary: Path) -> Run:
    def begin(*flags: str, text: str = TALKS) -> Launcher:
        script = tmp_path / "train.py"
        script.write_text(text)
        named = ("--monitor", monitor.url, "--nproc-per-node", "2")
        return start(*QUIET, *named, *flags, str(script), env={"TMPDIR": str(temporary)})

    return begin


def test_the_file_of_a_rank_holds_its_own_lines_in_their_order_and_so_does_the_console(
    run: Run, monitor: FakeMonitor, temporary: Path
) -> None:
    launcher = run("--max-restarts", "1")
    assert launcher.wait() == 0, launcher.output
    folder = kept(temporary)
    assert sorted(each.name for each in folder.iterdir()) == ["attempt_1", "attempt_2"]
    said = launcher.output.splitlines()
    for attempt, rank in ((1, 1), (2, 0), (2, 1)):
        lines = (folder / f"attempt_{attempt}" / f"rank_{rank}.log").read_text().splitlines()
        own = [line for line in lines if line.startswith("rank ")]
        assert own == [f"rank {rank} attempt {attempt} {kind} {n}" for n in range(200) for kind in ("line", "error")]
        assert [line for line in said if line.startswith(f"rank {rank} attempt {attempt} ")] == own
    assert "ValueError: bad batch" in (folder / "attempt_1" / "rank_1.log").read_text()
    crash = next(number for number, line in enumerate(said) if "CRASH" in line)
    assert said.index("ValueError: bad batch") < crash, "what a rank said last is shown above what follows from it"
    assert monitor.of("nodes")[0]["facts"][KEPT_OUTPUT] == str(folder)
    (log,) = [log for body in monitor.of("evidence") for log in body["logs"]]
    assert (log["rank"], log["stream"], log["shared"]) == (1, "output", False)
    assert all("rank 0" not in line for line in log["lines"])
    assert (folder.stat().st_mode & 0o777, (folder / "attempt_2/rank_0.log").stat().st_mode & 0o077) == (0o700, 0)


def test_only_the_end_is_kept_and_all_is_shown(run: Run, tmp_path: Path, temporary: Path) -> None:
    text = "import os\nfor n in range(300_000): print(os.environ['RANK'], 'line', n)\n"
    launcher = run("--keep-output-mib", "1", text=text)
    assert launcher.wait() == 0, launcher.output[-2000:]
    for rank in range(2):
        file = kept(temporary) / "attempt_1" / f"rank_{rank}.log"
        assert (1 << 20) <= file.stat().st_size <= (1 << 20) * 5 // 4 + 8192
        assert file.read_text().splitlines()[-1] == f"{rank} line 299999"
        own = re.findall(rf"^{rank} line (\d+)$", launcher.output, re.MULTILINE)
        assert own == list(map(str, range(300_000)))


@pytest.mark.parametrize("flags", [("--keep-output-mib", "0"), ("--redirects", "3", "--log-dir", "logs")])
def test_nothing_is_kept_where_it_is_not_wanted_or_torch_keeps_it(
    run: Run, temporary: Path, flags: tuple[str, ...]
) -> None:
    launcher = run(*flags, text="print('said')")
    assert launcher.wait() == 0, launcher.output
    assert list(temporary.glob("rankwatch.*/output/*/attempt_*")) == []
    assert launcher.output.count("said") == (2 if flags[0].startswith("--keep") else 0)


def test_a_rank_that_is_not_to_be_shown_is_kept_all_the_same(run: Run, tmp_path: Path, temporary: Path) -> None:
    text = "import os; print('said by', os.environ['RANK'])"
    launcher = run("--local-ranks-filter", "0", text=text)
    assert launcher.wait() == 0, launcher.output
    assert "said by 0" in launcher.output
    assert "said by 1" not in launcher.output
    assert (kept(temporary) / "attempt_1" / "rank_1.log").read_text() == "said by 1\n"


def test_a_progress_bar_is_shown_before_its_line_ends(run: Run, tmp_path: Path, temporary: Path) -> None:
    text = f"""
import os, time
if os.environ["RANK"] == "0":
    print("30 %", end="", flush=True)
    while not os.path.exists({str(tmp_path / "seen")!r}):
        time.sleep(0.02)
"""
    launcher = run(text=text)
    wait_for(lambda: "30 %" in launcher.output)
    (tmp_path / "seen").touch()
    assert launcher.wait() == 0, launcher.output


def test_ranks_of_a_launcher_on_a_terminal_keep_it(monitor: FakeMonitor, tmp_path: Path, temporary: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print('on a terminal', sys.stdout.isatty(), sys.stderr.isatty())\n")
    leader, follower = pty.openpty()
    env = {**without(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC")), "XDG_STATE_HOME": str(tmp_path)}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, SOURCES)), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", RUN, *QUIET, "--monitor", monitor.url, "--nproc-per-node", "1", str(script)]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=follower, stderr=follower)
    os.close(follower)
    said = b""
    try:
        with contextlib.suppress(OSError):  # EIO: all who could write have ended
            while data := os.read(leader, 4096):
                said += data
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert b"on a terminal True True" in said
    assert list(temporary.glob("rankwatch.*/output/*")) == []
    assert KEPT_OUTPUT not in monitor.of("nodes")[0]["facts"]


@contextlib.contextmanager
def printing_to(
    target: int, monitor: FakeMonitor, tmp_path: Path, temporary: Path, text: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher of one rank that prints to a descriptor."""
    script = tmp_path / "train.py"
    script.write_text(text)
    env = {**without(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC")), "XDG_STATE_HOME": str(tmp_path)}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, SOURCES)), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", RUN, *QUIET, "--monitor", monitor.url, "--nproc-per-node", "1", str(script)]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=target, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_ranks_whose_launcher_prints_to_nobody_go_on(monitor: FakeMonitor, tmp_path: Path, temporary: Path) -> None:
    """A reader that has left ends nothing, and one that takes nothing holds nothing up."""
    text = "for n in range(100_000): print('line', n)\nopen('done', 'w').close()\n"
    read, write = os.pipe()
    with printing_to(write, monitor, tmp_path, temporary, text) as process:
        os.close(write)
        wait_for((tmp_path / "done").exists)  # nobody has read yet
        os.close(read)
        assert process.wait(60) == 0


def test_what_a_reader_does_not_take_fills_neither_disk_nor_memory(
    monitor: FakeMonitor, tmp_path: Path, temporary: Path
) -> None:
    text = """
import os, time
for n in range(128): print("x" * (1 << 20), flush=True)
time.sleep(0.3)
open("printed", "w").close()
while not os.path.exists("go on"): time.sleep(0.02)
print("the last line")
"""
    read, write = os.pipe()
    with printing_to(write, monitor, tmp_path, temporary, text) as process:
        os.close(write)
        wait_for((tmp_path / "printed").exists)

        def used() -> int:
            memory = [each for each in Path(f"/proc/{process.pid}/fd").iterdir() if is_memory(each)]
            found = [os.stat(each) for each in (*temporary.rglob("*.log"), *memory)]
            files = {(each.st_dev, each.st_ino): each.st_blocks for each in found}  # one may have two descriptors
            return 512 * sum(files.values())

        wait_for(lambda: 0 < used() < MOST_BEHIND + (4 << 20))
        (tmp_path / "go on").touch()
        with open(read, "rb") as reader:
            said = reader.read()
        assert process.wait(60) == 0
    left_out = re.findall(rb"^\[rankwatch\] (\d+) bytes of rank 0 are not shown here$", said, re.MULTILINE)
    assert left_out
    assert said.count(b"x") + sum(map(int, left_out)) >= 128 << 20
    assert said.endswith(b"the last line\n")


def is_memory(descriptor: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(descriptor).startswith("/memfd:rank_")
    return False


def test_a_rank_prints_on_where_the_disk_is_full(monitor: FakeMonitor, tmp_path: Path, temporary: Path) -> None:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "rankwatch-test", str(temporary)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"needs the right to mount a file system: {mount.stderr.decode().strip()}")
    try:
        text = """
import os, time
print("before", flush=True)
while not os.path.exists("full"): time.sleep(0.02)
for n in range(2000): print("line", n, "x" * 1000, flush=True)
"""
        out = tmp_path / "out"
        with out.open("wb") as to, printing_to(to.fileno(), monitor, tmp_path, temporary, text) as process:
            wait_for(lambda: b"before" in out.read_bytes())
            with (temporary / "filler").open("wb") as filler:
                free = os.statvfs(temporary)
                os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_bsize)
            (tmp_path / "full").touch()
            assert process.wait(60) == 0
        assert out.read_bytes().count(b"\nline ") == 2000
    finally:
        subprocess.run(["umount", "--lazy", str(temporary)], check=True)
