"""Records into events, as Spark runs it, and the facts of a batch: counts by connector run and topic-partition.

One pass over the records decodes those of all feeds (silver.decode). Columns of `decoded`: the record's (topic,
topic_id, partition, offset, timestamp, key, value, headers), the `feed` whose record it is, what it states
(silver.decode.explain.Event), and the row of each feed, `row_<feed>`. The facts are known before a change is applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.batches import COORDINATES
from lakehouse.contracts.models import Feed
from silver.batch.position import IS_FULL_SNAPSHOT, STREAMED, coordinates
from silver.decode.arrow import RECORD, ddl, decode_batches, name_batches, row_of, table_batches
from silver.decode.avro import HEAD
from silver.decode.wrapper import OF_KEY
from silver.order.position import END_OF_SNAPSHOT
from silver.order.runs import SEGMENT_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(records: DataFrame, feeds: Sequence[Feed]) -> DataFrame:
    """The bronze rows of the topics of these feeds as what each states."""
    return _of_bronze(records).mapInArrow(partial(decode_batches, feeds=tuple(feeds)), ddl(feeds))


def of_feed(told: DataFrame, feed: Feed) -> DataFrame:
    """Of decoded records those of one feed, with its `row`."""
    others = [name for name in told.columns if name.startswith(row_of("")) and name != row_of(feed.name)]
    return told.where(F.col("feed") == feed.name).drop("feed", *others).withColumnRenamed(row_of(feed.name), "row")


def events(records: DataFrame, feed: Feed) -> DataFrame:
    """The bronze rows of a feed's topics as what each states, with its `row`."""
    return of_feed(decoded(records, [feed]), feed)


def fields_of_events(records: DataFrame, feed: Feed) -> DataFrame:
    """`field`: the names of all fields that the rows in these records have."""
    return _of_bronze(records).mapInArrow(partial(name_batches, feed=feed), "field STRING").distinct()


def problem_counts(judged: DataFrame) -> DataFrame:
    """`problem` and `records`: how many of these judged records have which problem, the most frequent first.

    Problems that differ in a number alone are one, which is shown as the first of them.
    """
    return (
        judged.select(F.explode("problems").alias("problem"))
        .groupBy(F.regexp_replace("problem", r"\b[0-9]+\b", "0").alias("kind"))
        .agg(F.min("problem").alias("problem"), F.count(F.lit(1)).alias("records"))
        .orderBy(F.desc("records"), "kind")
        .select("problem", "records")
    )


def table_counts(judged: DataFrame, feed: Feed) -> DataFrame:
    """`name` and `records`: how many of these judged records say that they are of which table, the most first."""
    tables = judged.select(*RECORD).mapInArrow(partial(table_batches, feed=feed), "name STRING")
    return tables.groupBy("name").agg(F.count(F.lit(1)).alias("records")).orderBy(F.desc("records"), "name")


def is_confluent(column: str) -> str:
    """SQL: whether the bytes are in the Confluent wire format (silver.decode.avro.is_confluent)."""
    return f"coalesce(octet_length({column}) > {HEAD} AND substring({column}, 1, 1) = X'00', false)"


def _of_bronze(records: DataFrame) -> DataFrame:
    topic_id = F.coalesce("_topic_id", F.lit("")).alias("topic_id")
    return records.select(*[topic_id if name == "topic_id" else name for name in RECORD])


