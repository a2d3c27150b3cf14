"""Kafka messages as JSON: their text, their key, and the schema that JsonConverter may put around them.

With `schemas.enable` a value or key is `{"schema": …, "payload": …}` (Kafka Connect, JsonConverter).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.fields import enclosed, parsed, read_json, readable, unmarked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def struct_of(fields: Mapping[str, str]) -> str:
    """The type of a struct of these fields."""
    return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


# A row as it came: all fields there are, so that one that is absent differs from one that is null.
ROW = "MAP<STRING, STRING>"
RAW = ("topic", "topic_id", "partition", "offset", "timestamp", "key", "value", "headers")
SOURCE_FIELDS = {
    **{"name": "STRING", "ts_ms": "BIGINT", "ts_us": "BIGINT", "snapshot": "STRING", "sequence": "STRING"},
    **{"lsn": "BIGINT", "file": "STRING", "pos": "BIGINT", "row": "BIGINT"},
    **{"db": "STRING", "schema": "STRING", "table": "STRING"},
}
# PostgreSQL's `sequence` travels as the JSON text of an array.
SEQUENCE = "ARRAY<STRING>"
SOURCE = struct_of({**SOURCE_FIELDS, "sequence": SEQUENCE})
_BEGINNING = r'^[ \t\n\r]*\{[ \t\n\r]*"(?:schema|payload)"[ \t\n\r]*:'
ENVELOPE = f"STRUCT<op: STRING, ts_ms: BIGINT, after: {ROW}, source: {struct_of(SOURCE_FIELDS)}>"
NOT_TEXT = "The value is not UTF-8 text."
OTHER_TABLE = "The source block names another table than the contract of this feed (tables, table_patterns)."
AVRO = "The value is in the Confluent wire format (Avro or Protobuf): Connect's JsonConverter writes what is read here."

# White space around a null has an end: of longer values none is looked at.
_LONGEST_NULL = 64

_TYPE = "type: STRING, name: STRING, parameters: MAP<STRING, STRING>"
_FIELD = f"field: STRING, {_TYPE}, items: STRUCT<{_TYPE}>"
MESSAGE_SCHEMA = f"STRUCT<type: STRING, fields: ARRAY<STRUCT<{_FIELD}, fields: ARRAY<STRUCT<{_FIELD}>>>>>"


def text(column: str) -> Column:
    """The bytes as text."""
    return F.col(column).cast("string")


def is_empty(column: str) -> Column:
    """Whether there are no bytes: null, and a length of zero, which some producers send for it."""
    return F.col(column).isNull() | (F.length(column) == 0)


def is_null(wrapped: Column | None) -> Column:
    """Whether the record has no value: none at all, JSON's null, or none in its wrapper."""
    is_json_null = (F.length("value") <= _LONGEST_NULL) & text("value").rlike(r"^[ \t\n\r]*null[ \t\n\r]*\z")
    empty = is_empty("value") | F.coalesce(is_json_null, F.lit(False))
    return empty if wrapped is None else empty | (wrapped.isNotNull() & wrapped["payload"].isNull())


def is_null_payload() -> Column:
    """Whether the value is a wrapper without a schema, and nothing in it."""
    shape = r'^[ \t\n\r]*\{[ \t\n\r]*"payload"[ \t\n\r]*:[ \t\n\r]*null[ \t\n\r]*\}[ \t\n\r]*\z'
    return F.coalesce((F.length("value") <= _LONGEST_NULL) & text("value").rlike(shape), F.lit(False))


def is_of_other_table(source: Column, feed: Feed) -> Column:
    """Whether the source block names a table that is not one of the feed's; never where the contract names none."""
    if not feed.tables and not feed.table_patterns:
        return F.lit(False)
    name = F.concat_ws(".", source["schema"] if feed.kind == "postgresql" else source["db"], source["table"])
    is_own = name.isin(*feed.tables)
    for pattern in feed.table_patterns:
        is_own = is_own | name.rlike(rf"\A(?:{pattern})\z")
    return F.coalesce(source["table"].isNotNull() & ~is_own, F.lit(False))


def is_text(column: str) -> Column:
    """Bytes that are not UTF-8 would be replaced in silence by the parser."""
    return F.is_valid_utf8(text(column))


def is_confluent(column: str) -> Column:
    """The Confluent wire format begins with a zero byte and the four of a schema id."""
    return F.coalesce((F.length(column) > 5) & (F.hex(F.substring(column, 1, 1)) == "00"), F.lit(False))


