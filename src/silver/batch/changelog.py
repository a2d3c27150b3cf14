"""The changelog: which changes may pass the gate, what they are worth, and the last word on every key."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.quality.arguments import columns_asked, reason
from lakehouse.quality.row_rules import fails
from silver.batch.column_versions import version_folds, version_values
from silver.batch.merge import cutoff_type
from silver.batch.position import log_event_of, place_of, same_place
from silver.order.column_versions import versioned_columns
from silver.order.position import position_type
from silver.order.runs import Cutoff
from silver.quarantine import DISCARDED, OF_RECORD, WAITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a silver row says of the event that it is from.
OF_LAST_EVENT = ("op", "source_ts", "topic", "partition", "offset")


# The record before a batch, in every topic-partition.
ENDS = "topic STRING, topic_id STRING, partition INT, last_key BIGINT, last_is_delete BOOLEAN"
# SQL: a condition, and the text where it is true.
Found = tuple[str, str]
_TEXTS = "ARRAY<STRING>"


def judged(
    changes: DataFrame,
    expectations: Sequence[Expectation],
    *,
    keys: Sequence[str],
    has_position: str,
    row: str = "row",
    is_own: str = "true",
) -> DataFrame:
    """The same records with `is_judged`, `failed_rules` (names), `is_unread` (it, or a value of it, cannot be read) and
    the final `kind`.

    A change becomes `quarantined` when a value did not fit, when it has no position, or when it fails a rule with
    another `on_failure` than `warn`, unless a person has released it; and when its `decision` is that it was discarded,
    or that it is pending although it is read again. An unreadable record always, a truncate without a position too.
    `problems` has every reason. No rule judges a delete, nor columns whose value the event does not state (`untold`).
    `keys`: the columns that identify a row; none where every change is one.

    `has_position`, `is_own`: SQL. `row`: the column with the rows that the rules are about. `is_own`: which records
    they are about. The others stay as they are: records of several feeds are judged one feed after the other, in one
    pass.
    """
    if "is_judged" not in changes.columns:
        changes = changes.selectExpr("*", "false AS is_judged", f"{_NONE} AS failed_rules", "false AS is_unread")
    # Conditions in SQL name the columns of the row, whatever else a record has under the same names.
    apart = changes.selectExpr("struct(*) AS _record", f"{is_own} AS _is_own", f"{row}.*")
    asked = "_is_own AND _record.kind = 'change' AND NOT _record.is_delete"
    told_by = keys or [f"_record.{name}" for name in ("topic", "partition", "offset")]
    of_row = [name for name in apart.columns if name not in ("_record", "_is_own")]

    def is_asked(rule: Expectation) -> Column:
        told = [f"NOT array_contains(_record.untold, '{c}')" for c in columns_asked(rule, of_row) if c not in keys]
        return F.expr(" AND ".join([asked, *told]))

    failing = [f"_fails_{number}" for number in range(len(expectations))]
    verdicts = [fails(rule, keys=told_by, is_judged=is_asked(rule)) for rule in expectations]
    named = [verdict.alias(name) for verdict, name in zip(verdicts, failing, strict=True)]
    with_rules = apart.select("_record.*", "_is_own", F.expr(f"{asked} AS _is_asked"), *named)
    is_applied = "kind IN ('change', 'truncate')"
    is_released = "decision <=> 'released'"
    rules = list(zip(expectations, failing, strict=True))
    holds_back = [(rule, name) for rule, name in rules if rule.on_failure != "warn"]
    reasons = [
        (f"{is_applied} AND NOT ({has_position})", _text("The record has no source position.")),
        (f"{is_applied} AND decision = 'discarded'", _text(DISCARDED)),
        (f"{is_applied} AND decision = 'pending'", _text(WAITS)),
        *[(f"{name} AND NOT ({is_released})", _text(reason(rule))) for rule, name in holds_back],
    ]
    failed = _present([(name, _text(rule.name)) for rule, name in rules])
    # What nobody has decided about.
    is_unread = f"decision IS NULL AND (kind = 'unreadable' OR ({is_applied} AND size(problems) > 0))"
    must_wait = f"kind = 'unreadable' OR ({is_applied} AND size(problems) > 0)"
    return (
        with_rules.withColumns(
            {
                "is_judged": F.expr("is_judged OR _is_asked"),
                "is_unread": F.expr(f"IF(_is_own, {is_unread}, is_unread)"),
                "failed_rules": F.expr(f"IF(_is_own, {failed}, failed_rules)"),
                "problems": F.expr(f"IF(_is_own, concat(problems, {_present(reasons)}), problems)"),
            }
        )
        .withColumn("kind", F.expr(f"IF(_is_own AND ({must_wait}), 'quarantined', kind)"))
        .drop("_is_own", "_is_asked", *failing)
    )


def _present(found: Sequence[Found]) -> str:
    """SQL: the texts whose condition is true, in order.

    Spark interprets what takes NULLs out of an array, and all that is in it; so only where some condition is true.
    """
    if not found:
        return _NONE
    some = " OR ".join(f"coalesce({condition}, false)" for condition, _said in found)
    texts = ", ".join(f"IF({condition}, {said}, NULL)" for condition, said in found)
    return f"IF({some}, CAST(array_compact(array({texts})) AS {_TEXTS}), {_NONE})"


def _text(said: str) -> str:
    """SQL: the text as a literal."""
    escaped = said.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_NONE = f"CAST(array() AS {_TEXTS})"


def deleting_tombstones(placed: DataFrame, feed: Feed, *, ends: DataFrame) -> DataFrame:
    """topic, topic_id, partition, offset and position (`deletes_at`) of tombstones that no delete precedes: of a feed
    that goes by Kafka's offsets, where each is a delete at its own position.

    `ends`: topic, topic_id, partition, last_key (xxhash64) and last_is_delete of the record before the batch.
    """
    of_key = (
        Window.partitionBy("topic", "topic_id", "partition", "key")
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    follows_delete = F.last(F.when(F.expr(_IS_STATED), F.col("is_delete")), ignorenulls=True).over(of_key)
    before = (
        _of_tombstones(placed, feed)
        .withColumn("follows_delete", follows_delete)
        .where((F.col("kind") == "tombstone") & ~F.coalesce("follows_delete", F.lit(False)))
        .join(F.broadcast(ends), on=["topic", "topic_id", "partition"], how="left")
    )
    is_own = F.col("follows_delete").isNull() & (F.col("last_key") == F.xxhash64("key")) & F.col("last_is_delete")
    # A batch may have a record twice.
    return (
        before.where(~F.coalesce(is_own, F.lit(False)))
        .groupBy("topic", "topic_id", "partition", "offset")
        .agg(F.max("position").alias("deletes_at"))
    )


def lone_tombstones(placed: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """topic, partition, offset and key of the tombstones that may delete their key: they are not just behind a delete
    that is the last word of their run, and the key is live, in the batch before them or in the silver `table`.

    What they come to the fold says (silver.order.fold), from all records of the key.
    """
    of_record = Window.partitionBy("topic", "topic_id", "partition", "key").orderBy("offset")
    before = of_record.rowsBetween(Window.unboundedPreceding, -1)
    of_run = Window.partitionBy("topic", "topic_id", "partition", "key", "run_id").orderBy("offset")
    of_run = of_run.rowsBetween(Window.unboundedPreceding, -1)
    last = F.struct("position", "offset", "is_delete")
    found = (
        _of_tombstones(placed, feed)
        .withColumns(
            {
                "of_run": F.max(F.when(F.expr(f"{_IS_STATED} AND position IS NOT NULL"), last)).over(of_run),
                "is_stated": F.max(F.expr(f"{_IS_STATED} AND NOT is_delete")).over(before),
            }
        )
        .where("kind = 'tombstone' AND NOT coalesce(of_run.is_delete AND of_run.offset = offset - 1, false)")
    )
    rows = table.where(~F.col("_is_deleted")).select(
        *[F.col(key).alias(f"_row_{key}") for key in feed.keys],
        F.col("_topic").alias("_table_topic"),
        F.col("_partition").alias("_table_partition"),
        F.col("_offset").alias("_table_offset"),
    )
    same_row = reduce(operator.and_, [F.col(f"_key_{key}") == F.col(f"_row_{key}") for key in feed.keys])
    is_earlier = (
        (F.col("_table_topic") == F.col("topic"))
        & (F.col("_table_partition") == F.col("partition"))
        & (F.col("_table_offset") < F.col("offset"))
    )
    with_rows = found.join(rows, on=same_row & is_earlier, how="left")
    is_known = F.coalesce("is_stated", F.lit(False)) | F.col("_table_offset").isNotNull()
    return with_rows.where(is_known).select("topic", "partition", "offset", "key")


def _of_tombstones(placed: DataFrame, feed: Feed) -> DataFrame:
    """All records of the keys of tombstones, without what is not asked for: they are sorted."""
    of_key = ["topic", "topic_id", "partition", "key"]
    keys = {f"_key_{key}": F.col(f"row.{key}") for key in feed.keys}
    of_record = (*of_key, "offset", "run_id", "kind", "is_delete", "position")
    narrow = placed.select(*of_record, *[value.alias(name) for name, value in keys.items()])
    with_key = reduce(operator.and_, [F.col(name).isNotNull() for name in keys])
    tombstones = narrow.where((F.col("kind") == "tombstone") & with_key).select(*of_key).distinct()
    return narrow.join(tombstones, on=of_key, how="left_semi")


_IS_STATED = "kind IN ('change', 'quarantined')"


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


def highest_cutoff(cutoffs: Mapping[str, Cutoff], feed: Feed) -> Column:
    """The cutoff of a placed record's shard (`cutoff_type`), of `History.cutoff_by_shard`; NULL without one."""
    kind = cutoff_type(feed)
    if not cutoffs:
        return F.lit(None).cast(kind)
    by_shard = json.dumps({shard: one.as_json() for shard, one in cutoffs.items()})
    shard = F.col("topic") if feed.is_sharded else F.lit("")
    return F.try_element_at(F.from_json(F.lit(by_shard), f"MAP<STRING, {kind}>"), shard)


