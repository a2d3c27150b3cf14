"""A warehouse whose rows are erased: records into bronze, the jobs on them, and a search of all its bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from bronze.batches import confirm
from bronze.events import events_table
from gold import build
from lakehouse.batches import BATCHES
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from silver import apply as silver
from tests.support.bronze import bronze_rows
from tests.support.events import (
    Record,
    change,
    compact,
    mysql_image,
    mysql_source,
    order,
    postgres_image,
    postgres_source,
    record,
    run_headers,
)
from tests.support.gold import ungated

POSTGRES, MYSQL = "postgres_prod_tables.public.orders", "mysql_prod_tables.ecommerce.orders"
OUTBOX = "outbox.event.postgres.orders"
RUN = "a run"


@dataclass
class Jobs:
    """The jobs on a warehouse, without a broker: what `store` puts into bronze, `run` brings to gold."""

    warehouse: Warehouse
    contracts: Contracts
    folder: Path
    runs: int = 0
    topics: set[str] = field(default_factory=set)

    def store(self, source: str, *records: Record) -> None:
        """Append records to bronze, as one batch that is written down."""
        for name in self.contracts.topics.sources:
            self.warehouse.ensure(events_table(name))
        self.warehouse.ensure(BATCHES)
        self.runs += 1
        self.topics |= {one["topic"] for one in records}
        file = self.folder / f"{source}-{self.runs}.jsonl"
        file.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
        rows = bronze_rows(self.warehouse.spark, file, topics={topic: topic for topic in self.topics})
        at = F.timestamp_seconds(F.lit(1_767_225_600 + 60 * self.runs))
        self.warehouse.append(events_table(source).name, rows.withColumn("_ingested_at", at))
        confirm(self.warehouse, source, sequence=self.runs)

    def run(self) -> Mapping[str, int]:
        """Silver and gold; what silver has counted."""
        chosen = settings(warehouse=self.warehouse.location)
        self.runs += 1
        spark, own = self.warehouse.spark, ungated(self.contracts)
        counted = silver.run(spark, chosen, own, run_id=f"run {self.runs}")
        build.run(spark, chosen, own, run_id=f"run {self.runs}")
        return counted

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of a table, of these columns, in order."""
        return sorted((tuple(row) for row in self.warehouse.read(table).select(*columns).collect()), key=str)


def postgres(offset: int, key: int, op: str, at: int, *, run: str = RUN, **columns: Any) -> Record:
    """A change of an order of PostgreSQL, by its place in the log."""
    source = postgres_source(at, last_commit=at)
    image = None if op == "d" else postgres_image(order(key, **columns))
    headers = run_headers(run, source=source)
    return record(POSTGRES, offset, key={"order_id": key}, value=change(op, source, image), headers=headers)


def mysql(
    offset: int, key: int, op: str, at: int, *, snapshot: str = "false", run: str = RUN, **columns: Any
) -> Record:
    """A change of an order of MySQL, by its place in the log."""
    source = mysql_source(at, snapshot=snapshot)
    image = None if op == "d" else mysql_image(order(key, **columns))
    headers = run_headers(run, source=source)
    return record(MYSQL, offset, key={"order_id": key}, value=change(op, source, image), headers=headers)


def outbox(offset: int, key: int, note: str, *, event: str | None = None) -> Record:
    """An event of an order in PostgreSQL's outbox."""
    payload = {"order_id": key, "customer_id": 1, "product_id": 1, "status": "paid", "amount": 5.0, "note": note}
    payload["created_at"] = "2026-01-01T00:00:00"
    headers = [("id", event or f"event-{offset}"), ("eventType", "OrderPaid")]
    at = 1_767_225_600_000 + offset * 60_000
    return record(OUTBOX, offset, key=str(key), value=compact(payload), timestamp=at, headers=headers)


def tombstone(topic: str, offset: int, key: int) -> Record:
    """What Debezium sends behind a delete."""
    return record(topic, offset, key={"order_id": key}, value=None)


def files_with(location: str, *texts: str) -> list[str]:
    """The files below a folder that have one of these texts: Parquet read as values, all others as bytes."""
    wanted = [text.encode() for text in texts]
    found = []
    for path in sorted(Path(location).rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content = _values(path)
            if any(text in content for text in wanted):
                found.append(str(path.relative_to(location)))
    return found


def _values(path: Path) -> bytes:
    """All values of a Parquet file as bytes, and the lowest and highest in its footer."""
    file = pq.ParquetFile(path)
    parts: list[bytes] = [_bytes_of(file.read().to_pylist())]
    groups: Sequence[Any] = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    for group in groups:
        for number in range(group.num_columns):
            statistics = group.column(number).statistics
            if statistics is not None and statistics.has_min_max:
                parts += [_bytes_of(statistics.min), _bytes_of(statistics.max)]
    return b"\n".join(parts)


def _bytes_of(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b" ".join(_bytes_of(one) for one in value.values())
    if isinstance(value, list | tuple):
        return b"\n".join(_bytes_of(one) for one in value)
    return str(value).encode()
