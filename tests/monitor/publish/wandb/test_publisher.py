"""W&B's own library writes files offline, which are read back; trouble with it harms nothing."""

from __future__ import annotations

import dataclasses
import gc
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from monitor.publish.scored import NOW, scored, straggler
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.wandb import publisher as wandb
from rankwatch_monitor.publish.wandb.run import Where, begin, run_id
from support.waiting import wait_for
from support.wandb_files import written_runs

KEY = "0123456789" * 4


@pytest.mark.parametrize("job", ["gpt", "gpt-2_B", "x" * 64])
def test_an_id_that_wandb_takes_stays_as_it_is(job: str) -> None:
    assert run_id(job) == job


@pytest.mark.parametrize("job", ["my job", "ns/gpt:1", "größe", "x" * 65, "x" * 300, "/", ""])
def test_another_id_stays_readable_short_and_its_own(job: str) -> None:
    made = run_id(job)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made)
    assert made == run_id(job)
    assert made != run_id(job + "x")


def test_two_jobs_that_look_alike_have_two_runs() -> None:
    assert run_id("a/b") != run_id("a:b")
    assert run_id("a/b").startswith("a-b-")


def test_nothing_of_the_trainings_own_run_reaches_the_monitors() -> None:
    own = {"WANDB_RUN_ID": "abc", "WANDB_SERVICE": "3-1-unix-x", "WANDB_SWEEP_ID": "s", "WANDB_API_KEY": KEY}
    wandb.prepare(own, Where("p", folder="/tmp/w"))
    assert own["WANDB_API_KEY"] == KEY
    assert not {"WANDB_RUN_ID", "WANDB_SERVICE", "WANDB_SWEEP_ID"} & set(own)


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[wandb.WandbPublisher]:
    where = Where("a project", mode="offline", folder=str(tmp_path), series="all", page="https://monitor.example/")
    prepared = dict(os.environ)
    wandb.prepare(prepared, where)
    for name in os.environ.keys() - prepared.keys():
        monkeypatch.delenv(name)
    for name, value in prepared.items():
        monkeypatch.setenv(name, value)
    made = wandb.WandbPublisher(where)
    yield made
    made.close(10.0)


def written(publisher: wandb.WandbPublisher, job: Job, *moments: float) -> None:
    """Publish the job at these moments, each once the one before was written."""
    for moment in moments:
        publisher.publish(snapshot(job, moment))
        wait_for(lambda: publisher.idle, "the thread has written what waits")


def test_scores_tables_and_alerts_are_in_the_file(publisher: wandb.WandbPublisher, tmp_path: Path) -> None:
    job = scored(8, slow=6)
    job.last_heard = NOW
    job.columns.reported_R[:] = True
    job.policy = job.policy.changed({"relative_threshold": 0.8})
    written(publisher, job, NOW, NOW + 10.0)
    job.performance.stragglers[0].ended = NOW + 15.0
    job.performance.stragglers.append(straggler(1))
    written(publisher, job, NOW + 20.0, NOW + 330.0)
    publisher.close(10.0)
    assert (publisher.errors, publisher.dropped) == (0, 0)

    (run,) = written_runs(tmp_path)
    assert (run.run.run_id, run.run.display_name, run.run.run_group, run.run.project) == (
        *("job", "gpt", "job"),
        "a project",
    )
    assert run.run.resume is True
    assert run.config["world_size"] == 8
    assert run.config["policy"]["relative_threshold"] == 0.8
    assert run.step_metrics["rankwatch/*"] == "rankwatch/iteration"
    assert [row["_step"] for row in run.rows] == [360, 361, 362, 393], "the job's age in units of ten seconds"
    assert [run.last(f"gpu_relative_{end}") for end in ("min", "max")] == [0.5, 1.0]
    assert 0.99 < run.last("gpu_relative_median") < 1.0
    assert run.last("gpu_robust_min") == 0.5
    assert run.last("gpu_individual_max") == 1.0
    assert run.last("section/forward/robust_min") == 0.55
    assert (run.last("lateness_max"), run.last("step_seconds"), run.last("cost_gpu_hours")) == (0.2, 1.0, 1.25)
    assert run.summary["rankwatch/verdict"] == "worker"
    assert run.summary["rankwatch/verdict_reason"] == "rank 6 makes the others wait"

    first, changed, after_a_report = run.tables("worst_ranks")
    assert first[0] == {
        "rank": 6,
        "host": "host-1",
        "gpu_relative": 0.5,
        "gpu_individual": pytest.approx(0.99, abs=0.01),
        "gpu_robust": 0.5,
        "lateness": 0.2,
        "cause": "compute",
        "reason": "its kernels take twice as long as those of its peers (rank 6)",
    }
    assert [table[0]["rank"] for table in (changed, after_a_report)] == [1, 1]
    assert [[s["rank"] for s in table if s["ended"] is None] for table in run.tables("stragglers")] == [[6], [1]]
    assert [(a.title, a.level) for a in run.alerts] == [
        ("rank 6 is slow: compute (gpt)", "WARN"),
        ("rank 1 is slow: compute (gpt)", "WARN"),
    ]
    assert run.alerts[0].text == f"{job.performance.stragglers[0].reason}\nhttps://monitor.example/#/jobs/job"
    assert run.summary["rankwatch/page"] == "https://monitor.example/#/jobs/job"
    assert list(tmp_path.rglob("staging/*")) == [], "a table leaves no copies behind"


