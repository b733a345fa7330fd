"""Tables of operations are read from CSV, .csv.gz and parquet alike, and what is wrong with one is stated clearly."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rankwatch_monitor.replay.traces import read
from rankwatch_monitor.replay.traces.read import TableError, is_table, read_rows
from support.pipeline_trace import COLUMNS, Trace, write

HEAD = "rank,step,optype,start_ts,duration"
SMALL = Trace(replicas=2, stages=2, microbatches=2, steps=2)


def printed(path: Path) -> str:
    """What is reported of a table that cannot be read; it names the file."""
    with pytest.raises(TableError) as error:
        read_rows(path)
    assert str(path) in str(error.value)
    return str(error.value)


def table(tmp_path: Path, *lines: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_each_form_holds_the_same(tmp_path: Path, name: str) -> None:
    made = SMALL.rows()
    rows = read_rows(write(tmp_path / name, made))
    assert len(rows) == len(made)
    for column in ("rank", "step", "dp_rank", "stage", "seq_id"):
        assert rows.whole(column).tolist() == [row[column] for row in made]
    assert rows.whole("mb_id").tolist() == [-1 if row["mb_id"] == "" else row["mb_id"] for row in made]
    for column in ("start_ts", "duration"):
        assert np.allclose(rows.numbers[column], [row[column] for row in made], rtol=0, atol=1e-12)
    optype = rows.texts["optype"]
    assert [optype.words[code] for code in optype.code_N] == [row["optype"] for row in made]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_further_columns_and_another_order_do_not_matter(tmp_path: Path, name: str) -> None:
    made = [{"mc": 0, **dict(reversed(row.items())), "note": "x"} for row in SMALL.rows()]
    assert len(read_rows(write(tmp_path / name, made))) == len(made)


def test_names_of_columns_may_be_written_otherwise(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path, "Rank, STEP ,optype,start_ts,duration,Host", '0,1,"a, b",0.5,0.25,n1'))
    assert rows.texts["optype"].words == ("a, b",)
    assert rows.texts["host"].words == ("n1",)


def test_it_is_reported_from_a_recording(tmp_path: Path) -> None:
    assert is_table(table(tmp_path, HEAD, "0,0,a,0,1", name="trace.txt"))
    assert is_table(write(tmp_path / "t.parquet", SMALL.rows()).rename(tmp_path / "trace"))
    assert not is_table(table(tmp_path, '{"rankwatch": "recording", "version": 1, "optype": 1}', name="run.jsonl"))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    words = printed(table(tmp_path, "rank,step,start_ts,duration", "0,0,0,1"))
    assert "has no column optype" in words
    assert "Rename" in words
    path = write(tmp_path / "t.parquet", [{k: v for k, v in row.items() if k != "step"} for row in SMALL.rows()])
    assert "has no column step" in printed(path)


def test_an_empty_file_and_one_without_rows(tmp_path: Path) -> None:
    (tmp_path / "e.csv").touch()
    assert "is empty" in printed(tmp_path / "e.csv")
    assert "no rows" in printed(table(tmp_path, HEAD))


def test_text_where_a_number_must_be(tmp_path: Path) -> None:
    words = printed(table(tmp_path, HEAD, "0,0,a,0,1", "", "0,0,b,soon,1"))
    assert "line 4, column start_ts" in words
    assert "'soon'" in words
    rows = [{**row, "seq_id": f"{row['seq_id']} s"} for row in SMALL.rows()]
    assert "column seq_id" in printed(write(tmp_path / "t.parquet", rows))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0.5,0,a,0,1", "row 2: rank must be a whole number of at least 0"),
        ("-1,0,a,0,1", "row 2: rank must be"),
        ("99999999,0,a,0,1", "at most 1000000"),
        ("0,0,a,nan,1", "row 2: start_ts must be a number"),
        ("0,0,a,0,-1", "row 2: duration must be a number of at least 0"),
        ("0,0,a,0", "line 3: it has 4 cells, but the header has 5"),
    ],
)
def test_a_value_that_cannot_be(tmp_path: Path, line: str, words: str) -> None:
    assert words in printed(table(tmp_path, HEAD, "0,0,a,0,1", line))


def test_a_parquet_file_that_is_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", SMALL.rows())
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as parquet" in printed(path)


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", SMALL.rows())
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as CSV" in printed(path)


def test_without_pyarrow_it_states_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", SMALL.rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'rankwatch[parquet]'" in printed(path)


def test_a_large_table_is_read_in_good_time(tmp_path: Path) -> None:
    """A fifth of a million rows; 12 s would be a minute for a million."""
    line = ",".join(str(1) for _ in COLUMNS)
    path = table(tmp_path, ",".join(COLUMNS), *[line] * 200_000)
    began = time.process_time()
    assert len(read_rows(path)) == 200_000
    assert time.process_time() - began < 12


@pytest.mark.parametrize("name", ["MOST_ROWS", "MOST_WORDS"])
def test_a_table_that_would_take_all_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_CHUNK", 1)
    monkeypatch.setattr(read, name, 3)
    rows = "".join(f"0,{step},word-{step},{step}.0,1.0\n" for step in range(6))
    table = tmp_path / "table.csv"
    table.write_text("rank,step,optype,start_ts,duration\n" + rows)
    with pytest.raises(TableError, match="more than 3"):
        read_rows(table)
