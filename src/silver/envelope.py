"""Records into changes: what each Kafka record of a feed says, read from its envelope.

Every record of the batch comes out, as one of four kinds:

    change      an insert, update or delete of one key
    tombstone   no value: Kafka's marker for compaction, after a delete
    ignored     a heartbeat
    unreadable  anything else; `problems` says why

Columns of the result: the Kafka coordinates, `run_id` (one run of the connector), `kind`, `op`, `is_delete`,
`source_ts`, `row` (the contract's columns, typed; only the keys of a delete), `source` (what positions are made of),
`event_id`, `problems` (sentences), and the raw `key`, `value` and `headers`.

Shapes: Debezium documentation, "Data change events" of the connectors and "Outbox Event Router".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.values import JSON_OPTIONS, carries_precise_decimals, instant, json_type, timestamp, typed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE = (
    "STRUCT<ts_ms: BIGINT, ts_us: BIGINT, snapshot: STRING, sequence: STRING, lsn: BIGINT,"
    " file: STRING, pos: BIGINT, row: BIGINT>"
)
# What Debezium's PostgreSQL connector writes for a TOASTed value that the change did not touch.
UNAVAILABLE = "__debezium_unavailable_value"
_MALFORMED = "_malformed"
_PERMISSIVE = {**JSON_OPTIONS, "columnNameOfCorruptRecord": _MALFORMED}


def changes(records: DataFrame, feed: Feed) -> DataFrame:
    """Every record of `records` (bronze rows of this feed's topics) as the change, or not, that it is."""
    read = _table_envelope if feed.envelope == "table" else _outbox_envelope
    return _typed(read(records, feed), feed)


def _table_envelope(records: DataFrame, feed: Feed) -> DataFrame:
    value_type = (
        f"op STRING, ts_ms BIGINT, before STRING, after STRUCT<{_fields(feed, feed.columns)}>,"
        f" source {SOURCE}, {_MALFORMED} STRING"
    )
    key_type = f"serverName STRING, {_fields(feed, feed.keys)}, {_MALFORMED} STRING"
    parsed = records.withColumns(
        {
            "v": F.from_json(_text("value"), value_type, _PERMISSIVE),
            "k": F.from_json(_text("key"), key_type, _PERMISSIVE),
        }
    )
    op = F.col("v.op")
    is_heartbeat = (
        op.isNull() & F.col("v.ts_ms").isNotNull() & F.col("v.source").isNull() & F.col("k.serverName").isNotNull()
    )
    is_upsert = op.isin("r", "c", "u") & F.col("v.after").isNotNull()
    is_delete = op == "d"
    kind = (
        F.when(_is_empty("value"), "tombstone")
        .when(~_is_text("value") | F.col(f"v.{_MALFORMED}").isNotNull(), "unreadable")
        .when(is_upsert | is_delete, "change")
        .when(is_heartbeat, "ignored")
        .otherwise("unreadable")
    )
    problem = (
        F.when(~_is_text("value"), "The value is not UTF-8 text.")
        .when(F.col(f"v.{_MALFORMED}").isNotNull(), "The value is not JSON of the declared shape.")
        .when(op.isNull(), "The value is not a change event: it has no op.")
        .otherwise(F.lit("The operation is not one of r, c, u, d with its row."))
    )
    return parsed.select(
        *_coordinates(),
        kind.alias("kind"),
        problem.alias("problem"),
        op.alias("op"),
        F.coalesce(is_delete, F.lit(False)).alias("is_delete"),
        F.coalesce(
            instant(F.col("v.source.ts_us"), epoch_unit="micros"), instant(F.col("v.source.ts_ms"), epoch_unit="millis")
        ).alias("source_ts"),
        F.col("v.source").alias("source"),
        F.lit(None).cast("string").alias("event_id"),
        F.col("v.after").alias("after"),
        F.col("k").alias("key_fields"),
    )


def _outbox_envelope(records: DataFrame, feed: Feed) -> DataFrame:
    """EventRouter with `table.fields.additional.placement=…:envelope:timestamp`: the payload is JSON text in JSON."""
    value_type = f"payload STRING, timestamp STRING, {_MALFORMED} STRING"
    payload_type = f"{_fields(feed, feed.columns)}, {_MALFORMED} STRING"
    aggregate_id = F.from_json(F.concat(F.lit('{"id":'), _text("key"), F.lit("}")), "id STRING")["id"]
    parsed = (
        records.withColumn("v", F.from_json(_text("value"), value_type, _PERMISSIVE))
        .withColumn("p", F.from_json("v.payload", payload_type, _PERMISSIVE))
        .withColumn("k", F.struct(*[aggregate_id.alias(field) for field in _names(feed, feed.keys)]))
    )
    is_event = F.col("v.payload").rlike(r"^\s*\{") & F.col(f"p.{_MALFORMED}").isNull()
    readable = _is_text("value") & F.col(f"v.{_MALFORMED}").isNull()
    kind = (
        F.when(_is_empty("value"), "tombstone")
        .when(readable & F.coalesce(is_event, F.lit(False)), "change")
        .otherwise("unreadable")
    )
    problem = (
        F.when(~readable, "The value is not JSON text.")
        .when(F.col("v.payload").isNull(), "The value has no payload.")
        .otherwise(F.lit("The payload is not a JSON object of the declared shape."))
    )
    return parsed.select(
        *_coordinates(),
        kind.alias("kind"),
        problem.alias("problem"),
        _header("eventType").alias("op"),
        F.lit(False).alias("is_delete"),
        timestamp(F.col("v.timestamp"), epoch_unit="micros").alias("source_ts"),
        F.lit(None).cast(SOURCE).alias("source"),
        _header("id").alias("event_id"),
        F.col("p").alias("after"),
        F.col("k").alias("key_fields"),
    )


def _typed(parsed: DataFrame, feed: Feed) -> DataFrame:
    precise = carries_precise_decimals(feed)
    columns, problems = [], []
    for name, declared in feed.columns.items():
        field = F.coalesce(*[F.col(f"after.`{part}`") for part in feed.fields_of(name)])
        if name in feed.keys:
            # A key's value stands in the record's key, whatever the envelope; a delete has no row.
            key_field = F.coalesce(*[F.col(f"key_fields.`{part}`") for part in feed.fields_of(name)])
            field = F.coalesce(key_field, field) if feed.envelope == "table" else F.coalesce(field, key_field)
            problems.append(F.when(field.isNull(), f"{name}: the record has no value for this key."))
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
        .otherwise(F.array().cast("array<string>"))
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
        problems_of_kind.alias("problems"),
        "key",
        "value",
        "headers",
    )


def _coordinates() -> list[Column]:
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return [
        *(F.col(name) for name in names),
        F.coalesce(_header("__debezium.context.runId"), F.lit("")).alias("run_id"),
    ]


def _names(feed: Feed, columns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(field for column in columns for field in feed.fields_of(column)))


def _fields(feed: Feed, columns: Iterable[str]) -> str:
    """The fields that hold these columns, as the schema of a JSON object."""
    precise = carries_precise_decimals(feed)
    types = {
        field: json_type(feed.columns[column], precise=precise)
        for column in columns
        for field in feed.fields_of(column)
    }
    return ", ".join(f"`{field}` {json}" for field, json in types.items())


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
