"""The control plane, with the launcher's side played by the test: from a hang to the first step after the restart."""

from __future__ import annotations

import time

import httpx
import pytest

from support.launcher import AT_WORK, WAITING, PlayedLauncher, polling
from support.monitor_process import Api
from support.otlp import rank_report
from support.waiting import wait_for

WORLD = 4
LIMIT = 2.0


def send(api: Api, job: str, attempt: int, *, overdue: float = 0.0, resumed_at: int | None = None) -> None:
    """All ranks report; with ``overdue`` rank 2 is stuck in a step past its limit, and the others wait for it."""
    reports = [
        rank_report(
            job,
            rank,
            WORLD,
            attempt=attempt,
            iteration=resumed_at if resumed_at is not None else (6 if rank == 2 and overdue else 7),
            progress=0,
            open_sections={"step": overdue or 0.1},
            first_iteration=resumed_at,
            host=f"node-{'ab'[rank // 2]}",
        )
        for rank in range(WORLD)
    ]
    api.report(*reports)


@pytest.fixture
def launcher(api: Api, job: str) -> PlayedLauncher:
    """One launcher that runs all four ranks, at step 7 of attempt 1."""
    played = PlayedLauncher(api, job)
    reported = played.register(job_name="gpt")
    assert reported["job_id"] == job
    played.start(1)
    send(api, job, 1)
    return played


def answer_capture(launcher: PlayedLauncher) -> dict:
    directive = launcher.next_directive("capture")
    launcher.send_stacks(directive, {r: AT_WORK if r == 2 else WAITING for r in launcher.ranks})
    launcher.acknowledge(directive)
    return directive


def test_registration_makes_a_job_that_is_shown_with_its_node(api: Api, job: str) -> None:
    launcher = PlayedLauncher(api, job)
    reported = launcher.register(
        job_name="gpt", policy={"section_timeouts": {"step": 10}, "max_restarts": 7}, facts={"scheduler": "slurm"}
    )
    assert reported["last_directive"] == 0
    assert reported["settings"]["limits"]["sections"] == {"step": 10.0}
    assert reported["settings"]["limits"]["heartbeat"] == 300.0

    found = api.job(job)
    assert (found["name"], found["state"], found["instrumented"]) == ("gpt", "starting", False)
    assert (found["policy"]["section_timeouts"], found["max_restarts"]) == ({"step": 10.0}, 7)
    step = {"what": "section", "section": "step", "configured": 10.0, "learned": None, "loaded": None}
    assert {**step, "in_force": 10.0, "source": "configured"} in found["timeouts"]
    (node,) = found["nodes"]
    assert (node["node"], node["host"], node["local_world_size"]) == ("node-a", "node-a", 4)
    assert node["facts"] == {"scheduler": "slurm"}
    assert node["last_seen_age"] < 10

    launcher.start(1)
    (node,) = api.job(job)["nodes"]
    assert (node["ranks"], node["attempt"]) == ([0, 1, 2, 3], 1)
    assert [(r["pid"], r["local_rank"], r["state"]) for r in api.ranks(job)] == [
        (2000 + rank, rank, "unseen") for rank in range(WORLD)
    ]


def test_a_long_poll_wakes_at_once_when_a_directive_is_issued(api: Api, job: str, launcher: PlayedLauncher) -> None:
    def last_seen_age() -> float:
        return api.job(job)["nodes"][0]["last_seen_age"]  # type: ignore[no-any-return]

    wait_for(lambda: last_seen_age() > 0.3, "nothing has come from the launcher for a while")
    asked_at = time.monotonic()
    with polling(launcher, wait=20.0) as poll:
        wait_for(lambda: last_seen_age() < time.monotonic() - asked_at, "the long poll has reached the monitor")
        ordered_at = time.monotonic()
        answer = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture", "reason": "I am curious"})
        assert answer.status_code == 202
        (directive,) = poll.result()
    assert poll.ended_at - ordered_at < 10.0
    assert (directive["kind"], directive["attempt"], directive["id"]) == ("capture", 1, 1)
    assert directive["incident_id"] == answer.json()["incident_id"]
    assert "I am curious" in directive["reason"]


def test_a_long_poll_without_news_ends_empty_after_its_wait(launcher: PlayedLauncher) -> None:
    began = time.monotonic()
    assert launcher.directives(wait=0.3) == []
    assert 0.3 <= time.monotonic() - began < 20.0


def test_a_directive_is_handed_out_again_until_it_is_reported_to_be_known(api: Api, launcher: PlayedLauncher) -> None:
    api.change_policy(launcher.job, heartbeat_timeout=100)
    first = launcher.next_directive("settings")
    launcher.after = 0
    assert launcher.next_directive("settings") == first
    assert launcher.directives(wait=0) == []


