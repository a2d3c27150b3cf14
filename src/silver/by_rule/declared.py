"""A declared table, held to the definitions that the topic of schema changes says of it.

Without a schema in its message a decimal is base64 of an unscaled number, and a time a number: the contract alone says
of which scale, or counted in what. Where the database defines the column otherwise, or has done so, no value of it can
be read for sure. Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import DecimalType
from lakehouse.contracts.tables import Column
from silver.by_rule.definitions import DECIMALS, DefinedColumn, Definition, encoding
from silver.decode.reference.message import Json, Number, Object, Record
from silver.decode.reference.table import fields_of, table_statement
from silver.decode.reference.values import BITS, carries_precise_decimals, epoch_unit, meaning, scale_of
from silver.decode.reference.wrapper import Unwrapping

_TIMES = ("TIMESTAMP", "timestamp", "time", "DATE", "date")
_UNITS = {"millis": "milliseconds", "micros": "microseconds", "nanos": "nanoseconds"}


def bare_rows(feed: Feed, records: Iterable[Record]) -> list[Object] | None:
    """Of a feed's records the rows of those whose message has no schema; None where every row has one."""
    fields, unwrapped = fields_of(feed), Unwrapping(feed.schemas)
    found = [table_statement(record, fields, unwrapped) for record in records]
    rows = [one for one in found if one.kind == "change" and one.row is not None]
    bare = [one.row for one in rows if one.schemas is None and one.row is not None]
    return None if rows and not bare else bare


def contradictions(feed: Feed, defined: Mapping[str, Definition], rows: Sequence[Object]) -> list[str]:
    """Where the database defines columns of the feed otherwise than the contract reads them: sentences.

    `defined`: tables by `database.table`. `rows`: of records without a schema.
    """
    return [
        f"the column {field} {_was(definition.versions[field])} in the database, and the contract reads its values, "
        f"which have no schema, as {feed.columns[name].type.ddl}{_of(_declared(feed.columns[name], feed))}"
        for table, definition in sorted(defined.items())
        if _is_of_feed(table, feed)
        for name, field in _fields(feed)
        if field in definition.versions
        and _is_contradicted(feed.columns[name], definition.versions[field], feed)
        and _is_encoded(feed.columns[name], field, rows)
    ]


def _fields(feed: Feed) -> Iterator[tuple[str, str]]:
    for name, declared in feed.columns.items():
        if declared.is_of_row:
            for field in feed.fields_of(name):
                yield name, field


def _is_of_feed(table: str, feed: Feed) -> bool:
    """Whether the feed has the table; where its contract names none, by the names of its topics."""
    tables = fields_of(feed).tables
    return table in tables if tables else any(topic.endswith(f".{table}") for topic in feed.topics)


def _is_contradicted(declared: Column, versions: Sequence[DefinedColumn], feed: Feed) -> bool:
    reads, written = _declared(declared, feed), {encoding(one, feed) for one in versions}
    if not reads:
        # Whole numbers are read as they come, whatever they count; but not two ways in turn.
        return declared.element_type.ddl in BITS and not declared.source_name and len(written) > 1
    if declared.source_name == "unsigned_bigint":
        return written != {reads}
    held = declared.element_type
    if isinstance(held, DecimalType) and any(_digits(one) > held.precision - held.scale for one in versions):
        return True
    # What is written as it is shows what it is.
    return not written <= {reads, ""}


def _digits(column: DefinedColumn) -> int:
    """How many digits a decimal has before its point; none of any other type."""
    return (column.length or 10) - (column.scale or 0) if column.type in DECIMALS else 0


def _is_encoded(declared: Column, field: str, rows: Sequence[Object]) -> bool:
    """Whether the values may be numbers or base64, as far as there are any: a converter may write text."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return not values or any(_may_be_encoded(declared, value) for value in values)


def _may_be_encoded(declared: Column, value: Json) -> bool:
    is_of_decimals = _is_decimal(declared) and declared.source_name != "unsigned_bigint"
    return type(value) is str if is_of_decimals else type(value) is Number or declared.source_name == "unsigned_bigint"


def _is_decimal(declared: Column) -> bool:
    return isinstance(declared.element_type, DecimalType) or declared.source_name == "numeric"


def _declared(declared: Column, feed: Feed) -> str:
    """As what the contract reads a number or an encoded text of the column; empty of a value that is as it is."""
    if declared.source_name == "unsigned_bigint":
        return encoding(DefinedColumn("BIGINT", is_unsigned=True), feed)
    if _is_decimal(declared):
        held = declared.element_type
        sizes = declared.source_type.sizes if declared.source_type else ()
        if not carries_precise_decimals(feed) or not (sizes or isinstance(held, DecimalType)):
            return ""
        scale = scale_of(declared, held) if isinstance(held, DecimalType) else sizes[1]
        return f"an unscaled number of scale {scale}"
    means = meaning(declared)
    if means not in _TIMES:
        return ""
    if means in ("DATE", "date"):
        return "days" if feed.time_precision_mode != "isostring" else ""
    unit = epoch_unit(declared, feed)
    return "" if unit is None else _UNITS[unit] + (" of a day" if means == "time" else "")


def _of(reads: str) -> str:
    return f" from {reads}" if reads else ""


def _was(versions: Sequence[DefinedColumn]) -> str:
    texts = [one.text for one in versions]
    return f"is {texts[0]}" if len(texts) == 1 else f"was {' and '.join(texts)} in turn"
