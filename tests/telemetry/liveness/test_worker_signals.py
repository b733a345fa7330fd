"""Worker processes of a rank and the scheduler's signal: torch's data loader, multiprocessing, programs they start.

Everything that one rank does is a program of its own, so that it can be signalled with all that it starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from support.signalled_rank import SignalledRank, in_mask
from support.waiting import wait_for

TERM = signal.SIGTERM

Start = Callable[..., SignalledRank]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[SignalledRank] = []

    def begin(program: str, stop_signal: int | None = TERM) -> SignalledRank:
        started.append(SignalledRank(tmp_path, program, stop_signal))
        return started[-1]

    yield begin
    for rank in started:
        rank.close()


LOADER = """
import functools, os, time, torch, rankwatch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        time.sleep(0.002)  # so that there are many batches still to come when the signal does
        return torch.tensor([i, os.getpid()])

def main(**options):
    rankwatch.init()
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, **options)
    stop = False
    while not stop:
        seen = []
        for batch in loader:
            with rankwatch.step():
                seen += batch[:, 0].tolist()
            if stop := rankwatch.should_stop():
                break
        assert seen == list(range(len(seen))), seen
        assert stop or len(seen) == LENGTH
    rankwatch.mark_complete()
    print("saved", flush=True)

if __name__ == "__main__":
    main(OPTIONS)
"""


def loader(options: str = "", length: int = 100_000) -> str:
    return LOADER.replace("OPTIONS", options).replace("LENGTH", str(length))


RESOURCE_TRACKER = resource_tracker.__file__


def trains_on_and_ends_well(rank: SignalledRank, workers: int = 2) -> None:
    rank.wait_until_signalled()
    rank.train(100)
    assert rank.process.poll() is None
    assert len(rank.others()) >= workers
    rank.stop_soon()
    code, output = rank.end()
    # Where workers were spawned, Python's own tracker may find their semaphores before they are given back.
    assert (code, output.partition(RESOURCE_TRACKER)[0]) == (0, "saved\n")
    assert rank.reading().complete


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.long)])
def test_a_data_loader_goes_on_in_the_middle_of_an_epoch(start: Start, number: int) -> None:
    rank = start(loader(), number)
    rank.train(20)
    workers = rank.others()
    assert len(workers) == 2
    for _ in range(3):  # a scheduler may repeat itself
        rank.signal_all(number)
        rank.train(10)
    assert rank.others() == workers
    trains_on_and_ends_well(rank)


def test_persistent_workers_live_through_it_and_end_with_the_rank(start: Start) -> None:
    rank = start(loader("persistent_workers=True", length=40))
    rank.train(50)
    workers = rank.others()
    rank.signal_all()
    trains_on_and_ends_well(rank)
    assert workers


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_are_sheltered_from_their_first_moment_to_their_last(start: Start) -> None:
    """Epochs of ten batches, whose workers are forked again, under one signal after the other."""
    rank = start(loader(length=20))
    rank.train(1)
    goal = rank.steps() + 150

    def signalled_again() -> bool:
        rank.signal_all()
        return rank.steps() >= goal

    wait_for(signalled_again, "fifteen epochs pass", 200)
    rank.stop_soon()
    assert rank.end() == (0, "saved\n")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_without_the_shelter_the_workers_take_training_down(start: Start) -> None:
    """The silent twin: what the others prove is not so by itself."""
    rank = start(loader(), stop_signal=None)
    rank.train(20)
    for worker in rank.others():
        os.kill(worker, TERM)
    code, output = rank.end()
    assert code == 1
    # Which it sees first: that a worker is gone, or that its connection is, by either of two errors.
    assert any(each in output for each in ("killed by signal: Terminated", "ConnectionResetError", "EOFError"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_spawned_workers_are_sheltered_by_protect(start: Start) -> None:
    text = "multiprocessing_context='spawn', worker_init_fn=rankwatch.liveness.worker_signals.protect"
    rank = start(loader(text).replace("import functools", "import rankwatch.liveness.worker_signals, functools"))
    rank.train(20)
    workers = {pid for pid in rank.others() if in_mask(pid, "SigBlk", TERM)}
    assert len(workers) == 2, "and multiprocessing's resource tracker, which ignores the signal"
    rank.signal_all()
    trains_on_and_ends_well(rank)


ENDED_BY_PARENT = """
import signal, time, rankwatch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    rankwatch.init()
    batches = iter(DataLoader(range(10_000_000), num_workers=2))
    next(batches), next(batches)  # one of each worker: one that still starts dies by the signal, as without Rankwatch
    workers = batches._workers
    open("ready", "w").write("ready")
    input()
    for worker in workers:
        worker.terminate()
        worker.join(20)
    print([worker.exitcode for worker in workers], flush=True)
