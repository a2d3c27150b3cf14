"""The changelog: which changes may pass the gate, what they are worth, and the last word on every key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.quality.arguments import columns_asked, reason
from lakehouse.quality.row_rules import fails
from silver.batch.position import log_event_of, place_of
from silver.order.position import position_type
from silver.quarantine import DISCARDED, OF_RECORD, WAITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a silver row says of the event that it is from.
OF_LAST_EVENT = ("op", "source_ts", "topic", "partition", "offset")


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


def with_known_events(placed: DataFrame, feed: Feed, *, known: DataFrame) -> DataFrame:
    """The records with `repeats_event`: whether another record of the same `event_id` is the event's first occurrence.

    And with `is_known`: whether `known` names the event. The first occurrence is the change with the lowest position,
    or the record that `known` (event_id, topic, topic_id, partition, offset) names from earlier batches. A repeated
    batch finds its own records there, and they are no repetitions. Shards may have the same ids.
    """
    of_event = ["event_id", *(["topic"] if feed.is_sharded else [])]
    is_event = (F.col("kind") == "change") & F.col("event_id").isNotNull()
    # A topic that was made again begins at offset 0 again, and a router may give an event the time of its row.
    at = F.struct("position", "topic_id")
    first_here = F.min(F.when(is_event, at)).over(Window.partitionBy(*of_event))
    record = F.struct(*OF_RECORD)
    first = known.select(*of_event, record.alias("known_at"))
    is_known_elsewhere = F.col("known_at").isNotNull() & (F.col("known_at") != record)
    is_repeated = is_event & ((at != first_here) | is_known_elsewhere)
    return (
        placed.join(first, on=of_event, how="left")
        .withColumn("repeats_event", F.coalesce(is_repeated, F.lit(False)))
        .withColumn("is_known", F.col("known_at").isNotNull())
        .drop("known_at")
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


def appended_outcomes(events: DataFrame, table: DataFrame) -> DataFrame:
    """What became of every change, truncate and tombstone of an append-only feed: the records with `outcome`.

    applied: the `table` has it. duplicate: it repeats another record.
    """
    rows = table.select(
        F.col("_event_id"), *[F.col(f"_{name}").alias(f"table_{name}") for name in ("topic", "partition", "offset")]
    )
    # Offsets begin again when a topic is made again: the events differ.
    with_rows = events.where("kind IN ('change', 'truncate', 'tombstone')").join(rows, on="_event_id", how="left")
    is_applied = "topic = table_topic AND partition = table_partition AND offset = table_offset"
    outcome = f"CASE WHEN kind = 'tombstone' THEN kind WHEN {is_applied} THEN 'applied' ELSE 'duplicate' END"
    return with_rows.withColumn("outcome", F.expr(outcome))


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
