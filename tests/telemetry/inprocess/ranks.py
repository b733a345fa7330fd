"""A rank that trains inside the wrapper: steps over gloo, prints what it sees, and injects the configured fault."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rankwatch
from rankwatch import inprocess

FOLDER = Path(sys.argv[1])
GIVEN: dict[str, Any] = json.loads(sys.argv[2])
"""``options`` of the wrapper; ``faults``: lists of [initial rank, iteration, step, kind]; ``steps``; ``flags``; lists
of [initial rank, iteration]: ``unhealthy``, ``hangs_in_finalize``."""
RANK = int(os.environ["RANK"])
STEPS = GIVEN.get("steps", 6)
FIRST_ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
FLAGS = set(GIVEN.get("flags", ()))


def emit(event: str, **more: Any) -> None:
    with (FOLDER / f"rank-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **more}) + "\n")


class TestError(Exception):
    """What the fault ``exception`` raises."""


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)


def raise_from_another_thread() -> None:
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(TestError))


def strike(kind: str) -> None:
    own = os.getpid()
    if kind == "exception":
        raise TestError("as told")
    if kind == "async_exception":
        threading.Thread(target=raise_from_another_thread).start()
        time.sleep(0.3)
    elif kind == "sleep":
        time.sleep(1000)
    elif kind == "swallow":
        while True:
            try:
                time.sleep(1000)
            except BaseException:  # noqa: BLE001 - that is the fault
                emit("swallowed")
                break
    elif kind == "absent":
        # The others wait in a collective that this rank never enters, in one of its own.
        dist.recv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())
    elif kind == "untidy":
        # The others see that their collective broke off before this rank states what it had.
        dist.destroy_process_group()
        other = FOLDER / f"rank-{1 - RANK}.jsonl"
        while '"left"' not in other.read_text():
            time.sleep(0.02)
        raise TestError("as told")
    elif kind == "dawdle":
        while not (FOLDER / "go").exists():
            inprocess.ping()
            time.sleep(0.02)
    elif kind == "restart":
        raise inprocess.RankShouldRestart
    elif kind == "gil":
        hold_the_gil()
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "abort":
        os.abort()
    elif kind == "exit":
        sys.exit(3)
    else:
        os.kill(own, getattr(signal, f"SIG{kind.upper()}"))
        time.sleep(0.2)


def health(state: inprocess.State) -> None:
    if [state.initial_rank, state.iteration] in GIVEN.get("unhealthy", []) and state.fn_exception is not None:
        raise RuntimeError("the device is sick")


def finalize(state: inprocess.State) -> None:
    if [state.initial_rank, state.iteration] in GIVEN.get("hangs_in_finalize", []):
        emit("hangs")
        time.sleep(1000)


def befall(iteration: int, step: int) -> None:
    for faulty, when, where, kind in GIVEN.get("faults", []):
        if [faulty, when, where] == [RANK, iteration, step] and FIRST_ATTEMPT:
            emit("fault", kind=kind)
            strike(kind)


def train(call: inprocess.CallWrapper) -> str:
    iteration = call.iteration
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    emit("enter", iteration=iteration, rank=rank, world=world, port=os.environ["MASTER_PORT"])
    one = torch.ones(1)
    try:
        for step in range(STEPS):
            with rankwatch.step(step), rankwatch.section("work"):
                befall(iteration, step)
                one.fill_(1)
                dist.all_reduce(one)
                assert one.item() == world, "a collective of another iteration"
            inprocess.ping()
            if step == 0:
                emit("stepped", iteration=iteration)
        befall(iteration, STEPS)
    finally:
        emit("left", iteration=iteration)
    dist.destroy_process_group()
    emit("finished", iteration=iteration)
    return f"{rank} of {world} in iteration {iteration}"


if __name__ == "__main__":
    if "init" in FLAGS:
        rankwatch.init()
    options = {"health_check": health, "finalize": finalize, **GIVEN["options"]}
    if shape := options.pop("assignment", None):
        options["rank_assignment"] = getattr(inprocess, shape)()
    options["completion"] = lambda state: emit("completion", mode=str(state.mode))
    options["terminate"] = lambda state: emit("terminate")
    emit("start")
    code = 0
    try:
        result = inprocess.Wrapper(**options)(train)(call=None)  # type: ignore[call-arg]
        emit("result", value=result, rank=os.environ["RANK"])
        if "twice" in FLAGS:
            emit("second", value=inprocess.Wrapper(**options)(train)(call=None))  # type: ignore[call-arg]
    except inprocess.InProcessError as error:
        emit("gave_up", kind=type(error).__name__, why=str(error))
        code = 1
    from rankwatch.recording import sections

    if sections._recorder is not None:
        from rankwatch.recording.shared_slots import OPEN, OPEN_COUNT

        words = sections._recorder.words
        emit("open", count=sum(words[i] != 0 for i in range(OPEN, OPEN + 2 * OPEN_COUNT, 2)))
    os._exit(code)  # gloo's threads sometimes abort an interpreter that shuts down
