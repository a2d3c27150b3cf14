"""How BigQuery loads the topic: the sink connector's configuration and the tables fit the packaged contract."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import unified_columns

ROOT = Path(__file__).parents[2]
SINK = json.loads((ROOT / "resources/connect/bigquery-sink.json").read_text())
CONFIG: Mapping[str, str] = SINK["config"]
TABLES = ROOT / "resources/bigquery"

# Options of the connector (release 2.13) that a table with upserts and deletes may want, and those of Kafka Connect.
OF_THE_CONNECTOR = {
    *("project", "defaultDataset", "keySource", "keyfile", "topic2TableMap", "sanitizeTopics", "sanitizeFieldNames"),
    *("upsertEnabled", "deleteEnabled", "kafkaKeyFieldName", "mergeIntervalMs", "mergeRecordsThreshold"),
    *("intermediateTableSuffix", "decimalHandlingMode", "autoCreateTables", "allBQFieldsNullable"),
    *("allowNewBigQueryFields", "allowBigQueryRequiredFieldRelaxation", "allowSchemaUnionization"),
    *("bigQueryPartitionDecorator", "bigQueryRetry", "bigQueryRetryWait", "threadPoolSize", "queueSize", "max.retries"),
}
OF_KAFKA_CONNECT = {
    *("connector.class", "tasks.max", "topics", "errors.tolerance"),
    *(f"{side}.converter{option}" for side in ("key", "value") for option in ("", ".schemas.enable")),
    *("consumer.override.isolation.level", "consumer.override.auto.offset.reset"),
}
BIGQUERY = {
    "BIGINT": "INT64",
    "BINARY": "BYTES",
    "BOOLEAN": "BOOL",
    "DATE": "DATE",
    "DOUBLE": "FLOAT64",
    "FLOAT": "FLOAT64",
    "INT": "INT64",
    "SMALLINT": "INT64",
    "STRING": "STRING",
    "TIMESTAMP": "TIMESTAMP",
}
# Of a NUMERIC at most so many digits stand before the point, and after it.
NUMERIC_DIGITS = (29, 9)


@pytest.fixture(scope="module")
def contracts() -> Contracts:
    return load_contracts()


def bigquery_type(spark_type: str) -> str:
    decimal = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", spark_type)
    if decimal is None:
        return BIGQUERY[spark_type]
    precision, scale = int(decimal[1]), int(decimal[2])
    is_numeric = precision - scale <= NUMERIC_DIGITS[0] and scale <= NUMERIC_DIGITS[1]
    return f"{'NUMERIC' if is_numeric else 'BIGNUMERIC'}({precision}, {scale})"


def columns_of(file: str) -> dict[str, str]:
    """The columns that the statement declares, without constraints."""
    text = (TABLES / file).read_text()
    declared = re.search(r"CREATE TABLE IF NOT EXISTS unified_orders \((.*?)\n\)", text, re.DOTALL)
    assert declared is not None
    lines = [line.strip().removesuffix(",").removesuffix(" NOT NULL") for line in declared[1].strip().splitlines()]
    pairs = [line.partition(" ") for line in lines if not line.startswith("PRIMARY KEY")]
    return {name: type_name for name, _space, type_name in pairs}


def of_gold(contracts: Contracts) -> dict[str, str]:
    return {name: bigquery_type(spark_type) for name, spark_type in unified_columns(contracts.gold).items()}


def test_the_table_of_change_data_capture_has_the_columns_of_gold(contracts: Contracts) -> None:
    declared = columns_of("unified_orders_cdc.sql")
    assert list(declared.items()) == list(of_gold(contracts).items())


def test_the_table_of_the_sink_has_the_key_and_the_columns_of_gold(contracts: Contracts) -> None:
    declared = columns_of("unified_orders_sink.sql")
    key = {CONFIG["kafkaKeyFieldName"]: "STRUCT<composite_key STRING>"}
    assert list(declared.items()) == list({**key, **of_gold(contracts)}.items())


def test_change_data_capture_has_its_key() -> None:
    text = (TABLES / "unified_orders_cdc.sql").read_text()
    assert "PRIMARY KEY (composite_key) NOT ENFORCED" in text
    assert "CLUSTER BY composite_key\nOPTIONS (max_staleness = INTERVAL" in text


def test_the_sink_has_only_options_that_there_are() -> None:
    assert SINK.keys() == {"name", "config"}
    assert CONFIG.keys() <= OF_THE_CONNECTOR | OF_KAFKA_CONNECT
    assert all(isinstance(value, str) for value in CONFIG.values())


def test_the_sink_reads_the_topic_of_the_contract_as_it_was_written(contracts: Contracts) -> None:
    topic = contracts.gold.unified_topic.topic
    assert CONFIG["topics"] == topic
    assert CONFIG["topic2TableMap"] == f"{topic}:unified_orders"
    assert CONFIG["consumer.override.isolation.level"] == "read_committed"
    for side in ("key", "value"):
        assert CONFIG[f"{side}.converter"] == "org.apache.kafka.connect.json.JsonConverter"
        assert CONFIG[f"{side}.converter.schemas.enable"] == "true"


def test_the_sink_loses_and_rounds_nothing() -> None:
    assert (CONFIG["upsertEnabled"], CONFIG["deleteEnabled"], CONFIG["errors.tolerance"]) == ("true", "true", "none")
    # By default it writes decimals as FLOAT64.
    assert CONFIG["decimalHandlingMode"] == "NUMERIC"


def test_where_the_sink_writes_and_as_whom_is_said_by_the_worker() -> None:
    for option in ("project", "defaultDataset", "keyfile"):
        assert re.fullmatch(r"\$\{env:[A-Z_]+\}", CONFIG[option])