def header(name: str) -> Column:
    """The text of the first header of that name; NULL without one."""
    # Spark generates no code for F.filter.
    place = F.array_position(F.col("headers.key"), name).cast("int")
    return F.get(F.col("headers.value"), place - 1).cast("string")


def run_id() -> Column:
    """The connector's run (Debezium's context headers); empty where the record does not say."""
    return F.coalesce(header("__debezium.context.runId"), F.lit("")).alias("run_id")


def may_be_wrapped(column: str) -> Column:
    """Whether the bytes begin as a wrapped message does: seen quickly, and true of some others."""
    return F.coalesce(F.substring(column, 1, 40).cast("string").rlike(_BEGINNING), F.lit(False))


def wrapper(of: Column) -> Column:
    """The fields `schema` and `payload` of a message that is wrapped; NULL of any other."""
    fields = F.when(of.rlike(_BEGINNING), parsed(of, ROW))
    is_wrapper = (
        fields["malformed"].isNull()
        & (F.size(fields["json"]) == 2)
        & F.map_contains_key(fields["json"], "schema")
        & F.map_contains_key(fields["json"], "payload")
    )
    return F.when(is_wrapper, fields["json"])


def readable_payload(of: Column, wrapped: Column | None) -> Column:
    """The `readable` of the payload where the message is wrapped, else of all of it."""
    if wrapped is None:
        return readable(of)
    return F.when(wrapped.isNotNull(), enclosed(wrapped["payload"])).otherwise(readable(of))


def message_schema(wrapped: Column) -> Column:
    """MESSAGE_SCHEMA of a wrapped message; NULL of any other."""
    return F.from_json(unmarked(wrapped["schema"]), MESSAGE_SCHEMA)


def schemas_of(fields: Column) -> Column:
    """MAP of a field's name to its FIELD_SCHEMA."""
    named = F.transform(
        fields,
        lambda one: F.struct(
            one["field"].alias("key"),
            F.struct(*[one[part].alias(part) for part in ("type", "name", "parameters", "items")]).alias("value"),
        ),
    )
    return F.map_from_entries(named)


def with_key_parts(records: DataFrame, *, wrapped: bool) -> DataFrame:
    """The records with `key_fields` (ROW) of a key that is an object, `key_value` of one that is a single value."""
    of = F.when(is_text("key"), text("key"))
    around = wrapper(of) if wrapped else None
    is_object = of.rlike(r"^[ \t\n\r]*\{")
    readable_key = F.col("readable_key")
    # Named twice, so that it stays a step of its own: Spark joins steps where the later one names a column once.
    fields = F.when(readable_key.isNotNull(), read_json(readable_key, ROW)["json"])
    of_wrapper = []
    if around is not None:
        is_value = ~F.coalesce(around["payload"].rlike(r"^[ \t\n\r]*[{\[]"), F.lit(True))
        of_wrapper = [unmarked(F.when(is_value, around["payload"]))]
    is_bare = ~of.rlike(r'^[ \t\n\r]*[{\["]')
    value = F.when(~is_object, unmarked(parsed(of, "STRING")["json"]))
    return (
        records.withColumn("readable_key", F.when(is_object, readable_payload(of, around)))
        .withColumns({"key_fields": fields, "key_value": F.coalesce(*of_wrapper, value, F.when(is_bare, of))})
        .drop("readable_key")
    )


def key_text() -> Column:
    """The key as the headers of a changed key have it: JSON without the schema that may be around it."""
    return F.when(may_be_wrapped("key"), F.get_json_object(text("key"), "$.payload")).otherwise(text("key"))


def with_sequence(source: Column) -> Column:
    """The source as it came (SOURCE_FIELDS) with its sequence read: SOURCE. Positions ask for it several times."""
    parts = {name: source[name] for name in SOURCE_FIELDS}
    parts["sequence"] = F.from_json(source["sequence"], SEQUENCE)
    return F.when(source.isNotNull(), F.struct(*[part.alias(name) for name, part in parts.items()]))


def names_of_fields(feed: Feed, columns: Iterable[str]) -> list[str]:
    """The fields that may hold these columns."""
    return list(
        dict.fromkeys(
            field for column in columns if feed.columns[column].from_topic is None for field in feed.fields_of(column)
        )
    )
