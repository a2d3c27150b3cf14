"""Records into changes: what each Kafka record of a feed says, read from its envelope.

Every record of the batch comes out, as one of four kinds:

    change      an insert, update or delete of one key
    tombstone   no value: Kafka's marker for compaction, after a delete
    ignored     a heartbeat
    unreadable  anything else; `problems` says why

Columns of the result: the Kafka coordinates, `run_id` (one run of the connector), `kind`, `op`, `is_delete`,
`source_ts`, `row` (the contract's columns, typed; only the keys of a delete), `absent` (the columns that the event has
no field for), `source` (what positions are made of), `event_id`, `problems` (sentences), and the raw `key`, `value` and
`headers`.

Shapes: Debezium documentation, "Data change events" of the connectors and "Outbox Event Router".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.values import carries_precise_decimals, flaw, instant, parsed, timestamp, typed, unmarked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE = (
    "STRUCT<ts_ms: BIGINT, ts_us: BIGINT, snapshot: STRING, sequence: STRING, lsn: BIGINT,"
    " file: STRING, pos: BIGINT, row: BIGINT>"
)
# What Debezium's PostgreSQL connector writes for a TOASTed value that the change did not touch.
UNAVAILABLE = "__debezium_unavailable_value"
NOT_OF_SHAPE = "The value is not JSON of the declared shape."
# A row as it came: all fields there are, so that one that is absent differs from one that is null.
ROW = "MAP<STRING, STRING>"
NAMES = "array<string>"


def changes(records: DataFrame, feed: Feed) -> DataFrame:
    """Every record of `records` (bronze rows of this feed's topics) as the change, or not, that it is."""
    read = _table_envelope if feed.envelope == "table" else _outbox_envelope
    return _typed(read(records, feed), feed)


def _table_envelope(records: DataFrame, feed: Feed) -> DataFrame:
    value_type = f"STRUCT<op: STRING, ts_ms: BIGINT, after: {ROW}, source: {SOURCE}>"
    key_type = f"STRUCT<serverName: STRING, {_fields(feed, feed.keys)}>"
    parts = records.withColumns({"v": parsed(_text("value"), value_type), "k": parsed(_text("key"), key_type)})
    op = F.col("v.json.op")
    is_heartbeat = (
        op.isNull()
        & F.col("v.json.ts_ms").isNotNull()
        & F.col("v.json.source").isNull()
        & F.col("k.json.serverName").isNotNull()
    )
    is_upsert = op.isin("r", "c", "u") & F.col("v.json.after").isNotNull()
    is_delete = op == "d"
    is_malformed = F.col("v.malformed").isNotNull()
    kind = (
        F.when(_is_empty("value"), "tombstone")
        .when(~_is_text("value") | is_malformed, "unreadable")
        .when(is_upsert | is_delete, "change")
        .when(is_heartbeat, "ignored")
        .otherwise("unreadable")
    )
    problem = (
        F.when(~_is_text("value"), "The value is not UTF-8 text.")
        .when(is_malformed, F.coalesce(flaw(_text("value"), name="The value"), F.lit(NOT_OF_SHAPE)))
        .when(op.isNull(), "The value is not a change event: it has no op.")
        .otherwise(F.lit("The operation is not one of r, c, u, d with its row."))
    )
    return parts.select(
        *_coordinates(),
        kind.alias("kind"),
        problem.alias("problem"),
        op.alias("op"),
        F.coalesce(is_delete, F.lit(False)).alias("is_delete"),
        F.coalesce(
            instant(F.col("v.json.source.ts_us"), epoch_unit="micros"),
            instant(F.col("v.json.source.ts_ms"), epoch_unit="millis"),
        ).alias("source_ts"),
        F.col("v.json.source").alias("source"),
        F.lit(None).cast("string").alias("event_id"),
        F.col("v.json.after").alias("after"),
        F.col("k.json").alias("key_fields"),
    )


def _outbox_envelope(records: DataFrame, feed: Feed) -> DataFrame:
    """What the EventRouter writes, in whichever of its shapes each record is.

    plain: a JSON string that holds the payload as JSON text; envelope placement: an object with that text in `payload`;
    expanded: the payload itself, which falls back to plain where the converter cannot infer a schema.
    """
    text = _text("value")
    is_object, is_string = text.rlike(r"^[ \t\n\r]*\{"), text.rlike(r'^[ \t\n\r]*"')
    parts = records.withColumns(
        {
            "fields": F.when(is_object, parsed(text, ROW)),
            "string": F.when(~is_object, parsed(text, "STRING")),
            "aggregate_id": unmarked(parsed(_text("key"), "STRING")["json"]),
        }
    )
    # An order may have a column of that name itself.
    wraps = F.lit("payload" not in _names(feed, feed.columns)) & F.map_contains_key(F.col("fields.json"), "payload")
    is_wrapped = is_string | F.coalesce(is_object & wraps, F.lit(False))
    payload = F.when(is_string, unmarked(F.col("string.json"))).otherwise(unmarked(F.col("fields.json")["payload"]))
    parts = parts.withColumn("payload", F.when(is_wrapped, payload)).withColumn("p", parsed(F.col("payload"), ROW))
    malformed = F.when(is_object, F.col("fields.malformed")).otherwise(F.col("string.malformed"))
    is_row = F.when(is_wrapped, F.col("p.json").isNotNull() & F.col("p.malformed").isNull()).otherwise(is_object)
    row = F.when(is_wrapped, F.col("p.json")).otherwise(F.col("fields.json"))
    # Any object would be an order without columns: it is none unless it has one of them at least.
    is_known = F.arrays_overlap(F.map_keys(row), F.array(*[F.lit(name) for name in _names(feed, feed.columns)]))
    readable = _is_text("value") & (is_object | is_string) & malformed.isNull()
    kind = (
        F.when(_is_empty("value"), "tombstone")
        .when(readable & is_row & is_known, "change")
        .otherwise(F.lit("unreadable"))
    )
    not_json = F.coalesce(flaw(text, name="The value"), F.lit("The value is not JSON text."))
    not_a_row = F.lit("The payload is not a JSON object of the declared shape.")
    problem = (
        F.when(~_is_text("value") | malformed.isNotNull(), not_json)
        .when(~is_object & ~is_string, "The value is not an outbox event: neither an object nor text that holds one.")
        .when(is_wrapped & F.col("payload").isNull(), "The value has no payload.")
        .when(~is_row, F.coalesce(flaw(F.col("payload"), name="The payload"), not_a_row))
        .otherwise(F.lit("The event has none of the declared fields."))
    )
    event_type = _header("eventType")
    return parts.select(
        *_coordinates(),
        kind.alias("kind"),
        problem.alias("problem"),
        event_type.alias("op"),
        F.coalesce(event_type.isin(*feed.apply_as_deletes), F.lit(False)).alias("is_delete"),
        F.when(is_object & is_wrapped, timestamp(F.col("fields.json")["timestamp"], epoch_unit="micros")).alias(
            "source_ts"
        ),
        F.lit(None).cast(SOURCE).alias("source"),
        _header("id").alias("event_id"),
        row.alias("after"),
        F.struct(*[F.col("aggregate_id").alias(field) for field in _names(feed, feed.keys)]).alias("key_fields"),
    )


def _typed(parsed: DataFrame, feed: Feed) -> DataFrame:
    precise = carries_precise_decimals(feed)
    columns, problems = [], []
    for name, declared in feed.columns.items():
        field = F.coalesce(*[F.col("after")[part] for part in feed.fields_of(name)])
        if name in feed.keys:
            # A key's value stands in the record's key, whatever the envelope; a delete has no row.
            key_field = F.coalesce(*[F.col(f"key_fields.`{part}`") for part in feed.fields_of(name)])
            field = F.coalesce(key_field, field) if feed.envelope == "table" else F.coalesce(field, key_field)
            problems.append(F.when(field.isNull(), f"{name}: the record has no value for this key."))
        elif feed.apply_as_deletes:
            # An event that deletes may still carry the row; of a deleted row only the key is kept.
            field = F.when(~F.col("is_delete"), field)
        value = typed(field, declared, precise=precise)
        columns.append(value.alias(name))
        left_out = field.cast("string") == UNAVAILABLE
        misfit = field.isNotNull() & value.isNull()
        problems.append(
            F.when(left_out, f"{name}: the event leaves out a large value that did not change.").when(
                misfit, f"{name}: the value does not fit {declared.type.ddl}."
            )
        )
    is_change = F.col("kind") == "change"
    problems_of_kind = (
        F.when(is_change, F.array_compact(F.array(*problems)))
        .when(F.col("kind") == "unreadable", F.array("problem"))
        .otherwise(F.array().cast(NAMES))
    )
    return parsed.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "run_id",
        "kind",
        "op",
        "is_delete",
        "source_ts",
        "source",
        "event_id",
        F.when(is_change, F.struct(*columns)).alias("row"),
        F.when(is_change & ~F.col("is_delete"), _absent(feed)).otherwise(F.array().cast(NAMES)).alias("absent"),
        problems_of_kind.alias("problems"),
        "key",
        "value",
        "headers",
    )


