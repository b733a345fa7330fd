"""How the ranks of one attempt ended, with what they left behind to say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from rankwatch_launcher.agent.processes import RankProcess
from rankwatch_launcher.agent.reasons import Exit


class Exits:
    """The exits of one attempt on this node."""

    def __init__(self, ranks: Sequence[RankProcess], had_finished: Callable[[int], bool]) -> None:
        self._ranks = ranks
        self._had_finished = had_finished
        self._all: list[Exit] = []
        self.failures: dict[int, ProcessFailure] = {}
        """Of the ranks that ended with an error, by rank, as torch reports them."""

    def note(
        self, process: RankProcess, context: PContext | None, last_words: str = "", *, spared: bool = False
    ) -> Exit:
        """Put down how a rank ended.

        Args:
            process: the rank's.
            context: knows its error file.
            last_words: what it told before.
            spared: the other ranks go on without it.
        """
        assert process.code is not None
        message = ""
        if process.code != 0:
            failure = _failure(process, process.code, context)
            self.failures[process.rank] = failure
            # What @record wrote into the error file; torch calls it a string, and it mostly is a dictionary.
            data: Any = failure.error_file_data.get("message", "")
            message = last_words or (str(data.get("message", "")) if isinstance(data, dict) else "")
        others = [rank for rank in self._ranks if rank is not process]
        finished = self._had_finished(process.local_rank) or (bool(others) and all(r.code == 0 for r in others))
        exit_ = Exit(process.rank, process.local_rank, process.pid, process.code, message, finished, spared)
        self._all.append(exit_)
        return exit_

    def bad(self) -> list[Exit]:
        """Those that ended with an error and were not spared, in the order in which they were noticed."""
        return [exit_ for exit_ in self._all if exit_.code != 0 and not exit_.spared]


def _failure(process: RankProcess, code: int, context: PContext | None) -> ProcessFailure:
    files = context.error_files if context is not None else {}
    try:
        return ProcessFailure(process.local_rank, process.pid, code, files.get(process.local_rank, ""))
    except (ValueError, KeyError, TypeError):
        # The rank died while it wrote its error file.
        return ProcessFailure(process.local_rank, process.pid, code, "")
