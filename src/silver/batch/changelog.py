"""The changelog: which changes may pass the gate, what they are worth, and the last word on every key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.quality.arguments import columns_asked, reason
from lakehouse.quality.row_rules import fails
from silver.decode.drift import BY_POLICY
from silver.order.position import position_type
from silver.rejects.quarantine import DECISION_PENDING, DISCARDED, OF_RECORD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    `problems` has every reason. No rule judges a delete, nor columns whose value the event does not state
    (`unsent_columns`). `keys`: the columns that identify a row; none where every change is one.

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
        change_events = [
            f"NOT array_contains(_record.unsent_columns, '{c}')" for c in columns_asked(rule, of_row) if c not in keys
        ]
        return F.expr(" AND ".join([asked, *change_events]))

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
        (f"{is_applied} AND decision = 'pending'", _text(DECISION_PENDING)),
        *[(f"{name} AND NOT ({is_released})", _text(reason(rule))) for rule, name in holds_back],
    ]
    failed = _present([(name, _text(rule.name)) for rule, name in rules])
    # What nobody has decided about.
    # A change of the table's columns is none: its contract says that such records go to quarantine.
    others = f"size(problems) = 0 OR exists(problems, one -> NOT endswith(one, '{BY_POLICY}'))"
    cannot_be_read = f"(kind = 'unreadable' AND ({others})) OR ({is_applied} AND size(problems) > 0 AND ({others}))"
    is_unread = f"decision IS NULL AND ({cannot_be_read})"
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
    texts = ", ".join(f"IF({condition}, {sentence}, NULL)" for condition, sentence in found)
    return f"IF({some}, CAST(array_compact(array({texts})) AS {_TEXTS}), {_NONE})"


def _text(sentence: str) -> str:
    """SQL: the text as a literal."""
    escaped = sentence.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_NONE = f"CAST(array() AS {_TEXTS})"


def with_known_events(positioned: DataFrame, feed: Feed, *, known: DataFrame) -> DataFrame:
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
        positioned.join(first, on=of_event, how="left")
        .withColumn("repeats_event", F.coalesce(is_repeated, F.lit(False)))
        .withColumn("is_known", F.col("known_at").isNotNull())
        .drop("known_at")
    )


def keys_across_partitions(events: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """The keys whose events came from more than one topic-partition, where only timestamps can order them.

    `table`: the rows of their keys in the feed's silver table before these events.
    """
    topic_partition = F.struct(F.col("topic").alias("topic"), F.col("partition").alias("partition"))
    keys = list(feed.keys)
    of_events = events.select(
        *[F.col(f"row.{key}").alias(key) for key in keys], topic_partition.alias("_place")
    ).distinct()
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
