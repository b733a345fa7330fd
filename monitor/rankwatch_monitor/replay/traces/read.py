"""Reads operation tables, a common format of published training traces: CSV (also .gz) or Parquet.

One row is one operation of one rank. Columns :data:`NEEDED` are required, :data:`NUMBERS` and :data:`WORDS` optional;
all others are ignored.

Shapes: N operations.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from rankwatch_monitor.core.ranks import Floats, Ints

NEEDED: Final = ("rank", "step", "optype", "start_ts", "duration")
NUMBERS: Final = ("dp_rank", "tp_rank", "stage", "mb_id", "seq_id")
"""Optional columns of whole numbers; a cell may be empty."""
WORDS: Final = ("host",)
SUFFIXES: Final = (".csv", ".csv.gz", ".parquet", ".pq")
"""Suffixes of tables; a file with another name is a recording unless it begins like a table."""
MAX_RANK: Final = 1_000_000
_TEXT: Final = ("optype", *WORDS)
_CHUNK: Final = 1 << 16
"""Rows held as text at a time, which bounds the memory of large tables."""
_LONGEST_LINE: Final = 1 << 20
MOST_ROWS: Final = 1 << 25
"""Operations of a table: 33,554,432, which take 0.3 GB a column."""
MOST_WORDS: Final = 1 << 20
"""Different words of a column."""
_PARQUET: Final = b"PAR1"
_GZIP: Final = b"\x1f\x8b"


class TableError(ValueError):
    """A table cannot be read; the message names the file, the location and the fix."""


@dataclass(frozen=True, slots=True)
class Column:
    """Text as codes: row i holds ``words[code_N[i]]``."""

    code_N: Ints
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """The contents of the file: times in its own unit; empty optional cells are NaN."""

    path: Path
    numbers: dict[str, Floats]
    texts: dict[str, Column]

    def __len__(self) -> int:
        return len(self.numbers["rank"])

    def whole(self, name: str) -> Ints:
        """A column of whole numbers, -1 where cells are empty."""
        value_N = self.numbers.get(name)
        if value_N is None:
            return np.full(len(self), -1, np.int64)
        return np.where(np.isnan(value_N), -1, value_N).astype(np.int64)


def is_table(path: Path) -> bool:
    """Whether a file is a table of operations, by its name or its first bytes."""
    if path.name.lower().endswith(SUFFIXES):
        return True
    with path.open("rb") as file:
        began = file.read(4096)
    return began.startswith(_PARQUET) or (b"optype" in began.split(b"\n", 1)[0] and not began.startswith(b"{"))


def read_rows(path: Path) -> Rows:
    """Read a table.

    Raises:
        TableError: it is no operation table, or a cell is invalid.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        began = file.read(4)
    if not began:
        raise TableError(f"{path} is empty: expected a table with the columns {', '.join(NEEDED)}")
    rows = _parquet(path) if began == _PARQUET else _csv(path, packed=began[:2] == _GZIP)
    if not len(rows):
        raise TableError(f"{path} has a header but no rows")
    return rows


def _chosen(path: Path, heads: Sequence[str]) -> dict[str, int]:
    """The index of each column that is used."""
    place = {head.strip().lower(): at for at, head in reversed(list(enumerate(heads)))}
    if missing := [name for name in NEEDED if name not in place]:
        raise TableError(
            f"{path} has no column {', '.join(missing)}. A table of operations has the columns {', '.join(NEEDED)} and "
            f"may have {', '.join((*NUMBERS, *WORDS))}; this one has {', '.join(heads) or 'none'}. Rename its columns, "
            "or give it a first line with their names"
        )
    return {name: place[name] for name in (*NEEDED, *NUMBERS, *WORDS) if name in place}


def _bound(path: Path, rows: int, words: int = 0) -> None:
    """Refuse a table that would take all memory: a compressed one of some megabytes can have any number of rows."""
    for what, number, most in (("rows", rows, MOST_ROWS), ("different words in a column", words, MOST_WORDS)):
        if number > most:
            raise TableError(f"{path} has more than {most} {what}; give a part of it, some steps for example")


def _check(path: Path, name: str, value_N: Floats, place: str, first: int) -> None:
    """Reject invalid numbers.

    Args:
        place: the word for a row in the message.
        first: the number of the first row.
    """
    needed = name in NEEDED
    bad_N = ~np.isfinite(value_N) if needed else np.isinf(value_N)
    wanted = "a number"
    if name not in ("start_ts", "duration"):
        with np.errstate(invalid="ignore"):
            bad_N |= (value_N != np.floor(value_N)) & ~np.isnan(value_N)
        wanted = "a whole number"
    if name in ("rank", "step", "duration"):
        bad_N |= value_N < 0
        wanted += " of at least 0"
    if name == "rank":
        bad_N |= value_N > MAX_RANK
        wanted += f" and at most {MAX_RANK}"
    if bad_N.any():
        at = int(np.argmax(bad_N))
        raise TableError(f"{path}, {place} {first + at}: {name} must be {wanted}, not {value_N[at]:g}; correct it")


