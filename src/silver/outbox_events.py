"""The events of an outbox, in every shape that the EventRouter gives them, and as the outbox table's own changes.

    plain       a JSON string that holds the payload as JSON text
    envelope    {"payload": "<JSON text>", "timestamp": …}
    expanded    the payload itself, which falls back to plain where the converter can infer no schema
    table       an insert into the outbox table, read without the EventRouter

Debezium documentation: "Outbox Event Router".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.fields import flaw, parsed, read_json, unmarked
from silver.messages import (
    AVRO,
    ENVELOPE,
    RAW,
    ROW,
    SOURCE,
    header,
    is_confluent,
    is_null,
    is_text,
    message_schema,
    names_of_fields,
    readable_payload,
    run_id,
    schemas_of,
    text,
    with_key_parts,
    wrapper,
)
from silver.times import instant, timestamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def outbox_events(records: DataFrame, feed: Feed, *, wrapped: bool) -> DataFrame:
    """The records with `kind`, `problem`, `op` (the event's type), `after` (the payload's fields as text) and such.

    `wrapped`: whether messages may bring their schema.
    """
    value = text("value")
    around = wrapper(value) if wrapped else F.lit(None).cast(ROW)

    def payload_as(json_type: str) -> Column:
        return read_json(F.col("readable"), json_type)

    parts = (
        with_key_parts(records, wrapped=wrapped)
        .withColumns({"topic_id": F.coalesce("_topic_id", F.lit("")), "wrapped": around})
        .withColumn("readable", readable_payload(value, F.col("wrapped") if wrapped else None))
        .withColumn("schema", message_schema(F.col("wrapped")))
        # Inside of a wrapper a string is told from an object by the schema.
        .withColumn("body", F.when(F.col("wrapped").isNotNull(), F.col("wrapped")["payload"]).otherwise(value))
        .withColumn("is_string", _is_string())
        .withColumn("is_object", F.col("body").rlike(r"^[ \t\n\r]*\{") & ~F.col("is_string"))
        .withColumns(
            {
                "fields": F.when(F.col("is_object"), payload_as(ROW)),
                "string": F.when(~F.col("is_object") & F.col("wrapped").isNull(), payload_as("STRING")),
            }
        )
        .withColumn("t", F.when(_is_table_event(), payload_as(ENVELOPE)["json"]))
    )
    row_of_table = F.col("t.after")
    is_table = F.col("t").isNotNull()
    # An order may have a column of that name itself.
    wraps = F.lit("payload" not in names_of_fields(feed, feed.columns)) & F.map_contains_key("fields.json", "payload")
    has_text = F.col("is_string") | is_table | F.coalesce(F.col("is_object") & wraps, F.lit(False))
    of_string = F.when(F.col("wrapped").isNotNull(), F.col("wrapped")["payload"]).otherwise(F.col("string.json"))
    payload = (
        F.when(F.col("is_string"), unmarked(of_string))
        .when(is_table, unmarked(row_of_table["payload"]))
        .otherwise(unmarked(F.col("fields.json")["payload"]))
    )
    parts = (
        parts.withColumns({"is_table": is_table, "has_text": has_text})
        .withColumn("payload", F.when(F.col("has_text"), payload))
        .withColumn("p", parsed(F.col("payload"), ROW))
    )
    malformed = F.when(F.col("is_object"), F.col("fields.malformed")).otherwise(F.col("string.malformed"))
    of_payload = F.col("p.json").isNotNull() & F.col("p.malformed").isNull()
    is_row = F.when(F.col("has_text"), of_payload).otherwise(F.col("is_object"))
    row = F.when(F.col("has_text"), F.col("p.json")).otherwise(F.col("fields.json"))
    # Any object would be an order without columns: it is none unless it has one of them at least.
    names = F.array(*[F.lit(name) for name in names_of_fields(feed, feed.columns)])
    is_known = F.arrays_overlap(F.map_keys(row), names)
    readable = is_text("value") & (F.col("is_object") | F.col("is_string")) & malformed.isNull()
    is_of_others = F.lit(bool(feed.aggregate_types)) & ~row_of_table["aggregatetype"].isin(*feed.aggregate_types)
    is_removal = F.col("t.op").isin("d", "t")  # of rows that were sent
    is_insert = F.col("t.op").isin("c", "r")
    kind = (
        F.when(is_null(F.col("wrapped")), "tombstone")
        .when(F.col("is_table") & (is_removal | is_of_others), "ignored")
        .when(F.col("is_table") & ~is_insert, "unreadable")
        .when(readable & is_row & is_known, "change")
        .otherwise(F.lit("unreadable"))
    )
    not_json = F.coalesce(flaw(value, name="The value"), F.lit("The value is not JSON text."))
    not_a_row = F.lit("The payload is not a JSON object of the declared shape.")
    neither = "The value is not an outbox event: neither an object nor text that holds one."
    problem = (
        F.when(is_confluent("value"), AVRO)
        .when(~is_text("value") | malformed.isNotNull(), not_json)
        .when(~F.col("is_object") & ~F.col("is_string"), neither)
        .when(
            F.col("is_table") & ~is_insert,
            "A row of the outbox table was changed: an event is told by its insert alone.",
        )
        .when(F.col("has_text") & F.col("payload").isNull(), "The value has no payload.")
        .when(~is_row, F.coalesce(flaw(F.col("payload"), name="The payload"), not_a_row))
        .otherwise(F.lit("The event has none of the declared fields."))
    )
    event_type = F.when(F.col("is_table"), row_of_table["type"]).otherwise(header("eventType"))
    aggregate_id = F.when(F.col("is_table"), unmarked(row_of_table["aggregateid"])).otherwise(F.col("key_value"))
    of_envelope = F.when(
        F.col("is_object") & F.col("has_text") & ~F.col("is_table"),
        timestamp(F.col("fields.json")["timestamp"], epoch_unit="micros"),
    )
    return parts.select(
        *RAW,
        run_id(),
        kind.alias("kind"),
        problem.alias("problem"),
        event_type.alias("op"),
        F.coalesce(event_type.isin(*feed.apply_as_deletes), F.lit(False)).alias("is_delete"),
        F.coalesce(of_envelope, instant(F.col("t.source.ts_ms"), epoch_unit="millis")).alias("source_ts"),
        F.col("t.ts_ms").alias("read_ms"),
        F.lit(None).cast(SOURCE).alias("source"),
        F.coalesce(unmarked(row_of_table["id"]), header("id")).alias("event_id"),
        F.lit(None).cast("string").alias("old_key"),
        F.lit(None).cast("string").alias("new_key"),
        row.alias("after"),
        F.lit(None).cast(ROW).alias("key_fields"),
        aggregate_id.alias("key_value"),
        *([F.when(~F.col("has_text"), schemas_of(F.col("schema.fields"))).alias("schemas")] if wrapped else []),
    )


def _is_string() -> Column:
    of_wrapper = F.coalesce(F.col("schema.type") == "string", F.lit(False))
    return F.when(F.col("wrapped").isNotNull(), of_wrapper).otherwise(text("value").rlike(r'^[ \t\n\r]*"'))


def _is_table_event() -> Column:
    """A change of the outbox table itself: an envelope, and no payload beside it."""
    fields = F.col("fields.json")
    has_parts = F.map_contains_key(fields, "op") & F.map_contains_key(fields, "after")
    return F.coalesce(has_parts & ~F.map_contains_key(fields, "payload"), F.lit(False))