def with_cutoffs(placed: DataFrame, cutoff: Column) -> DataFrame:
    """The records with the `cutoff` of their shard, and whether they are older (`is_below_cutoff`)."""
    is_below = F.expr("coalesce(position < cutoff.position, false)")
    return placed.withColumn("cutoff", cutoff).withColumn("is_below_cutoff", is_below)


def as_gone_below_cutoffs(changes: DataFrame) -> DataFrame:
    """The changes, those below their cutoff as a delete by it: so a key that they name is known to be gone.

    Whether they come in one batch with the truncate, before it or after it, the table is the same.
    """
    instead = {
        "position": "cutoff.position",
        "is_delete": "true",
        "op": "IF(cutoff.reason = 'truncate', 't', 'r')",
        "topic": "cutoff.at_topic",
        "partition": "cutoff.at_partition",
        "offset": "cutoff.at_offset",
        "source_ts": "CAST(NULL AS TIMESTAMP)",
    }
    return changes.withColumns({name: F.expr(f"IF(is_below_cutoff, {gone}, {name})") for name, gone in instead.items()})


def with_repeated_events(placed: DataFrame, feed: Feed, *, known: DataFrame) -> DataFrame:
    """The records with `is_repeated`: whether another record of the same `event_id` is the event's first occurrence.

    And with `is_known`: whether `known` names the event. The first occurrence is the change with the lowest position,
    or the record that `known` (event_id, topic, topic_id, partition, offset) names from earlier batches. A repeated
    batch finds its own records there, and they are no repetitions. Shards may have the same ids.
    """
    of_event = ["event_id", *(["topic"] if feed.is_sharded else [])]
    same_event = Window.partitionBy(*of_event)
    is_event = (F.col("kind") == "change") & F.col("event_id").isNotNull()
    # A topic that was made again begins at offset 0 again, and a router may give an event the time of its row.
    at = F.struct("position", "topic_id")
    first_here = F.min(F.when(is_event & ~F.col("is_below_cutoff"), at)).over(same_event)
    record = F.struct(*OF_RECORD)
    first = known.select(*of_event, record.alias("known_at"))
    is_known_elsewhere = F.col("known_at").isNotNull() & (F.col("known_at") != record)
    is_repeated = is_event & ((at != first_here) | is_known_elsewhere)
    return (
        placed.join(first, on=of_event, how="left")
        .withColumn("is_repeated", F.coalesce(is_repeated, F.lit(False)))
        .withColumn("is_known", F.col("known_at").isNotNull())
        .drop("known_at")
    )