"""


def test_a_data_loaders_worker_ends_when_its_parent_terminates_it(start: Start) -> None:
    rank = start(ENDED_BY_PARENT)
    rank.wait_for_file("ready")
    rank.signal_all()
    rank.wait_until_signalled()
    rank.report()
    assert rank.end() == (0, "[0, 0]\n"), "as torch's own handler: the parent must not take it for a crash"


CHILDREN = """
import multiprocessing as mp, os, signal, subprocess, sys, threading, time, rankwatch

def wait():
    threading.Event().wait()

def with_a_handler():
    def leave(*_):
        print("the child cleans up", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, leave)
    open("ready", "w").write("ready")
    wait()

def plain():
    open("ready", "w").write("ready")
    wait()

def with_a_child():
    grandchild = mp.Process(target=plain)
    grandchild.start()
    with open("grandchild", "w") as file:
        file.write(str(grandchild.pid))
    time.sleep(3600) if not os.path.exists("go") else None

def with_a_program():
    options = {"preexec_fn": lambda: None} if os.path.exists("preexec") else {}
    program = subprocess.Popen(["sleep", "3600"], **options)
    open("ready", "w").write(str(program.pid))
    while not os.path.exists("go"):
        time.sleep(0.02)
    program.terminate()
    sys.exit(program.wait(60) != -signal.SIGTERM)

if __name__ == "__main__":
    rankwatch.init()
    context = mp.get_context("fork")
    child = context.Process(target=TARGET, daemon=DAEMON)
    child.start()
    input()
    if TERMINATE:
        child.terminate()
    if not DAEMON:
        child.join(20)
        print(child.exitcode, flush=True)