def test_a_changed_policy_is_handed_down_as_settings(api: Api, job: str, launcher: PlayedLauncher) -> None:
    changed = api.change_policy(job, section_timeouts={"step": 5, "checkpoint": 60}, heartbeat_timeout=None)
    assert changed["section_timeouts"] == {"step": 5.0, "checkpoint": 60.0}
    directive = launcher.next_directive("settings")
    limits = directive["settings"]["limits"]
    assert limits["sections"] == {"step": 5.0, "checkpoint": 60.0}
    assert limits["heartbeat"] is None
    # Sections are merged by name, and null takes one out.
    api.change_policy(job, section_timeouts={"step": None})
    assert launcher.next_directive("settings")["settings"]["limits"]["sections"] == {"checkpoint": 60.0}
    assert api.read(f"/jobs/{job}/policy")["section_timeouts"] == {"checkpoint": 60.0}
    assert PlayedLauncher(api, job, "node-z").register()["settings"]["limits"] == {
        **limits,
        "sections": {"checkpoint": 60.0},
    }


def test_a_hang_is_captured_restarted_and_closed_with_a_whole_timeline(
    api: Api, job: str, launcher: PlayedLauncher
) -> None:
    began = time.time()
    api.change_policy(job, section_timeouts={"step": LIMIT})
    with polling(launcher, wait=15.0) as poll:
        poll.result()  # the settings
    send(api, job, 1, overdue=LIMIT + 1)

    capture = answer_capture(launcher)
    assert capture["deadline"] == 5.0
    restart = launcher.next_directive("restart")
    assert restart["attempt"] == 1
    assert restart["incident_id"] == capture["incident_id"]
    assert restart["id"] > capture["id"]
    for words in ("Rank 2 on node-b", "'step'", "limit of 2 s", "1 step behind"):
        assert words in restart["reason"]

    open_one = api.read(f"/jobs/{job}/incidents/{capture['incident_id']}")
    assert (open_one["action"], open_one["phase"], open_one["closed_at"]) == ("restart", "acting", None)
    assert open_one["reason"] == restart["reason"], "everywhere the same words"
    assert [(c["rank"], c["class"]) for c in open_one["culprits"]] == [(2, "behind")]
    first, second = open_one["stack_groups"]
    assert (first["ranks"], first["label"], first["is_culprit"]) == ([2], "rank 2", True)
    assert first["frames"][0] == {"function": "compute", "file": "train.py", "line": 30, "of_script": True}
    assert (second["ranks"], second["label"], second["is_culprit"]) == ([0, 1, 3], "3 ranks", False)
    assert open_one["stack_errors"] == []
    assert (api.job(job)["state"], api.job(job)["reason"]) == ("restarting", restart["reason"])

    launcher.events({"kind": "restarting", "reason": restart["reason"], "incident_id": restart["incident_id"]})
    launcher.acknowledge(restart)
    launcher.start(2)
    wait_for(lambda: api.incidents(job)[0]["timeline"]["restarted"], "the new attempt is noticed")
    assert api.job(job)["state"] == "restarting"
    send(api, job, 2, resumed_at=5)

    closed = wait_for(lambda: next((i for i in api.incidents(job) if i["closed_at"]), None), "the incident closes")
    line = closed["timeline"]
    moments = [line[m] for m in ("since", "detected", "decided", "captured", "restarted", "first_step")]
    assert all(moments), line
    assert moments == sorted(moments)
    assert began - LIMIT - 1 - 1 < moments[0] < time.time()
    assert closed["closed_at"] >= line["first_step"]
    assert (closed["phase"], closed["steps_lost"]) == ("closed", 3), "step 7 was done, and it went on by completing 5"
    assert "attempt 2" in closed["outcome"]
    after = api.job(job)
    assert (after["state"], after["attempt"], after["restarts"], after["incidents"]) == ("running", 2, 1, 1)


def test_without_stacks_it_acts_when_the_deadline_has_passed(api: Api, job: str, launcher: PlayedLauncher) -> None:
    api.change_policy(job, section_timeouts={"step": LIMIT}, capture_deadline=0.5)
    send(api, job, 1, overdue=LIMIT + 1)
    capture = launcher.next_directive("capture")
    asked = time.monotonic()
    assert capture["deadline"] == 0.5
    launcher.next_directive("restart")
    assert time.monotonic() - asked > 0.2
    assert api.incidents(job)[0]["timeline"]["captured"] is None


