"""The crashes of one GPU over all jobs, beside a crash on it."""

from __future__ import annotations

from monitor.core.scene import Scene
from monitor.core.views.test_node_verdict import crashed
from rankwatch_monitor.core.views.crash_advice import separating
from rankwatch_monitor.core.views.crash_history import crash_history


def test_crashes_of_one_gpu_count_over_all_jobs_with_what_to_do_if_it_fails_again() -> None:
    earlier, elsewhere = crashed("earlier", 3, 2), crashed("elsewhere", 2, 1)
    now = Scene(4, hosts=2, job_id="now").run(80)
    now.die(3, exit_code=1, message="CUDA error").run(1)
    found = crash_history([earlier.job, elsewhere.job, now.job], now.job, now.incident)
    assert found is not None
    assert (found.host, found.gpu) == ("host-1", "GPU 1")
    opened = [incident.opened_at for scene in (earlier, now) for incident in scene.job.incidents]
    assert found.text == f"3 crashes in 2 jobs in {max(opened) - min(opened):.0f} s, same error"
    assert found.again == f"If it fails again, restart without host-1: {separating(3, 'host-1')}."
    [past] = elsewhere.job.incidents
    closed = crash_history([elsewhere.job], elsewhere.job, past)
    assert closed is not None
    assert (closed.text, closed.again) == ("", ""), "one crash has no history, and one that is over no next failure"


def test_other_errors_are_no_same_error_and_one_host_cannot_be_left_out() -> None:
    scene = Scene(4, job_id="now").run(30)
    scene.die(3, exit_code=1, message="ValueError: no data").run(1)
    found = crash_history([crashed("earlier", 3, 1).job, scene.job], scene.job, scene.incident)
    assert found is not None
    assert found.text == "", "the other job has that GPU on another host"
    assert (
        found.again
        == f"If it fails again: read the traceback of rank 3 around step {scene.incident.furthest_iteration}."
    )
    other = Scene(4, job_id="other").run(30)
    other.die(3, exit_code=1, message="KeyError: 1").run(1)
    several = crash_history([scene.job, other.job], scene.job, scene.incident)
    assert several is not None
    assert several.text.startswith("2 crashes in 2 jobs in ")
    assert "same error" not in several.text


def test_a_hang_has_no_crashes() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found()
    assert crash_history([scene.job], scene.job, scene.incident) is None