def test_a_job_that_is_over_ends_its_run_and_one_that_is_back_goes_on_in_it(
    publisher: wandb.WandbPublisher, tmp_path: Path
) -> None:
    job = scored(4)
    job.last_heard = NOW
    written(publisher, job, NOW, NOW + 100.0)  # nothing was received from it for longer than its silence timeout
    wait_for(lambda: [run.exit_code for run in written_runs(tmp_path)] == [1], "W&B's service has written the end")
    job.last_heard = NOW + 2000.0
    written(publisher, job, NOW + 2000.0)
    publisher.close(10.0)
    lost, back = written_runs(tmp_path)
    assert lost.run.run_id == back.run.run_id == "job"
    assert back.rows[0]["_step"] > lost.rows[-1]["_step"], "else W&B would drop what came later"
    assert (back.finished, back.exit_code) == (True, 0)


def test_a_job_has_one_run_folder_however_often_it_is_published_after_its_end(
    publisher: wandb.WandbPublisher, tmp_path: Path
) -> None:
    job = scored(8)
    job.columns.shut_down_R[:] = job.columns.reported_R[:] = True
    written(publisher, job, NOW, NOW + 10.0, NOW + 20.0)
    publisher.close(10.0)
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1


def test_only_the_newest_of_each_job_waits_and_only_so_many_jobs(publisher: wandb.WandbPublisher) -> None:
    taken = snapshot(scored(2), NOW)
    begun = time.monotonic()
    for number in range(3 * wandb.WAITING_JOBS):
        publisher.publish(dataclasses.replace(taken, job_id=f"job-{number}", state=taken.state))
    assert time.monotonic() - begun < 30.0, "the loop does not wait for W&B, which starts each of them in a second"
    assert len(publisher._waiting) <= wandb.WAITING_JOBS
    assert publisher.dropped > 0
    with publisher._changed:
        publisher._waiting.clear()


def test_its_process_killed_is_one_warning_and_a_new_one_later(
    publisher: wandb.WandbPublisher, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb, "RETRY", 0.0)
    job = scored(4)
    job.last_heard = NOW
    written(publisher, job, NOW)
    (service,) = wandb._services(os.getpid())
    process = next(each for each in gc.get_objects() if isinstance(each, subprocess.Popen) and each.pid == service)
    os.kill(service, signal.SIGKILL)
    process.wait(10)  # the library does not wait for a process that was killed
    at = NOW
    while publisher.errors == 0:  # it takes a moment until the library notices
        assert at < NOW + 3000, "no error in 300 rows"
        at += 10
        job.last_heard = at
        written(publisher, job, at)
    assert "retried every" in caplog.text
    at += 10
    job.last_heard = at
    written(publisher, job, at)
    publisher.close(10.0)
    assert len([r for r in caplog.records if "W&B" in r.getMessage()]) == 1
    assert written_runs(tmp_path)[-1].rows[-1]["_step"] == (at - job.created_at) // 10


