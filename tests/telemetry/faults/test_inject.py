from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankwatch
from rankwatch.export.transport import OtlpClient
from rankwatch.faults import actions
from rankwatch.faults import inject as faults
from rankwatch.faults.actions import FaultUnavailableError, InjectedFaultError
from rankwatch.faults.spec import Fault
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.sections import Section
from rankwatch.recording.shared_slots import Reading, read
from support.waiting import wait_for


@pytest.fixture(autouse=True)
def no_plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins as a process does, and leaves the class, the signals and the transport as they were."""
    monkeypatch.setattr(faults, "_plan", None)
    handlers = {number: signal.getsignal(number) for number in range(signal.SIGRTMIN, signal.SIGRTMAX)}
    post = OtlpClient.post
    yield
    Section.__enter__ = faults._plain_enter  # type: ignore[method-assign]
    OtlpClient.post = post  # type: ignore[method-assign]
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    """Faults are only noted."""
    noted: list[Fault] = []
    monkeypatch.setattr(faults, "carry_out", noted.append)
    return noted


def begin(monkeypatch: pytest.MonkeyPatch, inject: str, *, rank: int = 1, attempt: int = 1) -> None:
    monkeypatch.setenv("RANKWATCH_INJECT", inject)
    rankwatch.init(rank=rank, world_size=4, attempt=attempt, job_id="job")


def train(steps: int, first: int = 0, section: str = "forward") -> None:
    for step in range(first, first + steps):
        with rankwatch.step(step), rankwatch.section(section):
            pass


@pytest.mark.parametrize("launched", [True, False])
def test_a_fault_is_announced_by_the_launcher_or_else_by_the_rank(
    launched: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    if launched:
        monkeypatch.setenv("RANKWATCH_SLOTS_DIR", str(tmp_path))
    begin(monkeypatch, "rank=1,step=3,kind=hang")
    assert ("a fault will be injected on purpose" in caplog.text) is not launched


# By step and section ------------------------------------------------------------------------------------------------


def test_a_fault_strikes_once_when_its_step_is_entered(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,step=3,kind=hang")
    train(3)
    assert struck == []
    train(1, first=3)
    assert [fault.step for fault in struck] == [3]
    train(5)
    assert len(struck) == 1, "a step that is run again is not struck again"


def test_the_section_is_open_when_it_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Reading | None] = []
    monkeypatch.setattr(faults, "carry_out", lambda fault: seen.append(_reading()))
    begin(monkeypatch, "rank=1,step=2,section=forward,kind=hang")
    train(4)
    (at,) = seen
    assert at is not None
    assert (at.iteration, set(at.open_sections)) == (1, {"step", "forward"}), "so that its limit runs"


def _reading() -> Reading | None:
    from rankwatch import session

    assert session._session is not None
    return read(session._session.recorder.slots)


def test_without_a_step_the_first_time_in_a_section(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,section=saving,kind=hang; rank=1,section=step,kind=stop")
    train(2)
    assert [fault.section for fault in struck] == ["step"]
    train(2, section="saving")
    assert [fault.section for fault in struck] == ["step", "saving"]


@pytest.mark.parametrize(("rank", "attempt"), [(0, 1), (1, 2)])
def test_a_rank_without_the_fault_runs_the_code_it_always_runs(
    monkeypatch: pytest.MonkeyPatch, struck: list[Fault], rank: int, attempt: int
) -> None:
    begin(monkeypatch, "rank=1,step=3,kind=hang", rank=rank, attempt=attempt)
    assert Section.__enter__ is faults._plain_enter
    train(5)
    assert struck == []


def test_once_all_have_struck_the_code_is_what_it_was(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,step=1,kind=hang; rank=1,step=2,kind=stop")
    armed = Section.__enter__
    train(2)
    assert Section.__enter__ is armed is not faults._plain_enter
    train(1, first=2)
    assert len(struck) == 2
    assert Section.__enter__ is faults._plain_enter


def test_a_slow_rank_is_slow_from_then_on(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,step=2,kind=slow,seconds=0.1")
    train(5)
    assert len(struck) == 3


def test_chance_strikes_one_rank_of_all(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    for rank in range(4):
        monkeypatch.setattr(faults, "_plan", None)
        begin(monkeypatch, "rank=random,step=1,kind=random,seed=3", rank=rank)
        train(2)
        rankwatch.shutdown()
    (fault,) = struck
    assert fault.kind in ("stop", "kill")


def test_an_exception_that_strikes_leaves_no_section_open(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, "rank=1,step=2,kind=exception")
    with pytest.raises(InjectedFaultError, match="on rank 1 in step 2"):
        train(4)
    seen = _reading()
    assert seen is not None
    assert (dict(seen.open_sections), seen.iteration) == ({}, 1)
    train(1, first=2)
    after = _reading()
    assert after is not None
    assert after.iteration == 2, "a script that catches it goes on"


def test_what_cannot_be_done_is_reported_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    begin(monkeypatch, "rank=1,step=2,kind=gpu_error")
    train(4)
    assert "fault gpu_error needs torch" in caplog.text
    seen = _reading()
    assert seen is not None
    assert seen.iteration == 3


def test_what_cannot_be_read_is_reported_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin(monkeypatch, "rank=1,step=2,kind=explode")
    train(4)
    assert "no fault is injected: RANKWATCH_INJECT: kind of a fault must be one of hang" in caplog.text


def test_a_rank_that_cannot_be_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin(monkeypatch, "rank=9,step=2,kind=kill", rank=0)
    assert caplog.text.count("there is no rank 9 among 4") == 1


def test_a_session_that_is_started_again_is_not_struck_again(
    monkeypatch: pytest.MonkeyPatch, struck: list[Fault]
) -> None:
    for _ in range(2):
        begin(monkeypatch, "rank=1,step=1,kind=hang")
        train(3)
        rankwatch.shutdown()
    assert len(struck) == 1


def test_nothing_strikes_without_a_session(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,step=1,kind=hang")
    rankwatch.shutdown()
    train(3)
    assert struck == []


# By the script itself -----------------------------------------------------------------------------------------------


def test_a_script_that_strikes_itself_is_struck_where_it_states(
    monkeypatch: pytest.MonkeyPatch, struck: list[Fault]
) -> None:
    begin(monkeypatch, "rank=1,step=2,kind=hang")
    for step in range(4):
        with rankwatch.step(step):
            assert len(struck) == (step > 2)
            faults.maybe_inject(step)
            assert len(struck) == (step >= 2)


def test_in_its_first_step_it_is_struck_once_as_well(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,step=0,kind=hang")
    with rankwatch.step(0):
        faults.maybe_inject(0)
    assert len(struck) == 1


def test_sections_it_reports_nothing_of_are_struck_all_the_same(
    monkeypatch: pytest.MonkeyPatch, struck: list[Fault]
) -> None:
    begin(monkeypatch, "rank=1,step=2,section=forward,kind=hang")
    for step in range(4):
        faults.maybe_inject(step)
        train(1, first=step)
    assert len(struck) == 1


def test_without_init_the_environment_is_done_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_INJECT", "rank=1,step=3,kind=exit,code=9")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    faults.maybe_inject(2)
    with pytest.raises(SystemExit, match="9"):
        faults.maybe_inject(3)


def test_a_script_that_asks_for_a_fault_gets_the_reason_why_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_INJECT", "rank=1")
    with pytest.raises(ValueError, match="lacks kind, step"):
        faults.maybe_inject(0)


# After a delay ------------------------------------------------------------------------------------------------------


def test_after_a_delay_from_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[tuple[str, float]] = []
    monkeypatch.setattr(
        faults, "carry_out", lambda fault: struck.append((threading.current_thread().name, time.monotonic()))
    )
    began = time.monotonic()
    begin(monkeypatch, "rank=1,delay=0.2,kind=stop")
    assert Section.__enter__ is faults._plain_enter, "the hot path has nothing to do with it"
    train(3)
    wait_for(lambda: struck, "it strikes")
    (name, at) = struck[0]
    assert name == "rankwatch-fault"
    assert at - began >= 0.2


def test_what_befalls_the_main_thread_is_done_there(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, "rank=1,delay=0.1,kind=exception")
    with pytest.raises(InjectedFaultError, match=r"injected on rank 1 0\.1 s after init\(\)"):
        wait_for(lambda: False, "an exception comes out of nowhere")


def test_a_sleeping_main_thread_is_reached_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, "rank=1,delay=0.1,kind=exit,code=4")
    began = time.monotonic()
    with pytest.raises(SystemExit):
        time.sleep(60)
    assert time.monotonic() - began < 30


def test_from_another_thread_the_main_one_cannot_be_reached_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    thread = threading.Thread(target=begin, args=(monkeypatch, "rank=1,delay=0.1,kind=hang"))
    thread.start()
    thread.join()
    assert "no fault is injected: RANKWATCH_INJECT: signal only works in main thread" in caplog.text


def test_a_signal_in_use_is_not_taken(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    taken = signal.SIGRTMAX - 1
    signal.signal(taken, signal.SIG_IGN)
    monkeypatch.setenv("RANKWATCH_STACK_SIGNAL", str(signal.SIGRTMAX - 2))
    begin(monkeypatch, "rank=1,delay=0.1,kind=hang")
    wait_for(lambda: struck, "it strikes")
    assert signal.getsignal(taken) is signal.SIG_IGN
    assert callable(signal.getsignal(signal.SIGRTMAX - 3))


def test_after_shutdown_a_delay_strikes_no_rank(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,delay=0.1,kind=stop")
    rankwatch.shutdown()
    waiting = [thread for thread in threading.enumerate() if thread.name == "rankwatch-fault"]
    for thread in waiting:
        thread.join(60)
    assert waiting
    assert struck == []


def test_a_rank_may_become_slow_after_a_delay(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    begin(monkeypatch, "rank=1,delay=0.1,kind=slow,seconds=0.1")
    train(1)
    assert struck == []

    def slowed() -> int:
        train(1)
        return len(struck)

    wait_for(lambda: slowed() >= 2, "every step is slowed from then on")


# From a program -----------------------------------------------------------------------------------------------------


def test_at_once(recorder: Recorder, struck: list[Fault]) -> None:
    faults.simulate("hang", rank=0)
    faults.simulate("hang", rank=1)
    faults.simulate("hang", rank=0, attempt=2)
    faults.simulate("hang", rank=0)
    assert [fault.rank for fault in struck] == [0, 0]


def test_by_step_and_by_section(recorder: Recorder, struck: list[Fault]) -> None:
    faults.simulate("rank_hung", rank=0, step=1)
    faults.simulate("slow", rank=0, section="forward", seconds=1)
    train(2)
    assert [fault.kind for fault in struck] == ["slow", "stop", "slow"]


def test_after_a_delay(recorder: Recorder, struck: list[Fault]) -> None:
    faults.simulate("exception", rank="random", delay=0.05, seed=1)
    wait_for(lambda: struck, "it strikes")


def test_what_init_was_given_counts(monkeypatch: pytest.MonkeyPatch, struck: list[Fault]) -> None:
    monkeypatch.setenv("RANK", "0")
    rankwatch.init(rank=3, world_size=4, attempt=2)
    faults.simulate("hang", rank=3, attempt=2)
    assert len(struck) == 1


def test_nonsense_from_a_program_is_its_own_fault() -> None:
    with pytest.raises(ValueError, match="either seconds or factor"):
        faults.simulate("slow", rank=0, step=3)
    with pytest.raises(ValueError, match="kind of a fault must be one of"):
        faults.simulate("explode", rank=0)


def test_what_cannot_be_done_at_once_is_reported(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FaultUnavailableError, match="needs torch"):
        faults.simulate("gpu_sleep", rank=0)


# In a process of its own --------------------------------------------------------------------------------------------


def test_a_script_that_knows_nothing_of_faults_is_struck(tmp_path: Path) -> None:
    program = (
        "import rankwatch, sys\nrankwatch.init()\nassert 'rankwatch.faults' in sys.modules\n"
        "for i in range(9):\n    with rankwatch.step(): print(i, flush=True)"
    )
    environment = os.environ | {"RANKWATCH_INJECT": "rank=0,step=4,kind=kill"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (-9, ["0", "1", "2", "3"])
    assert "injecting a fault on purpose: kill on rank 0, in step 4, in attempt 1" in done.stderr


def test_without_faults_nothing_of_them_is_even_imported() -> None:
    program = (
        "import rankwatch, sys\n"
        "from rankwatch.recording.sections import Section\n"
        "plain = Section.__enter__\nrankwatch.init()\n"
        "assert Section.__enter__ is plain\nassert not [m for m in sys.modules if 'rankwatch.fault' in m]"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RANKWATCH_INJECT"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_the_module_shows_what_users_need() -> None:
    assert set(faults.__all__) >= {"maybe_inject", "simulate", "parse", "Kind", "Fault"}
    assert set(faults.Kind) > actions.MAIN_THREAD_ONLY
