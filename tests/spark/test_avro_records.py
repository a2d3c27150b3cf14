"""What fastavro reads of records in Avro: exactly the cells of the table, and the same bytes every time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.sql import functions as F

from gold.topics.avro import avro, schema_text, with_schema_ids
from gold.topics.unpublished import composite_key_of, record_shape
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import Field
from lakehouse.errors import SettingsError
from lakehouse.kafka.connection import KafkaConnection
from monitoring.readings.unified_topic import composite_key_in
from silver.decode.avro import AvroSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "small": "SMALLINT",
    "number": "INT",
    "big": "BIGINT",
    "flag": "BOOLEAN",
    "amount": "DECIMAL(10,2)",
    "wide": "DECIMAL(38,9)",
    "day": "DATE",
    "instant": "TIMESTAMP",
    "content": "BINARY",
    "text": "STRING",
    "near": "FLOAT",
    "double": "DOUBLE",
    "several": "ARRAY<DECIMAL(4,1)>",
}
EMPTY: Mapping[str, Any] = dict.fromkeys(COLUMNS)
LOWEST: dict[str, Any] = {"small": -(2**15), "number": -(2**31), "big": -(2**63), "flag": False}
LOWEST |= {"amount": Decimal("-99999999.99"), "wide": Decimal("-" + "9" * 29 + "." + "9" * 9), "day": date(1, 1, 1)}
LOWEST |= {"instant": datetime(1600, 1, 1, 0, 0, 0, 1, UTC), "content": b"", "text": "", "near": -0.5, "double": -1e308}
LOWEST |= {"several": []}
HIGHEST: dict[str, Any] = {"small": 2**15 - 1, "number": 2**31 - 1, "big": 2**63 - 1, "flag": True}
HIGHEST |= {"amount": Decimal("99999999.99"), "wide": Decimal("0.000000001"), "day": date(9999, 12, 31)}
HIGHEST |= {"instant": datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), "content": b"\0\xff", "text": "naïve\n𝄞"}
HIGHEST |= {"near": 1.5, "double": 5e-324, "several": [Decimal("-0.1"), None, Decimal("999.9")]}


def fields(columns: Mapping[str, str], *, optional: bool = True) -> list[Field]:
    return [Field(f"the_{name}", name, sql_type, optional) for name, sql_type in columns.items()]


def written(spark: SparkSession, rows: list[Mapping[str, Any]]) -> list[bytes]:
    """The value of each row, in their order."""
    declared = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS.items())
    cells = [(number, *(row[name] for name in COLUMNS)) for number, row in enumerate(rows)]
    table = spark.createDataFrame(cells, f"number_of_row INT, {declared}")
    values = table.orderBy("number_of_row").select(avro(fields(COLUMNS), 258).alias("value")).collect()
    return [bytes(row["value"]) for row in values]


def test_every_cell_comes_back(spark: SparkSession) -> None:
    text = schema_text(fields(COLUMNS), topic="a.1st-topic", part="value")
    schema = json.loads(text)
    assert (schema["namespace"], schema["name"]) == ("a._1st_topic", "Value")
    rows = [EMPTY, LOWEST, HIGHEST]
    found = written(spark, rows)
    for value, row in zip(found, rows, strict=True):
        assert value[:5] == b"\0\0\0\x01\x02"
        assert fastavro.schemaless_reader(BytesIO(value[5:]), schema, None) == {f"the_{k}": v for k, v in row.items()}
    assert written(spark, rows) == found


def test_our_own_decoder_reads_it_as_connect_names_it() -> None:
    of_value = AvroSchema(schema_text(fields(COLUMNS), topic="t", part="value")).message.fields
    names = {name.removeprefix("the_"): field.name for name, field in of_value.items() if field.name is not None}
    decimal = "org.apache.kafka.connect.data.Decimal"
    assert names == {
        "amount": decimal,
        "wide": decimal,
        "day": "org.apache.kafka.connect.data.Date",
        "instant": "io.debezium.time.MicroTimestamp",
    }
    assert of_value["the_wide"].scale == 9


@pytest.mark.parametrize("number", ["7", "1" * 61, "1" * 200])
def test_the_composite_key_is_read_back(spark: SparkSession, number: str) -> None:
    """One byte holds lengths up to 63."""
    text = f"PG-{number}"
    key = [Field("composite_key", "composite_key", "STRING", optional=False)]
    table = spark.createDataFrame([(text,)], "composite_key STRING").select(avro(key, 16_777_216 + 34).alias("key"))
    ((read, raw),) = table.select(composite_key_of(F.col("key")), "key").collect()
    assert (read, composite_key_in(bytes(raw))) == (text, text)


def test_without_a_registry_avro_is_refused(contracts: Contracts) -> None:
    publication = contracts.gold.unified_topic.model_copy(update={"format": "avro"})
    connection = KafkaConnection(bootstrap_servers="localhost:1")
    with pytest.raises(SettingsError, match=r"no schema registry is named\. Add schema_registry"):
        with_schema_ids(contracts, connection, publication, record_shape(contracts), register=True)
