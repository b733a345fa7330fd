"""Rows on their way to the database: what belongs together, what an older state is replaced by, how they are written.

A :class:`Unit` is a row with those that are committed with it or not at all. The :class:`Backlog` keeps one unit for
each primary key, its newest state; what was to be called after the commit of an older state, and the rows that went
with it, go over to the newer one. So an outage of hours costs the memory of one state of each job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from rankwatch_monitor.store import schema

Companion = tuple[Table, Mapping[str, Any], Callable[[], None]]
"""A table, a row for it, and what is called once it was written."""
Key = tuple[object, ...]
_numbers = itertools.count()


class Unit:
    """One row to be written or removed, with its companions."""

    __slots__ = ("beside", "gone", "key", "late", "number", "refused", "table", "thens", "values")

    def __init__(
        self,
        table: Table,
        values: Mapping[str, Any],
        then: Callable[[], None] | None = None,
        late: Callable[[], Mapping[str, Any]] | None = None,
        beside: Sequence[Companion] = (),
        *,
        gone: bool = False,
    ) -> None:
        """Describe a row.

        Args:
            table: where it belongs.
            values: its columns; for one to be removed its primary key.
            then: called after the commit.
            late: makes further columns on the writer's thread.
            beside: rows that are written with it.
            gone: it is to be removed.
        """
        self.beside = [Unit(*companion) for companion in beside]
        self.number = next(_numbers)
        self.table, self.values, self.late, self.gone = table, values, late, gone
        self.thens: list[tuple[int, Callable[[], None]]] = [] if then is None else [(self.number, then)]
        key = tuple(values.get(column.name) for column in table.primary_key)
        self.key: Key = (table.name, *(key if None not in key else (self.number,)))
        self.refused = False
        """Counted as one that the database did not take."""

    @property
    def job_id(self) -> str | None:
        """The job that it is about; None for one that is about none."""
        return self.values.get("id" if self.table is schema.jobs else "job_id")

    def complete(self) -> None:
        """Make what was left to be made on the writer's thread."""
        if self.late is not None:
            self.values, self.late = {**self.values, **self.late()}, None

    def replace(self, older: Unit) -> None:
        """Take over what an older state of the same row has left to do."""
        self.beside[:0], self.thens[:0] = older.beside, older.thens

    def flat(self) -> Iterator[Unit]:
        """Its companions and itself."""
        yield from self.beside
        yield self


class Backlog:
    """Units that are not written yet, oldest first, one for each primary key."""

    def __init__(self) -> None:
        self._units: dict[Key, Unit] = {}

    def __len__(self) -> int:
        return len(self._units)

    def add(self, unit: Unit) -> None:
        """Put a unit behind the others, or in the place of its older state."""
        # It keeps that place: a companion of the older state must not come after its own removal.
        if (older := self._units.get(unit.key)) is not None:
            unit.replace(older)
        self._units[unit.key] = unit

    def first(self, most: int) -> list[Unit]:
        """The oldest ones."""
        return list(itertools.islice(self._units.values(), most))

    def remove(self, units: Iterable[Unit]) -> None:
        """Let units go."""
        for unit in units:
            self._units.pop(unit.key, None)

    def shrink(self, most: int) -> list[Unit]:
        """Let the oldest go until only ``most`` are left; return them."""
        dropped = self.first(max(0, len(self._units) - most))
        self.remove(dropped)
        return dropped

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._units.values())


def write(connection: Connection, units: Iterable[Unit]) -> None:
    """Write units with their companions, the newest state of each row, within the transaction of a connection."""
    newest: dict[Key, Unit] = {}
    for row in sorted((row for unit in units for row in unit.flat()), key=lambda row: row.number):
        newest[row.key] = row
    groups: dict[tuple[str, bool, tuple[str, ...]], list[Unit]] = {}
    for unit in newest.values():
        unit.complete()
        groups.setdefault((unit.table.name, unit.gone, tuple(unit.values)), []).append(unit)
    for (_, gone, _), group in groups.items():
        if gone:
            _delete(connection, group)
        else:
            _upsert(connection, group)


def _upsert(connection: Connection, units: Sequence[Unit]) -> None:
    table, names = units[0].table, tuple(units[0].values)
    keys = [column.name for column in table.primary_key]
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    if set(keys) <= set(names):
        rest = {name: insert.excluded[name] for name in names if name not in keys}
        insert = insert.on_conflict_do_update(index_elements=keys, set_=rest)
    connection.execute(insert, [dict(unit.values) for unit in units])


def _delete(connection: Connection, units: Sequence[Unit]) -> None:
    columns = list(units[0].table.primary_key)
    keys = [tuple(unit.values[column.name] for column in columns) for unit in units]
    connection.execute(units[0].table.delete().where(tuple_(*columns).in_(keys)))
