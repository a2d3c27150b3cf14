"""Erasure in silver: which rows can be erased, and their removal from the tables that silver writes.

The feeds that gold takes one order from are erased as one: without the deleted row of the first feed gold would take
the order from the next one. The first feed of them that has a key decides whether its row is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import Warehouse
from lakehouse.erasure.table import ERASED, erased_records, salt_of, write, write_rows
from lakehouse.errors import SettingsError, TableError
from lakehouse.quality.results import RESULTS
from silver.accounts.audit import OUTBOX_EVENTS, read_state
from silver.accounts.ingested import unread_ranges
from silver.batch.events import bronze_records
from silver.erasure.matches import MATCHES, WantedKeys, match_batches, parse_keys
from silver.fold.erased import key_digest
from silver.order.history import PURGED, history
from silver.rejects.quarantine import OF_RECORD, QUARANTINE, is_pending_entry

NUMBER = "_number"


class TypedKeys(NamedTuple):
    """Keys of a table: `rows`, its key columns and NUMBER, from 1 in the order given; `values` of them, as Python's."""

    rows: DataFrame
    values: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class FeedCounts:
    """What of the keys is there of a feed: records of bronze, rows of its table and of its history, quarantine entries.

    `topics`: of each the highest offset of such a record.
    """

    feed: str
    records: int
    rows: int
    versions: int
    entries: int
    topics: Mapping[str, int]


def typed_keys(warehouse: Warehouse, feed: Feed, texts: Sequence[str]) -> TypedKeys:
    """The keys in the types of the table's columns. Raises SettingsError for what is none, by its number."""
    if feed.append_only or not feed.keys:
        raise SettingsError(
            f"silver.{feed.name} has no key: it is the list of its changes.", hint="Name a table with a key."
        )
    try:
        parsed = parse_keys(texts, feed)
    except ValueError as error:
        raise _no_key(feed, error.args[0]) from None
    # As Arrow: what stands in a plan is shown in Spark's page and log.
    named = {key: pa.array([one[key] for one in parsed], pa.string()) for key in feed.keys}
    given = warehouse.spark.createDataFrame(pa.table({**named, NUMBER: pa.array(range(1, len(parsed) + 1))}))
    casts = [F.expr(f"try_cast(`{key}` AS {feed.columns[key].type.ddl})").alias(key) for key in feed.keys]
    typed = given.select(*casts, NUMBER).toArrow()
    values = list(zip(*(typed.column(key).to_pylist() for key in feed.keys), strict=True))
    for number, value in enumerate(values, 1):
        if None in value:
            raise _no_key(feed, number)
    return TypedKeys(warehouse.spark.createDataFrame(typed), values)


def _no_key(feed: Feed, number: int) -> SettingsError:
    shape = ", ".join(f'"{key}": …' for key in feed.keys)
    one = f"a value of {feed.keys[0]}" if len(feed.keys) == 1 else f"a JSON object {{{shape}}}"
    return SettingsError(f"Key number {number} is no key of silver.{feed.name}.", hint=f"A key is {one}.")


def feeds_of_row(contracts: Contracts, feed: Feed) -> list[Feed]:
    """The feeds that are erased with this one: those that gold takes the same orders from, the first one first."""
    for source in contracts.gold.sources.values():
        if feed.name in source.feeds:
            return [contracts.feeds[name] for name in source.feeds]
    return [feed]


