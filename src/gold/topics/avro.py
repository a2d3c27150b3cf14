"""Records in Avro, in the Confluent wire format: a zero byte, the schema's id in four bytes, the datum.

Decimals, dates and times by Avro's logical types, and by the names that Kafka Connect's Avro converters know them by.
The schema of a topic's keys is registered as `TOPIC-key`, that of its values as `TOPIC-value` (Confluent documentation,
"Subject name strategy"). Equal rows have equal bytes, every time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from lakehouse.contracts.models import CompactedTopic, Contracts
from lakehouse.contracts.published import Field
from lakehouse.errors import SettingsError
from lakehouse.kafka.registry import registry
from lakehouse.registered import SchemaIds

if TYPE_CHECKING:
    from pyspark.sql import Column

    from gold.topics.formats import RecordShape
    from lakehouse.kafka.connection import KafkaConnection
    from lakehouse.kafka.retry import RetryPolicy

Part = Literal["key", "value"]

_CONNECT = "org.apache.kafka.connect.data"
_TYPES: Mapping[str, Any] = {
    "SMALLINT": "int",
    "INT": "int",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "STRING": "string",
    "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date", "connect.name": f"{_CONNECT}.Date", "connect.version": 1},
    "TIMESTAMP": {
        "type": "long",
        "logicalType": "timestamp-micros",
        "connect.name": "io.debezium.time.MicroTimestamp",
        "connect.version": 1,
    },
}


def schema_text(fields: Sequence[Field], *, topic: str, part: Part) -> str:
    """The schema of a topic's keys or values as JSON: a record of these fields, in their order."""
    namespace = ".".join(re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", name) for name in topic.split(".") if name)
    name = part.capitalize()
    declared = [_field(field) for field in fields]
    return json.dumps({"type": "record", "name": name, "namespace": namespace, "fields": declared})


def _field(field: Field) -> dict[str, Any]:
    kind = _type(field.sql_type)
    if not field.optional:
        return {"name": field.name, "type": kind}
    return {"name": field.name, "type": ["null", kind], "default": None}


def _type(sql_type: str) -> Any:
    array = re.fullmatch(r"ARRAY<(.+)>", sql_type)
    if array is not None:
        return {"type": "array", "items": ["null", _type(array[1])]}
    digits = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", sql_type)
    if digits is None:
        return _TYPES[sql_type]
    return {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": int(digits[1]),
        "scale": int(digits[2]),
        "connect.name": f"{_CONNECT}.Decimal",
        "connect.version": 1,
        "connect.parameters": {"scale": digits[2], "connect.decimal.precision": digits[1]},
    }


def with_schema_ids(
    contracts: Contracts,
    connection: KafkaConnection,
    topic: CompactedTopic,
    shape: RecordShape,
    *,
    register: bool,
    retry_policy: RetryPolicy | None = None,
) -> Contracts:
    """The contracts with the ids of the topic's schemas, where its format is avro.

    `register`: those that are not in the registry yet are, where their subject allows it; otherwise nothing is changed.
    Raises SettingsError where no registry is named, RegistryError where it refuses, RegistryGoneError.
    """
    if topic.format != "avro":
        return contracts
    if connection.schema_registry is None:
        raise SettingsError(
            f"Topic {topic.topic} has the format avro, and no schema registry is named.",
            hint="Add schema_registry to the file of --kafka-config (docs/kafka.md), or choose another format.",
        )
    name = topic.topic
    with closing(registry(connection.schema_registry, retry_policy=retry_policy)) as client:
        asked = client.identifier if register else client.known_identifier
        key = asked(f"{name}-key", schema_text(shape.keys, topic=name, part="key"))
        value = asked(f"{name}-value", schema_text(shape.values, topic=name, part="value"))
    ids = SchemaIds(key or 0, value or 0)
    return contracts.model_copy(update={"schema_ids": {**contracts.schema_ids, topic.topic: ids}})


def avro(fields: Sequence[Field], number: int) -> Column:
    """The columns of these fields as one value in the wire format, with this id."""
    written = encoder(fields, number)

    def values(rows: pa.Array) -> pa.Array:
        return pa.array([written(row) for row in rows.to_pylist()], pa.binary())

    columns = F.struct(*[F.col(field.column).alias(field.name) for field in fields])
    found: Column = arrow_udf(values, "binary")(columns)  # type: ignore[call-overload]
    return found


def encoder(fields: Sequence[Field], number: int) -> Callable[[Mapping[str, Any]], bytes]:
    """Makes a row, by field, a value in the wire format."""
    from fastavro import parse_schema, schemaless_writer

    # Names of records are not in the bytes.
    schema = parse_schema(json.loads(schema_text(fields, topic="", part="value")))
    head = b"\0" + number.to_bytes(4, "big")

    def encoded(row: Mapping[str, Any]) -> bytes:
        datum = BytesIO()
        datum.write(head)
        schemaless_writer(datum, schema, row)
        return datum.getvalue()

    return encoded
