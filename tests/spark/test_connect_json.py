"""What Kafka's own JsonConverter reads of records in connect-json: exactly the cells of the table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from gold.topics.formats import connect
from lakehouse.contracts.parts.column_types import SIMPLE_NAMES
from lakehouse.contracts.published import CONNECT_TYPES
from lakehouse.contracts.published import Field as RecordField
from tests.support.connect import Field, JsonConverter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "composite_key": "STRING",
    "small": "SMALLINT",
    "number": "INT",
    "big": "BIGINT",
    "flag": "BOOLEAN",
    "amount": "DECIMAL(10,2)",
    "most_of_bigint": "DECIMAL(18,0)",
    "wide": "DECIMAL(38,9)",
    "whole": "DECIMAL(38,0)",
    "fraction": "DECIMAL(38,38)",
    "day": "DATE",
    "instant": "TIMESTAMP",
    "content": "BINARY",
}
DECIMALS = {"amount": (10, 2), "most_of_bigint": (18, 0), "wide": (38, 9), "whole": (38, 0), "fraction": (38, 38)}
EPOCH = datetime(1970, 1, 1)
Row = Mapping[str, Any]


@pytest.fixture(scope="module")
def of_values(spark: SparkSession) -> JsonConverter:
    return JsonConverter(spark, is_key=False)


def fields(columns: Mapping[str, str]) -> list[RecordField]:
    return [RecordField(name, name, sql_type) for name, sql_type in columns.items()]


def written(spark: SparkSession, rows: Sequence[Row]) -> list[str]:
    """The value of every row, in their order."""
    names = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS.items())
    cells = [(number, *(row.get(name) for name in COLUMNS)) for number, row in enumerate(rows)]
    table = spark.createDataFrame(cells, f"number_of_row INT, {names}")
    return [row[0] for row in table.orderBy("number_of_row").select(connect(fields(COLUMNS))).collect()]


def expected(row: Row) -> dict[str, Any]:
    """The row as Connect has it: dates as days, an instant as text."""
    cells = {name: row.get(name) for name in COLUMNS}
    day, instant, content = (cells[name] for name in ("day", "instant", "content"))
    return {
        **cells,
        "day": day and (day - EPOCH.date()).days,
        "instant": instant and instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0"),
        "content": content and bytes(content),
    }


def with_edges() -> list[Row]:
    """Rows at the ends of their types, and at the ends of the halves that a large decimal is made of."""
    instants = ["1969-12-31T23:59:59.999999", "1900-01-01T00:00:00.000001", "1970-01-01", "9999-12-31T23:59:59.999999"]
    texts = ['say "hi"', "a\\b\n\t", "注文 🚀", "", "</script>\u2028", '{"payload":null}']
    edges: list[Row] = [{}]
    edges += [{"instant": datetime.fromisoformat(text).replace(tzinfo=UTC)} for text in instants]
    edges += [{"day": datetime.fromisoformat(text).date()} for text in instants]
    edges += [{"composite_key": text, "content": bytearray(text.encode())} for text in texts]
    edges += [{"small": -(2**15), "number": -(2**31), "big": -(2**63), "flag": False}]
    edges += [{"small": 2**15 - 1, "number": 2**31 - 1, "big": 2**63 - 1, "flag": True}]
    edges += [{"content": bytearray(range(256))}]
    unscaled = [0, 1, *(2**bits + more for bits in (31, 32, 63, 64, 96) for more in (-1, 0, 1)), 10**38 - 1]
    for sign in (1, -1):
        edges += [
            {
                name: decimal(sign * min(number, 10**precision - 1), scale)
                for name, (precision, scale) in DECIMALS.items()
            }
            for number in unscaled
        ]
    return edges


def at_random(dice: random.Random) -> Row:
    """A row in which any cell may be NULL, and decimals have any number of digits."""
    moment = EPOCH + timedelta(microseconds=dice.randrange(-(10**15) * 2, 10**17))
    row = {
        "composite_key": f"PG-{dice.randrange(10**9)}",
        "small": dice.randrange(-(2**15), 2**15),
        "number": dice.randrange(-(2**31), 2**31),
        "big": dice.randrange(-(2**63), 2**63),
        "flag": dice.random() < 0.5,
        "day": moment.date(),
        "instant": moment.replace(tzinfo=UTC),
        "content": bytearray(dice.randbytes(dice.randrange(100))),
    }
    for name, (precision, scale) in DECIMALS.items():
        most = 10 ** dice.randint(0, precision) - 1
        row[name] = decimal(dice.randint(-most, most), scale)
    return {name: cell for name, cell in row.items() if dice.random() < 0.9}


def decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))


def test_every_row_is_read_as_it_was(spark: SparkSession, of_values: JsonConverter) -> None:
    dice = random.Random(20260101)  # noqa: S311
    rows = [*with_edges(), *(at_random(dice) for _ in range(150))]
    for row, record in zip(rows, written(spark, rows), strict=True):
        values = of_values.read(record)
        assert values == expected(row)
        for name, (_precision, scale) in DECIMALS.items():
            cell = values[name]
            assert cell is None or (isinstance(cell, Decimal) and cell.as_tuple().exponent == -scale)


def test_every_field_of_the_value_is_optional_and_has_its_type(spark: SparkSession, of_values: JsonConverter) -> None:
    (record,) = written(spark, [{}])
    assert of_values.fields(record) == {
        "composite_key": Field("string", True, None, {}),
        "small": Field("int16", True, None, {}),
        "number": Field("int32", True, None, {}),
        "big": Field("int64", True, None, {}),
        "flag": Field("boolean", True, None, {}),
        **{
            name: Field(
                "bytes",
                True,
                "org.apache.kafka.connect.data.Decimal",
                {"scale": str(scale), "connect.decimal.precision": str(precision)},
            )
            for name, (precision, scale) in DECIMALS.items()
        },
        "day": Field("int32", True, "org.apache.kafka.connect.data.Date", {}),
        "instant": Field("string", True, "io.debezium.time.ZonedTimestamp", {}),
        "content": Field("bytes", True, None, {}),
    }


def test_the_key_is_a_struct_with_one_required_field(spark: SparkSession) -> None:
    rows = spark.createDataFrame([('PG-"1"',)], "composite_key STRING").select(
        connect([RecordField("composite_key", "composite_key", "STRING", optional=False)])
    )
    record, converter = rows.collect()[0][0], JsonConverter(spark, is_key=True)
    assert converter.fields(record) == {"composite_key": Field("string", False, None, {})}
    assert converter.read(record) == {"composite_key": 'PG-"1"'}


def test_a_tombstone_is_nothing(of_values: JsonConverter) -> None:
    assert of_values.read(None) is None


def test_the_time_zone_of_the_session_changes_nothing(spark: SparkSession) -> None:
    moment = datetime(2026, 3, 29, 2, 30, 0, 1)  # is skipped in Berlin
    table = spark.createDataFrame([(moment.replace(tzinfo=UTC),)], "instant TIMESTAMP")
    table = table.select(connect(fields({"instant": "TIMESTAMP"})))
    in_utc = table.collect()
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert table.select("*").collect() == in_utc
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_what_the_contract_lets_pass_can_be_written(spark: SparkSession) -> None:
    assert set(CONNECT_TYPES) < set(SIMPLE_NAMES)
    for sql_type in CONNECT_TYPES:
        connect(fields({"column": sql_type}))
    for sql_type in set(SIMPLE_NAMES) - set(CONNECT_TYPES):
        with pytest.raises(ValueError, match=f"cannot carry {sql_type}"):
            connect(fields({"column": sql_type}))