def latest_per_key(changes: DataFrame, feed: Feed) -> DataFrame:
    """The last word on every key: of its changes, the one with the highest position, as a silver row.

    One row a key: the contract's columns (of a delete, the keys only), `_position`, and what the row says of its
    event. A column that events may pass over has its own last word, after the key's last delete. Positions are total:
    they end with the Kafka offset.
    """
    versioned = versioned_columns(feed)
    keys = [F.expr(f"row.`{key}` AS `{key}`") for key in feed.keys]
    last = f"max_by(struct(row, position, is_delete, {', '.join(OF_LAST_EVENT)}), position) AS _last"
    folded = changes.groupBy(*keys).agg(F.expr(last), *version_folds(feed))
    columns = [
        f"IF(NOT _last.is_delete, _last.row.`{column}`, NULL) AS `{column}`"
        for column in feed.columns
        if column not in versioned and column not in feed.keys
    ]
    values = {**version_values(feed)}
    return folded.selectExpr(
        *[f"`{key}`" for key in feed.keys],
        *columns,
        *[f"{values.pop(column)} AS `{column}`" for column in versioned],
        "_last.position AS _position",
        "_last.is_delete AS _is_deleted",
        *[f"_last.{name} AS _{name}" for name in OF_LAST_EVENT],
        *[f"{value} AS {name}" for name, value in values.items()],
    )