def require_erasable(warehouse: Warehouse, feeds: Sequence[Feed], keys: TypedKeys) -> None:
    """Raise TableError where silver has not read all, a table is suspended, or a row is live in the source."""
    source = feeds[0].source
    state = read_state(warehouse, source)
    for feed in feeds:
        if feed.name in state.suspended:
            raise TableError(
                f"silver.{feed.name} is suspended: its pending records could be of these rows.",
                hint="Let it go on first (docs/quarantine.md).",
            )
    if any(unread_ranges(warehouse, {source: state.read_ranges}).values()):
        raise TableError(
            f"silver has not read all that bronze has of {source}: it could be of these rows.",
            hint="Run `lakehouse run` first.",
        )
    live: dict[int, bool] = {}
    for feed in feeds:
        rows = warehouse.read(f"silver.{feed.name}").join(F.broadcast(keys.rows), on=[*feed.keys], how="inner")
        for row in rows.select(NUMBER, "_is_deleted").collect():
            live.setdefault(row[NUMBER], not row["_is_deleted"])
    numbers = sorted(number for number, is_live in live.items() if is_live)
    if numbers:
        named = ", ".join(map(str, numbers[:20]))
        raise TableError(
            f"silver.{feeds[0].name}: {len(numbers)} of {len(keys.values)} rows are not deleted in the source"
            f" (keys number {named}): a snapshot would bring them back. Nothing was changed.",
            hint="Delete them in the source, let `lakehouse run` read that, and run this again.",
        )
    _require_no_later_entries(warehouse, feeds, keys)


def _require_no_later_entries(warehouse: Warehouse, feeds: Sequence[Feed], keys: TypedKeys) -> None:
    """Raise TableError where a record that is pending in quarantine is not known to come before the row's delete."""
    feed = feeds[0]
    texts = keys.rows.withColumn("row_key", F.to_json(F.struct(*feed.keys)))
    pending = warehouse.read(QUARANTINE.name).where((F.col("feed") == feed.name) & is_pending_entry())
    entries = pending.join(F.broadcast(texts), on="row_key", how="inner").select(*feed.keys, *OF_RECORD)
    deleted = warehouse.read(f"silver.{feed.name}").select(*feed.keys, "_topic", "_partition", "_offset")
    is_before = "topic = _topic AND partition = _partition AND offset < _offset"
    later = entries.join(deleted, on=[*feed.keys], how="left").where(f"NOT coalesce({is_before}, false)")
    first = later.select(*OF_RECORD).orderBy(*OF_RECORD).first()
    if first is not None:
        raise TableError(
            "A record of these rows is pending in quarantine, and nothing says that it is older than their delete:"
            f" {first['topic']}/{first['partition']}/{first['offset']}. Nothing was changed.",
            hint="Decide about it first: lakehouse quarantine show, retry, release or discard.",
        )


def matching_records(warehouse: Warehouse, feed: Feed, keys: TypedKeys) -> DataFrame:
    """MATCHES of the records of bronze that are of these keys. All records of the feed's topics are read."""
    events = warehouse.read(f"bronze.{feed.source}_events")
    topics = [row["topic"] for row in events.select("topic").distinct().collect() if feed.has_topic(row["topic"])]
    wanted = WantedKeys(feed.model_copy(update={"discovered": None}), frozenset(keys.values))
    records = bronze_records(events.where(F.col("topic").isin(*topics)))
    return records.mapInArrow(partial(match_batches, wanted=wanted), MATCHES)


def records_of_rows(matches: DataFrame) -> DataFrame:
    """Of matches (kept: they are read twice) those of the rows: they state the key, or have the Kafka key of such."""
    with_key = matches.where("is_own")
    kafka_keys = with_key.where("key IS NOT NULL").select("topic", "key").distinct()
    others = matches.where("NOT is_own AND NOT is_linked")
    return with_key.unionByName(others.join(F.broadcast(kafka_keys), on=["topic", "key"], how="left_semi"))


def require_no_links(feed: Feed, matches: DataFrame) -> None:
    """Raise TableError where a row had another key before or after: then both are to be erased."""
    first = matches.where("is_linked").orderBy(*OF_RECORD).first()
    if first is not None:
        raise TableError(
            f"silver.{feed.name}: the key of a row was changed from or to another one, by the record"
            f" {first['topic']}/{first['partition']}/{first['offset']}. Nothing was changed.",
            hint="Name both keys in one command.",
        )


