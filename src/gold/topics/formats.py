"""The records of a compacted topic, in the format that the contract says: flat JSON, JSON with its schema, or Avro.

The key is that of the row, the value the row, null for one that is deleted or gone; headers `change_type` and
`change_sequence`. The sequence is BigQuery's `_CHANGE_SEQUENCE_NUMBER`: 1 to 4 sections of 1 to 16 hex digits, compared
section by section (BigQuery documentation, "Stream table updates with change data capture"). `connect-json` is what
Kafka Connect's JsonConverter reads with `schemas.enable`: key and value are structs, every field of the value is
optional, and the schema is the same text in every record.

A format is a function, in `_FORMATS`: of fields, each with its column, and the id of their schema it makes one column
of text or bytes. Keys that are equal have the same bytes, every time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from gold.topics.avro import avro
from lakehouse.contracts.models import PublicationFormat
from lakehouse.contracts.published import Field
from lakehouse.registered import NO_IDS, SchemaIds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# Times are instants with all their digits; a field without a value is null.
JSON_OPTIONS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC", "ignoreNullFields": "false"}


# What `records` adds to rows of a table, whose own columns may have any name.
IS_GONE, AT_VERSION = "_is_gone", "_at_version"


@dataclass(frozen=True)
class RecordShape:
    """What the records of a topic are: their format, the fields of key and value, and the ids of their Avro schemas."""

    record_format: PublicationFormat
    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    ids: SchemaIds = NO_IDS

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that key and value are made of, each once."""
        return tuple(dict.fromkeys(field.column for field in (*self.keys, *self.values)))


def flat(fields: Sequence[Field]) -> Column:
    """The fields as one JSON object, in their order: `{"composite_key":"PG-1001"}`."""
    return F.to_json(F.struct(*[F.col(field.column).alias(field.name) for field in fields]), JSON_OPTIONS)


# A TIMESTAMP is an instant, so it is a text with a zone. As a number, MicroTimestamp, it would be a time without one,
# and the sink reads a number below zero wrongly if it has a fraction of a second.
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "SMALLINT": {"type": "int16"},
    "INT": {"type": "int32"},
    "BIGINT": {"type": "int64"},
    "BOOLEAN": {"type": "boolean"},
    "STRING": {"type": "string"},
    "BINARY": {"type": "bytes"},
    "DATE": {"type": "int32", "name": "org.apache.kafka.connect.data.Date", "version": 1},
    "TIMESTAMP": {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
}
# The digits that every whole number of so many keeps in 64 bits.
_DIGITS_OF_BIGINT = 18


def connect(fields: Sequence[Field]) -> Column:
    """A struct with the fields in their order, and its schema. Raises ValueError for a type it cannot carry."""
    schemas = [{**_type(field.sql_type), "optional": field.optional, "field": field.name} for field in fields]
    payload = F.struct(*[_payload(field.column, field.sql_type).alias(field.name) for field in fields])
    return _with_schema(schemas, payload)


def _with_schema(fields: list[dict[str, Any]], payload: Column) -> Column:
    schema = {"type": "struct", "fields": fields, "optional": False}
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return F.concat(F.lit(f'{{"schema":{text},"payload":'), F.to_json(payload, JSON_OPTIONS), F.lit("}"))


def _type(sql_type: str) -> Mapping[str, Any]:
    digits = _decimal_digits(sql_type)
    if digits is not None:
        precision, scale = digits
        parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
        name = "org.apache.kafka.connect.data.Decimal"
        return {"type": "bytes", "name": name, "version": 1, "parameters": parameters}
    if sql_type not in _TYPES:
        raise ValueError(f"connect-json cannot carry {sql_type}")
    return _TYPES[sql_type]


def _decimal_digits(sql_type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type; None for any other."""
    match = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", sql_type)
    return (int(match[1]), int(match[2])) if match else None


def _payload(name: str, sql_type: str) -> Column:
    """What stands for the column in the payload. Bytes are base64 there, and a TIMESTAMP is a text, by `to_json`."""
    column = F.col(name)
    digits = _decimal_digits(sql_type)
    if digits is not None:
        return _unscaled(column, *digits)
    if sql_type == "DATE":
        return F.unix_date(column)
    return column


def _unscaled(number: Column, precision: int, scale: int) -> Column:
    """The decimal without its point, as a big-endian number in two's complement of 8 bytes, or of 16."""
    one = _decimal(1, scale)
    if precision <= _DIGITS_OF_BIGINT:
        return F.unhex(_hex(F.call_function("div", number, one), bits=64))
    # `div` and the remainders are exact for decimals of any size; every part is small enough for a BIGINT.
    word, half = _decimal(2**64, scale), _decimal(2**32, scale)
    low_64 = F.pmod(number, word)
    # `div` rounds towards zero, `pmod` downwards. (A comparison with 0 would round digits away to have room for it.)
    carry = F.when(number % word == low_64, 0).otherwise(1)
    high_64 = F.call_function("div", number, word) - carry
    high_32, low_32 = F.call_function("div", low_64, half), F.call_function("div", F.pmod(low_64, half), one)
    return F.unhex(F.concat(_hex(high_64, bits=64), _hex(high_32, bits=32), _hex(low_32, bits=32)))


def _decimal(unscaled: int, scale: int) -> Column:
    """The whole number with its last `scale` digits behind the point, as an exact decimal."""
    digits = str(unscaled).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    precision = max(len(str(unscaled)), scale, 1)
    return F.lit(f"{whole}.{fraction}").cast(f"decimal({precision},{scale})")


def _hex(whole: Column, *, bits: int) -> Column:
    return F.lpad(F.hex(whole), bits // 4, "0")


_FORMATS: Mapping[PublicationFormat, Callable[[Sequence[Field], int], Column]] = {
    "json": lambda fields, _id: flat(fields),
    "connect-json": lambda fields, _id: connect(fields),
    "avro": avro,
}


def records(states: DataFrame, *, shape: RecordShape, generation: int) -> DataFrame:
    """`key`, `value` (NULL: deleted) as bytes, `change_type`, `change_sequence`: one record for each of the `states`.

    These have the columns of the shape, IS_GONE and AT_VERSION. `generation` grows with every rebuilt table, so a
    sequence never goes back.
    """
    is_gone, written = F.col(IS_GONE), _FORMATS[shape.record_format]
    return states.select(
        written(shape.keys, shape.ids.key).cast("binary").alias("key"),
        F.when(~is_gone, written(shape.values, shape.ids.value)).cast("binary").alias("value"),
        F.when(is_gone, "DELETE").otherwise("UPSERT").alias("change_type"),
        change_sequence(F.lit(generation), F.col(AT_VERSION)).alias("change_sequence"),
    )


def shown_key(key: Column) -> Column:
    """The key of a record as text for people: JSON, without its schema; of Avro the bytes in hex."""
    text = key.cast("string")
    of_json = F.coalesce(F.get_json_object(text, "$.payload"), text)
    return F.when(F.substring(key, 1, 1) == F.lit(b"\0"), F.hex(key)).otherwise(of_json)


def change_sequence(generation: Column, version: Column) -> Column:
    """`<generation>/<version>`, each as 16 hex digits."""
    sections = [F.lpad(F.hex(section.cast("bigint")), 16, "0") for section in (generation, version)]
    return F.concat_ws("/", *sections)
