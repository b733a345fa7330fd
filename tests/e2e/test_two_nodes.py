"""Two launchers on one host, one monitor, four ranks: what goes wrong on one node is ended and restarted on both."""

from __future__ import annotations

import pytest

from e2e.story import WHOLE, assert_blamed, assert_in_order, functions, stack_of
from e2e.training import FAULT, RESUMED, STEP_LIMIT, STEPS, Launcher, Training
from support.console import events, restarts
from support.ports import free_port

pytestmark = pytest.mark.timeout(240)


def run_both(watched: Training, fault: str, *script: str) -> list[Launcher]:
    """Two launchers with two ranks each, brought to their end."""
    assert watched.api is not None
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", watched.job)
    flags = ("--nnodes", "2", *place, "--section-timeout", f"step={STEP_LIMIT}")
    launchers = [watched.run(*flags, script=("--steps", str(STEPS), *script), inject=fault) for _ in range(2)]
    assert [launcher.wait() for launcher in launchers] == [0, 0], "\n".join(each.printed() for each in launchers)
    return launchers


@pytest.mark.long
def test_a_hang_on_the_second_node_is_restarted_on_both(watched: Training) -> None:
    launchers = run_both(watched, f"rank=3,step={FAULT},kind=hang")
    incident = watched.incident()
    assert_blamed(incident, 3, "behind")
    assert (incident["kind"], incident["section"], incident["action"]) == ("section_overrun", "step", "restart")
    assert "it has not entered 'all_reduce' number" in incident["reason"]
    assert "in which 3 ranks wait" in incident["reason"]
    assert_in_order(incident, *WHOLE)
    assert functions(stack_of(incident, 3))[0] == "rankwatch_injected_hang"
    for rank in (0, 1, 2):
        assert "all_reduce" in functions(stack_of(incident, rank)), "the evidence is of both nodes"

    first = {rank: next(line for line in lines if line["attempt"] == 1) for rank, lines in watched.reported().items()}
    pids = {launcher.process.pid for launcher in launchers}
    assert {first[0]["launcher"], first[3]["launcher"]} == pids
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"], job["world_size"]) == ("finished", 2, 1, 4)
    nodes = {node["launcher_pid"]: node for node in job["nodes"]}
    assert set(nodes) == pids
    assert sorted(rank for node in nodes.values() for rank in node["ranks"]) == [0, 1, 2, 3]
    assert {node["attempt"] for node in nodes.values()} == {2}

    hangs = {tuple(events(launcher.printed(), "HANG")) for launcher in launchers}
    assert len(hangs) == 1, "both show the same words"
    assert [len(restarts(launcher.printed())) for launcher in launchers] == [1, 1]
    assert watched.steps("start") == {rank: [(1, 0), (2, RESUMED)] for rank in range(4)}
    assert watched.steps("end") == {rank: [(2, STEPS)] for rank in range(4)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "culprit_class", "verdict"),
    [
        ("stop", "stopped", "section_overrun"),
        ("kill", "dead", "process_exited"),
        ("gil", "gil_held", "section_overrun"),
        ("uninterruptible", "device_or_network", "section_overrun"),
    ],
)
def test_what_befalls_the_second_node_is_named_and_ended_on_both(
    watched: Training, kind: str, culprit_class: str, verdict: str
) -> None:
    launchers = run_both(watched, f"rank=3,step={FAULT},kind={kind}", "--patient")
    incident = watched.incident()
    assert_blamed(incident, 3, culprit_class)
    assert (incident["kind"], incident["action"]) == (verdict, "restart")
    assert [len(restarts(launcher.printed())) for launcher in launchers] == [1, 1]
    assert watched.steps("start") == {rank: [(1, 0), (2, RESUMED)] for rank in range(4)}
    assert watched.steps("end") == {rank: [(2, STEPS)] for rank in range(4)}
