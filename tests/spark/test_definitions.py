"""What the database defines otherwise than a contract reads it: no value is read in a way that was not meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import SparkRuntimeException

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import inline_rows
from silver.accounts.audit import read_state
from silver.accounts.completeness import record_ranges_in
from silver.apply import ensure_tables
from silver.order.ranges import RecordRange
from silver.order.state import State
from silver.rejects.suspended import ENCODING
from tests.support.events import Record, base64_decimal, change, mysql_image, mysql_source, order, record
from tests.support.silver import Told, job_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark

FEED, TOPIC, DDL_TOPIC = "mysql_orders", "mysql_prod_tables.ecommerce.orders", "mysql_prod_tables"
RUN = [("__debezium.context.runId", "run")]


def defined(offset: int, amount: tuple[int, int]) -> Record:
    """ALTER TABLE: the record of the topic of schema changes."""
    columns = [
        {"name": "order_id", "typeName": "BIGINT", "length": None, "scale": None, "position": 1},
        {"name": "total_amount", "typeName": "DECIMAL", "length": amount[0], "scale": amount[1], "position": 2},
    ]
    table = {"primaryKeyColumnNames": ["order_id"], "columns": columns}
    body: Mapping[str, Any] = {
        "source": mysql_source(50),
        "ts_ms": 1_767_225_600_000,
        "databaseName": "ecommerce",
        "ddl": "ALTER TABLE",
        "tableChanges": [{"type": "ALTER", "id": '"ecommerce"."orders"', "table": table}],
    }
    return record(DDL_TOPIC, offset, key={"databaseName": "ecommerce"}, value=json.dumps(body, separators=(",", ":")))


def created(number: int, amount: str, *, scale: int = 2, with_schema: bool = False) -> Record:
    image = {**mysql_image(order(number)), "total_amount": base64_decimal(amount, scale=scale)}
    value = change("c", mysql_source(100 + number), image)
    if with_schema:
        decimal = {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": str(scale), "connect.decimal.precision": "10"},
            "field": "total_amount",
        }
        of_row = [decimal if name == "total_amount" else {"field": name} for name in image]
        fields = [{"type": "struct", "field": "after", "fields": of_row}]
        value = json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": json.loads(value)})
    return record(TOPIC, number, key={"order_id": number}, value=value, headers=RUN)


@pytest.fixture
def told(warehouse: Warehouse, contracts: Contracts, tmp_path: Path) -> Told:
    mysql = contracts.topics.sources["mysql"]
    named = mysql.model_copy(update={"ignored_topics": (*mysql.ignored_topics, DDL_TOPIC)})
    topics = contracts.topics.model_copy(update={"sources": {**contracts.topics.sources, "mysql": named}})
    own = contracts.model_copy(update={"topics": topics})
    ensure_tables(warehouse, own)
    return Told(warehouse, own, "mysql", tmp_path)


def test_a_declared_table_whose_scale_changes_is_suspended_unless_its_messages_say_it(
    told: Told,
) -> None:
    def state() -> State:
        return read_state(told.warehouse, "mysql")

    told.tell(defined(0, (10, 2)), created(1, "10.00"))
    assert (told.rows(FEED, "total_amount"), state().unreadable) == ({1: Decimal("10.00")}, {})
    # The definition comes first, and alone.
    told.tell(defined(1, (10, 4)))
    assert (state().suspended, list(state().unreadable)) == ({}, [FEED])
    # A message with a schema is read by it.
    told.tell(created(2, "20.0000", scale=4, with_schema=True))
    assert told.rows(FEED, "total_amount") == {1: Decimal("10.00"), 2: Decimal("20.00")}
    told.tell(created(3, "30.0000", scale=4))
    assert {feed: cause.rule for feed, cause in state().suspended.items()} == {FEED: ENCODING}
    why = (
        "the column total_amount was DECIMAL(10,2) and DECIMAL(10,4) in turn in the database, and the contract reads "
        "its values, which have no schema, as DECIMAL(10,2) from an unscaled number of scale 2"
    )
    assert (told.suspended(), told.resume(FEED)) == ({FEED: why}, why)
    assert told.rows(FEED, "total_amount") == {1: Decimal("10.00"), 2: Decimal("20.00")}
    # The contract says that decimals are text: what is no text of a number does not fit.
    source = told.contracts.topics.sources["mysql"]
    as_text = source.feeds[FEED].model_copy(update={"decimal_handling_mode": "string"})
    of_text = source.model_copy(update={"feeds": {**source.feeds, FEED: as_text}})
    topics = told.contracts.topics.model_copy(update={"sources": {**told.contracts.topics.sources, "mysql": of_text}})
    told.contracts = told.contracts.model_copy(update={"topics": topics})
    assert told.resume(FEED) is None
    assert (state().unreadable, state().suspended, list(told.entries(FEED))) == ({}, {}, [3])
    assert told.counted() == {"read": 5, "applied": 2, "ignored": 2, "quarantined": 1}


def test_values_are_looked_at_where_a_key_or_a_topic_says_that_there_may_be_a_definition(
    spark: SparkSession, warehouse: Warehouse, contracts: Contracts
) -> None:
    """Of what bronze has counted, values are most of the bytes: here, none can be read."""

    def rows(*records: tuple[str, str, str]) -> DataFrame:
        columns = "topic STRING, key STRING, text STRING"
        named = [dict(zip(("topic", "key", "text"), one, strict=True)) for one in records]
        return inline_rows(spark, named, columns).selectExpr(
            "topic",
            "CAST(NULL AS STRING) AS _topic_id",
            "0 AS partition",
            "1L AS offset",
            "timestamp '2026-01-01' AS timestamp",
            "CAST(key AS BINARY) AS key",
            "CAST(IF(text = 'unread', raise_error('a value was read'), text) AS BINARY) AS value",
        )

    def found(*records: tuple[str, str, str]) -> list[tuple[int, bool]]:
        ingested = [RecordRange((topic, "", 0), 1, 1, 1, value_bytes=77) for topic, _key, _text in records]
        record_ranges = record_ranges_in(rows(*records), job_of(warehouse, contracts, "mysql"), ingested)
        return sorted((one.value_bytes, one.has_definitions) for one in record_ranges)

    plain = (TOPIC, '{"order_id":1}', "unread")
    assert found(plain) == [(77, False)]
    # A topic that no contract names.
    definition = '{"tableChanges":[]}'
    assert found((TOPIC, '{"order_id":1}', "1"), ("other", '{"databaseName":"shop"}', definition)) == [
        (1, False),
        (len(definition), True),
    ]
    # The key of a table.
    assert found(("other", '{"databaseName":"shop"}', "row")) == [(3, False)]
    (ignored, *_others) = contracts.topics.sources["mysql"].ignored_topics
    assert found((ignored, "{}", definition)) == [(77, True)]
    with pytest.raises(SparkRuntimeException, match="a value was read"):
        found((ignored, "{}", "unread"))
