"""The spool: what was appended is read in its order, also after a kill; beyond the limit the oldest is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwatch_monitor.publish.forward import spool as module
from rankwatch_monitor.publish.forward.spool import Reader, Record, Spool

LIMIT = 4 * 1024 * 1024


def record(number: int, size: int = 10) -> Record:
    return Record("/v1/metrics", "application/x-protobuf", "gzip", number % 256, b"%d:" % number + b"x" * size)


def number(of: Record) -> int:
    return int(of.body.partition(b":")[0])


def read_all(reader: Reader, most: int = 7) -> list[int]:
    found: list[int] = []
    while True:
        records, behind = reader.read(most, 0.0)
        found += map(number, records)
        if not records and reader.behind() == 0:
            return found
        reader.advance(behind)


Open = Callable[..., Spool]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    spools: list[Spool] = []

    def open_spool(limit: int = LIMIT) -> Spool:
        """Open the folder; one that is open already is left as a kill would leave it."""
        for spool in spools:
            spool._lock.close()
        spools.append(Spool(tmp_path / "deep" / "spool", limit))
        return spools[-1]

    yield open_spool
    for spool in spools:
        for reader in spool._readers.values():
            reader.close()
        spool.close()


def test_records_are_read_as_they_were_appended(opened: Open) -> None:
    spool = opened()
    reader = spool.reader("a")
    records = [record(n, size) for n, size in enumerate((0, 1, 1000, 3 * 1024 * 1024, 5))]
    spool.append(each.packed() for each in records)
    found: list[Record] = []
    while len(found) < len(records):
        some, behind = reader.read(2, 0.0)
        assert some
        found += some
        reader.advance(behind)
    assert found == records
    assert reader.read(2, 0.0)[0] == ()


def test_a_new_reader_begins_with_what_comes_from_then_on(opened: Open) -> None:
    spool = opened()
    old = spool.reader("old")
    spool.append([record(1).packed()])
    assert number(old.read(9, 0.0)[0][0]) == 1
    again = opened()
    again.reader("old")
    new = again.reader("new")
    again.begin()
    again.append([record(2).packed()])
    assert read_all(new) == [2]


def test_each_reader_goes_on_where_it_was_after_a_kill(opened: Open) -> None:
    spool = opened()
    first, second = spool.reader("first"), spool.reader("second")
    for n in range(10):
        spool.append([record(n).packed()])
    records, behind = first.read(4, 0.0)
    first.advance(behind)
    first.read(4, 0.0)  # on its way when the process is killed: it comes again
    assert list(map(number, records)) == [0, 1, 2, 3]
    again = opened()
    first, second = again.reader("first"), again.reader("second")
    again.append([record(10).packed()])
    assert read_all(first) == list(range(4, 11))
    assert read_all(second) == list(range(11))
    assert (first.missed, second.missed) == (0, 0)


def test_a_record_that_was_cut_off_costs_nothing_but_itself(opened: Open, tmp_path: Path) -> None:
    spool = opened()
    spool.reader("a")
    spool.append([record(0).packed(), record(1).packed()])
    spool.append([record(2, 1000).packed()[:500]])
    again = opened()
    reader = again.reader("a")
    again.append([record(3).packed()])
    assert read_all(reader) == [0, 1, 3]
    assert reader.missed == 1


def test_a_record_that_the_disk_has_changed_is_not_sent(opened: Open, tmp_path: Path) -> None:
    spool = opened()
    spool.reader("a")
    spool.append([record(0).packed(), record(1).packed()])
    (segment,) = (tmp_path / "deep" / "spool").glob("*.spool")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    reader = opened().reader("a")
    assert read_all(reader) == [0]
    assert reader.missed == 1


@pytest.mark.parametrize("broken", [b"\0" * 20, b"\xff" * 20, b"abc"])
def test_with_a_position_that_cannot_be_read_everything_comes_again(
    opened: Open, tmp_path: Path, broken: bytes
) -> None:
    first = opened()
    first.reader("a")
    first.append([record(0).packed()])
    (tmp_path / "deep" / "spool" / "a.position").write_bytes(broken)
    spool = opened()
    reader = spool.reader("a")
    spool.append([record(1).packed()])
    assert read_all(reader) == [0, 1]


def test_segments_that_all_have_read_are_removed(opened: Open, tmp_path: Path) -> None:
    spool = opened(1024 * 1024)
    first, second = spool.reader("a"), spool.reader("b")
    for n in range(40):
        spool.append([record(n, 10_000).packed()])
    segments = list((tmp_path / "deep" / "spool").glob("*.spool"))
    assert len(segments) > 2
    assert read_all(first) == list(range(40))
    assert len(list((tmp_path / "deep" / "spool").glob("*.spool"))) == len(segments), "the other one needs them"
    assert read_all(second) == list(range(40))
    assert len(list((tmp_path / "deep" / "spool").glob("*.spool"))) == 1


def test_beyond_the_limit_the_oldest_are_dropped_and_counted(opened: Open) -> None:
    limit = 1024 * 1024
    spool = opened(limit)
    slow, quick = spool.reader("slow"), spool.reader("quick")
    taken: list[int] = []
    for n in range(500):
        spool.append([record(n, 10_000).packed()])
        taken += read_all(quick)
        assert spool.size <= limit + 2 * module.SEGMENT // 8
    assert taken == list(range(500)), "one that keeps up misses nothing"
    left = read_all(slow)
    assert left == list(range(left[0], 500)), "the newest are kept, in order"
    assert slow.missed == left[0] > 300
    assert quick.missed == 0


def test_a_reader_nobody_asks_for_any_more_holds_nothing(opened: Open, tmp_path: Path) -> None:
    spool = opened()
    spool.reader("gone")
    spool.append([record(1).packed()])
    again = opened()
    again.reader("stays")
    again.begin()
    assert [path.name for path in (tmp_path / "deep" / "spool").glob("*.position")] == ["stays.position"]
    assert len(list((tmp_path / "deep" / "spool").glob("*.spool"))) == 1


def test_a_full_disk_leaves_what_was_there_whole(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened()
    reader = spool.reader("a")
    spool.append([record(1).packed()])
    real = module.os.write

    def half(file: int, data: bytes) -> int:
        if len(data) < 400:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(module.os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        spool.append([record(2, 1000).packed()])
    monkeypatch.undo()
    spool.append([record(3).packed()])
    assert read_all(reader) == [1, 3]


def test_a_folder_belongs_to_one_monitor(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", LIMIT)
    with pytest.raises(ValueError, match=r"another monitor forwards from .* give each monitor a folder of its own"):
        Spool(tmp_path / "s", LIMIT)
    spool.close()
    Spool(tmp_path / "s", LIMIT).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--forward-dir: cannot write into"):
        Spool(tmp_path / "file", LIMIT)
