"""Upsert topics in the contract: what each has in key and value, and every mistake at its line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.contracts.files import MODELS, load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import key_fields, keyed_table, value_fields
from lakehouse.errors import ContractError

SOURCES = Path(__file__).parents[4] / "src"
GOLD, TABLES = "gold/tables.yaml", "silver/tables.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged contracts, to write upsert topics into."""
    for name in MODELS:
        copy = tmp_path / "own" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / name, copy)
    return tmp_path / "own"


def declare(folder: Path, **topics: Any) -> None:
    """Write the upsert topics at the end of gold's contract."""
    whole = {
        name: {"topic": f"lakehouse.{name}", "partitions": 3, "replication_factor": 1, **topic}
        for name, topic in topics.items()
    }
    with (folder / GOLD).open("a") as file:
        file.write("\n" + yaml.safe_dump({"upsert_topics": whole}, sort_keys=False))


def replace(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


def names(contracts: Contracts, topic: str) -> tuple[list[str], list[str]]:
    """The fields of key and value of an upsert topic."""
    declared = contracts.gold.upsert_topics[topic]
    table = keyed_table(contracts, declared.table)
    assert table is not None
    return [field.name for field in key_fields(table, declared)], [
        field.name for field in value_fields(table, declared)
    ]


def test_without_upsert_topics_there_is_none() -> None:
    assert load_contracts().gold.upsert_topics == {}


def test_any_table_with_a_key_can_be_published(folder: Path) -> None:
    declare(
        folder,
        all={"table": "silver.mysql_orders"},
        bare={
            **{"table": "silver.mysql_orders", "key_prefix": "key_", "value_fields": "except_key"},
            **{"columns": ["order_id", "status", "_source_ts"]},
        },
        unified={"table": "gold.unified_orders", "value_prefix": "after_", "columns": ["status"]},
        daily={"table": "gold.orders_daily", "format": "connect-json"},
    )
    contracts = load_contracts(folder)
    keys, values = names(contracts, "all")
    assert keys == ["order_id"]
    assert values == list(contracts.silver.tables["mysql_orders"].columns)
    assert names(contracts, "bare") == (["key_order_id"], ["status", "_source_ts"])
    assert names(contracts, "unified") == (["composite_key"], ["after_status"])
    groups = ["day", "source_database", "fulfillment_status"]
    assert names(contracts, "daily") == (groups, [*groups, "orders", "revenue"])
    assert contracts.gold.upsert_topics["daily"].progress_topic == "lakehouse.daily.progress"


@pytest.mark.parametrize(("summed", "kind"), [("total_amount", "DECIMAL(20,2)"), ("customer_id", "BIGINT")])
def test_a_column_of_a_mart_has_the_type_of_its_sum(folder: Path, summed: str, kind: str) -> None:
    replace(folder, GOLD, "revenue: total_amount", f"revenue: {summed}")
    table = keyed_table(load_contracts(folder), "gold.orders_daily")
    assert table is not None
    assert table.columns["revenue"] == kind
    assert table.columns["day"] == "DATE"


def test_only_a_group_may_be_null_in_a_key(folder: Path) -> None:
    declare(folder, feed={"table": "silver.mysql_orders"}, daily={"table": "gold.orders_daily"})
    contracts = load_contracts(folder)
    optional = {}
    for name, topic in contracts.gold.upsert_topics.items():
        table = keyed_table(contracts, topic.table)
        assert table is not None
        optional[name] = {field.optional for field in key_fields(table, topic)}
        assert {field.optional for field in value_fields(table, topic)} == {True}
    assert optional == {"feed": {False}, "daily": {True}}


@pytest.mark.parametrize("table", ["silver.mysql_orders", "gold.unified_orders", "gold.orders_daily"])
def test_a_sensitive_column_is_published_by_name_alone(folder: Path, table: str) -> None:
    replace(folder, TABLES, "total_amount: DECIMAL(10,2)", 'total_amount: {type: "DECIMAL(10,2)", sensitive: true}')
    column = "revenue" if table == "gold.orders_daily" else "total_amount"
    declare(folder, left={"table": table}, named={"table": table, "columns": [column]})
    contracts = load_contracts(folder)
    assert column not in names(contracts, "left")[1]
    assert names(contracts, "named")[1] == [column]


def test_a_sensitive_key_is_published_when_it_is_named(folder: Path) -> None:
    replace(folder, TABLES, "order_id: BIGINT", "order_id: {type: BIGINT, sensitive: true}")
    declare(folder, own={"table": "silver.mysql_orders", "columns": ["order_id", "status"]})
    contracts = load_contracts(folder)
    table = keyed_table(contracts, "silver.mysql_orders")
    assert table is not None
    assert table.has_sensitive_key
    assert names(contracts, "own") == (["order_id"], ["order_id", "status"])


FEED = "silver.mysql_orders"
MISTAKES = [
    # the topic, the key of the mistake, what its line has, the sentence
    ({"table": "silver.mysql_order"}, "table", "silver.mysql_order", "did you mean 'silver.mysql_orders'?"),
    ({"table": "gold.orders_dayly"}, "table", "gold.orders_dayly", "did you mean 'gold.orders_daily'?"),
    ({"table": "bronze.mysql_events"}, "table", "bronze.mysql_events", "silver|gold"),
    ({"table": FEED, "topic": "bigquery.unified.orders"}, "topic", "bigquery", "is a topic of publication too"),
    ({"table": FEED, "topic": "bigquery.unified.orders.progress"}, "topic", "progress", "a topic of publication too"),
    ({"table": FEED, "topic": "outbox.event.mysql.orders"}, "topic", "outbox", "the lakehouse would feed itself"),
    ({"table": FEED, "columns": ["statsu"]}, "columns", "columns", "did you mean 'status'?"),
    ({"table": FEED, "columns": ["status", "status"]}, "columns", "columns", "status stands here twice"),
    ({"table": FEED, "key_prefix": "a-"}, "key_prefix", "a-", "it must match ^([A-Za-z_]"),
    (
        {"table": FEED, "columns": ["order_id"], "value_fields": "except_key"},
        *("columns", "columns", "no column is left for the value"),
    ),
    ({"table": FEED, "format": "csv"}, "format", "csv", "is not one of 'json', 'connect-json' or 'avro'"),
    ({"table": FEED, "max_message_bytes": 8_065_535}, "max_message_bytes", "8065535", "write 8065536 or more"),
]


@pytest.mark.parametrize(("topic", "key", "line_of", "sentence"), MISTAKES)
def test_a_mistake_is_said_with_its_line(
    folder: Path, topic: dict[str, Any], key: str, line_of: str, sentence: str
) -> None:
    declare(folder, wrong=topic)
    assert_refused(folder, key, line_of, sentence)


def assert_refused(folder: Path, key: str, line_of: str, sentence: str) -> None:
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    (problem,) = refused.value.problems
    assert sentence in problem.what
    assert problem.key == f"upsert_topics.wrong.{key}"
    assert problem.file == str(folder / GOLD)
    assert problem.line is not None
    assert line_of in (folder / GOLD).read_text().splitlines()[problem.line - 1]


def test_a_list_of_changes_has_no_key(folder: Path) -> None:
    text = (folder / TABLES).read_text()
    at = text.index("  mysql_orders:")
    (folder / TABLES).write_text(text[:at] + text[at:].replace("keys: [order_id]", "append_only: true", 1))
    replace(folder, GOLD, "feeds: [mysql_orders, mysql_outbox_orders]", "feeds: [mysql_outbox_orders]")
    declare(folder, wrong={"table": FEED})
    assert_refused(folder, "table", FEED, "silver.mysql_orders is append_only, a list of changes without a key")


def test_two_upsert_topics_have_two_topics(folder: Path) -> None:
    declare(
        folder,
        first={"table": FEED, "topic": "lakehouse.orders.progress"},
        wrong={"table": FEED, "topic": "lakehouse.orders"},
    )
    assert_refused(folder, "topic", "lakehouse.orders", "lakehouse.orders.progress is a topic of upsert_topics.first")


@pytest.mark.parametrize("prefix", ["key_prefix", "value_prefix"])
def test_prefixes_make_no_two_fields_of_one_name(folder: Path, prefix: str) -> None:
    column = {"key_prefix": "new_order_id: BIGINT", "value_prefix": "id: STRING"}[prefix]
    topic = {"key_prefix": {"key_prefix": "new_"}, "value_prefix": {"value_prefix": "order_"}}[prefix]
    replace(folder, TABLES, "      note: STRING", f"      note: STRING\n      {column}")
    declare(folder, wrong={"table": "silver.postgres_orders", **topic})
    named = "new_order_id" if prefix == "key_prefix" else "order_id"
    assert_refused(folder, prefix, prefix, f"would both be named {named}")


def test_a_key_that_has_no_bytes_of_its_own_is_refused(folder: Path) -> None:
    for file in (TABLES, GOLD):
        replace(folder, file, "product_id: BIGINT", "product_id: DOUBLE")
    replace(folder, GOLD, "by: [source_database, fulfillment_status]", "by: [source_database, product_id]")
    declare(folder, wrong={"table": "gold.orders_daily"})
    assert_refused(folder, "table", "gold.orders_daily", "product_id is DOUBLE, which cannot be in a record's key")


@pytest.mark.parametrize("columns", [(), ("product_id", "status")])
def test_a_value_that_connect_json_cannot_carry_is_refused(folder: Path, columns: tuple[str, ...]) -> None:
    for file in (TABLES, GOLD):
        replace(folder, file, "product_id: BIGINT", "product_id: ARRAY<BIGINT>")
    chosen = {"columns": list(columns)} if columns else {}
    declare(folder, wrong={"table": "gold.unified_orders", "format": "connect-json", **chosen})
    here = "columns" if columns else "format"
    assert_refused(folder, here, here, "connect-json cannot carry ARRAY<BIGINT> (product_id), it writes no arrays")


def test_a_sensitive_key_has_to_be_named(folder: Path) -> None:
    replace(folder, TABLES, "order_id: BIGINT", "order_id: {type: BIGINT, sensitive: true}")
    declare(folder, wrong={"table": "gold.unified_orders", "columns": ["status"]})
    assert_refused(
        folder, "columns", "columns", "composite_key is sensitive, and stands in the key of gold.unified_ord"
    )


def test_a_topic_is_looked_at_when_all_else_is_right(folder: Path) -> None:
    replace(folder, GOLD, "by: [source_database, fulfillment_status]", "by: [source]")
    declare(folder, wrong={"table": "gold.orders_daily"})
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    assert [problem.key for problem in refused.value.problems] == ["marts.orders_daily.by"]