def test_a_reason_holds_nothing_that_a_database_refuses_or_a_terminal_obeys(
    api: Api, job: str, launcher: PlayedLauncher
) -> None:
    answer = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "stop", "reason": "wrong\0data\x1b[2J"})
    assert answer.status_code == 202
    found = api.job(job)["reason"]
    assert "wrong\\x00data" in found
    assert found.isprintable()


def test_observe_only_finds_but_orders_nothing(api: Api, job: str, launcher: PlayedLauncher) -> None:
    api.change_policy(job, section_timeouts={"step": LIMIT}, observe_only=True)
    send(api, job, 1, overdue=LIMIT + 1)
    (incident,) = wait_for(lambda: api.incidents(job), "the hang is found")
    assert (incident["action"], incident["phase"]) == ("log", "detected")
    assert "observe-only" in incident["action_reason"]
    api.judge_now(job)
    assert {d["kind"] for d in launcher.directives(wait=0.5)} <= {"settings", "tell"}


def test_a_used_up_budget_turns_a_restart_into_a_stop(api: Api, job: str, launcher: PlayedLauncher) -> None:
    api.change_policy(job, section_timeouts={"step": LIMIT}, max_restarts=0)
    send(api, job, 1, overdue=LIMIT + 1)
    answer_capture(launcher)
    directive = launcher.next_directive("stop")
    assert "budget" in api.incidents(job)[0]["action_reason"]
    assert directive["no_restart"] == "not_allowed"
    launcher.acknowledge(directive)
    launcher.events({"kind": "failed", "reason": "rank 1 hangs; no restart is allowed", "no_restart": "not_allowed"})
    assert api.job(job)["state"] == "failed"


def test_an_operators_stop_is_captured_carried_out_and_reported(api: Api, job: str, launcher: PlayedLauncher) -> None:
    answer = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "stop", "reason": "wrong data"})
    assert answer.status_code == 202
    answer_capture(launcher)
    stop = launcher.next_directive("stop")
    assert "wrong data" in stop["reason"]
    launcher.acknowledge(stop)
    launcher.events({"kind": "stopped", "reason": "an operator ordered stop: wrong data"})
    found = api.job(job)
    assert found["state"] == "stopped"
    assert "wrong data" in found["reason"]
    assert found["ended_at"] is not None
    (incident,) = api.incidents(job)
    assert incident["id"] == answer.json()["incident_id"]
    assert (incident["kind"], incident["action"], incident["phase"]) == ("ordered", "stop", "closed")
    # There is nothing left to act on, and that is what the next order is told.
    again = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "stop"})
    assert (again.status_code, again.headers["content-type"]) == (409, "application/problem+json")
    assert "stopped" in again.json()["detail"]


def test_save_and_stop_names_a_step_ahead_and_a_later_one_when_it_was_passed(
    api: Api, job: str, launcher: PlayedLauncher
) -> None:
    api.post(f"/api/v1/jobs/{job}/actions", json={"action": "save_and_stop"})
    answer_capture(launcher)
    first = launcher.next_directive("save_and_stop")
    assert first["stop_step"] > 7
    launcher.acknowledge(first, "refused", detail="rank 0 is past it", max_iteration=first["stop_step"] + 3)
    second = launcher.next_directive("save_and_stop")
    assert second["stop_step"] > first["stop_step"] + 3
    assert second["id"] > first["id"]
    launcher.acknowledge(second)
    launcher.events({"kind": "stopped", "reason": "saved at the agreed step"})
    assert api.job(job)["state"] == "stopped"
    assert api.incidents(job)[0]["phase"] == "closed"


def test_save_and_stop_becomes_a_stop_when_the_ranks_do_not_get_there(
    api: Api, job: str, launcher: PlayedLauncher
) -> None:
    api.change_policy(job, stop_deadline=0.4)
    api.post(f"/api/v1/jobs/{job}/actions", json={"action": "save_and_stop"})
    answer_capture(launcher)
    launcher.next_directive("save_and_stop")
    launcher.next_directive("stop")
    assert "did not stop by themselves within 0.4 s" in api.incidents(job)[0]["action_reason"]


def test_a_crash_is_reported_by_the_launcher_and_restarted_by_it(api: Api, job: str, launcher: PlayedLauncher) -> None:
    launcher.events({"kind": "exited", "rank": 3, "pid": 2003, "signal": "SIGKILL", "exit_code": -9, "age": 0.2})
    (incident,) = api.incidents(job)
    assert incident["kind"] == "process_exited"
    assert [(c["rank"], c["class"]) for c in incident["culprits"]] == [(3, "dead")]
    assert "was killed by SIGKILL" in incident["reason"]
    assert incident["timeline"]["since"] == pytest.approx(incident["opened_at"] - 0.2, abs=0.05)
    assert [r["state"] for r in api.ranks(job)] == ["waiting", "waiting", "waiting", "dead"]
    launcher.events({"kind": "restarting", "reason": incident["reason"]})
    launcher.start(2)
    send(api, job, 2, resumed_at=8)
    closed = wait_for(lambda: next((i for i in api.incidents(job) if i["closed_at"]), None), "the incident closes")
    assert closed["steps_lost"] == 0
    assert api.job(job)["restarts"] == 1


