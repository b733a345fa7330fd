"""Writes the flight recorder dumps of an incident as torch's own reader takes them.

The reader (``torchfrtrace``, ``torch.distributed.flight_recorder.fr_trace``) takes pickles, which can run code. The
monitor keeps JSON, and the pickles are made here, of plain data. Where somebody else could add or replace one, none is
written: the reader takes every file whose name begins so.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.files import check_own, check_unshared, replace_file
from rankwatch.contract.flight import FILE, MAX_JSON, MAX_RANKS
from rankwatch.contract.text import decoded

MAX_WORLD: Final = 1 << 18
"""As many ranks as a monitor has of all jobs."""
_TIMES: Final = ("time_discovered_started_ns", "time_discovered_completed_ns")
_NAME: Final = re.compile(re.escape(FILE) + r"(\d{1,6})\.json")


def write(archive: bytes, folder: Path, world_size: int) -> list[int]:
    """Write the dumps of an archive that the monitor sent; return their ranks.

    Raises:
        ValueError: it is none.
        OSError: a file cannot be written, the folder holds other dumps, or another user could change them.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            listed = ((_NAME.fullmatch(each.filename), each) for each in opened.infolist()[:MAX_RANKS])
            found = {int(name[1]): each for name, each in listed if name and each.file_size <= MAX_JSON}
            _prepare(folder, {f"{FILE}{rank}" for rank in found})
            for rank, each in found.items():
                with opened.open(each) as file:
                    recorded = as_torch_reads(decoded(file.read(MAX_JSON)), world_size)
                replace_file(folder / f"{FILE}{rank}", pickle.dumps(recorded))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise ValueError(f"the answer is no archive of dumps: {error}") from None
    return sorted(found)


def _prepare(folder: Path, written: set[str]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own(folder)
    check_unshared(folder)
    if others := sorted({each.name for each in folder.glob(f"{FILE}*")} - written):
        raise FileExistsError(f"it holds {others[0]}, which is not of this incident; name a new folder")


def as_torch_reads(recorded: Any, world_size: int) -> Any:
    """A dump as torch itself pickles it, which differs from its JSON; other data is returned as it is.

    The recorder of gloo does not list its process groups by name, without which the reader fails: the default group is
    added, and entries of other groups whose ranks are not known are left out.
    """
    if not isinstance(recorded, dict) or not isinstance(recorded.get("entries"), list):
        return recorded
    listed = recorded.get("pg_config")
    groups = {name: each for name, each in listed.items() if name} if isinstance(listed, dict) else {}
    entries = []
    for entry in recorded["entries"]:
        group = entry.get("process_group") if isinstance(entry, dict) else None
        if not isinstance(group, list) or not group:
            continue
        name, *described = map(str, group)
        description = described[0] if described else ""
        if name not in groups and description == "default_pg":
            groups[name] = {"name": name, "desc": description, "ranks": _all_ranks(min(world_size, MAX_WORLD))}
        if name in groups:
            unknown = {time: None for time in _TIMES if not entry.get(time)}
            entries.append({"frames": [], **entry, **unknown, "process_group": (name, description)})
    return {**recorded, "pg_config": groups, "entries": entries}


@lru_cache(1)
def _all_ranks(world_size: int) -> str:
    """The ranks of the default group, held once: a hostile dump names such a group in each of 100,000 entries."""
    return str(list(range(world_size)))