def counts_of(warehouse: Warehouse, feed: Feed, keys: TypedKeys, records: DataFrame) -> FeedCounts:
    """How much there is of the keys. `records`: those of bronze."""
    rows = records.groupBy("topic").agg(F.count(F.lit(1)).alias("records"), F.max("offset").alias("last")).collect()
    return FeedCounts(
        feed.name,
        sum(row["records"] for row in rows),
        rows_of(warehouse.read(f"silver.{feed.name}"), feed, keys).count(),
        rows_of(warehouse.read(feed.history_table), feed, keys).count() if feed.has_history else 0,
        entries_of(warehouse.read(QUARANTINE.name), feed, keys, records).count(),
        {row["topic"]: row["last"] for row in rows},
    )


def rows_of(table: DataFrame, feed: Feed, keys: TypedKeys) -> DataFrame:
    """The rows of these keys."""
    return table.join(F.broadcast(keys.rows.drop(NUMBER)), on=[*feed.keys], how="left_semi")


def entries_of(quarantine: DataFrame, feed: Feed, keys: TypedKeys, records: DataFrame) -> DataFrame:
    """The entries of the quarantine that are of these keys: by their key, or as one of these records (OF_RECORD).

    The columns of OF_RECORD, and `_path` where the rows have it.
    """
    texts = keys.rows.select(F.to_json(F.struct(*feed.keys)).alias("row_key"))
    entries = quarantine.where(F.col("feed") == feed.name)
    by_key = entries.join(F.broadcast(texts), on="row_key", how="left_semi")
    by_record = entries.join(F.broadcast(records.select(*OF_RECORD)), on=OF_RECORD, how="left_semi")
    columns = [*OF_RECORD, *(["_path"] if "_path" in quarantine.columns else [])]
    return by_key.select(*columns).unionByName(by_record.select(*columns)).distinct()


def write_down(warehouse: Warehouse, feed: Feed, keys: TypedKeys, records: DataFrame, *, request: str) -> None:
    """Append to `ops.erased` the records of bronze, and the digests of the keys with the positions of their rows.

    Before anything is erased: whatever ends in between, the same command finds what is left. It may be repeated.
    """
    warehouse.ensure(ERASED)
    named = {"source": feed.source, "feed": feed.name, "request": request}
    known = erased_records(warehouse, feed.source)
    new = records.select(*OF_RECORD, "headers")
    if known is not None:
        new = new.join(F.broadcast(known.select(*OF_RECORD)), on=OF_RECORD, how="left_anti")
    of_request = {name: F.lit(value) for name, value in named.items()}
    write(warehouse, new.withColumns({"kind": F.lit("record"), **of_request}))
    salt = salt_of(warehouse) or f"{uuid4().hex}{uuid4().hex}"
    positions = _positions(warehouse, feed, keys)
    rows = [
        {**named, "kind": "key", "salt": salt, "key_digest": key_digest(salt, key), "position": positions.get(number)}
        for number, key in enumerate(keys.values, 1)
    ]
    write_rows(warehouse, rows)


def _positions(warehouse: Warehouse, feed: Feed, keys: TypedKeys) -> dict[int, str]:
    """By number of the key the position of its row, as JSON; of one without a row, below which it was purged."""
    table = warehouse.read(f"silver.{feed.name}").join(F.broadcast(keys.rows), on=[*feed.keys], how="inner")
    found = {row[NUMBER]: row["at"] for row in table.select(NUMBER, F.to_json("_position").alias("at")).collect()}
    purged = history(feed, [], read_state(warehouse, feed.source)).highest_cutoffs(PURGED).get(None)
    if purged is not None:
        found = {**dict.fromkeys(range(1, len(keys.values) + 1), purged.position), **found}
    return found


