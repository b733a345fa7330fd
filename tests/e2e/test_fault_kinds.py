"""Faults of every kind that the other files do not have: the culprit is named, and the job comes to its end."""

from __future__ import annotations

import re

import pytest

from e2e.story import WHOLE, assert_blamed, assert_in_order, functions, stack_of
from e2e.training import FAULT, HOST, RESUMED, STEP_LIMIT, STEPS, Training

pytestmark = pytest.mark.timeout(240)

LIMIT = ("--section-timeout", f"step={STEP_LIMIT}")
TO_THE_END = ("--steps", str(STEPS))


def assert_at_the_end(training: Training, *, restarts: int = 1) -> None:
    job = training.summary()
    assert (job["state"], job["attempt"], job["restarts"]) == ("finished", 1 + restarts, restarts)
    assert (job["iteration"], job["open_incidents"]) == (STEPS - 1, 0)
    assert training.steps("end") == {rank: [(1 + restarts, STEPS)] for rank in training.reported()}


@pytest.mark.long
def test_a_rank_stuck_in_the_kernel_is_named(watched: Training) -> None:
    launcher = watched.run(*LIMIT, script=TO_THE_END, inject=f"rank=1,step={FAULT},kind=uninterruptible")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "device_or_network")
    assert incident["action"] == "restart"
    assert_in_order(incident, *WHOLE)
    assert stack_of(incident, 1)["process_state"] == "uninterruptible"
    assert_at_the_end(watched)


@pytest.mark.long
def test_a_hang_after_a_delay_befalls_the_main_thread(watched: Training) -> None:
    """Where it strikes is left to the clock: the rank is named all the same, and what it did is in its stack."""
    launcher = watched.run(*LIMIT, ranks=3, inject="rank=2,delay=2,kind=hang")
    watched.until_running(3, attempt=2)
    resumed = watched.resumed(2)
    assert watched.finish() == [0], launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 2, "behind")
    assert incident["action"] == "restart"
    assert_in_order(incident, *WHOLE)
    assert functions(stack_of(incident, 2))[0] == "rankwatch_injected_hang"
    assert "train" in functions(stack_of(incident, 2))
    assert incident["outcome"].startswith(f"attempt 2 resumed at step {resumed}")
    assert re.search(r"a fault will be injected: hang on rank 2, 2\.0 s after init\(\)", launcher.printed())


@pytest.mark.long
def test_a_fault_in_a_section_strikes_there(watched: Training) -> None:
    limits = ("--section-timeout", f"checkpointing={STEP_LIMIT}", "--section-timeout", "step=60")
    launcher = watched.run(*limits, script=TO_THE_END, inject="rank=1,section=checkpointing,kind=hang")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "behind")
    assert (incident["kind"], incident["section"]) == ("section_overrun", "checkpointing")
    assert functions(stack_of(incident, 1))[0] == "rankwatch_injected_hang"
    assert_at_the_end(watched)


@pytest.mark.long
def test_a_slow_rank_is_no_hang(watched: Training) -> None:
    """The twin of the others: a rank that only slows, for a while well above the usual, is left alone."""
    launcher = watched.run(*LIMIT, script=TO_THE_END, inject=f"rank=1,step={FAULT},kind=slow,seconds=0.1")
    assert launcher.wait() == 0, launcher.printed()
    assert watched.incidents() == []
    assert_at_the_end(watched, restarts=0)


@pytest.mark.long
def test_cut_telemetry_does_not_end_a_healthy_rank(watched: Training) -> None:
    """Nothing is received from a rank for twice the silence limit, but its launcher sees it go on."""
    launcher = watched.run(*LIMIT, "--silence-timeout", "4", inject="rank=0,step=10,kind=network")
    watched.until("its reports do not get through", lambda: "cut off by an injected fault" in launcher.printed())
    start = watched.summary()["iteration"] or 0
    watched.until("it trains on for longer than the limit", lambda: (watched.summary()["iteration"] or 0) > start + 400)
    assert watched.incidents() == []
    assert watched.finish() == [0], launcher.printed()
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"], job["incidents"]) == ("finished", 1, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kind=abort", "was killed by SIGABRT"),
        ("kind=segfault", "was killed by SIGSEGV"),
        ("kind=term", "was killed by SIGTERM"),
        ("kind=int", "exited with code 1"),
        ("kind=async_exception", "exited with code 1"),
    ],
    ids=lambda value: value.removeprefix("kind=") if value.startswith("kind=") else "",
)
def test_every_end_of_a_process_is_named_and_restarted(watched: Training, fault: str, words: str) -> None:
    launcher = watched.run(script=(*TO_THE_END, "--patient"), inject=f"rank=1,step={FAULT},{fault}")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "dead")
    assert incident["reason"].startswith(f"Rank 1 on {HOST} {words}")
    assert incident["action"] == "restart"
    assert watched.steps("start") == {0: [(1, 0), (2, RESUMED)], 1: [(1, 0), (2, RESUMED)]}
    assert_at_the_end(watched)
    printed = {"kind=int": "KeyboardInterrupt", "kind=async_exception": "injected into the main thread"}
    assert printed.get(fault, "") in launcher.printed()


@pytest.mark.long
@pytest.mark.parametrize("delayed", ["stop", "kill", "gil", "exception"])
def test_every_way_to_strike_after_a_delay(watched: Training, delayed: str) -> None:
    # A process that dies needs no limit, and on a busy machine it takes long to die.
    limit = LIMIT if delayed in ("stop", "gil") else ("--section-timeout", "step=60")
    launcher = watched.run(*limit, script=("--patient",), inject=f"rank=1,delay=2,kind={delayed}")
    watched.until_running(2, attempt=2)
    assert watched.finish() == [0], launcher.printed()
    classes = {"stop": "stopped", "kill": "dead", "gil": "gil_held", "exception": "dead"}
    assert_blamed(watched.incident(), 1, classes[delayed])


@pytest.mark.long
def test_chance_picks_the_same_rank_on_all_of_them(watched: Training) -> None:
    launcher = watched.run(*LIMIT, ranks=3, script=TO_THE_END, inject=f"rank=random,step={FAULT},kind=random,seed=7")
    assert launcher.wait() == 0, launcher.printed()
    struck = re.findall(r"injecting a fault on purpose: (stop|kill) on rank (\d)", launcher.printed())
    assert len(struck) == 1, "one rank, once"
    kind, rank = struck[0]
    assert_blamed(watched.incident(), int(rank), {"stop": "stopped", "kill": "dead"}[kind])
    assert_at_the_end(watched)
