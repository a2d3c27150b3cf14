"""The changes of a table, in every shape that Debezium and its transforms give them.

    envelope    {"before": …, "after": …, "source": {…}, "op": "c"}, with or without `source`
    flattened   the row itself (ExtractNewRecordState), with `__deleted`, `__op`, `__source_…` or without

Debezium documentation: "Data change events" of the connectors, "New Record State Extraction", "Transaction metadata",
"Heartbeat".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.fields import flaw, read_json, unmarked
from silver.messages import (
    AVRO,
    ENVELOPE,
    NOT_TEXT,
    OTHER_TABLE,
    RAW,
    ROW,
    SOURCE_FIELDS,
    header,
    is_confluent,
    is_null,
    is_null_payload,
    is_of_other_table,
    is_text,
    message_schema,
    names_of_fields,
    readable_payload,
    run_id,
    schemas_of,
    text,
    with_key_parts,
    with_sequence,
    wrapper,
)
from silver.position import is_negative
from silver.times import instant

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BEFORE_OBJECT = r'"before"[ \t\n\r]*:[ \t\n\r]*\{'
BEFORE = f"STRUCT<before: {ROW}>"
TWO_OPS = "The value has the field op more than once."
KEY_CHANGED = "The update has another key before than after: Debezium sends a delete and a create for that."
KEYS_DIFFER = "The record's key and its row have different values for a column of the key."
NEGATIVE = "The source position is negative."
NOT_OF_SHAPE = "The value is not JSON of the declared shape."
# What a transaction topic's records may have; data_collections is there in each.
TRANSACTION = ("status", "id", "event_count", "data_collections", "ts_ms")


def table_events(records: DataFrame, feed: Feed, *, wrapped: bool) -> DataFrame:
    """The records with `kind`, `problem`, `op`, `after` (the row's fields as text), `key_fields` and their like.

    `wrapped`: whether messages may bring their schema.
    """
    value, around = text("value"), F.col("wrapped") if wrapped else None
    outer = {"wrapped": wrapper(value)} if wrapped else {}
    readable = F.col("readable")
    parts = (
        with_key_parts(records, wrapped=wrapped)
        .withColumns({"topic_id": F.coalesce("_topic_id", F.lit("")), **outer})
        .withColumn("readable", readable_payload(value, around))
        .withColumn("v", read_json(readable, ENVELOPE))
        .withColumn("is_event", _is_envelope())
        .withColumn("flat", F.when(~F.col("is_event"), read_json(readable, ROW)))
    )
    flat = F.col("flat.json")
    parts = parts.withColumns(
        {
            "is_flat": ~F.col("is_event")
            & F.col("flat.malformed").isNull()
            & ~_has_any(flat, ("op",))
            & _has_any(flat, names_of_fields(feed, feed.columns)),
            "is_ignored": ~F.col("is_event") & (_is_heartbeat(flat) | _is_transaction(flat) | _is_schema_change(flat)),
        }
    )
    op = F.coalesce(
        F.when(F.col("is_event"), F.col("v.json.op")),
        F.when(F.col("is_flat"), F.coalesce(flat["__op"], header("__op"))),
    )
    deleted = F.col("is_flat") & F.coalesce(
        (flat["__deleted"] == "true") | (header("__deleted") == "true"), F.lit(False)
    )
    parts = parts.withColumn("op", F.when(deleted, "d").otherwise(op))
    op = F.col("op")
    # Only where it is the one place that has the key, or the only word on the row.
    needs_before = (op == "d") & F.col("is_event")
    if not feed.append_only:
        needs_before = needs_before & ~_has_all(F.col("key_fields"), names_of_fields(feed, feed.keys))
    # Elsewhere its key alone is looked at.
    has_before = F.col("is_event") & op.isin("u", "d") & F.lit(bool(feed.keys)) & value.rlike(_BEFORE_OBJECT)
    before = F.when(needs_before | has_before, read_json(readable, BEFORE)["json"]["before"])
    parts = parts.withColumn("before", before)
    after = F.when(F.col("is_flat"), flat).otherwise(F.col("v.json.after"))
    parts = parts.withColumn("after", F.coalesce(after, F.when(needs_before, F.col("before"))))
    source = F.when(F.col("is_flat"), _flat_source(flat)).otherwise(F.col("v.json.source"))
    parts = parts.withColumn("source", source).withColumn("source", with_sequence(F.col("source")))
    body = value if around is None else F.coalesce(around["payload"], value)
    flaw_of_event = (
        F.when(F.col("is_event") & _has_two_ops(body), TWO_OPS)
        .when(is_of_other_table(F.col("source"), feed), OTHER_TABLE)
        .when(F.lit(feed.sequence_by == "source_position") & is_negative(feed), NEGATIVE)
        .when(
            F.col("is_event") & (op == "u") & _differ(feed, partial(_of_row, feed, F.col("before")), F.col("after")),
            KEY_CHANGED,
        )
        .when(_differ(feed, partial(_own_key, feed), F.coalesce("after", "before")), KEYS_DIFFER)
    )
    parts = parts.withColumn("flaw", flaw_of_event)
    is_known = op.isin("r", "c", "u") & F.col("v.json.after").isNotNull()
    kind = (
        F.when(is_null(around) | is_null_payload(), "tombstone")
        .when(~is_text("value"), "unreadable")
        .when(F.col("is_ignored"), "ignored")
        .when(F.col("flaw").isNotNull(), "unreadable")
        .when(F.col("is_flat"), "change")
        .when(F.col("v.malformed").isNotNull() | ~F.col("is_event"), "unreadable")
        .when(is_known | (op == "d"), "change")
        .when(op == "t", "truncate")
        .when(op == "m", "ignored")
        .otherwise("unreadable")
    )
    problem = (
        F.when(is_confluent("value"), AVRO)
        .when(~is_text("value"), NOT_TEXT)
        .when(F.col("flaw").isNotNull(), F.col("flaw"))
        .when(F.col("v.malformed").isNotNull(), F.coalesce(flaw(value, name="The value"), F.lit(NOT_OF_SHAPE)))
        .when(~F.col("is_event"), "The value is not a change event: it has no op, and none of the declared fields.")
        .otherwise(F.lit("The operation is not one of r, c, u with its row, d, t or m."))
    )
    return parts.select(
        *RAW,
        run_id(),
        kind.alias("kind"),
        problem.alias("problem"),
        "op",
        F.coalesce(op == "d", F.lit(False)).alias("is_delete"),
        F.coalesce(
            instant(F.col("source.ts_us"), epoch_unit="micros"), instant(F.col("source.ts_ms"), epoch_unit="millis")
        ).alias("source_ts"),
        F.col("v.json.ts_ms").alias("read_ms"),
        # What is of another table says nothing of this one's runs and snapshots.
        F.when(~F.coalesce(F.col("flaw") == OTHER_TABLE, F.lit(False)), F.col("source")).alias("source"),
        F.lit(None).cast("string").alias("event_id"),
        header("__debezium.oldkey").alias("old_key"),
        header("__debezium.newkey").alias("new_key"),
        "after",
        "key_fields",
        "key_value",
        *([_schemas().alias("schemas")] if wrapped else []),
    )


def _has_two_ops(body: Column) -> Column:
    """Whether the object has two fields `op`; looked into only where the name stands twice."""
    has_more = F.length(body) - F.length(F.replace(body, F.lit('"op"'), F.lit(""))) > len('"op"')
    names = F.when(has_more, F.json_object_keys(body))
    return F.coalesce(F.size(names) - F.size(F.array_remove(names, "op")) > 1, F.lit(False))


def _of_row(feed: Feed, fields: Column, column: str) -> Column:
    """The text of a column of the key in these fields of a row."""
    return F.coalesce(*[fields[part] for part in feed.fields_of(column)])


def _own_key(feed: Feed, column: str) -> Column:
    """The text of a column of the key in the record's own key."""
    found = _of_row(feed, F.col("key_fields"), column)
    is_only_one = [key for key in feed.keys if feed.columns[key].from_topic is None] == [column]
    return F.coalesce(found, F.col("key_value")) if is_only_one else found


def _differ(feed: Feed, key_of: Callable[[str], Column], row: Column) -> Column:
    """Whether a column of the key that both have has another value here than in the row."""
    found = F.lit(False)
    for column in feed.keys:
        if feed.columns[column].from_topic is None:
            here, there = unmarked(key_of(column)), unmarked(_of_row(feed, row, column))
            found = found | F.coalesce(here != there, F.lit(False))
    return found


def _is_envelope() -> Column:
    """An op alone may be a column of a flattened row; an envelope has a row, a source, or places for them."""
    has_places = text("value").rlike(r'"(?:after|before|source)"[ \t\n\r]*:')
    has_parts = F.col("v.json.after").isNotNull() | F.col("v.json.source").isNotNull() | has_places
    return F.coalesce(F.col("v.malformed").isNull() & F.col("v.json.op").isNotNull() & has_parts, F.lit(False))


def _is_heartbeat(fields: Column) -> Column:
    return _has_only(fields, ("ts_ms",)) & _has_any(F.col("key_fields"), ("serverName",))


def _is_transaction(fields: Column) -> Column:
    return _has_only(fields, TRANSACTION) & _has_all(fields, ("status", "id", "data_collections"))


def _is_schema_change(fields: Column) -> Column:
    return _has_all(fields, ("ddl", "databaseName", "source"))


def _has_any(fields: Column, names: Sequence[str]) -> Column:
    return F.coalesce(F.arrays_overlap(F.map_keys(fields), F.array(*[F.lit(name) for name in names])), F.lit(False))


def _has_all(fields: Column, names: Sequence[str]) -> Column:
    wanted = F.array(*[F.lit(name) for name in names])
    return F.coalesce(F.size(F.array_except(wanted, F.map_keys(fields))) == 0, F.lit(False))


def _has_only(fields: Column, names: Sequence[str]) -> Column:
    allowed = F.array(*[F.lit(name) for name in names])
    is_within = F.size(F.array_except(F.map_keys(fields), allowed)) == 0
    return F.coalesce((F.size(fields) > 0) & is_within, F.lit(False))


def _flat_source(fields: Column) -> Column:
    """What `add.fields` put beside the columns (`source.lsn` as `__source_lsn`, `lsn` as `__lsn`), or `add.headers`."""

    def of(name: str, type_name: str) -> Column:
        places = (f"__source_{name}", f"__{name}")
        found = F.coalesce(*[part for place in places for part in (fields[place], header(place))])
        return unmarked(found).try_cast(type_name.lower()).alias(name)

    return F.struct(*[of(name, kind) for name, kind in SOURCE_FIELDS.items()])


def _schemas() -> Column:
    """The schemas of the row's fields, where the message brings them."""
    schema = message_schema(F.col("wrapped"))
    of_after = F.get(F.filter(schema["fields"], lambda one: one["field"] == "after"), F.lit(0))["fields"]
    fields = F.when(F.col("is_event"), schemas_of(of_after)).otherwise(schemas_of(schema["fields"]))
    return F.when(F.col("wrapped").isNotNull(), fields)
