"""One rank: a model with dropout is run again bit for bit, and every verdict comes out as it should."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rankwatch
from rankwatch.rerun import (
    RerunErrorInjector,
    RerunMode,
    RerunState,
    RerunStateMachine,
    ResultRejectedError,
)
from telemetry.rerun.one_rank import Job, nan_in, resumed, validating


def test_a_healthy_step_runs_once_and_reports_nothing(reported: list[str]) -> None:
    job = Job(validating())
    for _ in range(3):
        assert job.step() == (False, False, 0)
        assert job.machine.state_dict(job.data) is None
    assert [len(runs) for runs in job.losses] == [1, 1, 1]
    assert reported == []


def test_validating_changes_nothing_of_the_training() -> None:
    random.seed(1)
    plain = Job(RerunStateMachine())
    random.seed(1)
    expected = [plain.step() and plain.losses[-1] for _ in range(4)]
    random.seed(1)
    watched = Job(validating())
    watched.wrong = nan_in(0)
    found = [watched.step(fatal=False) and watched.losses[-1] for _ in range(4)]
    assert [runs[0] for runs in found] == [runs[0] for runs in expected], "even though every step ran twice"
    assert all(len(runs) == 2 and runs[0] == runs[1] for runs in found), "bit for bit, dropout and all"


def test_a_transient_error_ends_the_job(reported: list[str], tmp_path: Path) -> None:
    job = Job(validating(result_rejected_tracker_filename=str(tmp_path / "rejected")))
    job.step()
    job.wrong = nan_in(0)
    assert job.step() == (True, True, 17)
    (sentence,) = reported
    assert sentence.startswith("rank 0 on ")
    loss = f"{job.losses[-1][1]:.9g}"
    assert "(board A), step 1: transient error: the loss is NaN (nan), but run again at once on the same" in sentence
    assert f" device it was {loss};" in sentence
    assert sentence.endswith("the job ends with exit code 17 for manual inspection")
    assert "status=initial_run" in (tmp_path / "rejected").read_text()
    assert "status=first_rerun_not_reproducible" in (tmp_path / "rejected").read_text()
    again = resumed(job.checkpoint(), validating())
    assert again.step() == (False, False, 0), "the checkpoint is an ordinary one: a person may go on from it"


def test_a_transient_error_that_is_not_fatal_is_reported_and_training_goes_on(reported: list[str]) -> None:
    job = Job(validating())
    job.wrong = nan_in(0)
    assert job.step(fatal=False) == (False, False, 0)
    assert "(board A), step 0: transient error: " in reported[0]
    assert reported[0].endswith("it is not fatal, and training continues")
    job.wrong = nan_in(0, 1)
    assert job.step(fatal=False) == (False, False, 0)
    assert (
        "reproducible: the loss is NaN (nan), and run again at once on the same device it was the same (nan); "
        in reported[1]
    )
    job.wrong = nan_in()
    assert job.step() == (False, False, 0)
    assert len(reported) == 2


@pytest.mark.parametrize(
    ("device", "wrong", "code", "words"),
    [
        (
            "board B",
            nan_in(),
            17,
            "persistent error: the loss is NaN (nan), but on another device (board B of {host}) it was {loss}",
        ),
        (
            "board B",
            nan_in(0),
            17,
            "correct result: the loss is NaN (nan), and on another device (board B of {host}) it was the same (nan)",
        ),
        (
            "board A",
            nan_in(0),
            16,
            "still no verdict: the loss is NaN (nan), and the step was resumed on the same device, which cannot tell",
        ),
        (
            "board A",
            nan_in(),
            16,
            "still no verdict: the loss is NaN (nan), and the step was resumed on the same device, which cannot tell",
        ),
    ],
    ids=["persistent", "correct", "same device", "same device, other result"],
)
def test_a_reproducible_result_is_looked_at_after_a_resume(
    reported: list[str], device: str, wrong: Callable[[torch.Tensor, int], Any], code: int, words: str
) -> None:
    job = Job(validating())
    job.step()
    job.wrong = nan_in(0, 1)
    assert job.step() == (True, True, 16)
    assert "exit code 16 asks for the job to be resumed from its checkpoint on another device" in reported[0]
    again = resumed(job.checkpoint(), validating(device=device))
    assert again.machine.state is RerunState.WILL_RERUN_FROM_CHECKPOINT
    again.wrong = wrong
    assert again.step() == (False, True, code)
    assert again.losses == [[job.losses[-1][0]]], "same model, data and random numbers: the same, bit for bit"
    host = reported[1].split()[3]
    loss = f"{job.losses[-1][0]:.9g}"
    assert words.format(host=host, loss=loss) in reported[1]
    assert "rank 0 on " in reported[1]
    assert "(board A), step 1: " in reported[1], "the first device is the one that is judged"


def test_resumed_on_the_same_device_it_waits_for_another_one(reported: list[str]) -> None:
    job = Job(validating())
    job.step()
    job.wrong = nan_in(0, 1)
    job.step()
    checkpoint = job.checkpoint()
    for _ in range(2):
        again = resumed(checkpoint, validating())
        again.wrong = nan_in(0)
        assert again.step() == (False, True, 16)
        checkpoint = again.checkpoint()  # asked for or not, it holds what is still to be found out
    last = resumed(checkpoint, validating(device="board B"))
    assert last.step() == (False, True, 17)
    assert "(board A), step 1: persistent error: " in reported[-1]


def test_after_a_verdict_that_is_not_fatal_the_data_go_on(reported: list[str]) -> None:
    """What is not fatal any more after the resume, for the script was changed to report it."""
    job = Job(validating())
    job.step()
    job.wrong = nan_in(0, 1)
    job.step()
    again = resumed(job.checkpoint(), validating(device="board B"))
    again.wrong = nan_in(0)
    assert again.step(fatal=False) == (False, False, 0)
    again.wrong = nan_in()
    assert again.step() == (False, False, 0)
    plain = Job(RerunStateMachine())
    plain.step()
    plain.step()
    plain.step()
    assert torch.equal(next(again.data), next(plain.data)), "no microbatch was lost or had twice"


@pytest.mark.parametrize(
    ("kind", "codes"), [("transient_error", [17]), ("persistent_error", [16, 17]), ("correct_result", [16, 17])]
)
def test_injected_errors_lead_to_their_verdicts(reported: list[str], kind: str, codes: list[int]) -> None:
    job = Job(validating(error_injector=RerunErrorInjector(error_injection_type=kind, at=(0, 1))))
    assert job.step() == (False, False, 0)
    assert job.step() == (True, True, codes[0])
    if len(codes) > 1:
        job = resumed(job.checkpoint(), validating(device="board B"))
        assert job.step() == (False, True, codes[1])
    assert f"(board A), step 1: {kind.replace('_', ' ')}: " in reported[-1]


def test_a_step_that_takes_another_way_is_described(reported: list[str]) -> None:
    machine = validating()
    ways = iter(["the loss", "another check"])
    while machine.should_run_forward_backward():
        machine.validate_result(math.nan, math.isnan, next(ways))
    assert machine.should_checkpoint_and_exit() == (True, True, 17)
    assert "no verdict: the loss (nan), but the re-run of the step did not reach this check" in reported[0]


def test_the_rejected_call_is_found_among_others_of_its_name(reported: list[str]) -> None:
    """The second of two is wrong in the first run only: the first one's value must not be compared with it."""
    machine, run = validating(), 0
    while machine.should_run_forward_backward():
        machine.validate_result(1.0, math.isnan, "the loss is NaN")
        machine.validate_result(math.nan if run == 0 else 5.0, math.isnan, "the loss is NaN")
        run += 1
    assert "on the same device it was 5;" in reported[0]


