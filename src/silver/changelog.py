"""The changelog: which changes may pass the gate, what they are worth, and the last word on every key."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts import Expectation, Feed
from lakehouse.expectations import fails
from lakehouse.rule_arguments import columns_asked, reason
from silver.cells import cell_folds, cell_values, cells_of
from silver.position import at_offset, place_of, position_type, same_place
from silver.quarantine import DISCARDED, WAITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a silver row says of the event that it is from.
OF_LAST_EVENT = ("op", "source_ts", "topic", "partition", "offset")


# A condition, and what is said where it holds.
Found = tuple["Column", "Column"]
_TEXTS = "array<string>"


def judged(
    changes: DataFrame,
    expectations: Sequence[Expectation],
    *,
    keys: Sequence[str],
    has_position: Column,
    row: str = "row",
    is_own: Column | None = None,
) -> DataFrame:
    """The same records with `is_judged`, `failed_rules` (names) and the final `kind`.

    A change becomes `quarantined` when a value did not fit, when it has no position, or when it fails a rule with
    another `on_failure` than `warn`, unless a person has released it; and when its `decision` is that it was discarded,
    or that it waits although it is read again. An unreadable record always, a truncate without a position too.
    `problems` holds every reason. No rule is asked about a delete, nor about columns that the event does not tell
    (`untold`). `keys`: the columns that tell rows apart; none where every change is one.

    `row`: the column with the rows that the rules are about. `is_own`: which records they are about; default: all. The
    others stay as they are: records of several feeds are judged one feed after the other, in one pass.
    """
    own = F.lit(True) if is_own is None else is_own
    if "is_judged" not in changes.columns:
        changes = changes.withColumns({"is_judged": F.lit(False), "failed_rules": F.array().cast(_TEXTS)})
    # Conditions in SQL name the columns of the row, whatever else a record has under the same names.
    apart = changes.select(F.struct("*").alias("_record"), own.alias("_is_own"), f"{row}.*")
    asked = F.col("_is_own") & (F.col("_record.kind") == "change") & ~F.col("_record.is_delete")
    told_by = keys or [f"_record.{name}" for name in ("topic", "partition", "offset")]
    of_row = changes.select(f"{row}.*").columns

    def is_asked(rule: Expectation) -> Column:
        untold = [F.array_contains("_record.untold", c) for c in columns_asked(rule, of_row) if c not in keys]
        return reduce(operator.and_, [asked, *[~is_untold for is_untold in untold]])

    failing = [f"_fails_{number}" for number in range(len(expectations))]
    verdicts = [fails(rule, keys=told_by, is_judged=is_asked(rule)) for rule in expectations]
    named = [verdict.alias(name) for verdict, name in zip(verdicts, failing, strict=True)]
    with_rules = apart.select("_record.*", "_is_own", asked.alias("_is_asked"), *named)
    is_failed = [(rule, F.col(name)) for rule, name in zip(expectations, failing, strict=True)]
    is_applied = F.col("kind").isin("change", "truncate")
    is_released = F.col("decision").eqNullSafe("released")
    reasons = [
        (is_applied & ~has_position, F.lit("The record has no source position.")),
        (is_applied & (F.col("decision") == "discarded"), F.lit(DISCARDED)),
        (is_applied & (F.col("decision") == "waits"), F.lit(WAITS)),
        *[(is_failing & ~is_released, F.lit(reason(r))) for r, is_failing in is_failed if r.on_failure != "warn"],
    ]
    must_wait = (F.col("kind") == "unreadable") | (is_applied & (F.size("problems") > 0))
    failed = _present([(is_failing, F.lit(rule.name)) for rule, is_failing in is_failed])
    return (
        with_rules.withColumns(
            {
                "is_judged": F.col("is_judged") | F.col("_is_asked"),
                "failed_rules": F.when(F.col("_is_own"), failed).otherwise(F.col("failed_rules")),
                "problems": F.when(F.col("_is_own"), F.concat("problems", _present(reasons))).otherwise(
                    F.col("problems")
                ),
            }
        )
        .withColumn("kind", F.when(F.col("_is_own") & must_wait, "quarantined").otherwise(F.col("kind")))
        .drop("_is_own", "_is_asked", *failing)
    )


def _present(found: Sequence[Found]) -> Column:
    """ARRAY<STRING>: the texts whose condition holds, in order.

    Spark interprets what takes NULLs out of an array, and all that stands in it; so only where some condition holds.
    """
    if not found:
        return F.array().cast(_TEXTS)
    some = reduce(operator.or_, [condition for condition, _text in found])
    texts = F.array_compact(F.array(*[F.when(condition, text) for condition, text in found]))
    return F.when(some, texts).otherwise(F.array()).cast(_TEXTS)


def deleting_tombstones(placed: DataFrame, table: DataFrame, feed: Feed, *, ends: DataFrame) -> DataFrame:
    """topic, topic_id, partition, offset and position (`deletes_at`) of tombstones that no delete precedes.

    Compaction leaves of a deleted key its tombstone alone, and flattened topics may have no other deletes. Such a
    delete stands right behind the highest place that an earlier record of the key has, in the batch or in the silver
    `table`: the record just before it may be a replayed one.
    `ends`: topic, topic_id, partition, last_key (xxhash64) and last_is_delete of the record before the batch.
    """
    of_key = (
        Window.partitionBy("topic", "topic_id", "partition", "key")
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    is_tombstone = F.col("kind") == "tombstone"
    is_said = F.col("kind").isin("change", "quarantined")
    keys = list(feed.keys)
    with_key = reduce(operator.and_, [F.col(f"_key_{key}").isNotNull() for key in keys])
    of_record = ("topic", "topic_id", "partition", "offset")
    # All records of these keys are sorted: without what is not asked for.
    of_row = [F.col(f"row.{key}").alias(f"_key_{key}") for key in keys]
    narrow = placed.select(*of_record, "key", "kind", "is_delete", "position", *of_row)
    tombstones = narrow.where(is_tombstone & with_key).select("topic", "topic_id", "partition", "key").distinct()
    before = (
        narrow.join(tombstones, on=["topic", "topic_id", "partition", "key"], how="left_semi")
        .withColumns(
            {
                "follows_delete": F.last(F.when(is_said, F.col("is_delete")), ignorenulls=True).over(of_key),
                "highest_before": F.max(F.when(is_said, F.col("position"))).over(of_key),
            }
        )
        .where(is_tombstone & with_key & ~F.coalesce("follows_delete", F.lit(False)))
        .join(F.broadcast(ends), on=["topic", "topic_id", "partition"], how="left")
    )
    is_own = F.col("follows_delete").isNull() & (F.col("last_key") == F.xxhash64("key")) & F.col("last_is_delete")
    rows = table.select(
        *[F.col(key).alias(f"_row_{key}") for key in keys],
        F.col("_topic").alias("_table_topic"),
        F.col("_partition").alias("_table_partition"),
        F.col("_offset").alias("_table_offset"),
        F.col("_position").alias("_table_position"),
        F.col("_is_deleted").alias("_table_is_deleted"),
    )
    same_row = reduce(operator.and_, [F.col(f"_key_{key}") == F.col(f"_row_{key}") for key in keys])
    is_earlier = (
        (F.col("_table_topic") == F.col("topic"))
        & (F.col("_table_partition") == F.col("partition"))
        & (F.col("_table_offset") < F.col("offset"))
        & ~F.col("_table_is_deleted")
    )
    found = before.where(~F.coalesce(is_own, F.lit(False))).join(rows, on=same_row & is_earlier, how="left")
    if feed.sequence_by == "kafka_offset":
        position = F.col("position")
    else:
        position = at_offset(F.greatest("highest_before", "_table_position"), F.col("offset"), feed)
    # A batch may hold a record twice.
    deletes = found.groupBy(*of_record).agg(F.max(position).alias("deletes_at"))
    return deletes.where(F.col("deletes_at").isNotNull())


def with_tombstones(placed: DataFrame, deletes: DataFrame) -> DataFrame:
    """The records, with these tombstones (`deleting_tombstones`) as deletes: `is_tombstone`."""
    is_delete = F.col("deletes_at").isNotNull()
    return (
        placed.join(deletes, on=["topic", "topic_id", "partition", "offset"], how="left")
        .withColumn("is_tombstone", is_delete)
        .withColumn("kind", F.when(is_delete, "change").otherwise(F.col("kind")))
        .withColumn("op", F.when(is_delete, "d").otherwise(F.col("op")))
        .withColumn("is_delete", F.col("is_delete") | is_delete)
        .withColumn("position", F.coalesce("deletes_at", "position"))
        .drop("deletes_at")
    )


def with_floors(placed: DataFrame, floor: Column) -> DataFrame:
    """The records with the `floor` of their shard, and whether they are older (`is_below_floor`)."""
    is_below = F.coalesce(F.col("position") < F.col("floor.position"), F.lit(False))
    return placed.withColumn("floor", floor).withColumn("is_below_floor", is_below)


def as_gone_below_floors(changes: DataFrame) -> DataFrame:
    """The changes, those below their floor as a delete by it: so a key that they name is known to be gone.

    Whether they come in one batch with the truncate, before it or after it, the table is the same.
    """
    below = F.col("is_below_floor")
    reason = F.when(F.col("floor.reason") == "truncate", "t").otherwise("r")
    instead = {
        "position": F.col("floor.position"),
        "is_delete": F.lit(True),
        "op": reason,
        "topic": F.col("floor.at_topic"),
        "partition": F.col("floor.at_partition"),
        "offset": F.col("floor.at_offset"),
        "source_ts": F.lit(None).cast("timestamp"),
    }
    return changes.withColumns({name: F.when(below, gone).otherwise(F.col(name)) for name, gone in instead.items()})


def with_repeated_events(placed: DataFrame, feed: Feed, *, known: DataFrame) -> DataFrame:
    """The records with `is_repeated`: whether another record of the same `event_id` is the event's first occurrence.

    That is the change with the lowest position, or the record that `known` (event_id, topic, partition, offset) names
    from earlier batches. A repeated batch finds its own records there, and they are no repetitions. Shards may have
    the same ids.
    """
    of_event = ["event_id", *(["topic"] if feed.is_sharded else [])]
    same_event = Window.partitionBy(*of_event)
    is_event = (F.col("kind") == "change") & F.col("event_id").isNotNull()
    first_here = F.min(F.when(is_event & ~F.col("is_below_floor"), F.col("position"))).over(same_event)
    first = known.select(*of_event, F.struct("topic", "partition", "offset").alias("known_at"))
    is_known_elsewhere = F.col("known_at").isNotNull() & (F.col("known_at") != F.struct("topic", "partition", "offset"))
    is_repeated = is_event & ((F.col("position") != first_here) | is_known_elsewhere)
    return (
        placed.join(first, on=of_event, how="left")
        .withColumn("is_repeated", F.coalesce(is_repeated, F.lit(False)))
        .drop("known_at")
    )


def latest_per_key(changes: DataFrame, feed: Feed) -> DataFrame:
    """The last word on every key: of its changes, the one with the highest position, as a silver row.

    One row a key: the contract's columns (of a delete, the keys only), `_position`, and what the row says of its
    event. A column that events may pass over has the last word on itself after the key's last delete. Positions are
    total: they end with the Kafka offset.
    """
    cells = cells_of(feed)
    keys = [F.col(f"row.{key}").alias(key) for key in feed.keys]
    said = F.struct("row", "position", "is_delete", *OF_LAST_EVENT)
    folded = changes.groupBy(*keys).agg(F.max_by(said, "position").alias("_last"), *cell_folds(feed))
    columns = [
        F.when(~F.col("_last.is_delete"), F.col(f"_last.row.{column}")).alias(column)
        for column in feed.columns
        if column not in cells and column not in feed.keys
    ]
    values = {**cell_values(feed)}
    return folded.select(
        *feed.keys,
        *columns,
        *[values.pop(column).alias(column) for column in cells],
        F.col("_last.position").alias("_position"),
        F.col("_last.is_delete").alias("_is_deleted"),
        *[F.col(f"_last.{name}").alias(f"_{name}") for name in OF_LAST_EVENT],
        *[value.alias(name) for name, value in values.items()],
    )


def list_of_changes(changes: DataFrame, feed: Feed) -> DataFrame:
    """The rows of an append-only table: one a change, `_event_id` first.

    A streamed change that a connector sends again is the same event: its coordinates and its row tell. Any other is
    told by its Kafka coordinates.
    """
    place = F.to_json(place_of(F.col("position"), feed))
    image = F.xxhash64("op", *[F.col(f"row.{column}") for column in feed.columns]).cast("string")
    is_told_by_source = F.col("position.streamed") == 1 if feed.sequence_by == "source_position" else F.lit(False)
    of_kafka = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    event_id = F.when(is_told_by_source, F.concat_ws(" ", "topic", place, image)).otherwise(of_kafka)
    said = F.struct("row", "position", *OF_LAST_EVENT)
    return (
        changes.groupBy(event_id.alias("_event_id"))
        .agg(F.min_by(said, F.struct("partition", "offset")).alias("_first"))
        .select(
            "_event_id",
            *[F.col(f"_first.row.{column}").alias(column) for column in feed.columns],
            F.col("_first.position").alias("_position"),
            F.lit(False).alias("_is_deleted"),
            *[F.col(f"_first.{name}").alias(f"_{name}") for name in OF_LAST_EVENT],
        )
    )


def outcomes(placed: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """What became of every change, truncate and tombstone: the records with `outcome`, and `now`, the row of their key
    that the silver `table` has.

    applied: the table's row, or a cell of it, is this record's; or the record has emptied the table. duplicate: the
    record repeats what was told, under another offset. superseded: something later was said. A tombstone is one unless
    it has deleted the row itself. quarantined: it is known to be damaged.
    """
    cells = cells_of(feed)
    of_row = ["_position", "_topic", "_partition", "_offset"]
    of_row += ["_cell_positions", "_deleted_position"] if cells else []
    of_table = F.struct(*of_row).alias("now")
    if feed.append_only:
        rows = table.select(F.col("_topic").alias("table_topic"), of_table)
        is_row = (F.col("topic") == F.col("now._topic")) & (F.col("partition") == F.col("now._partition"))
        same_row = is_row & (F.col("offset") == F.col("now._offset"))
    else:
        keys = list(feed.keys)
        rows = table.select(*[F.col(key).alias(f"table_{key}") for key in keys], of_table)
        same_row = reduce(operator.and_, [F.col(f"row.{key}") == F.col(f"table_{key}") for key in keys])
    is_change, is_truncate = F.col("kind") == "change", F.col("kind") == "truncate"
    in_play = F.col("kind").isin("change", "truncate") & ~F.col("is_below_floor") & ~F.col("is_repeated")
    is_applied = F.coalesce(F.col("position") == F.col("now._position"), F.lit(False))
    if feed.append_only:
        is_applied = F.col("now").isNotNull()
    for cell in cells:
        said_here = F.col("position") == F.col(f"now._cell_positions.{cell}")
        is_applied = is_applied | F.coalesce(said_here, F.lit(False))
    repeats = F.lit(feed.append_only)
    if feed.sequence_by == "source_position" and not feed.append_only:
        repeats = F.expr(same_place("position", "now._position", feed))
    is_told = F.col("is_replay") | F.col("is_repeated") | F.coalesce(repeats, F.lit(False))
    outcome = (
        F.when(F.col("kind") == "damaged", "quarantined")
        .when(F.col("kind") == "tombstone", "tombstone")
        .when(in_play & (is_applied | F.lit(not feed.append_only) & is_truncate & ~F.col("is_replay")), "applied")
        .when(F.col("is_tombstone"), "tombstone")
        .when(is_told, "duplicate")
        .otherwise(F.lit("superseded"))
    )
    told = placed.where(F.col("kind").isin("change", "truncate", "tombstone", "damaged"))
    has_row = F.col("kind").isin("change", "truncate") if feed.append_only else is_change
    return told.join(rows, on=has_row & same_row, how="left").withColumn("outcome", outcome)


def keys_across_partitions(events: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """The keys whose events came from more than one topic-partition, where only timestamps can tell their order.

    `table`: the rows of their keys in the feed's silver table before these events.
    """
    place = F.struct(F.col("topic").alias("topic"), F.col("partition").alias("partition"))
    keys = list(feed.keys)
    of_events = events.select(*[F.col(f"row.{key}").alias(key) for key in keys], place.alias("_place")).distinct()
    of_table = table.join(of_events.select(*keys).distinct(), on=keys, how="left_semi").select(
        *keys, F.struct(F.col("_topic").alias("topic"), F.col("_partition").alias("partition")).alias("_place")
    )
    return (
        of_events.unionByName(of_table)
        .groupBy(*keys)
        .agg(F.count_distinct("_place").alias("_places"))
        .where(F.col("_places") > 1)
        .select(*keys)
    )


def position_from(text: str, feed: Feed) -> Column:
    """A position from its JSON text."""
    return F.from_json(F.lit(text), position_type(feed))
