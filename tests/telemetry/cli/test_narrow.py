"""80 columns, long host names and a hundred ranks: nothing runs over the edge of a real terminal, nor is lost."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from rankwatch.cli.formatting import WIDTH, action_line, refit
from rankwatch.cli.live_display import LiveDisplay
from rankwatch.cli.status import render
from rankwatch.cli.terminal import Terminal, cut_middle
from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor, environment
from support.otlp import rank_report
from support.pseudo_terminal import seated
from support.waiting import wait_for

RANKS, NODES, SLOW = 104, 13, 37
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def host(node: int) -> str:
    return f"ip-10-42-{node // 4:03d}-17{node % 10}.eu-central-1.compute.cluster-training-a.example.internal"


@pytest.fixture
def hung(api: Api, job: str) -> str:
    """One rank of 104 is behind; its incident has stacks."""
    launchers = [PlayedLauncher(api, job, host(n), range(8 * n, 8 * n + 8)) for n in range(NODES)]
    for launcher in launchers:
        launcher.register(policy={"section_timeouts": {"step": 10}, "on_hang": "capture"})
    for launcher in launchers:
        launcher.start(1, RANKS)
    for age, iteration in ((0.1, 8), (12.5, 9)):
        reports = [
            rank_report(
                job, rank, RANKS, iteration=iteration - (age > 1 and rank == SLOW), open_sections={"step": age},
                host=host(rank // 8), attempt=1,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        api.report(*reports)
    for launcher in launchers:
        capture = launcher.next_directive("capture")
        launcher.send_stacks(capture, {rank: AT_WORK if rank == SLOW else WAITING for rank in launcher.ranks})
        launcher.acknowledge(capture)
    wait_for(lambda: api.incidents(job)[0]["phase"] == "detected", "the stacks are taken in")
    return job


def printed(url: str, *command: str) -> list[str]:
    """What a command writes on a terminal of 80 columns, without styles."""
    words = [sys.executable, "-m", "rankwatch", *command, "--monitor", url]
    with seated(words, environment(TERM="xterm-256color"), columns=80, lines=200) as seat:
        seat.ended(60.0)
        return _STYLE.sub("", seat.seen).replace("\r", "").splitlines()


def test_no_command_writes_beyond_80_columns_and_the_reason_is_whole(
    monitor: RunningMonitor, api: Api, hung: str
) -> None:
    [incident] = api.incidents(hung)
    commands = [["status"], ["status", hung], ["incidents", hung], ["incidents", hung, incident["id"]]]
    commands += [["report", hung], ["why", hung], ["digest"], ["digest", "--since", "-3h"]]
    shown = {" ".join(command): printed(monitor.url, *command) for command in commands}
    assert [line for lines in shown.values() for line in lines if len(line) > 80] == []
    flat = {name: " ".join(" ".join(lines).split()) for name, lines in shown.items()}
    status = flat[f"status {hung}"]
    assert incident["title"] in status
    assert "at 0 steps/s" in status
    for name in (f"incidents {hung} {incident['id']}", f"report {hung}"):
        assert incident["reason"] in flat[name], name
    assert [name for name, words in flat.items() if "healthy" in words] == []


def test_watch_scrolls_through_what_does_not_fit(monitor: RunningMonitor, hung: str) -> None:
    command = [sys.executable, "-m", "rankwatch", "status", hung, "--watch", "--monitor", monitor.url]
    with seated(command, environment(TERM="xterm-256color"), columns=80, lines=16) as seat:
        first = seat.until("0 lines above, ")
        last = f"and {NODES - render.SHOWN} more nodes"
        assert last not in first
        seat.press("\x1b[F")  # End
        assert last in seat.until(" 0 below: arrow keys")
        seat.forget()
        seat.press("\x1b[H\x1b[B")  # Home, then down
        seat.until("1 lines above, ")
        seat.press("\x1b")  # alone, it is no key of ours
        seat.press("q")
        assert seat.ended() == 3
        assert seat.as_it_was


def test_keys_move_within_the_content() -> None:
    screen = LiveDisplay(sys.stdout, sys.stdin)

    def moved(*keys: bytes, top: int = 0, page: int = 10, lines: int = 35) -> int:
        screen._scroll = list(keys)
        return screen.scrolled(top, page, lines)

    assert moved(b"j", b"j", b"k") == 1
    assert moved(b" ", b" ") == 18
    assert moved(b"\x1b[6~", b"\x1b[6~", b"\x1b[6~") == 25
    assert moved(b"G", b"g") == 0
    assert moved(b"k") == 0
    assert moved(top=25, lines=12) == 2, "the content became shorter"
    assert moved(top=5, page=60) == 0, "the terminal became taller"


def test_text_of_a_hundred_columns_is_wrapped_again() -> None:
    sentence = "Rank 1 on node-a is in 'all_reduce' while the others have gone on. " * 4
    before = Terminal(WIDTH).wrapped(sentence, "    ")
    lines = ["INCIDENTS 1", "", *before, "    action: none", "  hang            5.7 s   93.1 %"]
    after = refit(lines, 80)
    assert max(map(len, after)) <= 80
    assert after == ["INCIDENTS 1", "", *Terminal(80).wrapped(sentence, "    "), *lines[-2:]]
    assert refit(before, WIDTH) == before


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"action": "log", "phase": "detected"}, "action: none, only recorded; why"),
        ({"action": "restart", "phase": "capturing"}, "planned action: restart; why"),
        ({"action": "restart", "phase": "acting"}, "action: restart; why"),
        ({"action": "restart", "phase": "closed"}, "action: restart, not taken; why"),
        ({"action": "restart", "phase": "closed", "restarted": 2.0}, "action: restart; why"),
        ({"action": "capture", "phase": "detected", "captured": 2.0}, "action: capture; why"),
        ({"action": "capture", "phase": "capturing"}, "planned action: capture; why"),
    ],
)
def test_an_action_that_was_not_taken_is_not_reported_as_taken(facts: dict[str, Any], line: str) -> None:
    timeline = {name: facts.pop(name, None) for name in ("captured", "restarted")}
    assert action_line({**facts, "timeline": timeline, "action_reason": "why"}) == line


def test_the_speed_of_a_lost_job_is_not_known() -> None:
    assert render._pace({"iterations_per_second": 0.0, "state": "lost"}) == ""
    assert render._pace({"iterations_per_second": 0.0, "state": "hung"}) == "0 steps/s"


def test_ids_are_cut_in_the_middle() -> None:
    assert cut_middle("llama-70b-sweep-0017", 12) == "llama-…-0017"
    assert cut_middle("short", 12) == "short"