# CSV ------------------------------------------------------------------------------------------------------------------


class _Codes(dict[str, int]):
    """Assigns the next number to each new word."""

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]


def _lines(path: Path, packed: bool) -> Iterator[list[str]]:
    with contextlib.ExitStack() as files:
        raw = files.enter_context(path.open("rb"))
        unpacked: Any = files.enter_context(gzip.open(raw)) if packed else raw
        text = files.enter_context(io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline=""))
        yield from csv.reader(_bounded(text, path))


def _bounded(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    while line := text.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise TableError(f"{path}: a line has more than {_LONGEST_LINE} characters")
        yield line


def _csv(path: Path, *, packed: bool) -> Rows:
    try:
        return _csv_rows(path, packed)
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError) as error:
        raise TableError(f"{path} cannot be read as CSV: {error}. Save it as CSV in UTF-8, or as parquet") from None


def _csv_rows(path: Path, packed: bool) -> Rows:
    lines = _lines(path, packed)
    heads = next((line for line in lines if line), [])
    at = _chosen(path, heads)
    pick, names = itemgetter(*at.values()), list(at)
    numbers: dict[str, list[Floats]] = {name: [] for name in names if name not in _TEXT}
    codes = {name: _Codes() for name in names if name in _TEXT}
    coded: dict[str, list[Ints]] = {name: [] for name in codes}
    done = 0
    while chunk := list(islice(lines, _CHUNK)):
        filled = [line for line in chunk if line]
        _bound(path, done + len(filled), max(map(len, codes.values()), default=0))
        if any(len(line) != len(heads) for line in filled):
            raise _ragged(path, packed, len(heads))
        for name, cells in zip(names, zip(*map(pick, filled), strict=True), strict=False):
            if name in codes:
                code = codes[name]
                coded[name].append(np.fromiter((code[cell.strip()] for cell in cells), np.int64, len(cells)))
            else:
                value_N = _numbers(path, packed, at[name], name, cells)
                _check(path, name, value_N, "row", done + 1)
                numbers[name].append(value_N)
        done += len(filled)
    empty = np.empty(0)
    return Rows(
        path,
        {name: np.concatenate([empty, *parts]) for name, parts in numbers.items()},
        {n: Column(np.concatenate([empty.astype(np.int64), *parts]), tuple(codes[n])) for n, parts in coded.items()},
    )


def _numbers(path: Path, packed: bool, at: int, name: str, cells: Sequence[str]) -> Floats:
    try:
        if name not in NEEDED:
            cells = [cell.strip() or "nan" for cell in cells]
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        for line, row in _numbered(path, packed):
            if not _is_number(row[at], name not in NEEDED):
                raise TableError(
                    f"{path}, line {line}, column {name}: a number is expected, not {row[at]!r}; correct it or "
                    "remove the row"
                ) from None
        raise


def _is_number(text: str, may_be_empty: bool) -> bool:
    try:
        float(text)
    except ValueError:
        return may_be_empty and not text.strip()
    return True


def _ragged(path: Path, packed: bool, wide: int) -> TableError:
    line, row = next((line, row) for line, row in _numbered(path, packed) if len(row) != wide)
    return TableError(
        f"{path}, line {line}: it has {len(row)} cells, but the header has {wide}; put cells with a comma in them in "
        "quotes, or remove the line if the file was truncated"
    )


def _numbered(path: Path, packed: bool) -> Iterator[tuple[int, list[str]]]:
    """Rows below the header with their line numbers, to locate an error."""
    rows = ((number, row) for number, row in enumerate(_lines(path, packed), 1) if row)
    next(rows, None)
    return rows


# Parquet --------------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Rows:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise TableError(
            f"{path} is a parquet file, and pyarrow, which reads them, is not installed: "
            "pip install 'rankwatch[parquet]', or convert the file to CSV"
        ) from None
    try:
        _bound(path, parquet.read_metadata(path).num_rows)
        heads = parquet.read_schema(path).names
        at = _chosen(path, heads)
        table = parquet.read_table(path, columns=[heads[place] for place in at.values()])
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise TableError(f"{path} cannot be read as parquet: {error}") from None
    rows = Rows(path, {}, {})
    for name, place in at.items():
        column = table.column(heads[place])
        if name in _TEXT:
            rows.texts[name] = _words(column, pyarrow)
            continue
        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            value_N = column.cast(pyarrow.float64(), safe=False).to_numpy()
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
            raise TableError(
                f"{path}, column {name}: numbers are expected, but it holds {column.type}; convert it "
                f"(times as seconds, or any unit with --time-unit)"
            ) from None
        _check(path, name, value_N, "row", 1)
        rows.numbers[name] = value_N
    return rows


def _words(column: Any, pyarrow: Any) -> Column:
    if not pyarrow.types.is_dictionary(column.type):
        column = column.cast(pyarrow.string()).dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    words = ["" if word is None else str(word).strip() for word in column.dictionary.to_pylist()]
    code_N = column.indices.fill_null(len(words)).to_numpy(zero_copy_only=False).astype(np.int64)
    return Column(code_N, (*words, ""))
