"""All cases of the laws in one warehouse: each is a shard of its feeds, and every batch has a part of many cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from silver.apply import ensure_tables
from tests.support.bronze import bronze_rows
from tests.support.events import Record
from tests.support.model.batches import Batches
from tests.support.recordings import write
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUARANTINE = "quality.quarantine"
# What a second batch finds of the first, a third finds of both.
BATCHES = 2


@dataclass(frozen=True)
class Cases:
    """Records of many cases in batches, by source."""

    batches: Mapping[str, Batches]


@dataclass(frozen=True)
class Played:
    """A warehouse in which all cases were played.

    `batches`: by source, the records of each batch. `versions`: by source, of each batch the versions in which it left
    the source's silver tables and the quarantine. `transports`: how many groups of feeds' records were folded on the
    driver (True), and how many in partitions.
    """

    warehouse: Warehouse
    contracts: Contracts
    batches: Mapping[str, Batches]
    versions: Mapping[str, Sequence[Mapping[str, int]]]
    transports: Mapping[bool, int]

    def table(self, feed: str, *, after: int | None = None) -> DataFrame:
        """A feed's silver table as it is, or as it was after a batch."""
        source = self.contracts.feeds[feed].source
        version = None if after is None else self.versions[source][after][f"silver.{feed}"]
        return self.warehouse.read(f"silver.{feed}", version=version)

    def quarantine(self, source: str, *, after: int | None = None) -> DataFrame:
        """What is quarantined of a source, or was after a batch."""
        version = None if after is None else self.versions[source][after][QUARANTINE]
        return self.warehouse.read(QUARANTINE, version=version).where(F.col("source") == source)

    def audit(self, source: str) -> Sequence[Mapping[str, Any]]:
        """The batch audit: a row for what a batch read of a topic-partition."""
        of_source = (F.col("source") == source) & F.col("read").isNotNull()
        return [row.asDict() for row in self.warehouse.read("ops.batches").where(of_source).collect()]


def play(
    warehouse: Warehouse, contracts: Contracts, cases: Iterable[Cases], *, folder: Path, count: int = BATCHES
) -> Played:
    """Apply the batches of all cases (`count` at most) to silver, batch after batch, each source beside the others."""
    ensure_tables(warehouse, contracts)
    played = list(cases)

    def batches_of(source: str) -> Batches:
        batches: list[list[Record]] = [[] for _ in range(count)]
        for one in played:
            for batch, records in zip(batches, one.batches.get(source, ()), strict=False):
                batch.extend(records)
        return batches

    batches = {source: batches_of(source) for source in contracts.topics.sources}
    transports: Counter[bool] = Counter()

    def are_few(records: int, _value_bytes: int | None) -> bool:
        """Some batches on the driver, others in partitions: by nothing that an outcome could depend on."""
        transports[records % 2 == 0] += 1
        return records % 2 == 0

    with (
        ThreadPoolExecutor() as pool,
        patch("silver.validated.are_few", are_few),
        # So that many records are folded in several partitions, and earlier ones are looked for in several steps.
        patch("silver.batch.transport.PARTITION_RECORDS", 1_000),
        patch("silver.lookback.earlier_records.FIRST_STEP", 40),
    ):
        versions = pool.map(_applied_by(warehouse, contracts, folder), batches, batches.values())
        return Played(warehouse, contracts, batches, dict(zip(batches, versions, strict=True)), transports)


def _applied_by(
    shared: Warehouse, contracts: Contracts, folder: Path
) -> Callable[[str, Batches], list[Mapping[str, int]]]:
    def applied(source: str, batches: Batches) -> list[Mapping[str, int]]:
        # A session of its own, as each stream has: a MERGE changes settings of its session and sets them back.
        warehouse = replace(shared, spark=shared.spark.newSession())
        tables = [QUARANTINE, *(f"silver.{feed}" for feed in contracts.topics.sources[source].feeds)]
        versions: list[Mapping[str, int]] = []
        for number, records in enumerate(batches):
            if records:
                file = write(folder / f"{source}-{number}.jsonl.gz", list(records))
                topics = {record["topic"]: record["topic"] for record in records}
                apply(warehouse, contracts, source, bronze_rows(warehouse.spark, file, topics=topics))
            versions.append({table: warehouse.version(table) for table in tables})
        return versions

    return applied
