"""The words of every cause and of every reason to name no rank, in each tense: golden file ``causes.txt``.

``UPDATE_WORDS=1 pytest tests/monitor/core/words`` writes it anew. All other tests compare records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from rankwatch.contract.enums import Proof, WaitKind
from rankwatch.contract.messages import Wait
from rankwatch_monitor.core.cause import (
    AllAlike,
    Among,
    Apart,
    Behind,
    Call,
    Cause,
    Circle,
    DifferentCalls,
    Disagreed,
    Exited,
    GilHeld,
    InKernel,
    Launched,
    Leaving,
    Made,
    NcclBehind,
    NcclUnreachable,
    NeverStarted,
    NodeLost,
    NodeSilent,
    NotEntered,
    OtherCall,
    OtherSite,
    Outside,
    PastLimit,
    Rejected,
    Silent,
    Site,
    Slow,
    Some,
    StacksFollow,
    Stopped,
    Unnamed,
    Watched,
)
from rankwatch_monitor.core.words.causes import When, predicate, reason, unnamed

GOLDEN = Path(__file__).with_name("causes.txt")
TRAIN, LOAD = Site("train", "/srv/train.py", 41), Site("load_batch", "/srv/data.py", 7)
REDUCE, BROADCAST = Call("all_reduce", 58, "default_pg"), Call("broadcast", 5, "pair")
REDUCED, BARRIER = Made("all_reduce", "8 Float", TRAIN, waits=True), Made("barrier", "", LOAD, waits=True)
CAUSES: tuple[Cause, ...] = (
    *(Exited(1, "ValueError: no data"), Exited(-9), Exited(0, early=True)),
    *(Stopped(), Leaving(12.0), NeverStarted(), InKernel("host-1"), InKernel(""), GilHeld(4.2)),
    NodeLost("host-1", Some.of([2, 3]), "no heartbeat of its launcher for 6.1 s"),
    *(NodeSilent("host-1", 1, 30.5), NodeSilent("host-1", 4, 30.5), Silent(30.5)),
    OtherCall(BARRIER, REDUCED, 3, "default_pg", 133),
    OtherCall(Made("all_reduce", "8 Float", TRAIN), Made("all_reduce", "4 Float"), 1, "default_pg", 133),
    OtherSite(REDUCE, LOAD, TRAIN, 3),
    *(NotEntered(REDUCE, 1, 57), NotEntered(REDUCE, 3, 40)),
    NotEntered(REDUCE, 3, 57, instead=BROADCAST, site=TRAIN),
    NotEntered(REDUCE, 3, 57, instead=BROADCAST, reordered=True),
    *(Behind(1, 1), Behind(3, 6), Behind(0, 6), Behind(1, 6, between=True)),
    *(Outside(None), Outside(LOAD)),
    NcclBehind("0x1f", (Launched("AllReduce", 6, 7), Launched("AllGather", 1, 2)), 3),
    NcclBehind("0x1f", (Launched("collective", 6, 7),), 1),
    *(NcclUnreachable(dead=False), NcclUnreachable(dead=True)),
    *(PastLimit("within"), PastLimit("ended"), PastLimit("none")),
    *(Watched(Proof.BUSY, None, LOAD, 0), Watched(Proof.MAY_END, Wait(WaitKind.TIMED, seconds=5.0), LOAD, 3)),
    *(Slow("Rank 1 is slow."), Rejected("Rank 1 rejected a result.")),
)
NAMELESS = (
    Unnamed(StacksFollow()),
    Unnamed(DifferentCalls("default_pg", 133, ((REDUCED, Some.of([0, 1])), (BARRIER, Some.of([2]))))),
    Unnamed(
        DifferentCalls(
            "",
            0,
            (
                (Made("barrier", "", LOAD, waits=True), Some.of([2, 3])),
                (Made("all_reduce", "", TRAIN, waits=True, among=Among(2, "pair")), Some.of([1])),
                (Made("recv", "", TRAIN, waits=True, among=Among(0, "", 1)), Some.of([0])),
            ),
        )
    ),
    Unnamed(
        DifferentCalls(
            "",
            0,
            ((Made("send", "", among=Among(0)), Some.of([0])), (Made("barrier", "", among=Among(0)), Some.of([1]))),
        )
    ),
    Unnamed(Circle(Some.of([0, 1]), ((REDUCE, Some.of([0])), (BROADCAST, Some.of([1]))))),
    *(Unnamed(AllAlike()), Unnamed(AllAlike(REDUCE)), Unnamed(AllAlike(function="all_reduce"))),
    Unnamed(AllAlike(REDUCE, answered=True), ("host-1",)),
    Unnamed(AllAlike(answered=True), ("host-1", "host-2", "host-3", "host-4", "host-5")),
    *(Unnamed(Apart(seen=False)), Unnamed(Apart(seen=True))),
    Unnamed(Disagreed(Some.of([1]), Some.of([2, 3]))),
    Unnamed(AllAlike(), asleep=3, live=4),
)


def lines() -> Iterator[str]:
    for cause in CAUSES:
        forms = [reason(cause, when) for when in When] + ["".join(predicate(cause, short=True))]
        yield "\n  ".join([f"{type(cause).__name__}:", *dict.fromkeys(forms)])
    for nameless in NAMELESS:
        forms = ["".join(unnamed(nameless, when)) for when in When] + ["".join(unnamed(nameless, short=True))]
        yield "\n  ".join([f"{type(nameless.why).__name__}:", *dict.fromkeys(forms)])


def test_every_cause_has_its_words() -> None:
    assert {type(cause) for cause in CAUSES} == set(get_args(Cause))
    text = "\n".join(lines()) + "\n"
    if "UPDATE_WORDS" in os.environ:
        GOLDEN.write_text(text)
    assert text.splitlines() == GOLDEN.read_text().splitlines()
