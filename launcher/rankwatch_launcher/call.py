"""A rank whose program is a function: ``python -m rankwatch_launcher.call FOLDER`` calls it, and keeps what it returns.

The function and its arguments come by pickle, as with the start method ``spawn``: what the launcher's own script
defines is found by importing that script under the name ``__mp_main__``.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import env

CALL: Final = "call.pickle"


def write_call(folder: Path, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Write the call for the ranks of this node.

    Raises:
        ValueError: the function or an argument cannot be pickled.
    """
    try:
        call = bytes(ForkingPickler.dumps((function, tuple(arguments))))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{function!r} and its arguments must be picklable, as for spawn: {error}") from error
    # multiprocessing would hand on the key of this process: it is no secret of the ranks, and forbids pickling.
    preparation = {k: v for k, v in spawn.get_preparation_data("rank").items() if k != "authkey"}
    (folder / CALL).write_bytes(pickle.dumps(preparation) + call)


def returned(folder: Path, attempt: int, ranks: Sequence[int]) -> dict[int, Any]:
    """What the ranks of an attempt returned."""
    return {rank: pickle.loads(_result(folder, attempt, rank).read_bytes()) for rank in ranks}


def ranks_with_results(folder: Path, attempt: int) -> list[int]:
    """The ranks of this node that have returned in an attempt."""
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob(f"returned-{attempt}-*"))


def _result(folder: Path, attempt: int, rank: int) -> Path:
    return folder / f"returned-{attempt}-{rank}"


def _main(folder: Path) -> None:
    with (folder / CALL).open("rb") as file:
        spawn.prepare(pickle.load(file))  # before the function is looked up in its module
        function, arguments = pickle.load(file)
    result = function(*arguments)
    place = _result(folder, int(os.environ[env.ATTEMPT]), int(os.environ["RANK"]))
    partial = folder / f".{place.name}"
    partial.write_bytes(pickle.dumps(result))
    partial.replace(place)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
