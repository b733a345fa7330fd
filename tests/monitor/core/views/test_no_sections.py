"""The reason for missing sections follows from what is known; where causes remain, each has what to do about it."""

from __future__ import annotations

from monitor.core.scene import Scene
from rankwatch.contract.intervals import SPAN_STRIDE
from rankwatch_monitor.core.views.no_sections import no_sections


def test_other_ranks_have_sections() -> None:
    [reason] = no_sections(Scene(4).run(30).job, others=3)
    assert reason == "These ranks have sent no sections; 3 others have. Choose other ranks above."
    assert "; 1 other has." in no_sections(Scene(4).run(30).job, others=1)[0]


def test_each_cause_that_is_known_is_the_only_one() -> None:
    [reason, *checks] = no_sections(Scene(4).job, others=0)
    assert "rankwatch.init()" in reason
    assert len(checks) == 1
    early = Scene(4).run(SPAN_STRIDE - 4)
    [reason] = no_sections(early.job, others=0)
    assert reason.endswith(f"and this is step {early.job.furthest_iteration}.")


def test_after_sampled_steps_each_of_the_two_causes_that_remain_has_its_remedy() -> None:
    [reason, *checks] = no_sections(Scene(4).run(60).job, others=0)
    assert reason.startswith("No timings of sections (spans) have arrived, though ranks have reported ")
    assert all(check.startswith("If ") for check in checks)
    copied = [check.split("`")[1] for check in checks]
    assert copied == ["unset RANKWATCH_SPAN_STRIDE", "traces: {receivers: [otlp], exporters: [otlphttp]}"]
    assert "/v1/traces" in checks[1]


def test_an_ended_job_has_nothing_to_check() -> None:
    scene = Scene(4).run(30)
    scene.finish()
    [reason] = no_sections(scene.job, others=0)
    assert reason.startswith("No sections are kept of this job")