def _absent(feed: Feed) -> Column:
    """The columns that the event has no field for. Those of the key have their place in the record's key."""
    lacking = [
        F.when(~reduce(or_, [F.map_contains_key("after", field) for field in feed.fields_of(name)]), name)
        for name in feed.columns
        if name not in feed.keys
    ]
    return F.array_compact(F.array(*lacking)) if lacking else F.array().cast(NAMES)


def fields_of_events(records: DataFrame, feed: Feed) -> DataFrame:
    """`field`: the names of all fields that the rows in these records have."""
    read = _table_envelope if feed.envelope == "table" else _outbox_envelope
    return read(records, feed).select(F.explode(F.map_keys("after")).alias("field")).distinct()


def _coordinates() -> list[Column]:
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return [
        *(F.col(name) for name in names),
        F.coalesce(_header("__debezium.context.runId"), F.lit("")).alias("run_id"),
    ]


def _names(feed: Feed, columns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(field for column in columns for field in feed.fields_of(column)))


def _fields(feed: Feed, columns: Iterable[str]) -> str:
    """The fields that hold these columns, as those of a STRUCT."""
    return ", ".join(f"`{field}`: STRING" for field in _names(feed, columns))


def _text(column: str) -> Column:
    return F.col(column).cast("string")


def _is_empty(column: str) -> Column:
    return F.col(column).isNull() | (F.length(column) == 0)


def _is_text(column: str) -> Column:
    """Bytes that are not UTF-8 would be replaced in silence by the parser."""
    return F.is_valid_utf8(_text(column))


def _header(name: str) -> Column:
    """The text of the first header of that name; NULL without one."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.get(found, F.lit(0))["value"].cast("string")
