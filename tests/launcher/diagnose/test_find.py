"""Which processes are ranks: scenes of /proc, each with what must not be taken for a rank."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch.contract.diagnosis import Hindrance, Obstacle, SeenRank
from rankwatch.contract.messages import RankStack
from rankwatch_launcher.diagnose import collect, find
from rankwatch_launcher.diagnose.collect import Collector
from support.opens import never_opened

OWN = 4_000_000


class Proc:
    """A folder that looks like ``/proc``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "uptime").write_text("1000.00 1.0\n")
        self._started = 100
        self.now: dict[int, dict[str, str]] = {}

    def add(
        self,
        pid: int,
        parent: int,
        command: str = "python train.py",
        *,
        env: Mapping[str, object] | None = None,
        now: Mapping[str, object] | None = None,
        torch: bool = True,
        user: int = 1000,
        name: str = "python",
    ) -> None:
        """``now``: its environment as it has changed it itself."""
        self.now[pid] = {name: str(value) for name, value in (now or {}).items()}
        made = self.folder / str(pid)
        made.mkdir()
        self._started += 100
        before = ["S", str(parent), *["0"] * 17, str(self._started)]
        (made / "comm").write_text(f"{name}\n")
        (made / "stat").write_text(f"{pid} (x) {' '.join(before)} 0 0\n")
        (made / "status").write_text(f"Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\n")
        (made / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (made / "environ").write_text("".join(f"{name}={value}\0" for name, value in (env or {}).items()))
        (made / "exe").symlink_to(f"/usr/bin/{command.split()[0]}")
        (made / "maps").write_text("00-01 r-xp 0 0 0 /x/libtorch_cpu.so\n" if torch else "")

    def found(self, *pids: int) -> dict[int, tuple[str, int]]:
        return {each.pid: (each.job, each.rank) for each in find.ranks(pids, proc=self.folder, own=OWN).ranks}


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    made = Proc(tmp_path)
    monkeypatch.setattr(find.memory, "environment", lambda pid, proc: made.now[pid])
    made.add(1, 0, "init", torch=False)
    return made


def rank_env(rank: int, world: int = 2, port: int = 29500, **more: object) -> dict[str, object]:
    own = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    return {**own, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": port, **more}


def test_ranks_are_found_by_their_environment_and_their_loader_workers_are_not(proc: Proc) -> None:
    proc.add(10, 1, "python /x/bin/torchrun train.py")
    for rank in (0, 1):
        proc.add(20 + rank, 10, env=rank_env(rank))
        proc.add(30 + rank, 20 + rank, env=rank_env(rank))
    assert proc.found() == {20: ("10.0.0.1:29500", 0), 21: ("10.0.0.1:29500", 1)}
    first = find.ranks(proc=proc.folder, own=OWN).ranks[0]
    assert (first.launcher, first.world_size, first.guessed) == ("torchrun", 2, False)


def test_a_rank_that_ends_while_it_is_read_is_none_rather_than_one_of_an_unknown_user(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        proc.add(20 + rank, 1, env=rank_env(rank))

    def ends(processes: object, pid: int) -> tuple[str, int]:
        if pid == 21:
            shutil.rmtree(proc.folder / "21")
        return "", 0

    monkeypatch.setattr(find._Processes, "launcher_of", ends)
    assert proc.found() == {20: ("10.0.0.1:29500", 0)}


def test_a_launcher_that_was_given_a_rank_itself_is_none(proc: Proc) -> None:
    # As Kubernetes' PyTorchJob does: there RANK is that of the node.
    proc.add(10, 1, "python -m torch.distributed.run", env={"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "a"})
    proc.add(20, 10, env=rank_env(0))
    proc.add(21, 10, env=rank_env(1))
    assert set(proc.found()) == {20, 21}


def test_torchrun_below_srun_is_no_rank_of_slurm(proc: Proc) -> None:
    slurm = {"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0}
    proc.add(10, 1, "python /x/bin/torchrun train.py", env=slurm)
    proc.add(20, 10, env=rank_env(0) | slurm)
    assert proc.found() == {20: ("10.0.0.1:29500", 0)}


def test_a_batch_script_in_python_that_waits_for_its_ranks_is_none(proc: Proc) -> None:
    slurm = {"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 7}
    proc.add(10, 1, "python submit.py", env=slurm, torch=False)
    proc.add(20, 1, env=rank_env(0) | slurm | {"SLURM_STEP_ID": 0})
    assert proc.found() == {20: ("10.0.0.1:29500", 0)}


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({"SLURM_PROCID": 3, "SLURM_NTASKS": 4, "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 1}, "slurm 7.1"),
        ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4, "MASTER_ADDR": "a", "MASTER_PORT": 1}, "a:1"),
        ({"PMI_RANK": 3, "PMI_SIZE": 4}, "a job"),
        (rank_env(3, 4, TORCHELASTIC_RUN_ID="night-7"), "night-7"),
        (rank_env(3, 4, TORCHELASTIC_RUN_ID="none"), "10.0.0.1:29500"),
    ],
)
def test_who_states_a_rank(proc: Proc, variables: dict[str, object], job: str) -> None:
    proc.add(20, 1, env=variables)
    assert proc.found() == {20: (job, 3)}


def test_shells_and_other_programs_with_the_variables_are_none(proc: Proc) -> None:
    proc.add(20, 1, "bash run.sh", env=rank_env(0), torch=False)
    proc.add(21, 20, env=rank_env(0))
    proc.add(22, 1, "python -m rankwatch diagnose", env={"RANK": 0, "WORLD_SIZE": 2}, torch=False)
    proc.add(OWN, 22, "python -m rankwatch_launcher.diagnose", env={"RANK": 0, "WORLD_SIZE": 2}, torch=False)
    assert set(proc.found()) == {21}


def test_two_jobs_of_a_node_are_told_apart(proc: Proc) -> None:
    for port in (1, 2):
        for rank in (0, 1):
            proc.add(10 * port + rank, 1, env=rank_env(rank, port=port))
    assert sorted(proc.found().values()) == [("10.0.0.1:1", 0), ("10.0.0.1:1", 1), ("10.0.0.1:2", 0), ("10.0.0.1:2", 1)]


def test_while_ranks_are_restarted_the_newest_process_counts(proc: Proc) -> None:
    proc.add(20, 1, env=rank_env(0, TORCHELASTIC_RESTART_COUNT=1))
    proc.add(21, 1, env=rank_env(0, TORCHELASTIC_RESTART_COUNT=2), torch=False)
    assert set(proc.found()) == {21}


def test_what_a_rank_has_left_behind_is_none(proc: Proc) -> None:
    proc.add(10, 1, "python /x/bin/torchrun train.py")
    for rank in (0, 1):
        proc.add(20 + rank, 10, env=rank_env(rank, 3))
    proc.add(30, 1, "python service.py", env=rank_env(1, 3), torch=False)
    proc.add(31, 1, "python service.py", env=rank_env(2, 3), torch=False)
    assert set(proc.found()) == {20, 21}


def test_a_process_of_another_user_takes_the_place_of_no_rank(proc: Proc) -> None:
    for rank in (0, 1):
        proc.add(20 + rank, 1, env=rank_env(rank, TORCHELASTIC_RUN_ID="own"))
    for number in range(8):
        env = rank_env(number, 8, TORCHELASTIC_RUN_ID="own", TORCHELASTIC_RESTART_COUNT=99)
        proc.add(10 + number, 1, env=env, user=1001)
    found = find.ranks(proc=proc.folder, own=OWN).ranks
    assert {each.pid for each in found if each.user == 1000} == {20, 21}
    assert {each.user for each in found[:2]} == {1000, 1001}, "users are looked at in turn"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_an_error_file_that_is_none_is_not_waited_for(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    file = tmp_path / "error.json"
    plant(file)
    with never_opened(file):
        assert find.error_of(find.Rank(1, "job", 0, error_file=str(file))) == ""


def test_an_error_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text('{"message": "ValueError: x"}')
    assert find.error_of(find.Rank(1, "job", 0, error_file=str(file), user=os.geteuid())) == "ValueError: x"
    assert find.error_of(find.Rank(1, "job", 0, error_file=str(file), user=os.geteuid() + 1)) == ""


@pytest.fixture
def stuck(proc: Proc) -> Iterator[Callable[[int, str], None]]:
    """Makes reading a file of a process never end, as of one that has mapped a file of its own file system there."""
    made = list[Path]()

    def plant(pid: int, file: str) -> None:
        made.append(proc.folder / str(pid) / file)
        made[-1].unlink()
        os.mkfifo(made[-1])

    yield plant
    for each in made:
        os.close(os.open(each, os.O_RDWR | os.O_NONBLOCK))  # lets its reader go on


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("file", "processes"), [("environ", 1), ("cmdline", 1), ("maps", 1), ("environ", 40)])
def test_who_keeps_its_reader_waiting_keeps_no_other_from_being_found(
    proc: Proc, stuck: Callable[[int, str], None], file: str, processes: int
) -> None:
    others = range(100, 100 + processes)
    for pid in others:
        proc.add(pid, 1, env=rank_env(pid - 100, processes + 1), user=1001)
        stuck(pid, file)
    for rank in (0, 1):
        proc.add(200 + rank, 1, env=rank_env(rank))
    found = find.ranks(proc=proc.folder, own=OWN)
    assert ({each.pid for each in found.ranks}, found.unread) == ({200, 201}, tuple(others))
    assert Collector(proc=proc.folder)._obstacles(found, [])[0] == Obstacle(Hindrance.NOT_READ, tuple(others))


@pytest.mark.timeout(120)
def test_who_keeps_the_reader_of_its_present_environment_waiting_does_neither(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        proc.add(20 + rank, 1, now=rank_env(rank))
    proc.add(30, 1, now=rank_env(0), user=1001)
    goes_on = threading.Event()

    def environment(pid: int, _: Path) -> dict[str, str]:
        return proc.now[pid] if pid != 30 or goes_on.wait() else {}

    monkeypatch.setattr(find.memory, "environment", environment)
    found = find.ranks(proc=proc.folder, own=OWN)
    goes_on.set()
    assert ({each.pid for each in found.ranks}, found.unread) == ({20, 21}, (30,))


@pytest.mark.timeout(120)
def test_of_processes_within_each_other_a_few_are_walked_from_each(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    walked, real, nested = 0, find._Processes.above, 1200

    def above(processes: find._Processes, pid: int) -> Iterator[int]:
        nonlocal walked
        for each in real(processes, pid):
            walked += 1
            yield each

    monkeypatch.setattr(find._Processes, "above", above)
    for pid in range(10, 10 + nested):
        proc.add(pid, pid - 1 if pid > 10 else 1, env=rank_env(0))
    assert set(proc.found()) == {10}
    assert walked < 5 * 64 * nested


def test_a_rank_that_has_not_loaded_torch_yet_is_one(proc: Proc) -> None:
    proc.add(10, 1, "python /x/bin/torchrun train.py")
    proc.add(20, 10, env=rank_env(0), torch=False)
    proc.add(21, 10, env=rank_env(1))
    assert set(proc.found()) == {20, 21}


def test_without_a_word_in_the_environment_siblings_below_a_python_process_are_ranks(proc: Proc) -> None:
    proc.add(10, 1, "python train.py")
    for i in (0, 1, 2):
        proc.add(20 + i, 10)
        for worker in (0, 1):
            proc.add(100 + 10 * i + worker, 20 + i)
    proc.add(30, 10, "python tracker", torch=False)
    found = find.ranks(proc=proc.folder, own=OWN).ranks
    assert [(each.pid, each.rank, each.world_size, each.guessed) for each in found] == [
        (20, 0, 3, True), (21, 1, 3, True), (22, 2, 3, True),
    ]  # fmt: skip


def test_data_loader_workers_of_a_single_process_are_no_ranks(proc: Proc) -> None:
    proc.add(10, 1, "python train.py")
    for worker in (0, 1, 2):
        proc.add(20 + worker, 10, name="pt_data_worker")
    assert proc.found() == {}
    proc.add(30, 1, "python sweep.py")
    for training in (0, 1):
        proc.add(40 + training, 30)
        for worker in (0, 1):
            proc.add(50 + 10 * training + worker, 40 + training, name="pt_data_worker")
    assert set(proc.found()) == {40, 41}, "siblings that nothing numbers may be ranks"


@pytest.mark.parametrize(("connected", "found"), [((30, 31), {30, 31}), ((20, 21), {20, 21}), ((), {20, 21})])
def test_of_siblings_below_siblings_those_that_are_connected_are_ranks(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, connected: tuple[int, ...], found: set[int]
) -> None:
    """Ranks have pools of processes; a test runner with torch starts a job beside a helper with torch."""
    proc.add(10, 1, "python sweep.py")
    for pid, parent in ((20, 10), (21, 10), (30, 20), (31, 20)):
        proc.add(pid, parent)
        (proc.folder / str(pid) / "fd").mkdir()
        (proc.folder / str(pid) / "fd" / "3").symlink_to(f"socket:[{1000 + pid}]")
    ends = [(f"end {pid}", f"end {other}", 1000 + pid) for pid, other in zip(connected, connected[::-1], strict=True)]
    ends.append(("end 20", "a service", 1020))
    monkeypatch.setattr(find.tcp, "connections", lambda: iter(ends))
    assert set(proc.found()) == found


def test_ranks_that_set_their_variables_themselves_have_their_own_numbers(proc: Proc) -> None:
    proc.add(10, 1, "python train.py")
    for pid, rank in ((20, 1), (21, 0)):  # in another order than they were started in
        proc.add(pid, 10, now=rank_env(rank))
        proc.add(10 + pid, pid, now=rank_env(rank))  # a loader worker that was forked
        proc.add(20 + pid, pid, env=rank_env(rank))  # and one that was not
    assert proc.found() == {20: ("10.0.0.1:29500", 1), 21: ("10.0.0.1:29500", 0)}
    first = find.ranks(proc=proc.folder, own=OWN).ranks[0]
    assert (first.launcher, first.launcher_pid, first.guessed) == ("multiprocessing", 10, False)


@pytest.mark.parametrize("forked", [True, False])
def test_a_script_that_sets_the_variables_for_each_rank_it_starts_is_none(proc: Proc, forked: bool) -> None:
    proc.add(10, 1, "python train.py", now=rank_env(1))
    for rank in (0, 1):
        proc.add(20 + rank, 10, **{"now" if forked else "env": rank_env(rank)})  # type: ignore[arg-type]
    assert proc.found() == {20: ("10.0.0.1:29500", 0), 21: ("10.0.0.1:29500", 1)}


def test_a_rank_that_has_started_the_others_is_one(proc: Proc) -> None:
    proc.add(10, 1, "python train.py", now=rank_env(0))
    proc.add(20, 10, env=rank_env(1))
    proc.add(30, 10, now=rank_env(0))
    proc.add(31, 10, now=rank_env(0))
    assert proc.found() == {10: ("10.0.0.1:29500", 0), 20: ("10.0.0.1:29500", 1)}


def test_ranks_that_a_task_of_slurm_has_started_are_found_and_it_is_none(proc: Proc) -> None:
    slurm = {"SLURM_PROCID": 1, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0}
    proc.add(10, 1, "python train.py", env=slurm)
    for pid, rank in ((20, 3), (21, 2)):
        proc.add(pid, 10, env=slurm, now=slurm | rank_env(rank, 4))
    assert proc.found() == {20: ("10.0.0.1:29500", 3), 21: ("10.0.0.1:29500", 2)}


def test_a_process_that_is_a_world_of_its_own_is_no_job(proc: Proc) -> None:
    proc.add(20, 1, "python -m notebook", now=rank_env(0, 1))
    assert proc.found() == {}


def test_single_processes_of_a_shell_are_no_job(proc: Proc) -> None:
    proc.add(10, 1, "bash", torch=False)
    proc.add(20, 10)
    proc.add(21, 10)
    assert proc.found() == {}


def test_processes_that_were_asked_for(proc: Proc) -> None:
    proc.add(10, 1, "python /x/bin/torchrun train.py")
    proc.add(20, 10, env=rank_env(0))
    proc.add(21, 10, env=rank_env(1))
    proc.add(40, 1, "python alone.py")
    assert proc.found(21) == {21: ("10.0.0.1:29500", 1)}
    assert set(proc.found(10)) == {20, 21}
    assert proc.found(40) == {40: (f"{find.NODE} pid 40", 0)}
    assert proc.found(41) == {}


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("/x/bin/python /x/bin/torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("python3 -u -m torch.distributed.run train.py", "torchrun"),
        ("slurmstepd: [7.0]", "srun"),
        ("/usr/bin/mpirun -n 2 python train.py", "mpirun"),
        ("python bench.py --start torchrun", ""),
        ("bash", ""),
    ],
)
def test_what_a_command_line_launches(command: str, launcher: str) -> None:
    assert find.launcher_named(command) == launcher


def test_a_name_of_a_job_that_fills_a_report_is_cut(proc: Proc) -> None:
    for rank in range(2):
        proc.add(20 + rank, 1, env=rank_env(rank, TORCHELASTIC_RUN_ID="x" * 100_000))
    assert {job for job, _ in proc.found().values()} == {"x" * find.MAX_NAME}


def test_what_is_missing_of_all_jobs_of_a_user_is_bounded() -> None:
    stack = RankStack(0, 1, "")
    claims = [
        SeenRank(n, f"j{n}", 0, stack=stack, local_rank=0, local_world_size=1000, launcher="torchrun", age=99.0, user=1)
        for n in range(20)
    ]
    other = replace(claims[0], user=2, local_world_size=8)
    missing = collect._missing([*claims, other])
    assert sum(each.user == 1 for each in missing) <= collect.MAX_LOCAL_RANKS
    assert sum(each.user == 2 for each in missing) == 7


def test_within_a_slurm_job_only_its_ranks_are_looked_at(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        proc.add(20 + rank, 1, env=rank_env(rank, SLURM_JOB_ID="7"))
        proc.add(30 + rank, 1, env=rank_env(rank, port=29501, SLURM_JOB_ID="8"))

    def found() -> set[int]:
        return {each.pid for each in Collector(proc=proc.folder)._find().ranks}

    assert found() == {20, 21, 30, 31}
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert found() == {30, 31}
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert found() == {20, 21, 30, 31}, "ranks in containers may not state their job"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/x/ray/core/src/ray/raylet/raylet --node_ip_address=10.0.0.1", "ray"),
        ("python -u -m deepspeed.launcher.launch --world_info=x --node_rank=0 train.py", "deepspeed"),
        ("python /x/bin/deepspeed train.py", "deepspeed"),
        ("python /x/bin/accelerate launch train.py", "accelerate"),
        ("python /x/bin/accelerate-launch train.py", "accelerate"),
        ("mpirun -n 2 python train.py", "mpirun"),
        ("python deepspeed_train.py", ""),
        ("python evaluate.py --launcher torchrun", ""),
    ],
)
def test_launchers_are_known_by_their_command_lines(proc: Proc, command: str, name: str) -> None:
    proc.add(10, 1, command, torch=False)
    for pid in (20, 21):
        proc.add(pid, 10, "python worker.py")
    found = find.ranks(proc=proc.folder, own=OWN).ranks
    assert [(each.pid, each.launcher, each.launcher_pid) for each in found] == (
        [(20, name, 10), (21, name, 10)] if name else []
    )
