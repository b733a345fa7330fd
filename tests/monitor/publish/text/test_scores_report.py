"""The report of a job's performance: the lines that scripts know, then scores, lateness and stragglers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from monitor.publish.scored import NOW, scored, straggler
from rankwatch.cli.formatting import WIDTH
from rankwatch.contract.enums import JobState, StragglerVerdict
from rankwatch_monitor.core.job import Ending, Job
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.publish.text.report import text
from rankwatch_monitor.publish.text.scores_report import scores_log, scores_text

KNOWN_FORM = """GPU relative performance:
 Worst performing 5/512 ranks:
  Rank=76 Node=h100-001-253-012 Score=0.94
  Rank=13 Node=h100-001-010-003 Score=0.94
  Rank=45 Node=h100-001-172-026 Score=0.94
  Rank=433 Node=h100-004-141-026 Score=0.95
  Rank=308 Node=h100-003-263-012 Score=0.95
 Best performing 5/512 ranks:
  Rank=432 Node=h100-004-141-026 Score=0.99
  Rank=376 Node=h100-004-005-003 Score=0.98
  Rank=487 Node=h100-004-255-026 Score=0.98
  Rank=369 Node=h100-004-004-033 Score=0.98
  Rank=361 Node=h100-004-004-023 Score=0.98

GPU individual performance:
 Worst performing 5/512 ranks:
  Rank=76 Node=h100-001-253-012 Score=0.98
  Rank=162 Node=h100-002-042-026 Score=0.98
  Rank=79 Node=h100-001-253-012 Score=0.98
  Rank=357 Node=h100-004-004-013 Score=0.98
  Rank=85 Node=h100-001-253-026 Score=0.98
 Best performing 5/512 ranks:
  Rank=297 Node=h100-003-095-026 Score=1.00
  Rank=123 Node=h100-001-273-026 Score=1.00
  Rank=21 Node=h100-001-010-013 Score=1.00
  Rank=389 Node=h100-004-074-012 Score=1.00
  Rank=489 Node=h100-004-269-026 Score=1.00

 Straggler report processing time: 0.042 sec.
"""
"""What users of nvidia-resiliency-ext find in their logs, as NVIDIA's documentation shows it."""


def documented() -> Job:
    """The job of which that documentation tells."""
    job = scored(512)
    scores = job.performance.scores
    assert scores is not None
    scores.gpu_relative_R[:], scores.gpu_individual_R[:] = 0.965, 0.99
    target, place = scores.gpu_relative_R, 0
    for line in KNOWN_FORM.splitlines():
        if line.startswith("GPU individual"):
            target = scores.gpu_individual_R
        if line.startswith("  Rank="):
            rank, node, score = (each.partition("=")[2] for each in line.split())
            job.columns.hosts[int(rank)] = node
            # Figures that look alike are distinguished by what is behind them.
            behind = place if place % 10 < 5 else -place
            target[int(rank)], place = float(score) + 1e-5 * behind, place + 1
    return job


def test_the_first_lines_are_exactly_those_that_users_know() -> None:
    assert scores_text(documented(), NOW).startswith(KNOWN_FORM + "\n")


def test_ranks_without_a_score_are_left_out_and_counted() -> None:
    job = scored(8)
    assert job.performance.scores is not None
    job.performance.scores.gpu_relative_R[[1, 3, 4]] = np.nan
    part = scores_text(job, NOW, 2).split("\n\n")[0].split("\n")
    assert part == [
        "GPU relative performance:",
        " Worst performing 2/5 ranks:",
        "  Rank=0 Node=host-0 Score=0.99",
        "  Rank=2 Node=host-0 Score=0.99",
        " Best performing 2/5 ranks:",
        "  Rank=7 Node=host-1 Score=1.00",
        "  Rank=6 Node=host-1 Score=1.00",
        " 3 ranks without a score",
    ]


def test_before_the_first_kernel_timings_no_rank_is_said_to_lack_a_score() -> None:
    job = scored(4)
    assert job.performance.scores is not None
    job.performance.scores.gpu_relative_R[:] = np.nan
    assert scores_text(job, NOW).startswith("GPU relative performance:\n no scores yet\n\nGPU individual")


def test_sections_have_the_same_form() -> None:
    shown = scores_text(scored(8), NOW, 1)
    assert "\n\nSection 'data' relative performance:\n Worst performing 1/8 ranks:\n  Rank=0 Node=host-0 Score" in shown
    assert "\n\nSection 'forward' individual performance:\n" in shown


def test_of_many_sections_those_are_shown_in_which_somebody_is_furthest_behind() -> None:
    job = scored(8, sections=tuple(f"part-{n}" for n in range(30)))
    assert job.performance.scores is not None
    job.performance.scores.section_robust_RS[2, 29] = 0.4
    shown = scores_text(job, NOW)
    assert "Section 'part-29' relative performance:" in shown
    assert "Section 'part-28'" not in shown
    assert "and 22 more sections: /api/v1/jobs/job/scores" in shown


@pytest.mark.parametrize(
    ("off", "gone"),
    [("calc_relative", "relative performance:"), ("calc_individual", "individual performance:")],
)
def test_what_is_not_computed_is_not_shown(off: str, gone: str) -> None:
    job = scored(8)
    assert gone in scores_text(job, NOW)
    job.policy = job.policy.changed({off: False})
    assert gone not in scores_text(job, NOW)