def erase(warehouse: Warehouse, feed: Feed, keys: TypedKeys) -> None:
    """Remove the rows of these keys, their versions and their entries in quarantine. It may be repeated.

    Of the events of an outbox their ids stay, so that one that is sent again is known, without the key.
    """
    records = erased_records(warehouse, feed.source)
    assert records is not None  # noqa: S101 - they are written down first
    erased_rows = keys.rows.drop(NUMBER)
    entries = entries_of(warehouse.read(QUARANTINE.name), feed, keys, records)
    of_feed = entries.withColumns({"source": F.lit(feed.source), "feed": F.lit(feed.name)})
    _delete(warehouse, QUARANTINE.name, of_feed, [*OF_RECORD, "source", "feed"])
    if feed.envelope == "outbox":
        _forget_first_keys(warehouse, feed, records)
    # The deleted row goes last: without it the same command would not know that the row is deleted.
    for table in reversed(feed.silver_tables):
        _delete(warehouse, table, erased_rows, feed.keys)


def _delete(warehouse: Warehouse, table: str, keys: DataFrame, names: Sequence[str]) -> None:
    """A MERGE, and no DELETE: Delta writes the condition of a DELETE into the log, with its values."""
    if warehouse.read(table).join(F.broadcast(keys), on=[*names], how="left_semi").isEmpty():
        return
    same = " AND ".join(f"target.`{name}` = erased.`{name}`" for name in names)
    merge = warehouse.delta(table).alias("target").merge(F.broadcast(keys).alias("erased"), same)
    merge.whenMatchedDelete().execute()


def _forget_first_keys(warehouse: Warehouse, feed: Feed, records: DataFrame) -> None:
    known = warehouse.read(OUTBOX_EVENTS.name).where(F.col("first_key").isNotNull())
    at = F.broadcast(records.select(*OF_RECORD))
    if known.join(at, on=OF_RECORD, how="left_semi").isEmpty():
        return
    same = [f"target.source = '{feed.source}'", *[f"target.{name} = erased.{name}" for name in OF_RECORD]]
    merge = warehouse.delta(OUTBOX_EVENTS.name).alias("target").merge(at.alias("erased"), " AND ".join(same))
    merge.whenMatchedUpdate(set={"first_key": "NULL"}).execute()


def sample_texts(feeds: Sequence[Feed], keys: TypedKeys, contracts: Contracts) -> DataFrame:
    """One row: `texts`, what `quality.results` calls these rows in samples of keys; `feeds`, of which tables."""
    texts = [",".join(map(str, key)) for key in keys.values]
    prefixes = [one.prefix for one in contracts.gold.sources.values() if feeds[0].name in one.feeds]
    texts += [f"{prefix}-{key[0]}" for prefix in prefixes for key in keys.values]
    row = pa.table({"texts": [texts], "feeds": [[feed.name for feed in feeds]]})
    return keys.rows.sparkSession.createDataFrame(row)


def samples_of(results: DataFrame, sample: DataFrame) -> DataFrame:
    """The rows of `quality.results` with one of these keys in their samples. `sample`: `sample_texts`."""
    return results.alias("target").join(F.broadcast(sample).alias("erased"), on=F.expr(_IS_SAMPLED), how="left_semi")


def erase_samples(warehouse: Warehouse, sample: DataFrame) -> None:
    """Take the keys out of the samples of `quality.results`. It may be repeated."""
    if samples_of(warehouse.read(RESULTS.name), sample).isEmpty():
        return
    merge = warehouse.delta(RESULTS.name).alias("target").merge(F.broadcast(sample).alias("erased"), _IS_SAMPLED)
    merge.whenMatchedUpdate(set={"sample_keys": "array_except(target.sample_keys, erased.texts)"}).execute()


# Gold's results are of no feed: their keys are composite ones.
_IS_SAMPLED = """
    (target.feed IS NULL OR array_contains(erased.feeds, target.feed))
    AND arrays_overlap(target.sample_keys, erased.texts)
"""