_NO_TEXTS = "CAST(array() AS ARRAY<STRING>)"
_RANGE = "STRUCT<lowest: BIGINT, highest: BIGINT>"
COUNTS = f"""
    feed STRING, topic STRING, topic_id STRING, partition INT, run_id STRING, snapshot_at {COORDINATES},
    first_offset BIGINT, last_offset BIGINT, read BIGINT, changes BIGINT, deletes BIGINT, truncates BIGINT,
    tombstones BIGINT, lone_tombstones BIGINT, ignored BIGINT, quarantined BIGINT, leaving_out BIGINT,
    judged BIGINT, unread BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>,
    lowest {COORDINATES}, highest {COORDINATES}, has_end BOOLEAN, first_ms BIGINT, read_from_ms BIGINT,
    read_to_ms BIGINT, source_names ARRAY<STRING>, highest_timestamp_ms BIGINT, last_key BIGINT, last_is_delete BOOLEAN,
    key_ranges MAP<STRING, {_RANGE}>, drift ARRAY<STRING>, keyed BIGINT, unread_keys BIGINT, key_problem STRING
"""
WHOLE_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def counts(judged: DataFrame, *, feed: Feed, rules: Sequence[str]) -> DataFrame:
    """One row (COUNTS) a SEGMENT_KEY: its records by kind, how often rules failed, and what later batches need to know.

    `absent_columns`: how many of the judged rows had no field for a column, of the columns where some had none.
    `lone_tombstones`: those whose delete is not just before them. `key_ranges`: between which values the records' keys
    lie, of those that are whole numbers. `drift`: where records have other columns than a table by rule. `keyed`: those
    with a key; `unread_keys`: whose key cannot be read, and what is wrong with one (`key_problem`).
    Small: its size does not grow with the number of records.
    """
    at = coordinates(feed) if feed.sequence_by == "source_position" else "NULL"
    is_full = f"({IS_FULL_SNAPSHOT} AND at IS NOT NULL)"
    is_streamed = f"({STREAMED} = 1 AND kind IN ('change', 'truncate', 'quarantined'))"
    has_unread_key = f"(kind = 'quarantined' AND coalesce(startswith(get(problems, 0), '{OF_KEY}'), false))"
    is_end = f"({IS_FULL_SNAPSHOT} AND at IS NOT NULL AND source.snapshot IN {END_OF_SNAPSHOT})"
    found = {
        "feed": f"'{feed.name}'",
        "first_offset": "min(offset)",
        "last_offset": "max(offset)",
        "read": "count(1)",
        "changes": "count_if(kind = 'change')",
        "deletes": "count_if(kind = 'change' AND is_delete)",
        "truncates": "count_if(kind = 'truncate')",
        "tombstones": "count_if(kind = 'tombstone')",
        "lone_tombstones": "count_if(kind = 'tombstone' AND NOT follows_delete)",
        "ignored": "count_if(kind = 'ignored')",
        "quarantined": "count_if(kind = 'quarantined')",
        "leaving_out": "count_if(size(left_out) > 0)",
        "judged": "count_if(is_judged)",
        "unread": "count_if(is_unread)",
        "failed_rules": _map({rule: _times(rule, "failed_rules") for rule in rules}, "BIGINT"),
        "absent_columns": _some({name: _times(name, "absent") for name in feed.columns if name not in feed.keys}),
        "lowest": f"min(IF({is_streamed}, at, NULL))",
        "highest": f"max(IF({is_streamed}, at, NULL))",
        "has_end": f"coalesce(bool_or({is_end}), false)",
        "first_ms": "min(unix_millis(timestamp))",
        "read_from_ms": "min(IF(at IS NOT NULL, read_ms, NULL))",
        "read_to_ms": "max(IF(at IS NOT NULL, read_ms, NULL))",
        "source_names": f"collect_set(IF({is_full}, source.name, NULL))",
        "highest_timestamp_ms": "max(unix_millis(timestamp))",
        "last_key": "max_by(xxhash64(key), offset)",
        "last_is_delete": "max_by(kind = 'change' AND coalesce(is_delete, false), offset)",
        "drift": _NO_TEXTS if feed.made is None else "array_distinct(flatten(collect_set(drift)))",
        "key_ranges": _map({key: _range(key) for key in feed.keys if _is_whole(feed, key)}, _RANGE),
        "keyed": "count_if(octet_length(key) > 0 AND kind <> 'ignored')",
        "unread_keys": f"count_if({has_unread_key})",
        "key_problem": f"max(IF({has_unread_key}, get(problems, 0), NULL))",
    }
    # All at once: a struct of aggregates goes to Spark in one call.
    facts = ", ".join([*SEGMENT_KEY, *(f"{value} AS {name}" for name, value in found.items())])
    placed = judged.withColumn("at", F.expr(f"CAST({at} AS {COORDINATES})"))
    return (
        placed.withColumn("snapshot_at", F.expr(f"IF({is_full}, at, NULL)"))
        .groupBy(*SEGMENT_KEY)
        .agg(F.expr(f"struct({facts}) AS facts"))
        .select("facts.*")
    )


