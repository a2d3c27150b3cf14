"""Records into changes: what each Kafka record of a feed says, in whichever shape it came.

Every record of the batch comes out, as one of five kinds:

    change      an insert, update or delete of one key
    truncate    all rows of the table are gone
    tombstone   no value: Kafka's marker for compaction, after a delete or in its place
    ignored     a heartbeat, transaction metadata, a schema change, a logical message, the removal of an outbox row
    unreadable  anything else; `problems` says why

Columns of the result: the Kafka coordinates, `run_id` (one run of the connector), `kind`, `op`, `is_delete`,
`source_ts`, `read_ms` (when the connector read it), `row` (the contract's columns, typed; only the keys of a delete),
`absent` (the columns that the event has no field for), `left_out` (the columns whose large value it does not repeat),
`untold` (the columns of which it does not say what they are: left out, or not there at the time),
`old_key`, `new_key` (of a changed key: the JSON text of the one before, and after), `source` (what a position is made
of), `event_id`, `problems` (sentences), and the raw `key`, `value` and `headers`.

How a table's changes are read is in table_events, how an outbox's are in outbox_events.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Column as Declared
from lakehouse.contracts import Feed
from silver.fields import Found, present, unmarked
from silver.messages import RAW
from silver.misfits import misfit
from silver.outbox_events import outbox_events
from silver.placeholders import placeholders
from silver.table_events import table_events
from silver.values import typed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The changes that tell every column, unless the key was changed: then a large value may be left out of a create too.
WHOLE_ROWS = ("r", "c")


def changes(records: DataFrame, feed: Feed, *, wrapped: bool = True) -> DataFrame:
    """Every record of `records` (bronze rows of this feed's topics) as the change, or not, that it is.

    `wrapped`: whether some of them may bring their schema (`may_be_wrapped`). Without, less has to be planned.
    """
    return _typed(events(records, feed, wrapped=wrapped), feed, wrapped=wrapped)


def fields_of_events(records: DataFrame, feed: Feed) -> DataFrame:
    """`field`: the names of all fields that the rows in these records have."""
    return events(records, feed, wrapped=True).select(F.explode(F.map_keys("after")).alias("field")).distinct()


def large_columns(feed: Feed) -> tuple[str, ...]:
    """The columns that a change may leave out: PostgreSQL moves only values of variable length out of the row."""
    if feed.kind != "postgresql" or feed.envelope != "table" or feed.append_only:
        return ()
    return tuple(
        name
        for name, declared in feed.columns.items()
        if name not in feed.keys and declared.from_topic is None and _is_of_variable_length(declared)
    )


def _is_of_variable_length(declared: Declared) -> bool:
    return declared.type.ddl.startswith(("STRING", "BINARY", "ARRAY"))


def absent_is_null(feed: Feed) -> bool:
    """Whether an event that lacks a field says that its value is null, as whole payloads of an outbox may.

    Debezium's rows have every column that the table has at the time, and partial payloads leave columns as they are.
    """
    return feed.envelope == "outbox" and feed.payload == "full"


def events(records: DataFrame, feed: Feed, *, wrapped: bool) -> DataFrame:
    """The same with the row as it came (`after`): text by field, nothing of it judged."""
    read = table_events if feed.envelope == "table" else outbox_events
    return read(records, feed, wrapped=wrapped)


def _typed(told: DataFrame, feed: Feed, *, wrapped: bool) -> DataFrame:
    """The events with their values in the types of the contract, and with what did not fit."""
    is_change = F.col("kind") == "change"
    placed = _with_fields(told, feed, wrapped=wrapped)
    schemas = {
        name: F.col(f"schema_{name}") if wrapped and declared.from_topic is None else None
        for name, declared in feed.columns.items()
    }
    values = {
        f"value_{name}": F.col(f"field_{name}")
        if declared.from_topic is not None
        else typed(F.col(f"field_{name}"), declared, feed, schema=schemas[name])
        for name, declared in feed.columns.items()
    }
    problems: list[Found] = []
    absent: list[Found] = []
    for name, declared in feed.columns.items():
        field, value = F.col(f"field_{name}"), F.col(f"value_{name}")
        if name in feed.keys:
            problems.append((is_change & field.isNull(), F.lit(f"{name}: the record has no value for this key.")))
        elif declared.from_topic is None:
            has_field = reduce(or_, [F.map_contains_key("after", part) for part in feed.fields_of(name)])
            absent.append((F.col("has_row") & ~has_field, F.lit(name)))
        does_not_fit = is_change & field.isNotNull() & value.isNull()
        problems.append((does_not_fit, misfit(field, value, declared, feed, name=name, schema=schemas[name])))
    left_out = [(F.col("has_row") & F.col(f"is_left_out_{name}"), F.lit(name)) for name in large_columns(feed)]
    problems_of_kind = F.when(F.col("kind") == "unreadable", F.array("problem")).otherwise(present(problems))
    row = F.struct(*[F.col(f"value_{name}").alias(name) for name in feed.columns])
    return placed.withColumns(values).select(
        *RAW,
        "run_id",
        "kind",
        "op",
        "is_delete",
        "source_ts",
        "read_ms",
        "source",
        "event_id",
        "old_key",
        "new_key",
        F.when(F.col("has_key"), row).alias("row"),
        present(absent).alias("absent"),
        present(left_out).alias("left_out"),
        present([*left_out, *([] if absent_is_null(feed) else absent)]).alias("untold"),
        problems_of_kind.alias("problems"),
    )


def _with_fields(told: DataFrame, feed: Feed, *, wrapped: bool) -> DataFrame:
    """The events with `field_<column>`, the text of each column's value where the event tells it.

    And `has_row`, `has_key`, `schema_<column>` where messages may bring schemas, `is_left_out_<column>` of large ones.
    They are columns of their own, a step each, since what reads a value names it many times: Spark would look the field
    up in the row each time, in code too long for Java to compile.
    """
    is_change, is_tombstone = F.col("kind") == "change", F.col("kind") == "tombstone"
    flags = {
        "has_row": is_change & (~F.col("is_delete") | F.lit(feed.append_only)),
        # A list of changes has truncates too.
        "has_key": is_change | is_tombstone | (F.lit(feed.append_only) & (F.col("kind") == "truncate")),
        "may_leave_out": ~F.col("op").isin(*WHOLE_ROWS) | F.col("old_key").isNotNull(),
    }
    found = {f"found_{name}": _field(feed, name, declared) for name, declared in feed.columns.items()}
    schemas = {
        f"schema_{name}": _schema(feed, name)
        for name, declared in feed.columns.items()
        if wrapped and declared.from_topic is None
    }
    left_out, fields = {}, {}
    for name, declared in feed.columns.items():
        field = F.col(f"found_{name}")
        if name in large_columns(feed):
            is_placeholder = F.coalesce(unmarked(field).isin(*_placeholders(feed)), F.lit(False))
            left_out[f"is_left_out_{name}"] = F.col("may_leave_out") & is_placeholder
            field = F.when(~F.col(f"is_left_out_{name}"), field)
        if name in feed.keys:
            field = F.when(is_change | is_tombstone, field)
        elif declared.from_topic is None:
            field = F.when(F.col("has_row"), field)
        fields[f"field_{name}"] = field
    looked_up = told.withColumns({**flags, **found, **schemas})
    # Spark Connect takes no step without columns.
    return (looked_up.withColumns(left_out) if left_out else looked_up).withColumns(fields)


def _field(feed: Feed, name: str, declared: Declared) -> Column:
    """The text of a column's value, wherever the event has it."""
    if declared.from_topic is not None:
        return F.nullif(F.regexp_extract("topic", declared.from_topic, 1), F.lit(""))
    field = F.coalesce(*[F.col("after")[part] for part in feed.fields_of(name)])
    if name not in feed.keys:
        return field
    # A key's value stands in the record's key, whatever the envelope; a delete may have no row.
    keys = [F.col("key_fields")[part] for part in feed.fields_of(name)]
    if _own_fields(feed) == [name]:
        keys.append(F.col("key_value"))
    key = F.coalesce(*keys)
    return F.coalesce(key, field) if feed.envelope == "table" else F.coalesce(field, key)


def _schema(feed: Feed, name: str) -> Column:
    """The schema of a column's field, in a message that brings it."""
    return F.coalesce(*[F.try_element_at("schemas", F.lit(part)) for part in feed.fields_of(name)])


def _own_fields(feed: Feed) -> list[str]:
    """The columns of the key that the record's own key has: a key that is one value is the value of the only one."""
    return [key for key in feed.keys if feed.columns[key].from_topic is None]


def _placeholders(feed: Feed) -> tuple[str, ...]:
    return placeholders(feed.unavailable_value_placeholder)
