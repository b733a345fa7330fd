"""A monitor that is killed and started again on its database goes on where it was; its own absence is no alarm."""

from __future__ import annotations

import time
from pathlib import Path

from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_process import Api, running_monitor
from support.otlp import rank_report, reports_of_all
from support.waiting import wait_for

WORLD = 3
LIMIT = 2.0
SILENCE = 10.0


def send(api: Api, job: str, *, attempt: int = 1, overdue: float = 0.0, resumed_at: int | None = None) -> None:
    reports = reports_of_all(job, WORLD, attempt=attempt, overdue=overdue, resumed_at=resumed_at)
    api.report(*reports)


def launched(api: Api, job: str) -> PlayedLauncher:
    launcher = PlayedLauncher(api, job, ranks=range(WORLD))
    launcher.register(policy={"section_timeouts": {"step": LIMIT}, "max_restarts": 9})
    launcher.start(1, WORLD)
    send(api, job)
    return launcher


def test_open_incidents_live_through_a_kill_and_end_once(tmp_path: Path) -> None:
    """At the kill one job is only watched, one was just asked for stacks, and one was ordered to restart."""
    database = tmp_path / "rankwatch.db"
    with running_monitor(tmp_path / "first", database=database) as monitor, Api(monitor.url) as api:
        send(api, "watched")
        api.change_policy("watched", section_timeouts={"step": LIMIT}, capture_deadline=7)
        capturing, restarting = launched(api, "capturing"), launched(api, "restarting")
        api.change_policy("capturing", capture_deadline=60)
        jobs = ("watched", "capturing", "restarting")
        for job in jobs:
            send(api, job, overdue=LIMIT + 1)
        assert capturing.next_directive("settings")
        capture = capturing.next_directive("capture")
        first = restarting.next_directive("capture")
        restarting.send_stacks(first, {r: AT_WORK if r == 2 else WAITING for r in range(WORLD)})
        restart = restarting.next_directive("restart")
        wait_for(lambda: all(api.incidents(job) for job in jobs), "all hangs are found")
        # Rows are written in their order: when this directive is shown, the incidents are in the database.
        api.change_policy("capturing", stop_deadline=33)
        assert capturing.next_directive("settings")
        before = {job: (api.job(job), api.incidents(job)) for job in jobs}
        monitor.kill()

    with running_monitor(tmp_path / "second", database=database) as monitor, Api(monitor.url) as api:
        for job in jobs:
            now, was = api.job(job), before[job][0]
            for kept in ("id", "name", "world_size", "attempt", "started_at", "policy", "restarts", "timeouts"):
                assert now[kept] == was[kept], f"{job}: {kept}"
            assert [n["node"] for n in now["nodes"]] == [n["node"] for n in was["nodes"]]
            assert api.incidents(job) == before[job][1], f"{job}: its incidents went on while no monitor ran"
        # The ranks are as stuck as before: still the same one incident each.
        for job in jobs:
            send(api, job, overdue=LIMIT + 9)
            api.judge_now(job)
            (incident,) = api.incidents(job)
            assert incident["id"] == before[job][1][0]["id"]
            assert incident["closed_at"] is None
        stacks = api.read(f"/jobs/restarting/incidents/{restart['incident_id']}")["stack_groups"]
        assert [group["ranks"] for group in stacks] == [[2], [0, 1]]

        # The one that is only watched goes on by itself.
        send(api, "watched")
        api.judge_now("watched")

        # The one that was asked for stacks sends them now, and is restarted.
        old_directives = capturing.after
        capturing.api = api
        capturing.send_stacks(capture, {r: AT_WORK if r == 2 else WAITING for r in range(WORLD)})
        second_restart = capturing.next_directive("restart")
        assert second_restart["id"] > old_directives, "no number is given twice"

        # The one that was ordered to restart may ask again for what it had been told, and does it.
        restarting.api = api
        restarting.after = restart["id"] - 1
        assert restarting.next_directive("restart") == restart
        for launcher, directive in ((capturing, second_restart), (restarting, restart)):
            launcher.events({"kind": "restarting", "reason": directive["reason"]})
            launcher.acknowledge(directive)
            launcher.start(2, WORLD)
            send(api, launcher.job, attempt=2, resumed_at=5)
        for job in jobs:
            wait_for(lambda job=job: api.incidents(job)[0]["closed_at"], f"the incident of {job} closes")
            assert len(api.incidents(job)) == 1
            assert api.job(job)["state"] == "running"
        line = api.incidents("restarting")[0]["timeline"]
        assert list(line.values()) == sorted(line.values())
        assert line["detected"] == before["restarting"][1][0]["timeline"]["detected"]


def test_its_own_absence_is_no_silence_of_the_ranks(tmp_path: Path) -> None:
    database = tmp_path / "rankwatch.db"
    with running_monitor(tmp_path / "first", database=database) as monitor, Api(monitor.url) as api:
        launcher = launched(api, "quiet")
        api.change_policy("quiet", silence_timeout=SILENCE)
        assert launcher.next_directive("settings"), "shown once it is stored, and the policy before it"
        before = api.job("quiet")
        monitor.kill()
    away_since = time.time()
    wait_for(lambda: time.time() - away_since > SILENCE + 0.1, "it was away for longer than the silence limit")

    with running_monitor(tmp_path / "second", database=database) as monitor, Api(monitor.url) as api:
        assert api.job("quiet")["state"] in ("running", "starting"), "it has not listened long enough to miss anybody"
        send(api, "quiet")
        api.judge_now("quiet")
        after = api.job("quiet")
        assert (after["state"], after["incidents"], after["attempt"]) == ("running", 0, 1)
        assert after["policy"] == before["policy"]

        # The loud twin: from here on it listens, and a rank that falls silent is missed.
        api.change_policy("quiet", silence_timeout=SILENCE / 3)

        def all_but_rank_2() -> list[dict]:
            reports = [rank_report("quiet", rank, WORLD, attempt=1, iteration=9, idle=0.0) for rank in range(2)]
            api.report(*reports)
            return api.incidents("quiet")

        (incident,) = wait_for(all_but_rank_2, "the silent rank is found")
        assert (incident["kind"], [c["rank"] for c in incident["culprits"]]) == ("silent", [2])
