"""A feed's judged records, where they are: few of them on the driver, many in Spark. And their facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.spark.materialized import without_byte_limit
from silver.batch.events import of_feed
from silver.decode.arrow import row_of
from silver.order.facts import FACT_COLUMNS, Facts, facts, merge_facts
from silver.order.narrow_events import log_columns
from silver.order.positions import add_coordinates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The driver takes so many records at most, of so many bytes of values.
DRIVER_RECORDS, DRIVER_BYTES = 20_000, 32 * 1024 * 1024


def are_few(records: int, value_bytes: int | None) -> bool:
    """Whether the driver takes the records."""
    return value_bytes is not None and records <= DRIVER_RECORDS and value_bytes <= DRIVER_BYTES


@dataclass(frozen=True)
class ValidatedRecords:
    """A feed's records (silver.batch.outcome.judged_records), with its `row`.

    `kept`: in Spark, where they are kept there. `table`: on the driver, where they are few. One of both at least.
    """

    feed: Feed
    spark: SparkSession
    kept: DataFrame | None = None
    table: pa.Table | None = None

    @cached_property
    def frame(self) -> DataFrame:
        """The records in Spark."""
        if self.kept is not None:
            return self.kept
        assert self.table is not None  # noqa: S101 - one of both is there
        return self.spark.createDataFrame(self.table)

    @classmethod
    def of(cls, records: DataFrame | pa.Table, feed: Feed, spark: SparkSession) -> ValidatedRecords:
        """Those of one feed, among records of several."""
        if not isinstance(records, pa.Table):
            return cls(feed, spark, kept=of_feed(records, feed))
        own = records.filter(pc.equal(records.column("feed"), feed.name))
        others = [name for name in own.column_names if name.startswith(row_of("")) and name != row_of(feed.name)]
        own = own.drop_columns(["feed", *others])
        names = ["row" if name == row_of(feed.name) else name for name in own.column_names]
        return cls(feed, spark, table=own.rename_columns(names))


def count(
    records: Sequence[ValidatedRecords], rules: Mapping[str, Sequence[str]], *, size_in_bytes: int | None = None
) -> list[dict[str, Any]]:
    """The facts of these records. `rules`: the names of each feed's rules. `size_in_bytes`: of all values."""
    found: list[Facts] = []
    many: list[DataFrame] = []
    for one in records:
        named = tuple(rules[one.feed.name])
        if one.table is not None:
            found += _facts_of(one.table, one.feed, named)
        else:
            part = partial(_fact_batches, feed=one.feed.model_copy(update={"schemas": None}), rules=named)
            keys = [F.struct(*[F.col(f"row.`{key}`") for key in one.feed.keys]).alias("row")] if one.feed.keys else []
            many.append(one.frame.select("timestamp", *_columns(one.feed), *keys).mapInArrow(part, "facts STRING"))
    if many:
        union = reduce(lambda one, other: one.unionByName(other), many)
        with without_byte_limit(union, size_in_bytes):
            found += [fact for row in union.collect() for fact in json.loads(row["facts"])]
    return merge_facts(found)


def _fact_batches(batches: Iterable[pa.RecordBatch], feed: Feed, rules: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The facts of a partition, as one text."""
    found: list[dict[str, Any]] = []
    for batch in batches:
        found = merge_facts([*found, *_facts_of(pa.Table.from_batches([batch]), feed, rules)])
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(found)], pa.string())], names=["facts"])


def _facts_of(records: pa.Table, feed: Feed, rules: Sequence[str]) -> list[dict[str, Any]]:
    columns = {name: records.column(name) for name in _columns(feed)}
    columns |= {f"key:{key}": pc.struct_field(records.column("row"), key) for key in feed.keys}
    columns["timestamp"] = records.column("timestamp")
    frame = pl.DataFrame(pa.table(columns)).with_columns(timestamp_ms=pl.col("timestamp").dt.epoch("ms"))
    return facts(add_coordinates(frame, feed), feed, rules)


def _columns(feed: Feed) -> list[str]:
    """The columns of judged records that facts are made of, but for `timestamp` and the keys."""
    return [*(name for name in FACT_COLUMNS if name != "timestamp_ms"), *log_columns(feed.kind)]