def test_a_fatal_result_is_looked_into_also_behind_a_harmless_one(reported: list[str]) -> None:
    machine = validating(error_injector=RerunErrorInjector(error_injection_type="transient_error", at=(0, 0)))
    while machine.should_run_forward_backward():
        machine.validate_result(1.0, math.isnan, "injected", fatal=False)
        machine.validate_result(9.0, lambda value: value > 5, "spiky loss", fatal=False)
        machine.validate_result(math.nan, math.isnan, "the loss is NaN")
        machine.validate_result(math.inf, math.isinf, "the loss is infinite")
    assert machine.should_checkpoint_and_exit() == (True, True, 16)
    (sentence,) = reported
    assert "reproducible: the loss is NaN (nan)" in sentence, "by what was computed, not by what was to be played"


def test_further_state_is_put_back() -> None:
    counted = [0]
    machine = validating(
        state_save_func=lambda: list(counted), state_restore_func=lambda saved: counted.__setitem__(0, saved[0])
    )
    seen = []
    while machine.should_run_forward_backward():
        counted[0] += 1
        seen.append(counted[0])
        machine.validate_result(math.nan, math.isnan, "NaN", fatal=False)
    assert seen == [1, 1]


@pytest.mark.parametrize(("tolerance", "words"), [(0.0, "transient error: "), (0.01, "reproducible: ")])
def test_what_counts_as_the_same_is_up_to_the_tolerance(reported: list[str], tolerance: float, words: str) -> None:
    machine, results = validating(), iter([100.0, 100.1])
    while machine.should_run_forward_backward():
        machine.validate_result(next(results), lambda value: value > 50, "too large", tolerance=tolerance, fatal=False)
    assert words in reported[0]


