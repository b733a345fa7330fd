"""Ranks without our launcher agree on the step to stop after, through the store of their process group.

No collective is issued: that of a rank which is about to stop would meet the gradients of one that is not. The store is
a table of words that every process group has, held by rank 0's process.

How this works
--------------
1. A rank that got the signal, having completed step s, writes "stop after step s + 2", unless another one was first.
2. Every rank looks after each step, and stops once it has completed the step that is written there.

That all stop after the same step rests on this: no rank is two optimizer steps ahead of another, since each step
averages the gradients of all. It holds for DDP, FSDP and DeepSpeed. A rank that finds itself further ahead says so.
What it costs: one question to rank 0's process in every step, some 0.1 ms. Our launcher needs neither.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

AHEAD: Final = 2
"""Steps between the signal and the stop: one that the others may have begun, and one to be safe."""
PREFIX: Final = "rankwatch/preemption"


class StoreAgreement:
    """One rank's part in it. ``number`` tells one run of ``fit`` from the next; all ranks count alike."""

    def __init__(self, store: Any, number: int, log: logging.Logger) -> None:
        self._store, self._log = store, log
        self._key = f"{PREFIX}/{number}"
        self._steps = 0
        self._proposed = self._lost = False

    def completed(self, *, signalled: bool) -> bool:
        """This rank has completed a step; whether it is the one to stop after."""
        self._steps += 1
        if self._lost:
            return False
        try:
            if signalled and not self._proposed:
                self._proposed = True
                self._store.compare_set(self._key, "", str(self._steps + AHEAD))
            if not self._proposed and not self._store.check([self._key]):
                return False
            stop = int(self._store.get(self._key))
        except Exception as error:  # noqa: BLE001 - whatever the store raises: training goes on
            self._lost = True
            self._log.error("the ranks cannot agree on a stop any more, since their store fails: %s", error)
            return False
        if self._steps > stop:
            self._log.warning(
                "this rank is %d steps ahead of the one that got the signal; it stops now and may leave the others "
                "waiting: run the job with `rankwatch run`, which agrees on a step for any strategy",
                self._steps - stop,
            )
        return self._steps >= stop


def store_of_ranks() -> Any | None:
    """The store of the default process group; None: there is none."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return None
    try:
        store = distributed._get_default_store()  # it has no public name
        return store.clone() if hasattr(store, "clone") else store
    except Exception:  # noqa: BLE001 - a store without a clone, or a group without a store
        return None