# What others may have written -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; W&B's library is not there, so that only what comes before its import is seen."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    made = tmp_path / "work"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def settings_in(folder: Path, name: str) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("[default]\nbase_url = https://elsewhere.example\n")
    file.chmod(0o644)
    return file


SETTINGS = pytest.mark.parametrize("name", ["wandb/settings", ".wandb/settings", "config-defaults.yaml"])


@SETTINGS
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of the user nobody")
@pytest.mark.parametrize("how", ["file", "folder", "link"])
def test_settings_that_another_user_has_planted_are_not_read(folder: Path, name: str, how: str) -> None:
    file = settings_in(folder, name)
    if how == "link":
        file.rename(folder / "elsewhere")
        file.symlink_to(folder / "elsewhere")
    planted, nobody = file.parent if how == "folder" else file, pwd.getpwnam("nobody").pw_uid
    os.chown(planted, nobody, -1, follow_symlinks=False)
    with pytest.raises(PermissionError) as refused:
        begin(Where("p"), snapshot(scored(2), NOW), NOW)
    assert str(refused.value) == (
        f"W&B would read {file}, and so may send its key elsewhere: {planted} belongs to another user (uid {nobody}); "
        "mend that, or start the monitor in a folder of its user alone"
    )


@SETTINGS
@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_settings_that_others_may_change_are_not_read(folder: Path, name: str, mode: int) -> None:
    settings_in(folder, name).chmod(mode)
    with pytest.raises(PermissionError, match="can be written to by other users"):
        begin(Where("p"), snapshot(scored(2), NOW), NOW)


@pytest.mark.parametrize("name", ["", "wandb", ".wandb"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_where_others_may_add_settings_nothing_is_published(folder: Path, name: str, mode: int) -> None:
    """Between the check and W&B's look; it is tried every minute."""
    shared = folder / name
    shared.mkdir(exist_ok=True)
    shared.chmod(mode)
    with pytest.raises(PermissionError, match=rf"{shared} can be written to by (other|all) users.* of its user alone"):
        begin(Where("p"), snapshot(scored(2), NOW), NOW)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of the user nobody")
@pytest.mark.parametrize("name", ["", "wandb", ".wandb"])
def test_where_another_user_may_add_settings_nothing_is_published(folder: Path, name: str) -> None:
    theirs = folder / name
    theirs.mkdir(exist_ok=True)
    os.chown(theirs, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(PermissionError, match=f"{theirs} belongs to another user"):
        begin(Where("p"), snapshot(scored(2), NOW), NOW)


@SETTINGS
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_in_a_folder_of_ones_own_it_goes_on(folder: Path, name: str, mode: int) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    for each in (folder, (folder / name).parent):
        each.chmod(mode)
    with pytest.raises(ModuleNotFoundError):  # it goes on to the import
        begin(Where("p"), snapshot(scored(2), NOW), NOW)


def test_in_a_folder_of_root_it_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(ModuleNotFoundError):
        begin(Where("p"), snapshot(scored(2), NOW), NOW)


@SETTINGS
def test_ones_own_settings_are_read(folder: Path, name: str) -> None:
    settings_in(folder, name)
    with pytest.raises(ModuleNotFoundError):  # it goes on to the import
        begin(Where("p"), snapshot(scored(2), NOW), NOW)


def test_planted_settings_are_one_warning_and_the_monitor_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings_in(folder, "wandb/settings").chmod(0o666)
    publisher = wandb.WandbPublisher(Where("p", mode="offline"))
    written(publisher, scored(2), NOW, NOW + 10.0)
    publisher.close(10.0)
    assert (publisher.errors, publisher.dropped) == (1, 1)
    assert f"publishing to W&B failed (W&B would read {folder / 'wandb/settings'}" in caplog.text


def test_a_release_that_may_publish_the_command_line_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"x_disable_machine_info", "x_disable_stats", "disable_git", "disable_code", "x_save_requirements"}
    settings = SimpleNamespace(model_fields=dict.fromkeys(known | {"console", "silent"}))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Settings=settings, __version__="9.0"))
    with pytest.raises(ValueError, match=r"wandb 9\.0 lacks x_disable_meta, so it may publish the command line"):
        begin(Where("p"), snapshot(scored(2), NOW), NOW)
