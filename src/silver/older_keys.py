"""Large values that a change of the key left out: they were told under the row's older key, and only there.

A change of the key is a delete of the old one and a create of the new one, whose header names the old key (Debezium
documentation, "Primary key updates"). A large value that did not change is left out of the create. It is the newest
that the old key's events have told before, or an even older key's. Those may come in a later batch, from a partition
that lags: so a row remembers in `_awaited` every key that was asked, until an event of its own tells the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.order.fold import cells_of
from silver.position import at_offset

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame

# How a key begins that may bring its schema (Kafka Connect, JsonConverter).
_WRAPPED = r'^[ \t\n\r]*\{[ \t\n\r]*"(?:schema|payload)"[ \t\n\r]*:'
# A key may have been changed so often since the value was told.
MOST_KEY_CHANGES = 20
_PARTS = {"key": "_asked", "before": "_before", "since": "_since"}


def key_text() -> Column:
    """The key as the headers of a changed key have it: JSON without the schema that may be around it."""
    text = F.col("key").cast("string")
    is_wrapped = F.coalesce(F.substring("key", 1, 40).cast("string").rlike(_WRAPPED), F.lit(False))
    return F.when(is_wrapped, F.get_json_object(text, "$.payload")).otherwise(text)


def new_searches(creates: DataFrame, table: DataFrame, feed: Feed, column: str) -> DataFrame:
    """The rows whose key a batch has changed, and that lack `column` since: their key, and which older one to ask.

    `creates`: placed creates with an `old_key` that leave out values. `table`: the silver table with them applied.
    Only events of `_asked` (that key as JSON text) before `_before` are asked, of the same `_shard`; the row has its
    key since `_since`. Names of ours begin with "_", as no column of a contract does.
    """
    found = creates.where(F.array_contains("left_out", column)).select(
        *[F.col(f"row.{key}").alias(key) for key in feed.keys],
        _shard("topic", feed),
        F.col("old_key").alias("_asked"),
        F.col("position").alias("_before"),
        F.col("position").alias("_since"),
    )
    lacking = _lacking(table, column).select(*feed.keys, "_deleted_position")
    is_of_row = F.col("_deleted_position").isNull() | (F.col("_since") > F.col("_deleted_position"))
    last = F.max_by(F.struct("_shard", "_asked", "_before", "_since"), "_since").alias("_last")
    of_row = found.join(lacking, on=list(feed.keys), how="inner").where(is_of_row)
    return (
        of_row.groupBy(*feed.keys).agg(last).select(*feed.keys, "_last.*", _first_hop("_last._asked", "_last._before"))
    )


def waiting_searches(records: DataFrame, table: DataFrame, feed: Feed, column: str) -> DataFrame:
    """The rows that have asked a key of which the batch (`records`) has records: in the form of `new_searches`.

    They ask again from the first key on: what has come may be newer than what was found.
    """
    keys = records.select(_shard("topic", feed), key_text().alias("_asked")).distinct()
    asked = (
        table.where("_awaited IS NOT NULL")
        .select(*feed.keys, _shard("_topic", feed), F.explode("_awaited").alias("_one"))
        .where(F.col("_one.column") == column)
        .select(*feed.keys, "_shard", *[F.col(f"_one.{part}").alias(name) for part, name in _PARTS.items()])
    )
    rows = asked.join(keys, on=["_shard", "_asked"], how="left_semi").select(*feed.keys).distinct()
    first = asked.where(F.col("_before") == F.col("_since")).join(rows, on=list(feed.keys), how="left_semi")
    return first.select(*feed.keys, "_shard", "_asked", "_before", "_since", _first_hop("_asked", "_before"))


def one_hop(searches: DataFrame, events: DataFrame, feed: Feed, column: str) -> DataFrame:
    """The searches, with what the events of their key (placed changes) tell: `_told` (STRUCT<value>), or `_next`.

    `_next`: the even older key, and the position before which to ask it. Neither: nothing is known.
    """
    changes = events.where((F.col("kind") == "change") & ~F.col("is_delete")).select(
        _shard("topic", feed),
        key_text().alias("_asked"),
        F.col("position").alias("_at"),
        F.array_contains("left_out", column).alias("_is_left_out"),
        F.struct(F.col(f"row.{column}").alias("value")).alias("_said"),
        F.col("old_key").alias("_old_key"),
    )
    # The delete of the old key and the create of the new one have the same place in the log.
    earlier = F.col("_at") < F.expr(at_offset("_before", "-1", feed))
    tells = ~F.col("_is_left_out") | F.col("_old_key").isNotNull()
    answer = F.struct(
        F.when(~F.col("_is_left_out"), F.col("_said")).alias("told"),
        F.when(F.col("_is_left_out"), F.struct(F.col("_old_key").alias("key"), F.col("_at").alias("before"))).alias(
            "next"
        ),
    )
    answers = (
        searches.join(changes.where(tells), on=["_shard", "_asked"], how="inner")
        .where(earlier)
        .groupBy(*feed.keys)
        .agg(F.max_by(answer, "_at").alias("_answer"))
        .select(*feed.keys, F.col("_answer.told").alias("_told"), F.col("_answer.next").alias("_next"))
    )
    return searches.join(answers, on=list(feed.keys), how="left")


def further(hop: DataFrame, feed: Feed) -> DataFrame:
    """The searches that go on with an even older key."""
    return hop.where("_next IS NOT NULL").select(
        *feed.keys,
        "_shard",
        F.col("_next.key").alias("_asked"),
        F.col("_next.before").alias("_before"),
        "_since",
        F.array_append("_hops", F.struct("_next.key", "_next.before")).alias("_hops"),
    )


def ended(hop: DataFrame) -> DataFrame:
    """The searches that have found a value, or do not know where to go on."""
    return hop.where("_next IS NULL").drop("_next")


def merge_answers(table: DeltaTable, answers: DataFrame, feed: Feed, column: str) -> None:
    """Put what was found into the rows that lack `column` or have asked before; all remember which keys they asked."""
    same_key = " AND ".join(f"target.{key} = found.{key}" for key in feed.keys)
    lacks = f"coalesce(array_contains(target._unresolved_columns, '{column}'), false)"
    asks = f"(one.column = '{column}' AND one.since = found._since)"
    has_asked = f"coalesce(exists(target._awaited, one -> {asks}), false)"
    others = f"filter(coalesce(target._unresolved_columns, array()), name -> name <> '{column}')"
    still = f"filter(coalesce(target._awaited, array()), one -> one.column <> '{column}')"
    hop = f"named_struct('column', '{column}', 'key', hop.key, 'before', hop.before, 'since', found._since)"
    awaited = f"concat({still}, transform(found._hops, hop -> {hop}))"
    is_new = f"{lacks} OR NOT (target.{column} <=> found._told.value) OR NOT (target._awaited <=> {awaited})"
    cells = ", ".join(f"'{name}'" for name in cells_of(feed))
    told: dict[str, str | Column] = {
        column: "found._told.value",
        "_cell_positions": _with_cell(feed, column, "found._since"),
        "_unresolved_columns": f"IF(size({others}) > 0, {others}, NULL)",
        "_awaited": awaited,
        "_applied_at": "current_timestamp()",
    }
    unknown: dict[str, str | Column] = {
        column: "NULL",
        "_cell_positions": _with_cell(feed, column, "NULL"),
        "_unresolved_columns": f"filter(array({cells}), name -> name = '{column}' OR array_contains({others}, name))",
        "_awaited": awaited,
        "_applied_at": "current_timestamp()",
    }
    is_unknown_anew = f"NOT {lacks} OR NOT (target._awaited <=> {awaited})"
    (
        table.alias("target")
        .merge(answers.alias("found"), f"{same_key} AND ({lacks} OR {has_asked})")
        .whenMatchedUpdate(condition=f"found._told IS NOT NULL AND ({is_new})", set=told)
        .whenMatchedUpdate(condition=f"found._told IS NULL AND ({is_unknown_anew})", set=unknown)
        .execute()
    )


def _first_hop(key: str, before: str) -> Column:
    return F.array(F.struct(F.col(key).alias("key"), F.col(before).alias("before"))).alias("_hops")


def _shard(topic: str, feed: Feed) -> Column:
    """What a key is unique in: its topic, in a sharded feed; else everything."""
    return (F.col(topic) if feed.is_sharded else F.lit("")).alias("_shard")


def _lacking(table: DataFrame, column: str) -> DataFrame:
    return table.where(F.array_contains("_unresolved_columns", column))


def _with_cell(feed: Feed, column: str, position: str) -> str:
    cells = [f"{name!r}, {position if name == column else f'target._cell_positions.{name}'}" for name in cells_of(feed)]
    return f"named_struct({', '.join(cells)})"