"""


def child(target: str, terminate: bool = True, daemon: bool = False) -> str:
    return CHILDREN.replace("TARGET", target).replace("TERMINATE", str(terminate)).replace("DAEMON", str(daemon))


@pytest.mark.parametrize(
    ("target", "printed"), [("plain", f"{-TERM}\n"), ("with_a_handler", "the child cleans up\n3\n")]
)
def test_a_process_heeds_its_parent_alone(start: Start, target: str, printed: str) -> None:
    rank = start(child(target))
    rank.wait_for_file("ready")
    (pid,) = rank.others()
    rank.signal_all()
    rank.wait_until_signalled()
    assert rank.others() == {pid}
    rank.report()
    assert rank.end() == (0, printed)


def test_the_rank_does_not_wait_for_daemons_at_its_exit(start: Start) -> None:
    """multiprocessing terminates them, then joins them without a limit."""
    rank = start(child("plain", terminate=False, daemon=True))
    rank.wait_for_file("ready")
    rank.signal_all()
    rank.wait_until_signalled()
    rank.report()
    assert rank.end() == (0, "")


def test_its_parents_signal_counts_though_it_came_while_another_waited(start: Start) -> None:
    """Two signals of one number that wait are one, and that one reports the first sender only."""
    rank = start(child("plain", terminate=False, daemon=True))
    rank.wait_for_file("ready")
    (pid,) = rank.others()
    os.kill(pid, signal.SIGSTOP)
    stats = [thread / "stat" for thread in Path(f"/proc/{pid}/task").iterdir()]
    stopped = lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)  # noqa: E731
    wait_for(stopped, "no thread of the child takes a signal", 60)
    os.kill(pid, TERM)
    rank.report()
    # wait4: multiprocessing has sent its own signal, and joins the child.
    call = Path(f"/proc/{rank.process.pid}/syscall")
    wait_for(lambda: call.read_text().startswith("61 "), "the rank waits for its child", 60)
    os.kill(pid, signal.SIGCONT)
    assert rank.end() == (0, "")


def test_a_child_that_passed_the_signal_over_does_not_outlive_its_parent(start: Start) -> None:
    rank = start(child("plain"))
    rank.wait_for_file("ready")
    (pid,) = rank.others()
    os.kill(pid, TERM)
    wait_for(lambda: not in_mask(pid, "ShdPnd", TERM), "the child has looked at it", 60)
    assert rank.others() == {pid}
    rank.process.kill()
    wait_for(lambda: rank.others() == set(), "the child follows its parent", 60)


def test_a_child_whose_parent_is_gone_ends_as_it_always_did(start: Start) -> None:
    rank = start(child("plain"))
    rank.wait_for_file("ready")
    (pid,) = rank.others()
    rank.process.kill()
    rank.process.wait()
    assert rank.others() == {pid}
    os.kill(pid, TERM)
    wait_for(lambda: rank.others() == set(), "the orphan ends", 60)


@pytest.mark.parametrize("preexec", [False, True])
def test_a_program_that_a_worker_starts_does_not_inherit_the_shelter(
    start: Start, tmp_path: Path, preexec: bool
) -> None:
    if preexec:
        (tmp_path / "preexec").touch()
    rank = start(child("with_a_program", terminate=False))
    program = int(rank.wait_for_file("ready"))
    assert not in_mask(program, "SigBlk", TERM)
    (worker,) = rank.others() - {program}
    assert in_mask(worker, "SigBlk", TERM), "the worker itself is sheltered as before"
    (tmp_path / "go").touch()
    rank.report()
    assert rank.end() == (0, "0\n")


def test_a_childs_children_are_sheltered_too(start: Start) -> None:
    rank = start(child("with_a_child"))
    rank.wait_for_file("ready")
    family = rank.others()
    assert len(family) == 2
    rank.signal_all()
    rank.wait_until_signalled()
    assert rank.others() == family
    os.kill(int(rank.wait_for_file("grandchild")), signal.SIGKILL)
    rank.report()
    assert rank.end() == (0, f"{-TERM}\n")


RAW = """
import os, signal, subprocess, sys, rankwatch
from multiprocessing import Process

def nothing():
    pass

rankwatch.init()
worker = Process(target=nothing)  # the shelter has been in use
worker.start()
worker.join()
child = os.fork()
if child == 0:
    signal.pause()
    os._exit(0)
program = subprocess.Popen(["sleep", "3600"], preexec_fn=lambda: None)
open("ready", "w").write(f"{child} {program.pid}")
input()
os.kill(child, signal.SIGTERM)
program.terminate()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), program.wait(60), flush=True)
"""


def test_what_is_forked_without_multiprocessing_is_none_of_our_business(start: Start) -> None:
    rank = start(RAW)
    for pid in map(int, rank.wait_for_file("ready").split()):
        wait_for(lambda pid=pid: not in_mask(pid, "SigBlk", TERM), "the signal is not blocked once the fork runs")
        wait_for(lambda pid=pid: not in_mask(pid, "SigCgt", TERM), "nor caught")
    rank.report()
    assert rank.end() == (0, f"{-TERM} {-TERM}\n")
    assert not rank.reading().stop_signalled, "the slots are the rank's alone"