def test_it_states_which_is_which_and_by_which_stragglers_are_named() -> None:
    job = scored(8)
    assert "named by robust scores and lateness" in " ".join(scores_text(job, NOW).split())
    job.policy = job.policy.changed({"straggler_reference": "fastest", "relative_threshold": 0.8})
    assert "named by these thresholds: relative 0.8, individual 0.7" in " ".join(scores_text(job, NOW).split())


def test_robust_scores_lateness_stragglers_verdict_and_cost_follow() -> None:
    shown = scores_text(scored(8, slow=5), NOW)
    assert "GPU robust performance:\n Worst performing 5/8 ranks:\n  Rank=5 Node=host-1 Score=0.50\n" in shown
    assert " Section 'forward': worst 0.55 (rank 5 on host-1), median 0.99" in shown
    assert " Latest 1/8 ranks:\n  Rank=5 Node=host-1 Lateness=0.200 s Share=20 %" in shown
    words = " ".join(shown.split())
    assert "STRAGGLERS 1 now, the costliest first" in words
    assert (
        "rank 5 on host-1: compute, by the robust reference, for 10 min 00 s, score 0.50, the others wait 200 ms of "
        "each step (20 %), 1.25 GPU-hours its kernels take twice as long"
    ) in words
    assert "verdict: worker, some ranks are slow by their own fault; 20 % of each step, 1 rank (5)" in words
    assert "UTC cost so far: 1.25 GPU-hours" in words, "the one slow rank is described above, and only there"


def test_the_healthy_twin_names_no_rank() -> None:
    job = scored(8)
    job.last_heard = NOW
    shown = scores_text(job, NOW)
    assert "STRAGGLERS none now" in shown
    assert " no rank is waited for" in shown
    assert "verdict: healthy" in shown
    assert "cost so far" not in shown


def test_a_verdict_that_blames_no_node_reports_it() -> None:
    job = scored(8)
    job.performance.findings = (Finding(StragglerVerdict.STAGE, ranks=tuple(range(4, 8)), share=0.1),)
    assert "the stages are unbalanced, no node is to blame; 10 % of each step, 4 ranks (4-7)" in " ".join(
        scores_text(job, NOW).split()
    )


def test_stragglers_are_ordered_by_cost_and_do_not_make_it_endless() -> None:
    job = scored(64)
    job.performance.stragglers += [straggler(rank, cost=float(rank)) for rank in range(40)]
    job.performance.stragglers += [straggler(50, ended=NOW - 5.0)]
    shown = scores_text(job, NOW)
    assert "STRAGGLERS 40 now, the costliest first; 1 earlier" in shown
    assert shown.index("  rank 39 on") < shown.index("  rank 38 on")
    assert "and 21 more: /api/v1/jobs/job/stragglers" in shown


def test_before_there_are_scores_it_states_what_they_need() -> None:
    job = Job("job", NOW)
    assert scores_text(job, NOW).startswith("There are no scores yet")
    assert "STRAGGLERS" not in text(job, NOW)
    job.policy = job.policy.changed({"straggler_detection": False})
    assert scores_text(job, NOW).startswith("There are no scores: straggler_detection is off.")
    assert "STRAGGLERS are not detected" in text(job, NOW)


def test_the_log_gets_it_unless_it_is_switched_off() -> None:
    job = scored(8)
    assert scores_log(job, NOW) == scores_text(job, NOW, each_section=False)
    job.policy = job.policy.changed({"num_gpu_perf_scores_to_print": 0})
    assert scores_log(job, NOW) == "", "0: only when there is a straggler"
    job.performance.stragglers.append(straggler(5))
    assert " Worst performing 5/8 ranks:" in scores_log(job, NOW)
    assert scores_log(Job("empty", NOW), NOW) == ""


def test_the_whole_report_has_the_stragglers() -> None:
    shown = text(scored(8, slow=5), NOW)
    assert "\n\nSTRAGGLERS 1 now, the costliest first\n  rank 5 on host-1: compute" in shown
    assert shown.index("STRAGGLERS") < shown.index("LIMITS in force")


def test_hosts_sections_and_reasons_cannot_steer_a_terminal_and_sentences_fit_it() -> None:
    job = scored(8, slow=5, sections=("a\x1b[2J\nSTRAGGLERS 9",))
    job.columns.hosts[5] = "\x1b[2J"
    [one] = job.performance.stragglers
    one.reason = "\x9b " + "long words " * 30
    shown = scores_text(job, NOW)
    assert not set(shown) & {"\x1b", "\x9b", "\r"}
    assert shown.count("\nSTRAGGLERS") == 1
    assert [line for line in shown.split("\n") if len(line) > WIDTH] == []


def test_scores_of_a_larger_attempt_do_not_break_a_smaller_one() -> None:
    job = scored(8, slow=5)
    smaller = scored(4)
    smaller.performance = job.performance
    assert "Rank=5 Node=? Score=0.50" in scores_text(smaller, NOW)


def test_a_rank_alone() -> None:
    job = scored(1)
    assert job.performance.scores is not None
    job.performance.scores = dataclasses.replace(job.performance.scores, step_R=np.zeros(1))
    assert " Worst performing 1/1 ranks:\n" in scores_text(job, NOW)


def test_after_the_run_each_straggler_is_there_with_its_rank_time_and_cause() -> None:
    job = scored(8)
    job.performance.stragglers += [straggler(5, ended=NOW - 60.0)]
    job.ended = Ending(JobState.FINISHED, "", NOW - 60.0)
    shown = scores_text(job, NOW)
    assert "STRAGGLERS 1 in this run\n  rank 5 on host-1: compute, by the robust reference, from " in shown
    assert " now" not in shown[shown.index("STRAGGLERS") :]
    assert "verdict:" not in shown
