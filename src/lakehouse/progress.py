"""Up to which version of a table a consumer of its changes has come: the rows `taken` of `ops.batches`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import functions as F

from lakehouse.batches import append, batches
from lakehouse.tables import Warehouse

Known = Mapping[str, Mapping[str, "Version"]]


@dataclass(frozen=True)
class Version:
    """A commit of one table. `created_ms` tells a table from a later one of the same name.

    `size_in_bytes` of its data, and how many `rows` a gate has judged, where that was looked at: these tell no version
    from another.
    """

    table: str
    created_ms: int
    number: int
    size_in_bytes: int = field(default=0, compare=False)
    rows: int | None = field(default=None, compare=False)

    def goes_on_to(self, later: Version) -> bool:
        """Whether `later` is a later commit of this very table: not of one made anew, or restored to before this."""
        return self.created_ms == later.created_ms and self.number <= later.number


@dataclass(frozen=True)
class Progress:
    """The last commit of each table that each consumer has taken (`known`: consumer, table), as of write `sequence`."""

    known: Known
    sequence: int = 0


def current(warehouse: Warehouse, table: str) -> Version:
    """The table's last commit."""
    created_ms, size_in_bytes = warehouse.created_and_size(table)
    return Version(table, created_ms, warehouse.version(table), size_in_bytes)


def taken_by_all(warehouse: Warehouse) -> Progress:
    """What all consumers have taken: some rows a consumer."""
    rows = (
        batches(warehouse, "gold")
        .where("taken IS NOT NULL")
        .groupBy("taken.consumer", "taken.table")
        .agg(F.max_by("taken", "sequence").alias("taken"), F.max("sequence").alias("sequence"))
        .collect()
    )
    found: dict[str, dict[str, Version]] = {}
    for row in rows:
        taken = row["taken"]
        if taken["version"] is not None:
            version = Version(taken["table"], taken["table_created_ms"], taken["version"], rows=taken["rows"])
            found.setdefault(taken["consumer"], {})[version.table] = version
    return Progress(found, max((row["sequence"] for row in rows), default=0))


def record(warehouse: Warehouse, before: Progress, taken: Mapping[str, Iterable[Version]]) -> Progress:
    """Write down, in one commit, which commits each consumer has taken; the progress after it.

    Nothing to write is no commit.
    """
    told = {consumer: {one.table: one for one in versions} for consumer, versions in taken.items()}
    rows = [
        (consumer, one.table, one.created_ms, one.number, one.rows)
        for consumer, of_consumer in told.items()
        for one in of_consumer.values()
    ]
    new = {consumer: {**before.known.get(consumer, {}), **of_consumer} for consumer, of_consumer in told.items()}
    known = {**before.known, **new}
    return Progress(known, _write(warehouse, before, rows))


def forget(warehouse: Warehouse, before: Progress, consumers: Collection[str]) -> Progress:
    """Take back what these consumers have taken; the progress after it. None of them is no commit."""
    rows = [(consumer, table, None, None, None) for consumer in consumers for table in before.known.get(consumer, ())]
    known = {consumer: of for consumer, of in before.known.items() if consumer not in consumers}
    return Progress(known, _write(warehouse, before, rows))


def _write(warehouse: Warehouse, before: Progress, rows: Collection[tuple[object, ...]]) -> int:
    if not rows:
        return before.sequence
    sequence = before.sequence + 1
    names = ("consumer", "table", "table_created_ms", "version", "rows")
    append(warehouse, "gold", [{"sequence": sequence, "taken": dict(zip(names, row, strict=True))} for row in rows])
    return sequence
