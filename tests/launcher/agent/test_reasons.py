"""The sentences that a person reads."""

from __future__ import annotations

from rankwatch_launcher.agent.reasons import Exit, crashed, ending, exited, out_of_budget, restarting


def exit_of(code: int, **more: object) -> Exit:
    return Exit(5, 1, 99, code, **more)  # type: ignore[arg-type]


def test_an_exit_code_and_what_the_rank_said() -> None:
    assert exited(exit_of(3), "h1") == "rank 5 (local rank 1, pid 99) on h1 exited with code 3"
    assert exited(exit_of(1, message="ValueError: bad\nmore"), "h1").endswith("exited with code 1: ValueError: bad")


def test_a_signal_has_its_name() -> None:
    assert exited(exit_of(-9), "h1").endswith("was killed by SIGKILL")
    assert exited(exit_of(-60), "h1").endswith("was killed by signal 60")
    assert exit_of(-11).signal == "SIGSEGV"
    assert exit_of(0).signal is None


def test_the_abort_of_a_finished_rank_is_explained_and_any_other_is_not() -> None:
    assert "destroy_process_group" in exited(exit_of(-6, had_finished=True), "h1")
    assert "destroy_process_group" not in exited(exit_of(-6), "h1")
    assert "destroy_process_group" not in exited(exit_of(-9, had_finished=True), "h1")


def test_others_are_counted() -> None:
    assert crashed([exit_of(3), exit_of(1)], "h1").endswith("exited with code 3 (1 more at the same moment)")


def test_budget_and_incident_are_said() -> None:
    assert out_of_budget("it broke", 3) == "it broke; all 3 restarts are used up (--max-restarts)"
    assert out_of_budget("it broke", 0) == "it broke; no restart is allowed (--max-restarts 0)"
    line = restarting("rank 1 hangs", 4, 2, 3, "i9")
    assert line == "restarting all ranks after attempt 4: rank 1 hangs [incident i9] (restart 2 of 3)"
    assert ending("stopped", "by order", None) == "stopping: by order"
