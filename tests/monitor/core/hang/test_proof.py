"""Several looks at suspected ranks: what they prove of one rank, what follows for the job, and what is done.

Each row of the two tables in :mod:`rankwatch_monitor.core.hang.proof` has a case here, and one that just misses it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.core.scene import LOADING, REDUCING, WINDOW, Scene
from monitor.core.views.advice.test_playbook import known
from rankwatch.contract.enums import DirectiveKind, ProcessState, Proof, RankState, WaitKind
from rankwatch.contract.messages import Collective, Frame, RankStack, Usage, Wait
from rankwatch_monitor.core.hang import proof
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.publish.webhook.notices import announced_so_far, new_notices
from support.simulator.plan import FaultKind

STILL = Usage(8.0, 5, same_stack=8.0, same_functions=8.0, wait=Wait(WaitKind.THREAD))
"""Nothing moves, and nothing in the process can wake it."""
SLEEPS = replace(STILL, wait=Wait(WaitKind.TIMED))
UNSEEN = replace(STILL, wait=None)
DEBUGGED = replace(STILL, wait=Wait(WaitKind.DEBUGGER))
BUSY = replace(STILL, main_cpu=6.0)
BACKWARD = (Frame("_engine_run_backward", "/venv/lib/python3.12/site-packages/torch/autograd/graph.py", 800),)
PENDING = (Collective("default_pg", "all_reduce", 9, 8),)
SYNCHRONIZING = (
    Frame("Stream.synchronize", "/venv/lib/python3.12/site-packages/torch/cuda/streams.py", 105),
    Frame("main", "/u/train.py", 9),
)
EVALUATE = (
    Frame("norm", "/venv/lib/python3.12/site-packages/numpy/linalg.py", 7),
    Frame("evaluate", "/u/train.py", 70),
)


def judged(usage: Usage | None, frames: tuple[Frame, ...] = LOADING, **changes: object) -> Proof | None:
    return proof.of_stack(
        RankStack(0, 7, "py-spy", frames, **{"process_state": ProcessState.ALIVE, "usage": usage, **changes})
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (STILL, Proof.STILL),
        (BUSY, Proof.BUSY),
        (replace(STILL, cpu=6.0), Proof.BUSY),
        (replace(STILL, child_cpu=2.0), Proof.BUSY),
        (replace(STILL, child_cpu=0.5), Proof.UNDECIDED),
        (replace(STILL, child_cpu=9.0, same_stack=310.0, same_functions=310.0), Proof.UNDECIDED),
        (replace(STILL, io_bytes=1 << 20, same_stack=310.0, same_functions=310.0), Proof.UNDECIDED),
        (replace(STILL, child_cpu=9.0, same_stack=2.0, same_functions=310.0), Proof.BUSY),
        (replace(SLEEPS, child_cpu=9.0, same_stack=310.0, same_functions=310.0), Proof.BUSY),
        (replace(UNSEEN, io_bytes=1 << 20, same_stack=310.0, same_functions=310.0), Proof.BUSY),
        (replace(STILL, child_cpu=0.5, child_delay=3.0), Proof.BUSY),
        (replace(STILL, main_cpu=0.5, main_delay=3.0), Proof.BUSY),
        (replace(STILL, main_cpu=0.1, main_delay=3.0), Proof.STILL),
        (replace(STILL, io_bytes=1 << 20), Proof.BUSY),
        (replace(STILL, same_stack=2.0, new_stack=290.0), Proof.BUSY),
        (replace(STILL, same_stack=2.0, new_stack=310.0), Proof.UNDECIDED),
        (replace(STILL, same_stack=2.0, new_stack=310.0, wait=Wait(WaitKind.TIMED)), Proof.MAY_END),
        (replace(BUSY, same_stack=2.0, new_stack=310.0), Proof.BUSY),
        (replace(STILL, same_stack=2.0), Proof.BUSY),
        (replace(STILL, wakeups=2), Proof.STILL),
        (replace(STILL, wakeups=80), Proof.UNDECIDED),
        (replace(STILL, main_cpu=0.5), Proof.UNDECIDED),
        (replace(STILL, io_bytes=4096, cpu=0.1), Proof.STILL),
        (replace(STILL, same_stack=None, same_functions=None), Proof.STILL),
        (replace(STILL, seconds=4.0, same_stack=4.0), Proof.UNDECIDED),
        (replace(STILL, looks=2), Proof.UNDECIDED),
        (replace(STILL, seconds=0.0, looks=1, same_stack=0.0), Proof.UNDECIDED),
        (replace(BUSY, seconds=2.0, looks=2, same_stack=2.0), Proof.BUSY),
        (replace(BUSY, same_stack=2.0, same_functions=290.0), Proof.BUSY),
        (replace(BUSY, same_stack=2.0, same_functions=310.0), Proof.SPINNING),
        (replace(BUSY, same_functions=310.0, io_bytes=1 << 20), Proof.BUSY),
        (replace(BUSY, gpu=True), Proof.SPINNING),
        (replace(BUSY, gpu=True, same_stack=1.0), Proof.BUSY),
        (replace(BUSY, gpu=True, cpu=14.0), Proof.BUSY),
        (replace(BUSY, gpu=True, cpu=14.0, same_functions=310.0), Proof.SPINNING),
        (replace(STILL, arrives=True), Proof.BUSY),
        (replace(SLEEPS, arrives=True, wakeups=80), Proof.BUSY),
        (replace(SLEEPS, wakeups=80), Proof.MAY_END),
        (replace(SLEEPS, looks=2), Proof.UNDECIDED),
        (replace(SLEEPS, same_stack=2.0), Proof.BUSY),
        (replace(SLEEPS, main_cpu=6.0), Proof.BUSY),
        (UNSEEN, Proof.UNDECIDED),
        (DEBUGGED, Proof.DEBUGGED),
        (replace(DEBUGGED, looks=1, seconds=0.0, same_stack=0.0), Proof.DEBUGGED),
        (None, None),
    ],
)
def test_a_rank_outside_of_collectives(usage: Usage | None, expected: Proof | None) -> None:
    assert judged(usage) is expected


@pytest.mark.parametrize("kind", WaitKind)
def test_what_it_waits_for_tells_whether_that_may_end(kind: WaitKind) -> None:
    expected = {
        WaitKind.THREAD: Proof.STILL,
        WaitKind.STOPPED: Proof.STILL,
        WaitKind.PEERS: Proof.WAITING,
        WaitKind.TERMINAL: Proof.DEBUGGED,
        WaitKind.DEBUGGER: Proof.DEBUGGED,
        WaitKind.RUNNING: Proof.UNDECIDED,
        WaitKind.UNKNOWN: Proof.UNDECIDED,
    }
    assert judged(replace(STILL, wait=Wait(kind))) is expected.get(kind, Proof.MAY_END)


@pytest.mark.parametrize(
    ("usage", "frames", "expected"),
    [
        (STILL, REDUCING, Proof.WAITING),
        (SLEEPS, REDUCING, Proof.WAITING),
        (replace(STILL, wait=Wait(WaitKind.PEERS), gpu=True), LOADING, Proof.UNDECIDED),
        (DEBUGGED, REDUCING, Proof.DEBUGGED),
        (replace(STILL, child_cpu=5.0), REDUCING, Proof.WAITING),
        (replace(STILL, cpu=5.0), REDUCING, Proof.UNDECIDED),
        (replace(STILL, same_stack=1.0), REDUCING, Proof.UNDECIDED),
        (replace(STILL, same_stack=None), REDUCING, Proof.UNDECIDED),
        (BUSY, BACKWARD, Proof.BUSY),
        (replace(BUSY, gpu=True), REDUCING, Proof.WAITING),
        (replace(BUSY, gpu=True, same_stack=1.0), BACKWARD, Proof.BUSY),
        (replace(BUSY, gpu=True, same_stack=1.0, new_stack=310.0), BACKWARD, Proof.UNDECIDED),
        (replace(BUSY, gpu=True, same_stack=1.0), REDUCING, Proof.UNDECIDED),
        (replace(BUSY, gpu=True), BACKWARD, Proof.WAITING),
    ],
)
def test_a_rank_in_a_call_that_waits(usage: Usage, frames: tuple[Frame, ...], expected: Proof) -> None:
    assert judged(usage, frames) is expected


@pytest.mark.parametrize(
    ("collectives", "expected"),
    [((), Proof.SPINNING), ((Collective("default_pg", "all_reduce", 9, 9),), Proof.BUSY), (PENDING, Proof.WAITING)],
)
def test_a_rank_with_a_gpu_that_computes_on_the_host_waits_for_no_peer(
    collectives: tuple[Collective, ...], expected: Proof
) -> None:
    """It clusters, pickles, or waits for its device: that is not known, but whether a collective is pending."""
    assert judged(replace(BUSY, gpu=True), collectives=collectives) is expected


def test_states_of_the_process_and_pending_collectives() -> None:
    assert judged(STILL, process_state=ProcessState.STOPPED) is Proof.STOPPED
    assert judged(replace(STILL, looks=1, seconds=0.0), process_state=ProcessState.STOPPED) is None
    assert judged(STILL, process_state=ProcessState.UNINTERRUPTIBLE) is Proof.UNINTERRUPTIBLE
    assert judged(replace(STILL, io_bytes=1 << 20), process_state=ProcessState.UNINTERRUPTIBLE) is Proof.BUSY
    assert judged(UNSEEN, process_state=ProcessState.UNKNOWN) is Proof.UNDECIDED
    assert judged(SLEEPS, process_state=ProcessState.UNINTERRUPTIBLE) is Proof.UNINTERRUPTIBLE
    assert judged(DEBUGGED, process_state=ProcessState.STOPPED) is Proof.STOPPED
    assert judged(replace(BUSY, gpu=True), collectives=PENDING) is Proof.WAITING
    assert judged(BUSY, collectives=PENDING) is Proof.BUSY


FAILED_LOOKS = dict.fromkeys(range(4), replace(UNSEEN, looks=1, seconds=0.0, same_stack=0.0))


# What is done ---------------------------------------------------------------------------------------------------------


def trained(**changes: object) -> Scene:
    return Scene(reports_durations=True, **changes).run(40)


def look(
    scene: Scene,
    usages: dict[int, Usage],
    frames: dict[int, tuple[Frame, ...]] | None = None,
    number: int = 1,
    state: ProcessState | None = None,
    of: tuple[int, ...] | None = None,
    collectives: dict[int, tuple[Collective, ...]] | None = None,
) -> None:
    """Every launcher looks at its ranks; those without a usage of their own stand still."""
    for node in scene.nodes:
        stacks = tuple(
            replace(
                stack,
                usage=usages.get(stack.rank, STILL),
                frames=(frames or {}).get(stack.rank, stack.frames),
                process_state=state if state and (of is None or stack.rank in of) else stack.process_state,
                collectives=(collectives or {}).get(stack.rank, ()),
            )
            for stack in scene.stacks(node)
        )
        scene.send_evidence(node, stacks=stacks, look=number)


def watched(scene: Scene, usages: dict[int, Usage], seconds: int, **given: object) -> Scene:
    """Time passes, with a look every two seconds."""
    for second in range(seconds):
        scene.run(1)
        if second % 2 and scene.job.incidents and scene.incident.undecided:
            look(scene, usages, **given)  # type: ignore[arg-type]
    return scene


def test_a_suspicion_asks_the_launchers_to_look_again_and_again() -> None:
    scene = trained().hang(2).until_found()
    assert [d.watch for d in scene.directives(DirectiveKind.CAPTURE)] == [120.0]


def test_a_rank_that_stands_still_is_proven_and_restarted_before_the_window() -> None:
    scene = trained().hang(2)
    began = scene.now
    scene.until_found().run(2)
    look(scene, {2: replace(STILL, looks=2, seconds=2.0)})
    assert not scene.incident.confirmed
    look(scene, {})
    assert scene.incident.confirmed
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=5)
    assert scene.now - began <= 20
    incident = scene.incident.to_json()
    assert (incident["proof"], [c["rank"] for c in incident["culprits"]]) == ("still", [2])
    assert "does not move in load_batch() (train.py:41)" in incident["proof_reason"]
    assert incident["reason"].endswith(incident["proof_reason"])


def test_the_only_rank_of_a_job_waits_for_its_device_which_is_left_to_patience() -> None:
    scene = trained(ranks=1).hang(0).until_found().run(2)
    scene.ranks[0].frames = SYNCHRONIZING
    watched(scene, {0: replace(BUSY, gpu=True)}, 30)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "transport")
    assert scene.incident.acts_at == scene.incident.opened_at + WINDOW
    assert scene.incident.proof_reason == "Rank 0 waits for its device in main() (train.py:9), which may recover."
    watched(scene, {0: replace(BUSY, gpu=True)}, 40)
    assert scene.directives(DirectiveKind.RESTART)


def test_a_busy_rank_is_shown_and_never_restarted_and_is_well_again() -> None:
    scene = trained().hang(0, outside=True).until_found().run(2)
    scene.ranks[0].frames = EVALUATE
    watched(scene, {0: BUSY}, 900)
    assert not scene.incident.confirmed
    assert not scene.directives(DirectiveKind.RESTART)
    assert scene.incident.reason.startswith("Rank 0 on host-0 is busy in evaluate() (train.py:70) for ")
    assert scene.incident.reason.endswith(", 3 ranks wait.")
    assert [c.rank for c in scene.incident.culprits] == [0]
    assert (scene.rank_state(0), scene.rank_state(1)) == (RankState.RUNNING, RankState.WAITING)
    assert scene.state == "suspected"
    assert sum("is busy" in printed for printed in scene.printed) == 1
    assert 7 <= len(scene.directives(DirectiveKind.CAPTURE)) <= 9, "the watch is prolonged"
    scene.resume().run(5)
    assert scene.incident.outcome == "the ranks went on by themselves"


def test_a_busy_rank_that_comes_to_a_standstill_is_proven() -> None:
    scene = trained().hang(0, outside=True).until_found().run(2)
    watched(scene, {0: BUSY}, 100)
    watched(scene, {}, 4)
    assert scene.incident.confirmed
    assert scene.incident.proof == "still"
    assert "is busy" not in scene.incident.reason


def test_what_the_looks_do_not_decide_waits_for_the_window_since_it_was_last_busy() -> None:
    polls = replace(STILL, wakeups=100)
    scene = watched(trained().hang(2).until_found(), {2: polls}, 50)
    assert not scene.incident.confirmed
    assert watched(scene, {2: polls}, 15).incident.confirmed
    scene = watched(trained().hang(2).until_found(), {2: BUSY}, 80)
    watched(scene, {2: polls}, 50)
    assert not scene.incident.confirmed, "patience begins when it is no longer busy"
    assert watched(scene, {2: polls}, 15).incident.confirmed


def test_a_still_rank_is_left_alone_while_another_is_busy() -> None:
    scene = watched(trained().hang(2).until_found(), {1: BUSY}, 100, frames={1: EVALUATE})
    assert not scene.incident.confirmed


def test_a_stopped_process_is_proven_whatever_the_others_do() -> None:
    scene = trained().stop(1).until_found().run(2)
    look(scene, {0: BUSY})
    assert scene.incident.confirmed
    assert scene.incident.proof == "stopped"
    assert scene.blamed == {1: "stopped"}


@pytest.mark.parametrize("known", [True, False], ids=["numbers", "stacks only"])
def test_ranks_that_all_wait_in_one_collective_are_left_to_patience(known: bool) -> None:
    scene = trained().stall().until_found()
    watched(scene, {}, 50, collectives=dict.fromkeys(range(4), PENDING) if known else {})
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "transport"), "their network may recover"
    assert ("'all_reduce' number 9" in scene.incident.reason) is known
    assert scene.incident.culprits == ()
    watched(scene, {}, 15)
    assert scene.incident.confirmed


def test_ranks_that_wait_in_collectives_that_differ_are_proven_after_ten_seconds() -> None:
    scene = trained().stall().until_found()
    began = scene.now
    gather = (replace(PENDING[0], calls_from=9, calls=("all_gather",)),)
    reduce = (replace(PENDING[0], calls_from=9, calls=("all_reduce",)),)
    watched(scene, {}, 14, collectives={0: gather, **dict.fromkeys((1, 2, 3), reduce)})
    assert (scene.incident.confirmed, scene.incident.proof) == (True, "waiting")
    assert scene.incident.timeline.decided - began < 12


def test_ranks_that_wait_for_one_that_has_ended_are_proven() -> None:
    scene = trained()
    scene.die(3, exit_code=0)
    for rank in scene.ranks[:3]:
        rank.fault = FaultKind.STALL
    scene.until_found()
    watched(scene, {}, 14)
    assert (scene.incident.confirmed, scene.incident.proof) == (True, "waiting")


def test_ranks_that_all_stand_still_outside_of_collectives_wait_for_the_window() -> None:
    scene = watched(trained().stall().until_found(), {}, 50, frames=dict.fromkeys(range(4), LOADING))
    assert not scene.incident.confirmed


def test_storage_that_is_away_for_all_is_announced_and_never_answered_by_a_restart() -> None:
    scene = trained().stall().until_found()
    announced = announced_so_far(scene.job, scene.now)
    for _ in range(150):
        scene.run(2)
        look(scene, {}, frames=dict.fromkeys(range(4), LOADING), state=ProcessState.UNINTERRUPTIBLE)
    assert not scene.incident.confirmed
    assert not scene.directives(DirectiveKind.RESTART)
    assert scene.incident.reason.startswith("All 4 ranks wait in the kernel (state D) in load_batch() (train.py:41): ")
    assert scene.incident.culprits == ()
    (opened,) = new_notices(scene.job, announced, scene.now)
    assert (opened.body["event"], scene.incident.reason in opened.body["text"]) == ("incident_opened", True)
    scene.resume().run(5)
    assert scene.incident.outcome == "the ranks went on by themselves"


def test_one_rank_in_the_kernel_may_come_back_and_is_left_to_twice_the_window() -> None:
    scene = trained().stall().until_found()
    in_kernel: dict[str, object] = {"state": ProcessState.UNINTERRUPTIBLE, "of": (2,), "frames": {2: LOADING}}
    watched(scene, {}, 110, **in_kernel)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "may_end")
    assert [c.rank for c in scene.incident.culprits] == [2]
    watched(scene, {}, 20, **in_kernel)
    assert scene.directives(DirectiveKind.RESTART)


def test_ranks_that_are_all_stopped_are_suspended_and_never_restarted() -> None:
    scene = trained().stall().until_found()
    announced = announced_so_far(scene.job, scene.now)
    watched(scene, {}, 300, state=ProcessState.STOPPED)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "suspended")
    assert (scene.incident.acts_at, scene.incident.culprits) == (None, ())
    watched(scene, FAILED_LOOKS, 100)
    assert not scene.directives(DirectiveKind.RESTART), "a look may fail, and decides nothing then"
    assert "incident_opened" in [notice.body["event"] for notice in new_notices(scene.job, announced, scene.now)]
    scene.resume().run(5)
    assert scene.incident.outcome == "the ranks went on by themselves"


def test_the_only_rank_is_suspended_as_all_are() -> None:
    scene = trained(ranks=1).stall().until_found()
    watched(scene, {}, 300, state=ProcessState.STOPPED)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "suspended")
    assert not scene.directives(DirectiveKind.RESTART)


def test_a_rank_in_a_debugger_is_said_and_never_restarted() -> None:
    scene = trained().hang(2).until_found().run(2)
    watched(scene, {2: DEBUGGED}, 300)
    assert (scene.incident.proof, scene.incident.acts_at) == ("debugged", None)
    assert [c.rank for c in scene.incident.culprits] == [2]
    assert known(scene).condition == "if nobody uses it"
    watched(scene, FAILED_LOOKS, 100)
    assert not scene.directives(DirectiveKind.RESTART), "a look may fail, and decides nothing then"
    left = scene.now
    watched(scene, {2: SLEEPS}, 110)
    assert not scene.incident.confirmed, "patience begins when the debugger has been left"
    assert scene.incident.acts_at is not None
    assert abs(scene.incident.acts_at - left - 2 * WINDOW) < 20
    watched(scene, {2: SLEEPS}, 130)
    assert scene.directives(DirectiveKind.RESTART)


def test_bytes_that_arrive_are_work() -> None:
    answer = Wait(WaitKind.SOCKET, "10.0.3.7:443")
    scene = trained().hang(2).until_found().run(2)
    watched(scene, {2: replace(STILL, wait=answer, arrives=True)}, 300)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "busy")
    watched(scene, {2: replace(STILL, wait=answer)}, 10)
    assert scene.incident.proof == "may_end"
    assert "Rank 2 on host-0 waits for an answer from 10.0.3.7:443 in load_batch()" in scene.incident.reason
    watched(scene, {2: replace(STILL, wait=answer)}, 2 * int(WINDOW))
    assert scene.directives(DirectiveKind.RESTART)


def test_a_rank_whose_wait_is_unknown_is_left_to_patience() -> None:
    scene = trained().hang(2).until_found().run(2)
    watched(scene, {2: UNSEEN}, 50)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "")
    watched(scene, {2: UNSEEN}, 15)
    assert scene.incident.confirmed


def test_a_rank_that_is_not_looked_at_leaves_it_to_the_window() -> None:
    scene = trained(hosts=2).hang(2).until_found().run(2)
    stacks = tuple(replace(stack, usage=STILL) for stack in scene.stacks("node-1"))
    scene.send_evidence("node-1", stacks=stacks, look=1)
    assert not scene.incident.confirmed


def test_a_still_rank_may_take_as_long_as_its_own_section_is_configured_to() -> None:
    scene = trained(section_timeouts={"upload": 100.0})
    scene.hang(0)
    scene.ranks[0].at.enter("upload", scene.now)
    scene.until_found().run(2)
    watched(scene, {}, 80)
    assert not scene.incident.confirmed
    scene = trained()
    scene.hang(0)
    scene.ranks[0].at.enter("upload", scene.now)
    watched(scene, {}, 4)
    assert scene.incident.confirmed, "nothing protects one that nothing wakes in a section without a configured limit"


def test_a_configured_limit_acts_at_once_whatever_the_looks_show() -> None:
    scene = trained(heartbeat_timeout=25.0).hang(2).until_found().run(2)
    watched(scene, {2: BUSY}, 30)
    assert scene.incident.confirmed


def test_a_late_look_changes_nothing_of_ranks_that_went_on() -> None:
    scene = trained().hang(2).until_found().run(2).resume().run(3)
    assert scene.incident.phase is Phase.CLOSED
    before = scene.incident.stacks.groups()
    look(scene, {}, dict.fromkeys(range(4), EVALUATE))
    assert scene.incident.stacks.groups() == before


def test_ranks_that_are_continued_one_node_after_another_are_not_taken_for_stopped_ones() -> None:
    scene = trained(hosts=2).stall().until_found()
    watched(scene, {}, 60, state=ProcessState.STOPPED)
    assert scene.incident.proof == "suspended"
    of_node_1 = tuple(replace(stack, usage=STILL) for stack in scene.stacks("node-1"))
    scene.send_evidence("node-1", stacks=of_node_1, look=1)
    assert (scene.incident.confirmed, scene.incident.proof) == (False, "suspended")
    watched(scene, {}, 24, state=ProcessState.STOPPED, of=(0, 1))
    assert (scene.incident.confirmed, scene.incident.proof) == (True, "stopped"), "but two were left as they were"