def test_results_of_any_kind_with_a_comparison_of_their_own(reported: list[str]) -> None:
    machine, results = validating(), iter(["bad", "worse"])
    while machine.should_run_forward_backward():
        machine.validate_result(next(results), lambda _: True, "words", lambda a, b: float(a != b), fatal=False)
    assert "on the same device it was 'worse';" in reported[0]


def test_losses_are_checked_for_nan_and_infinity_and_on_demand_for_spikes(reported: list[str]) -> None:
    machine = validating()
    for loss, spikes in [(1.0, True)] * 100 + [
        (10.5, False),
        (10.5, True),
        (1.0, True),
        (torch.tensor(math.inf), True),
    ]:
        while machine.should_run_forward_backward():
            machine.validate_loss(loss, check_for_spiky_loss=spikes)
        what = machine.should_checkpoint_and_exit()
    assert what == (True, True, 16)
    assert len(reported) == 2
    assert "step 101: reproducible: spiky loss (10.5)" in reported[0]
    assert "step 103: reproducible: the loss is infinite (inf)" in reported[1]


def test_the_first_step_of_a_process_is_not_validated_unless_asked_for(reported: list[str]) -> None:
    job = Job(validating(validate_first_step=False))
    job.wrong = nan_in(0, 1)
    assert job.step() == (False, False, 0)
    assert reported == []
    assert job.step() == (True, True, 16)


def test_without_re_runs_a_fatal_result_ends_the_rank(reported: list[str], caplog: pytest.LogCaptureFixture) -> None:
    job = Job(RerunStateMachine(device="board A"))
    job.step()
    job.wrong = nan_in(0)
    assert job.step(fatal=False) == (False, False, 0)
    assert "it is not fatal, and training continues" in caplog.text
    with pytest.raises(ResultRejectedError, match=r"step 2: rejected: the loss is NaN .nan.; the rank ends; mode"):
        job.step()
    assert len(reported) == 2


@pytest.mark.parametrize("compare", [lambda a, b: (a - b) / b, lambda a, b: math.nan], ids=["signed", "no answer"])
def test_a_comparison_may_be_signed_or_have_no_answer(
    reported: list[str], compare: Callable[[Any, Any], float]
) -> None:
    machine, results = validating(), iter([math.nan, 1.0])
    while machine.should_run_forward_backward():
        machine.validate_result(next(results), math.isnan, "x", compare)
    assert "transient error" in reported[0], "NaN in one run only, whatever the formula makes of it"


def test_a_mode_can_be_switched_off_around_an_evaluation() -> None:
    job = Job(validating())
    job.step()
    job.machine.set_mode(RerunMode.DISABLED)
    job.machine.validate_result(1.0, math.isnan, "evaluation")
    job.machine.set_mode("validate_results")
    assert job.step() == (False, False, 0)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown mode 'sometimes'; the modes are disabled, validate_results"):
        RerunStateMachine(mode="sometimes")
    machine = validating()
    with pytest.raises(RuntimeError, match="inside the loop"):
        machine.validate_result(1.0, math.isnan, "x")
    with pytest.raises(TypeError, match="a list_iterator cannot be rewound"):
        machine.should_run_forward_backward(iter([1]))  # type: ignore[arg-type]


def test_it_works_without_rankwatch_being_started(caplog: pytest.LogCaptureFixture) -> None:
    assert not rankwatch.is_initialized()
    machine = validating()
    while machine.should_run_forward_backward():
        machine.validate_result(math.nan, math.isnan, "NaN", fatal=False)
    assert "no launcher" not in caplog.text
    assert "it is not fatal, and training continues" in caplog.text