def with_event_ids(changes: DataFrame, feed: Feed, *, earlier: DataFrame | None = None) -> DataFrame:
    """The placed records of an append-only feed with `_event_id`, which a change has again when it is sent again.

    A streamed change is identified by its log coordinates, its operation and its row, and by its number among those
    that are equal in all of it and that its connector run has sent one behind the other: rows that one COPY writes
    share an LSN, and may be equal. A run that sends them again numbers them again, and so does what falls behind in its
    own run. Any other change is identified by its Kafka coordinates.

    `earlier`: placed records of earlier batches, of runs that may have sent some of these (`EQUAL`); None without.
    """
    of_kafka = "concat_ws('/', topic, nullif(topic_id, ''), CAST(partition AS STRING), CAST(offset AS STRING))"
    if feed.sequence_by == "kafka_offset":
        return changes.withColumn("_event_id", F.expr(of_kafka))
    own = _with_equals(changes, feed, of_kafka).withColumn("_is_new", F.lit(True))
    if earlier is None:
        numbered = _numbered(own)
    else:
        new = own.select(*EQUAL)
        known = _with_equals(earlier, feed, of_kafka).withColumn("_is_new", F.lit(False)).select(*EQUAL)
        rows = new.unionByName(known.join(new, on=OF_RECORD, how="left_anti"))
        numbers = _numbered(rows).where("_is_new").select(*OF_RECORD, "_number").distinct()
        numbered = own.join(numbers, on=OF_RECORD, how="inner")
    event_id = "IF(_number = 1, _equal, concat_ws(' ', _equal, CAST(_number AS STRING)))"
    return numbered.withColumn("_event_id", F.expr(event_id)).drop("_equal", "_log", "_is_new", "_falls", "_number")


# What tells equal changes apart: `_equal` is the same text for all of them, `_log` where they are in the source's log.
EQUAL = (*OF_RECORD, "run_id", "_equal", "_log", "_is_new")


def _with_equals(changes: DataFrame, feed: Feed, of_kafka: str) -> DataFrame:
    # What says where a record comes from differs in a change that is sent again.
    of_row = [f"row.`{name}`" for name, column in feed.columns.items() if column.metadata is None]
    image = f"CAST(xxhash64({', '.join(['op', *of_row])}) AS STRING)"
    of_source = f"concat_ws(' ', topic, to_json({place_of('position', feed)}), {image})"
    is_of_log = "kind IN ('change', 'truncate') AND coalesce(position.streamed = 1, false)"
    return changes.withColumns(
        {
            "_equal": F.expr(f"IF({is_of_log}, {of_source}, {of_kafka})"),
            "_log": F.expr(f"IF({is_of_log}, {log_event_of('position', feed)}, NULL)"),
        }
    )


