"""Agreement on the step to stop after, through the store of the process group, for ranks without ``rankwatch run``.

No collective is issued, since one of a stopping rank would be matched with the gradient reduction of another. The store
is the key-value store of the process group, held by rank 0.

1. A rank that received the signal after step s writes "stop after step s + 2"; the first value wins.
2. Every rank reads the key after each step, and stops once it has completed that step.

This is correct as long as no rank is two optimizer steps ahead of another, which holds where each step averages the
gradients of all ranks: DDP, FSDP and DeepSpeed. A rank that is further ahead logs a warning. Cost: one request to rank
0 per step, about 0.1 ms. ``rankwatch run`` needs neither the assumption nor the request.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

AHEAD: Final = 2
"""Steps between the signal and the stop: one that other ranks may have begun, and one of margin."""
PREFIX: Final = "rankwatch/preemption"


class StoreAgreement:
    """One rank's part of the agreement. ``number`` is that of the run of ``fit``, equal on all ranks."""

    def __init__(self, store: Any, number: int, log: logging.Logger) -> None:
        self._store, self._log = store, log
        self._key = f"{PREFIX}/{number}"
        self._steps = 0
        self._proposed = self._failed = False

    def completed(self, *, signalled: bool) -> bool:
        """Count a completed step; return whether it is the one to stop after."""
        self._steps += 1
        if self._failed:
            return False
        try:
            if signalled and not self._proposed:
                self._proposed = True
                self._store.compare_set(self._key, "", str(self._steps + AHEAD))
            if not self._proposed and not self._store.check([self._key]):
                return False
            stop = int(self._store.get(self._key))
        except Exception as error:  # noqa: BLE001 - torch's store raises various types; training continues
            self._failed = True
            self._log.error(
                "the store of the process group fails, so that ranks can no longer agree on a stop: %s", error
            )
            return False
        if self._steps > stop:
            self._log.warning(
                "this rank is %d steps ahead of the one that received the signal; it stops now, and the others may "
                "hang: run the job with `rankwatch run`, which agrees on a step for any strategy",
                self._steps - stop,
            )
        return self._steps >= stop


def store_of_ranks() -> Any | None:
    """Return the store of the default process group, if there is one."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return None
    try:
        store = distributed._get_default_store()  # not public
        return store.clone() if hasattr(store, "clone") else store
    except Exception:  # noqa: BLE001 - a store without a clone, or a group without a store
        return None