def _times(name: str, names: str) -> str:
    return f"count_if(array_contains({names}, '{name}'))"


def _map(values: Mapping[str, str], kind: str) -> str:
    """SQL: a map of these texts to these values."""
    parts = ", ".join(f"'{name}', {value}" for name, value in values.items())
    return f"CAST(map({parts}) AS MAP<STRING, {kind}>)"


def _some(values: Mapping[str, str]) -> str:
    """SQL: the same of numbers, without zeros."""
    return f"map_filter({_map(values, 'BIGINT')}, (name, times) -> times > 0)"


def _range(key: str) -> str:
    return f"named_struct('lowest', CAST(min(row.`{key}`) AS BIGINT), 'highest', CAST(max(row.`{key}`) AS BIGINT))"


def _is_whole(feed: Feed, key: str) -> bool:
    return feed.columns[key].type.ddl in WHOLE_NUMBERS


def ignored_counts(records: DataFrame) -> DataFrame:
    """The same for records of topics that belong to no feed (heartbeat topics): read, and ignored by policy."""
    zero, none = F.lit(0).cast("bigint"), F.lit(None)
    read = records.groupBy("topic", F.coalesce("_topic_id", F.lit("")).alias("topic_id"), "partition").agg(
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.count(F.lit(1)).alias("read"),
        F.min(F.unix_millis("timestamp")).alias("first_ms"),
    )
    no_numbers = F.create_map().cast("map<string,bigint>")
    given = {"ignored": F.col("read"), "run_id": F.lit(""), "failed_rules": no_numbers, "absent_columns": no_numbers}
    zeros: tuple[str, ...] = ("changes", "deletes", "truncates", "tombstones", "lone_tombstones", "quarantined")
    zeros += ("leaving_out", "judged", "unread", "keyed", "unread_keys")
    filled = read.withColumns({**dict.fromkeys(zeros, zero), **given, "drift": F.expr(_NO_TEXTS)})
    others = {
        name: none.cast(kind) for name, kind in _fields(COUNTS).items() if name not in (*filled.columns, "has_end")
    }
    return filled.withColumns({**others, "has_end": F.lit(False)}).select(*column_names(COUNTS))


def offset_gaps(records: DataFrame) -> DataFrame:
    """topic, topic_id, partition, first, last: the ranges of offsets inside of a batch that no record has.

    Compaction and transaction markers leave such gaps: Kafka gives out an offset once.
    """
    before = F.lag("offset").over(Window.partitionBy("topic", "topic_id", "partition").orderBy("offset"))
    return (
        records.select("topic", "topic_id", "partition", "offset", before.alias("before"))
        .where(F.col("offset") > F.col("before") + 1)
        .select(
            "topic", "topic_id", "partition", (F.col("before") + 1).alias("first"), (F.col("offset") - 1).alias("last")
        )
    )


def offset_ranges(records: DataFrame, stored: DataFrame) -> DataFrame:
    """topic, topic_id, partition, first, last, records: the ranges of offsets of which nothing else is `stored`.

    Few: a gap that no record lies in ends none.
    """
    at = ("topic", "topic_id", "partition", "offset")
    in_order = Window.partitionBy("topic", "topic_id", "partition").orderBy("offset")
    own, others = (rows.select(*at, F.lit(mark).alias("is_own")) for rows, mark in ((records, True), (stored, False)))
    begins = F.col("is_own") & ~F.lag("is_own", 1, False).over(in_order)
    return (
        own.unionByName(others)
        .groupBy(*at)
        .agg(F.bool_or("is_own").alias("is_own"))
        .withColumn("begins", begins)
        .withColumn("number", F.count_if("begins").over(in_order))
        .where("is_own")
        .groupBy("topic", "topic_id", "partition", "number")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count(F.lit(1)).alias("records"))
        .drop("number")
    )


def _fields(ddl: str) -> dict[str, str]:
    """Name and type of every column of a declaration in SQL."""
    columns = re.findall(r"\s*(\w+) ((?:[^,<>]|<(?:[^<>]|<[^<>]*>)*>)+)(?:,|\Z)", ddl)
    return {name: declared.strip() for name, declared in columns}


def column_names(ddl: str) -> list[str]:
    """The names of the columns of a declaration in SQL."""
    return list(_fields(ddl))
