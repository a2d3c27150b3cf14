"""What a batch of changes costs as the tables grow: seconds and bytes written, of silver and of gold.

python -m benchmarks.growth [--rows 1000000 10000000] [--changes 10000] [--batches 3] [--seed 1]

One warm process. PostgreSQL's silver table is filled to a size, and gold from it; then come batches of updates, of
random keys and of recent ones, as bronze rows, through the silver and the gold job. The first batch is for warming up.
Prints a line of JSON for every batch, and a table at the end: the median of each size beside that of the smallest one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from rich.table import Table as Shown

from benchmarks import report
from benchmarks.load import BEGIN_US, NOTES, STATUSES, TOPICS, Event, Table, contracts_of_load
from benchmarks.records import bronze_rows, store
from bronze.events import events_table
from gold import build
from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.declared import declared
from lakehouse.delta.tables import Warehouse
from lakehouse.process.steps import wide_console
from lakehouse.spark.session import spark_session
from lakehouse.spark.sizing import tuned_for
from silver import apply
from silver.batch.merge import silver_table
from silver.order.position import position_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE, FEED, TOPIC = "postgres", "postgres_orders", TOPICS["postgresql"]
LAYERS = ("silver", "gold")
# Where the log of the database stands when the batches begin: behind all that the table was filled with.
FILLED_TO = 1_000_000_000_000


@dataclass(frozen=True)
class Batch:
    """One batch: seconds of the job of each layer, and the bytes that it wrote to its own tables."""

    rows: int
    keys: str
    number: int
    seconds: dict[str, float]
    bytes_written: dict[str, int]
    bytes_read: int


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    contracts = contracts_of_load()
    spark = spark_session(is_lasting=True)
    found = []
    for rows in chosen.rows:
        with TemporaryDirectory(prefix=f"growth-{rows}-") as folder:
            grown = Grown(spark, contracts, settings(warehouse=folder, bootstrap_servers=""), rows, chosen.seed)
            print(json.dumps({"rows": rows, "filled_in_seconds": round(grown.fill(), 1)}), flush=True)
            for keys in ("recent", "random"):
                for number in range(chosen.batches + 1):
                    batch = grown.batch(keys, number, chosen.changes)
                    print(json.dumps(asdict(batch)), flush=True)
                    if number:
                        found.append(batch)
    shown = summary(found)
    wide_console().print(shown)
    if chosen.write_docs:
        asked = f"batches of {chosen.changes:,} updates, {chosen.batches} of each kind after one to warm up"
        report.write("growth", shown, [plot(found)], asked=asked)


@dataclass
class Grown:
    """A warehouse whose silver and gold have so many orders, and the batches that come to it."""

    spark: SparkSession
    contracts: Contracts
    settings: Settings
    rows: int
    seed: int
    offset: int = 0

    @property
    def warehouse(self) -> Warehouse:
        """Its tables."""
        return self.settings.address.open(self.spark)

    def fill(self) -> float:
        """Fill silver, and bring gold up to it; seconds of gold's first run."""
        for source in self.contracts.topics.sources:
            self.warehouse.ensure(events_table(source))
        apply.ensure_tables(self.warehouse, self.contracts)
        feed = self.contracts.feeds[FEED]
        position = F.from_json(F.lit(json.dumps(_position())), position_type(feed))
        key, spec = F.col("id"), silver_table(feed)
        values = {
            "order_id": key,
            "customer_id": key % 20_000,
            "product_id": key % 5_000,
            "status": F.lit("pending"),
            "total_amount": F.lit("10.50"),
            "created_at": F.timestamp_seconds(F.lit(BEGIN_US // 1_000_000) + key % 86_400),
            "_position": position,
            "_op": F.lit("c"),
            "_is_deleted": F.lit(False),
            "_topic": F.lit(TOPIC),
            "_partition": F.lit(0),
            "_offset": F.lit(-1),
            "_applied_at": F.current_timestamp(),
            "_column_versions": F.struct(position.alias("status"), position.alias("note")),
        }
        columns = [
            values.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name)
            for column in declared(spec.columns)
        ]
        with tuned_for(self.spark, self.rows):
            files = max(1, self.rows // 1_000_000)
            self.warehouse.append(spec.name, self.spark.range(1, self.rows + 1, numPartitions=files).select(*columns))
        begun = time.monotonic()
        build.run(self.spark, self.settings, self.contracts, run_id="fill")
        return time.monotonic() - begun

    def batch(self, keys: str, number: int, changes: int) -> Batch:
        """One batch of updates through silver and gold."""
        read = self._to_bronze(list(self._updates(Random(f"{self.seed} {keys} {number}"), keys, changes)))  # noqa: S311
        seconds: dict[str, float] = {}
        written: dict[str, int] = {}
        for layer in LAYERS:
            with self._bytes_of(layer, written):
                begun = time.monotonic()
                job = apply.run if layer == "silver" else build.run
                job(self.spark, self.settings, self.contracts, run_id=f"{keys} {number}")
                seconds[layer] = round(time.monotonic() - begun, 2)
        return Batch(self.rows, keys, number, seconds, written, read)

    def _updates(self, random: Random, keys: str, changes: int) -> Iterator[Event]:
        """Updates of `changes` rows, as the connector tells them: any of all, or the newest ones."""
        table = Table("postgresql", self.seed, self.rows, log=FILLED_TO + self.offset * 96)
        lowest = 1 if keys == "random" else self.rows - 2 * changes
        for key in random.sample(range(lowest, self.rows + 1), changes):
            created = BEGIN_US + (key % 86_400) * 1_000_000
            table.rows[key] = {
                **{"order_id": key, "customer_id": key % 20_000, "product_id": key % 5_000, "status": STATUSES[0]},
                **{"total_amount": "10.50", "created_at": created, "updated_at": None, "note": NOTES[0]},
            }
            yield table.update(key)

    def _to_bronze(self, updates: Sequence[Event]) -> int:
        """Append them to bronze; the bytes of their keys and values."""
        records = bronze_rows(self.spark, updates, topic=TOPIC, first_offset=self.offset)
        self.offset += len(updates)
        store(self.warehouse, SOURCE, records)
        return sum(len(key) + len(value or b"") for key, value in updates)

    @contextmanager
    def _bytes_of(self, layer: str, written: dict[str, int]) -> Iterator[None]:
        """Put into `written` what comes to be in the folder of the layer, logs and deletion vectors included."""
        before = self._files(layer)
        yield
        written[layer] = sum(size for path, size in self._files(layer).items() if path not in before)

    def _files(self, layer: str) -> dict[Path, int]:
        return {path: path.stat().st_size for path in Path(self.settings.warehouse, layer).rglob("*") if path.is_file()}


def _position() -> dict[str, int]:
    at = {"epoch": 0, "ordered_lsn": 1, "streamed": 1, "commit_lsn": 1, "lsn": 1}
    return {**at, "kafka_offset": -1}


def summary(batches: Sequence[Batch]) -> Shown:
    """The medians of every size, and how many times those of the smallest size they are."""
    shown = Shown("rows", "keys", "layer", "seconds", "ratio", "bytes written", "ratio", "bytes written per byte read")
    smallest: dict[tuple[str, str], tuple[float, float]] = {}
    for rows in sorted({batch.rows for batch in batches}):
        for keys in sorted({batch.keys for batch in batches}):
            of = [batch for batch in batches if (batch.rows, batch.keys) == (rows, keys)]
            for layer in LAYERS:
                seconds = median(batch.seconds[layer] for batch in of)
                size = median(batch.bytes_written[layer] for batch in of)
                base = smallest.setdefault((keys, layer), (seconds, size))
                ratios = f"{seconds / base[0]:.2f}", f"{size / base[1]:.2f}"
                per_byte = f"{size / median(batch.bytes_read for batch in of):.2f}"
                shown.add_row(
                    f"{rows:,}", keys, layer, f"{seconds:.1f}", ratios[0], f"{size:,.0f}", ratios[1], per_byte
                )
    return shown


def plot(batches: Sequence[Batch]) -> str:
    """Seconds of both layers together, by size: recent keys, then random ones."""
    sizes = sorted({batch.rows for batch in batches})
    together = [
        [median(sum(one.seconds.values()) for one in batches if (one.keys, one.rows) == (keys, rows)) for rows in sizes]
        for keys in ("recent", "random")
    ]
    title = "Silver and gold of one batch: recent keys, and random ones"
    return report.lines(title, "seconds", [f"{rows:,} rows" for rows in sizes], together)


if __name__ == "__main__":
    main()