def test_both_nodes_are_reported_and_the_last_stacks_decide(api: Api, job: str) -> None:
    near, far = PlayedLauncher(api, job, "node-a", (0, 1)), PlayedLauncher(api, job, "node-b", (2, 3))
    for node in (near, far):
        node.register()
        node.start(1)
    send(api, job, 1)
    api.change_policy(job, section_timeouts={"step": LIMIT})
    send(api, job, 1, overdue=LIMIT + 1)
    answer_capture(near)
    assert api.incidents(job)[0]["phase"] == "capturing", "the second node's stacks are still to come"
    answer_capture(far)
    assert near.next_directive("restart") == far.next_directive("restart")


def test_a_launcher_speaks_for_a_rank_that_cannot(api: Api, job: str, launcher: PlayedLauncher) -> None:
    seen = {
        "rank": 2,
        "pid": 2002,
        "process_state": "stopped",
        "pulse_age": 4.0,
        "iteration": 6,
        "open_sections": {"step": 3.0},
        "uses_sections": True,
    }
    api.change_policy(job, section_timeouts={"step": LIMIT})
    launcher.post("observations", {"node": launcher.node, "attempt": 1, "ranks": [seen]})
    assert api.ranks(job)[2]["state"] == "stopped"
    (incident,) = wait_for(lambda: api.incidents(job), "the incident")
    assert [(c["rank"], c["class"]) for c in incident["culprits"]] == [(2, "stopped")]


def test_all_ranks_done_is_a_finished_job(api: Api, job: str, launcher: PlayedLauncher) -> None:
    launcher.events(*({"kind": "exited", "rank": rank, "exit_code": 0} for rank in range(WORLD)), {"kind": "finished"})
    found = api.job(job)
    assert (found["state"], found["open_incidents"], found["incidents"]) == ("finished", 0, 0)
    assert [r["state"] for r in api.ranks(job)] == ["finished"] * WORLD


def test_incidents_never_share_an_id_however_many_there_were(api: Api, job: str, launcher: PlayedLauncher) -> None:
    """The ledger keeps the last 200 in memory; the 201st and all later ones still have names of their own."""
    ids = []
    for _ in range(203):
        answer = api.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture"})
        assert answer.status_code == 202
        ids.append(answer.json()["incident_id"])
        launcher.send_stacks({"id": 0, "incident_id": ids[-1]}, {0: WAITING})
    assert len(set(ids)) == len(ids)


def rejected(api: Api) -> list[str]:
    lines = api.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("rankwatch_ingest_rejected_total")]


def test_a_second_run_of_a_living_job_is_refused_and_the_first_is_warned(api: Api, job: str) -> None:
    def claim(run: str, host: str) -> httpx.Response:
        return api.post(f"/api/v1/jobs/{job}/runs", json={"run": run, "host": host, "launcher_pid": 7})

    assert claim("first", "node-a").status_code == 204
    registration = {"node": "n0", "host": "node-a", "launcher_pid": 7, "local_world_size": 1, "run": "first"}
    assert api.post(f"/api/v1/jobs/{job}/nodes", json=registration).status_code == 200
    assert claim("first", "node-a").status_code == 204
    before = rejected(api)
    refused = claim("second", "node-b")
    assert refused.status_code == 409
    assert rejected(api) == before, "nothing is wrong with the request"
    assert "node-a (process 7)" in refused.json()["detail"]
    poll = {"after": "0", "node": "n0", "wait": "20"}
    told = api.get(f"/api/v1/jobs/{job}/directives", params=poll).json()
    assert "node-b (process 7)" in told["warnings"][0]
    again = api.get(f"/api/v1/jobs/{job}/directives", params=poll | {"wait": "0"}).json()
    assert "warnings" not in again, "once"


@pytest.mark.parametrize("wrong", ["%2e%2e%2f", "x" * 257])
def test_an_id_that_cannot_be_one_is_not_claimed(api: Api, wrong: str) -> None:
    answer = api.post(f"/api/v1/jobs/{wrong}/runs", json={"run": "r", "host": "h", "launcher_pid": 7})
    assert answer.status_code in (404, 422)