def _numbered(changes: DataFrame) -> DataFrame:
    """The changes (EQUAL) with `_number`, from 1 on; those of earlier batches first, whatever their partitions.

    What comes again behind later changes of its run and partition is numbered by itself. A record may be there twice,
    and has one number.
    """
    of_run = Window.partitionBy("topic", "topic_id", "partition", "run_id").orderBy("offset")
    before = F.last("_log", ignorenulls=True).over(of_run.rowsBetween(Window.unboundedPreceding, -1))
    of_place = Window.partitionBy(
        "topic", "topic_id", "partition", "run_id", F.coalesce(F.to_json("_log"), F.col("_equal"))
    )
    comes_again = F.col("_falls") > F.min("_falls").over(of_place)
    in_order = Window.partitionBy("run_id", "_falls", "_equal").orderBy("_is_new", "topic_id", "partition", "offset")
    return (
        changes.withColumn("_falls", F.coalesce(F.col("_log") < before, F.lit(False)))
        .withColumn("_falls", F.count_if("_falls").over(of_run))
        .withColumn("_falls", F.when(comes_again, F.col("_falls")).otherwise(0))
        .withColumn("_number", F.dense_rank().over(in_order))
    )


def list_of_changes(changes: DataFrame, feed: Feed) -> DataFrame:
    """The rows of an append-only table: one an event (`with_event_ids`), `_event_id` first."""
    first = f"min_by(struct(row, position, {', '.join(OF_LAST_EVENT)}), struct(partition, offset)) AS _first"
    return (
        changes.groupBy("_event_id")
        .agg(F.expr(first))
        .selectExpr(
            "_event_id",
            *[f"_first.row.`{column}` AS `{column}`" for column in feed.columns],
            "_first.position AS _position",
            "false AS _is_deleted",
            *[f"_first.{name} AS _{name}" for name in OF_LAST_EVENT],
        )
    )


def outcomes(placed: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """What became of every change, truncate and tombstone: the records with `outcome`, and `now`, the row of their key
    that the silver `table` has.

    applied: the table's row, or a column version of it, is this record's; or the record has emptied the table.
    duplicate: the record repeats an earlier one, under another offset. superseded: a later change, or a cutoff, is
    above it. A tombstone is one unless it has deleted the row itself. quarantined: it is known to be damaged.
    """
    versioned = versioned_columns(feed)
    of_row = ["_position", "_is_deleted", "_topic", "_partition", "_offset"]
    of_row += ["_column_versions", "_deleted_position"] if versioned else []
    now = f"struct({', '.join(of_row)}) AS now"
    if feed.append_only:
        # Offsets begin again when a topic is made again: the events differ.
        rows = table.selectExpr("_event_id AS table_event", now)
        same_row = (
            "_event_id = table_event AND topic = now._topic AND partition = now._partition AND offset = now._offset"
        )
    else:
        rows = table.selectExpr(*[f"`{key}` AS `table_{key}`" for key in feed.keys], now)
        same_row = " AND ".join(f"row.`{key}` = `table_{key}`" for key in feed.keys)
    said = [f"position = now._column_versions.`{cell}`" for cell in versioned]
    is_applied = " OR ".join(f"coalesce({one}, false)" for one in ("position = now._position", *said))
    repeats = "false"
    if feed.append_only:
        is_applied, repeats = "now IS NOT NULL", "true"
    elif feed.sequence_by == "source_position":
        repeats = f"coalesce({same_place('position', 'now._position', feed)}, false)"
    empties = "false" if feed.append_only else "kind = 'truncate' AND NOT is_replay"
    in_play = "kind IN ('change', 'truncate') AND NOT is_below_cutoff AND NOT is_repeated"
    outcome = f"""
        CASE WHEN kind = 'damaged' THEN 'quarantined'
             WHEN kind = 'tombstone' THEN 'tombstone'
             WHEN {in_play} AND ({is_applied} OR {empties}) THEN 'applied'
             WHEN is_tombstone THEN 'tombstone'
             WHEN is_replay OR is_repeated OR {repeats} THEN 'duplicate'
             ELSE 'superseded' END
    """
    told = placed.where("kind IN ('change', 'truncate', 'tombstone', 'damaged')")
    has_row = "kind IN ('change', 'truncate')" if feed.append_only else "kind = 'change'"
    return told.join(rows, on=F.expr(f"{has_row} AND {same_row}"), how="left").withColumn("outcome", F.expr(outcome))


def keys_across_partitions(events: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """The keys whose events came from more than one topic-partition, where only timestamps can order them.

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
