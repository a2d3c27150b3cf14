"""Up to which version of a table a consumer of its changes has come: the rows `taken` of `ops.batches`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import functions as F

from lakehouse.batches import append, batches
from lakehouse.errors import TableError
from lakehouse.quality.counting import Counts
from lakehouse.spark.tables import Warehouse

ConsumedVersions = Mapping[str, Mapping[str, "Version"]]


@dataclass(frozen=True)
class Version:
    """A commit of one table. `created_ms` distinguishes a table from a later one of the same name.

    These do not identify a version: `size_in_bytes` of its data; and what gate 2 has counted of it, where it has: its
    `rows`, and the `counts` of rules about the whole table.
    """

    table: str
    created_ms: int
    number: int
    size_in_bytes: int = field(default=0, compare=False)
    rows: int | None = field(default=None, compare=False)
    counts: Mapping[str, Counts] = field(default_factory=dict, compare=False)

    def goes_on_to(self, later: Version) -> bool:
        """Whether `later` is a later commit of this very table: not of one rebuilt, or restored to before this."""
        return self.created_ms == later.created_ms and self.number <= later.number


def current(warehouse: Warehouse, table: str) -> Version:
    """The table's last commit, with its size: by Delta's log alone where Delta's Java is here.

    Raises TableError when there is no such table.
    """
    snapshot = _snapshot(warehouse, table)
    if snapshot is None:
        created_ms, size_in_bytes = warehouse.created_and_size(table)
        return Version(table, created_ms, warehouse.version(table), size_in_bytes)
    known = snapshot.sizeInBytesIfKnown()
    size_in_bytes = int(known.get()) if known.isDefined() else warehouse.created_and_size(table)[1]
    return Version(table, int(snapshot.metadata().createdTime().get()), int(snapshot.version()), size_in_bytes)


def last_version(warehouse: Warehouse, table: str) -> Version:
    """The table's last commit, without its size: by Delta's log alone, without a job, where Delta's Java is here.

    Raises TableError when there is no such table.
    """
    snapshot = _snapshot(warehouse, table)
    if snapshot is None:
        return current(warehouse, table)
    return Version(table, int(snapshot.metadata().createdTime().get()), int(snapshot.version()))


def _snapshot(warehouse: Warehouse, table: str) -> Any | None:
    """The table as Delta's Java has it, up to date; None where that Java is not here. Raises TableError."""
    spark = warehouse.spark
    if warehouse.in_catalog or not hasattr(spark, "_jsparkSession") or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return None
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, warehouse.path(table))
    snapshot = log.update(False, nothing, nothing)
    if int(snapshot.version()) < 0:
        what = f"There is no table {table} at {warehouse.location}."
        raise TableError(what, remedy="Run the job of the layer that writes it first.")
    return snapshot


class Consumed:
    """Which commits all consumers have taken: read when it is first asked for, then remembered.

    For a process while it has the lease, and nobody else writes.
    """

    def __init__(self) -> None:
        self._known: ConsumedVersions | None = None
        self._sequence = 0

    def now(self, warehouse: Warehouse) -> ConsumedVersions:
        """The last commit of each table that each consumer has taken: consumer, table."""
        if self._known is None:
            self._known, self._sequence = _read(warehouse)
        return self._known

    def record(
        self,
        warehouse: Warehouse,
        taken: Mapping[str, Iterable[Version]],
        *,
        forgotten: Collection[str] = (),
        started_at: datetime | None = None,
    ) -> None:
        """Write down, in one commit, which commits consumers have taken, and take back all that others had.

        Nothing to write is no commit.
        """
        known = {consumer: of for consumer, of in self.now(warehouse).items() if consumer not in forgotten}
        new = {consumer: {one.table: one for one in versions} for consumer, versions in taken.items()}
        rows: list[tuple[object, ...]] = [
            (consumer, table, None, None, None, None)
            for consumer in forgotten
            for table in self.now(warehouse).get(consumer, ())
        ]
        rows += [
            (consumer, one.table, one.created_ms, one.number, one.rows, _stored(one.counts))
            for consumer, of_consumer in new.items()
            for one in of_consumer.values()
        ]
        if not rows:
            return
        names = ("consumer", "table", "table_created_ms", "version", "rows", "counts")
        sequence = self._sequence + 1
        written = [{"sequence": sequence, "taken": dict(zip(names, row, strict=True))} for row in rows]
        append(warehouse, "gold", written, started_at=started_at)
        merged = {consumer: {**known.get(consumer, {}), **of_consumer} for consumer, of_consumer in new.items()}
        self._known, self._sequence = {**known, **merged}, sequence


def _stored(counts: Mapping[str, Counts]) -> dict[str, dict[str, int]] | None:
    return {rule: asdict(one) for rule, one in counts.items()} or None


def _read(warehouse: Warehouse) -> tuple[ConsumedVersions, int]:
    """What all consumers have taken, and the number of the last write."""
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
            counts = {rule: Counts(**one.asDict()) for rule, one in (taken["counts"] or {}).items()}
            version = Version(
                taken["table"], taken["table_created_ms"], taken["version"], rows=taken["rows"], counts=counts
            )
            found.setdefault(taken["consumer"], {})[version.table] = version
    return found, max((row["sequence"] for row in rows), default=0)
