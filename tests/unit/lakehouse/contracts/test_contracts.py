"""Contracts: the packaged ones hold, and every mistake is said with file, line, key, and what was probably meant."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from lakehouse.contracts.checks.references import mistakes, require_distinguished
from lakehouse.contracts.files import MODELS, OPTIONAL, SCHEMAS, load_contracts, packaged_text
from lakehouse.contracts.models import Contracts, Expectation
from lakehouse.contracts.parts.column_types import DecimalType, SourceType
from lakehouse.contracts.tables import Column, Metadata, SilverTables
from lakehouse.contracts.topics import StartAtOffsets
from lakehouse.errors import ContractError, SettingsError
from lakehouse.quality.arguments import expressions, needed
from tests.support.shared import CUSTOMERS, ORDERS, TOPIC, sharing
from tools.generated import schemas

SOURCES = Path(__file__).parents[4] / "src"
TABLES, TOPICS, GOLD = "silver/tables.yaml", "bronze/topics.yaml", "gold/tables.yaml"
ROW_GATE, TABLE_GATE = "silver/gate.yaml", "gold/gate.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged contracts, to make mistakes in."""
    for name in MODELS:
        copy = tmp_path / "own" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / name, copy)
    return tmp_path / "own"


def test_the_packaged_contracts_fit_together() -> None:
    contracts = load_contracts()
    assert set(contracts.feeds) == {
        *("postgres_orders", "mysql_orders"),
        *("postgres_outbox_orders", "mysql_outbox_orders"),
    }
    feed = contracts.feeds["mysql_orders"]
    assert (feed.source, feed.kind, feed.topics) == ("mysql", "mysql", ("mysql_prod_tables.ecommerce.orders",))
    assert feed.columns["total_amount"].type == DecimalType(precision=10, scale=2)
    assert contracts.gold.sources["postgres"].feeds == ("postgres_orders", "postgres_outbox_orders")


def test_a_folder_of_contracts_replaces_the_packaged_ones(folder: Path) -> None:
    assert load_contracts(folder) == load_contracts()
    replace(folder, GOLD, "prefix: PG", "prefix: ERP")
    assert load_contracts(folder).gold.sources["postgres"].prefix == "ERP"


CUTS = [
    # the connector's option, the column, whether the connector may cut digits of it
    ("decimal_handling_mode: double", "note: DECIMAL(15,2)", False),
    ("decimal_handling_mode: double", "note: DECIMAL(16,2)", True),
    ("decimal_handling_mode: double", "note: {type: STRING, source_type: numeric}", True),
    ("decimal_handling_mode: double", "note: {type: STRING, source_type: 'numeric(15,2)'}", False),
    ("decimal_handling_mode: double", "note: {type: STRING, source_type: 'numeric(16,2)'}", True),
    ("decimal_handling_mode: double", "note: {type: 'DECIMAL(20,0)', source_type: unsigned_bigint}", False),
    ("decimal_handling_mode: string", "note: DECIMAL(38,2)", False),
    ("time_precision_mode: connect", "note: TIMESTAMP", True),
    ("time_precision_mode: connect", "note: {type: TIMESTAMP, epoch_unit: millis}", False),
    ("time_precision_mode: connect", "note: {type: TIMESTAMP, source_type: timestamptz}", False),
    ("time_precision_mode: connect", "note: {type: STRING, source_type: time}", True),
    ("time_precision_mode: nanoseconds", "note: TIMESTAMP", False),
]


@pytest.mark.parametrize(("option", "column", "cuts"), CUTS)
def test_digits_that_the_connector_may_cut_are_allowed_by_name(
    folder: Path, option: str, column: str, cuts: bool
) -> None:
    replace(folder, TOPICS, "envelope: table", f"envelope: table\n        {option}")
    replace(folder, TABLES, "note: STRING", column)
    try:
        load_contracts(folder)
        said = []
    except ContractError as refused:
        said = [str(problem) for problem in refused.problems if ".note." in problem.key]
    assert len(said) == (1 if cuts else 0)
    assert all("write allow_cut_digits: true if that is accepted" in problem for problem in said)


def test_cut_digits_are_accepted_when_the_contract_says_so(folder: Path) -> None:
    replace(folder, TOPICS, "envelope: table", "envelope: table\n        decimal_handling_mode: double")
    replace(folder, TABLES, "note: STRING", "note: {type: 'DECIMAL(38,2)', allow_cut_digits: true}")
    load_contracts(folder)


@pytest.mark.parametrize("name", get_args(Metadata))
def test_what_says_where_a_record_comes_from_has_one_type(folder: Path, name: str) -> None:
    times = ("ingestion-timestamp", "source.timestamp", "timestamp")
    held = "TIMESTAMP" if name in times else {"partition": "INT", "offset": "BIGINT"}.get(name, "STRING")
    replace(folder, TABLES, "note: STRING", f"note: STRING\n      of_record: {{ type: {held}, metadata: {name} }}")
    column = load_contracts(folder).feeds["postgres_orders"].columns["of_record"]
    assert (column.metadata, column.is_of_row) == (name, False)


def test_a_source_names_the_servers_that_may_be_asked(folder: Path) -> None:
    assert load_contracts(folder).topics.sources["postgres"].databases == ()
    servers = "databases: [{host: DB.Shop, port: 5432, password_variables: [P_1]}, {host: '::1', port: 1}]"
    replace(folder, TOPICS, "kind: postgresql", f"kind: postgresql\n    {servers}")
    one, other = load_contracts(folder).topics.sources["postgres"].databases
    assert (str(one), one.password_variables) == ("db.shop:5432", ("P_1",))
    assert (str(other), other.password_variables) == ("::1:1", ())


@pytest.mark.parametrize(
    ("server", "key"),
    [
        ("{host: 'postgres://db', port: 1}", "host"),
        ("{host: 'user:secret@db', port: 1}", "host"),
        ("{host: '*', port: 1}", "host"),
        ("{host: '', port: 1}", "host"),
        ("{host: '${env:HOST}', port: 1}", "host"),
        ("{host: db}", "port"),
        ("{host: db, port: 0}", "port"),
        ("{host: db, port: 65536}", "port"),
        ("{host: db, port: '5432'}", "port"),
        ("{host: db, port: 1, password_variables: ['${env:P}']}", "password_variables.0"),
        ("{host: db, port: 1, password_variables: ['*']}", "password_variables.0"),
        ("{host: db, port: 1, password: hunter2}", "password"),
    ],
)
def test_a_server_is_a_host_a_port_and_the_names_of_variables(folder: Path, server: str, key: str) -> None:
    replace(folder, TOPICS, "kind: postgresql", f"kind: postgresql\n    databases: [{server}]")
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    (problem,) = refused.value.problems
    assert problem.key == f"sources.postgres.databases.0.{key}"


def test_a_contract_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_contracts().gold.unified_topic.partitions = 7


MISTAKES = [
    # file, what stands there, what is written instead, where it is (a text of the line), the key, the sentence
    (
        TABLES,
        "note: STRING",
        "note: {type: DECIMAL(10,2)}",
        "DECIMAL(10,2)",
        "columns.note.type",
        "is cut off at its comma",
    ),
    (
        TABLES,
        "keys: [order_id]",
        "keys: [oder_id]",
        "oder_id",
        "tables.postgres_orders.keys",
        "did you mean 'order_id'?",
    ),
    (TABLES, "DECIMAL(10,2)", "DECIMAL(50,2)", "DECIMAL(50,2)", "columns.total_amount.type", "1 to 38 digits"),
    (TABLES, "DECIMAL(10,2)", "DECIMAL(2,10)", "DECIMAL(2,10)", "columns.total_amount.type", "is not possible"),
    (TABLES, ": BIGINT", ": BIGNT", "BIGNT", "columns.order_id.type", "no type 'BIGNT'; did you mean 'BIGINT'?"),
    (TABLES, ": BIGINT", ": 7", ": 7", "columns.order_id.type", "Types are: BIGINT"),
    (TABLES, ": BIGINT", ": ARRAY<BIGNT>", "BIGNT", "columns.order_id.type", "did you mean 'BIGINT'?"),
    (
        TABLES,
        "note: STRING",
        "note: {type: STRING, source_type: timez}",
        "timez",
        "columns.note.source_type",
        "no source_type 'timez'; did you mean 'timetz'? There are: bit(length), bytes",
    ),
    (
        TABLES,
        "note: STRING",
        "note: {type: STRING, source_type: 'numeric(2,3)'}",
        "numeric",
        "columns.note.source_type",
        "is not possible",
    ),
    (
        TABLES,
        "note: STRING",
        "note: {type: DOUBLE, source_type: numeric}",
        "numeric",
        "columns.note.source_type",
        "numeric is read into DECIMAL or STRING, not into DOUBLE",
    ),
    (
        TABLES,
        "note: STRING",
        "note: {type: BOOLEAN, source_type: bit(8)}",
        "bit(8)",
        "columns.note.source_type",
        "only bit(1) fits BOOLEAN: read bit(8) into STRING",
    ),
    (
        TABLES,
        "note: STRING",
        'note: {type: "DECIMAL(19,0)", source_type: unsigned_bigint}',
        "DECIMAL(19,0)",
        "columns.note.type",
        "too small for unsigned_bigint: write DECIMAL(20,0)",
    ),
    (
        TABLES,
        "note: STRING",
        "note: {type: STRING, source_type: varbit}",
        "varbit",
        "columns.note",
        "cuts the leading zeros of varbit: write allow_cut_digits: true",
    ),
    (
        TOPICS,
        "envelope: table",
        "envelope: table\n        time_precision_mode: adaptiv",
        "adaptiv",
        ".time_precision_mode",
        "did you mean 'adaptive'?",
    ),
    (TABLES, "  mysql_orders:", "  My-Orders:", "My-Orders", "tables.My-Orders", "'My-Orders' cannot be a name here"),
    (
        TABLES,
        "  mysql_orders:",
        "  mysql_order:",
        "mysql_order:",
        "mysql_order",
        "no feed 'mysql_order' in bronze/topic",
    ),
    (TABLES, "  mysql_orders:", "  postgres_orders:", "  postgres_orders:", "postgres_orders", "stands here twice, in"),
    (
        TABLES,
        "order_id: BIGINT",
        "order_id: {type: BIGINT, optional: true}",
        "optional",
        "order_id.optional",
        "cannot be",
    ),
    (
        TABLES,
        "sequence_by: kafka_offset",
        "sequence_by: source_position",
        "source_position",
        ".sequence_by",
        "write kafka_offset",
    ),
    (
        TABLES,
        "    sequence_by: source_position",
        "    append_only: true\n    sequence_by: source_position",
        "postgres_orders",
        "postgres_orders",
        "without keys",
    ),
    (
        TABLES,
        "note: STRING\n\n  mysql_orders",
        "note: { type: BIGINT, from_topic: '^a$' }\n\n  mysql_orders",
        "from_topic",
        ".from_topic",
        "one group",
    ),
    (
        *(TABLES, "note: STRING", "note: { type: STRING, from_topic: '^([a-z]+)', fields: [shard] }"),
        *("from_topic", "columns.note.fields", "the value stands in the topic's name, not in a field: leave it out"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: STRING, metadata: partition }"),
        *("metadata: partition", "columns.note.type", "partition is INT, not STRING"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: BIGINT, metadata: ingestion-timestamp }"),
        *("ingestion-timestamp", "columns.note.type", "ingestion-timestamp is TIMESTAMP, not BIGINT"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: BINARY, metadata: headers }"),
        *("metadata: headers", "columns.note.type", "headers is STRING, not BINARY"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: STRING, metadata: topic, fields: [note] }"),
        *("fields: [note]", "columns.note.fields", "the value is not of the row: leave it out"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: STRING, metadata: topic, from_topic: '^([a-z]+)' }"),
        *("from_topic", "columns.note.from_topic", "the value is not of the row: leave it out"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: STRING, metadata: topic, source_type: json }"),
        *("source_type", "columns.note.source_type", "the value is not of the row: leave it out"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: TIMESTAMP, metadata: timestamp, epoch_unit: millis }"),
        *("epoch_unit", "columns.note.epoch_unit", "the value is not of the row: leave it out"),
    ),
    (
        *(TABLES, "order_id: BIGINT", "order_id: { type: BIGINT, metadata: offset }"),
        *("metadata: offset", "columns.order_id.metadata", "where it comes from is no key: from_topic may be one"),
    ),
    (
        *(TABLES, "note: STRING", "note: { type: STRING, metadata: source.databse }"),
        *("source.databse", "columns.note.metadata", "did you mean 'source.database'?"),
    ),
    (
        *(TOPICS, "envelope: table", "envelope: table\n        parse_errors: skip-field"),
        *(
            "skip-field",
            ".parse_errors",
            "would make a NULL of what is not NULL, and nobody would see it: write skip-re",
        ),
    ),
    (
        *(TOPICS, "envelope: table", "envelope: table\n        parse_errors: skip-recrd"),
        *("skip-recrd", ".parse_errors", "did you mean 'skip-record'?"),
    ),
    (
        *(TABLES, "    sequence_by: source", "    payload: partial\n    sequence_by: source"),
        *("payload: partial", "tables.postgres_orders.payload", "only an outbox has partial payloads: write full"),
    ),
    (
        *(TABLES, "    sequence_by: source", "    apply_as_deletes: [removed]\n    sequence_by: source"),
        *("[removed]", "postgres_orders.apply_as_deletes", "in a table feed the operation d deletes, and no other"),
    ),
    (
        *(TABLES, "    sequence_by: source", "    apply_as_upserts: [placed]\n    sequence_by: source"),
        *("[placed]", "postgres_orders.apply_as_upserts", "in a table feed the operation d deletes, and no other"),
    ),
    (
        *(TABLES, "payload: full", "payload: full\n    apply_as_deletes: [gone]\n    apply_as_upserts: [placed, gone]"),
        *("placed, gone", "outbox_orders.apply_as_upserts", "gone deletes the row (apply_as_deletes): take it out of"),
    ),
    (
        *(TABLES, "    keys: [order_id] #", "    append_only: true #"),
        *("append_only", "postgres_outbox_orders.append_only", "an outbox states rows by their key: name it in `keys`"),
    ),
    (TABLES, "keys: [order_id] #", "keys: [order_id, note] #", "order_id, note", ".keys", "exactly one key"),
    (TABLES, "payload: full", "payload: ful", "ful", ".payload", "did you mean 'full'?"),
    (
        TOPICS,
        "envelope: outbox",
        "envelope: outbx",
        "outbx",
        ".envelope",
        "'outbx' is not one of 'table' or 'outbox'; did",
    ),
    (TOPICS, "kind: mysql", "knd: mysql", "knd", "sources.mysql.knd", "'knd' is not known here; did you mean 'kind'?"),
    (
        TOPICS,
        "kind: mysql",
        "kind: oracle",
        "oracle",
        "sources.mysql.kind",
        "'oracle' is not one of 'postgresql', 'mysql'",
    ),
    (TOPICS, "    kind: mysql\n", "", "mysql:", "sources.mysql.kind", "'kind' is required and absent"),
    (TOPICS, "        topics: [outbox.event.mysql.orders]\n", "", "mysql_outbox_orders", "", "needs `topics` or"),
    (TOPICS, "[outbox.event.mysql.orders]", "[outbox.event.postgres.orders]", "", "", "belongs to postgres_outbox_ord"),
    (
        TOPICS,
        "topics: [outbox.event.mysql",
        "topic_patterns: ['(']\n        topics: [o",
        "'('",
        "",
        "not a regular expr",
    ),
    (
        TOPICS,
        "topics: [outbox.event.mysql",
        "topic_patterns: ['.*pg.*|m.*']\n        topics: [o",
        "m.*",
        "",
        "belongs to mysql_orders too, and records of an outbox do not name their table",
    ),
    (TOPICS, "start: earliest", "start: erliest", "erliest", "sources.postgres.start", "did you mean 'earliest'?"),
    (
        TOPICS,
        "start: earliest",
        "start: {offsets: {nosuch: {0: 1}}}",
        "nosuch",
        "start.offsets.nosuch",
        "no topic 'nosuch'",
    ),
    (
        *(TOPICS, "- __debezium-heartbeat.postgres_prod\n", "- postgres_prod_tables.public.orders\n"),
        *("ignored_topics", "sources.postgres.ignored_topics", "is to be ignored, and belongs to feed postgres_orders"),
    ),
    (
        TOPICS,
        "      mysql_orders:",
        "      postgres_orders:",
        "postgres_orders:",
        "",
        "both would be silver.postgres_orders",
    ),
    (GOLD, "prefix: MY", "prefix: PG", "prefix: PG", "sources.mysql.prefix", "their orders would overwrite each other"),
    (GOLD, "[mysql_orders,", "[mysql_order,", "mysql_order,", "sources.mysql.feeds", "did you mean 'mysql_orders'?"),
    (
        *(GOLD, "[mysql_orders, mysql_outbox_orders]", "[mysql_orders, mysql_orders]"),
        *("[mysql_orders,", "sources.mysql.feeds", "feed mysql_orders stands here twice"),
    ),
    (
        GOLD,
        "column: status",
        "column: statu",
        "statu",
        "fulfillment.column",
        "no column 'statu' in columns; did you mean",
    ),
    (
        *(GOLD, "column: status", "column: order_id"),
        *("column: order_id", "fulfillment.column", "order_id is BIGINT, and only text can be looked up"),
    ),
    (
        GOLD,
        "  mysql:",
        "  mysq:",
        "mysq:",
        "sources.mysq",
        "no source 'mysq' in bronze/topics.yaml; did you mean 'mysql'?",
    ),
    (
        GOLD,
        "  total_amount: DECIMAL(10,2)",
        "  total_amount: DECIMAL(12,2)",
        "12,2",
        "",
        "DECIMAL(10,2) in silver table",
    ),
    (
        GOLD,
        "  product_id: BIGINT",
        "  produkt_id: BIGINT",
        "produkt_id",
        "columns.produkt_id",
        "did you mean 'product_id'?",
    ),
    (
        GOLD,
        "  product_id: BIGINT",
        "  processed_at: TIMESTAMP",
        "processed_at",
        "columns.processed_at",
        "gold adds a column",
    ),
    (GOLD, "key: order_id", "key: note", "key: note", "key", "no column 'note' in columns"),
    (GOLD, "bigquery.unified.orders", "outbox.event.mysql.orders", "", "publication.topic", "gold would feed itself"),
    (
        GOLD,
        "format: json #",
        "format: csv #",
        "csv",
        "publication.format",
        "'csv' is not one of 'json', 'connect-json' or 'avro'",
    ),
    (GOLD, "day: created_at", "day: created", "created", "marts.orders_daily.day", "did you mean 'created_at'?"),
    (GOLD, "day: created_at", "day: status", "status", "marts.orders_daily.day", "only a TIMESTAMP or a DATE has a"),
    (GOLD, "by: [source_database", "by: [source", "source", "marts.orders_daily.by", "no column 'source' in gold.un"),
    (
        *(
            GOLD,
            "    day: created_at # the date in UTC, as column `day`\n    by: [source_database, fulfillment_status]\n",
            "",
        ),
        *("orders_daily", "marts.orders_daily", "a mart needs groups: give `day`, or `by`, or both"),
    ),
    (
        GOLD,
        "revenue: total_amount",
        "revenue: amount",
        "amount",
        "orders_daily.sums.revenue",
        "no column 'amount' in col",
    ),
    (GOLD, "revenue: total_amount", "revenue: status", "status", "marts.orders_daily.sums", "have an exact sum"),
    (GOLD, "revenue: total_amount", "orders: total_amount", "daily", "marts.orders_daily", "would be named orders"),
    (GOLD, "orders_daily:", "unified_orders:", "unified_orders", "marts.unified_orders", "is not a mart: name it othe"),
    (ROW_GATE, "on_failure: warn", "on_failure: ignore", "ignore", ".on_failure", "'ignore' is not one of 'warn', "),
    (
        ROW_GATE,
        "name: note_short",
        "name: status_known",
        "status_known",
        ".name",
        "two expectations are named status_kn",
    ),
    (
        *(
            ROW_GATE,
            "feeds: [postgres_outbox_orders, mysql_outbox_orders]",
            "feeds: [postgres_outbox_orders, mysql_outbox]",
        ),
        *("mysql_outbox]", "expectations.0.feeds", "no feed 'mysql_outbox' in this gate; did you mean"),
    ),
    (ROW_GATE, "column: note,", "column: nte,", "nte", ".kwargs.column", "no column 'nte' in table postgres_orders"),
    (
        ROW_GATE,
        "expect_column_values_to_be_between",
        "expect_column_value_to_be_between",
        "",
        ".type",
        "did you mean 'expect_",
    ),
    (ROW_GATE, "regex: ", "pattern: ", "pattern", ".kwargs.pattern", "has no argument 'pattern'"),
    (ROW_GATE, ", min_value: 0", "", "", ".kwargs", "needs at least one of min_value, max_value"),
    (
        ROW_GATE,
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_increasing",
        "increasing",
        ".type",
        "There are: ",
    ),
    (
        ROW_GATE,
        "type: expect_column_values_to_be_between\n    kwargs: { column: total_amount, min_value: 0 }",
        "type: expect_column_values_to_be_unique\n    kwargs: { column: total_amount }",
        "on_failure: quarantine",
        ".on_failure",
        "which rows come in one batch is chance",
    ),
    (
        ROW_GATE,
        "type: expect_column_values_to_be_between\n    kwargs: { column: total_amount, min_value: 0 }",
        'type: unexpected_rows_expectation\n    kwargs: { unexpected_rows_query: "SELECT 1" }',
        "SELECT 1",
        ".kwargs.unexpected_rows_query",
        "as a row rule the query is: SELECT * FROM {batch} WHERE",
    ),
    (
        ROW_GATE,
        "column: total_amount, min_value: 0",
        "column: total_amount, min_value: 0, row_condition: status = 'paid'",
        "row_condition",
        ".kwargs.condition_parser",
        "say `condition_parser: spark`",
    ),
    (ROW_GATE, ", min_value: 0", ", min_value: 0, mostly: 90", "mostly", ".kwargs.mostly", "a share, from 0 to 1"),
    (
        TABLE_GATE,
        "expect_column_values_to_be_unique",
        "expect_column_values_to_be_unik",
        "unik",
        ".type",
        "did you mean 'ex",
    ),
    (TABLE_GATE, "mostly: 0.9", "mostley: 0.9", "mostley", ".kwargs.mostley", "did you mean 'mostly'?"),
    (
        TABLE_GATE,
        "fail\n    description: No two",
        "quarantine\n    description: No two",
        "quarantine",
        ".on_failure",
        "it is warn or fail",
    ),
    (TABLE_GATE, "rows_before *", "rows_befor *", "rows_befor", ".kwargs.min_value", "did you mean 'rows_before'?"),
    (
        TABLE_GATE,
        "rows_before *",
        "rond(rows_before) *",
        "rond",
        ".kwargs.min_value",
        "no function 'rond'; did you mean",
    ),
    (TABLE_GATE, "rows_before * 0.9", "rows_before *", "rows_before *", ".kwargs.min_value", "is no expression"),
    (TABLE_GATE, "rows_before * 0.9", "rows_before % 2", "% 2", ".kwargs.min_value", "has more than numbers"),
    (TABLE_GATE, "rows_before * 0.9", "__import__('os')", "__imp", ".kwargs.min_value", "has more than numbers"),
    (
        TABLE_GATE,
        "{ $PARAMETER:",
        "{ $PARAMTER:",
        "$PARAMTER",
        ".kwargs.min_value",
        "min_value is a number, a time, or",
    ),
    (
        *(
            TABLE_GATE,
            "mostly: 0.9",
            "mostly: 0.9, row_condition: { $PARAMETER: rows_before }, condition_parser: spark",
        ),
        *("row_condition", ".kwargs.row_condition", "row_condition cannot be a parameter; these can: min_value"),
    ),
    (
        *(ROW_GATE, ", min_value: 0", ", min_value: { $PARAMETER: rows_before }"),
        *("min_value", ".kwargs.min_value", "parameters are for the rules of gold/gate.yaml"),
    ),
    (
        *(TABLE_GATE, "column: composite_key", "column: composit_key"),
        *("composit_key", "publication.0.kwargs.column", "did you mean 'composite_key'?"),
    ),
    (
        *(
            TABLE_GATE,
            "fail\n    description: No two orders",
            "fail\n    feeds: [mysql_orders]\n    description: No two",
        ),
        *("feeds: [mysql_orders]", "publication.0.feeds", "leave it out"),
    ),
    (
        *(TABLE_GATE, "fail\n    description: No two orders", "quarantine\n    description: No two orders"),
        *("quarantine", "publication.0.on_failure", "it is warn or fail"),
    ),
    (
        *(TABLE_GATE, "mostly: 0.9 }", "mostly: 0.9 }\n    scope: changes"),
        *("scope: changes", "expectations.3.scope", "a share is a share of all rows"),
    ),
    (
        *(TABLE_GATE, "last passed this gate\n", "last passed this gate\n    scope: changes\n"),
        *("scope: changes", "expectations.4.scope", "a bound that is computed again is about all"),
    ),
    (
        *(TABLE_GATE, "kwargs: { column: order_id }\n    scope", "kwargs: { column: customer_id }\n    scope"),
        *("scope: changes", "expectations.0.scope", "only with the key (order_id) it is known"),
    ),
    (
        *(
            TABLE_GATE,
            "expect_column_values_to_not_be_null\n    kwargs: { column: order_id }",
            "expect_column_to_exist\n    kwargs: { column: order_id }",
        ),
        *(
            "scope: changes",
            ".scope",
            "is about a whole column or table",
        ),
    ),
    (
        *(ROW_GATE, "\n    on_failure: quarantine", "\n    scope: changes\n    on_failure: quarantine"),
        *("scope: changes", "expectations.0.scope", "scope"),
    ),
    (
        *(GOLD, "partitions: 3", "partitions: 3\n  max_message_bytes: 8_065_535"),
        *("max_message_bytes", "publication.max_message_bytes", "8065535 is too low for feed postgres_orders, whose"),
    ),
    (
        *(TABLE_GATE, "FROM {batch} gold", "FROM unified_orders gold"),
        *("unexpected_rows_query", "publication.2.kwargs.unexpected_rows_query", "the table that is judged: {batch}"),
    ),
]


@pytest.mark.parametrize(("file", "right", "wrong", "line_of", "key", "sentence"), MISTAKES)
def test_a_mistake_is_said_with_file_line_key_and_what_was_meant(
    folder: Path, file: str, right: str, wrong: str, line_of: str, key: str, sentence: str
) -> None:
    replace(folder, file, right, wrong)
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    said = [problem for problem in refused.value.problems if sentence in str(problem)]
    assert said, refused.value
    problem = said[0]
    assert problem.file == str(folder / file)
    assert key in problem.key
    assert f"{problem.file}:{problem.line}: " in str(refused.value)
    assert problem.line is not None
    assert line_of in (folder / file).read_text().splitlines()[problem.line - 1]
    assert "lakehouse validate" in refused.value.hint


def test_all_mistakes_are_said_at_once(folder: Path) -> None:
    replace(folder, TABLES, ": BIGINT", ": BIGNT")
    replace(folder, TOPICS, "kind: mysql", "knd: mysql")
    replace(folder, ROW_GATE, "on_failure: warn", "on_failure: ignore")
    (folder / TABLE_GATE).write_text("feeds: [\n")
    replace(folder, GOLD, "key: order_id\n", "")
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    files = [Path(problem.file).relative_to(folder).as_posix() for problem in refused.value.problems]
    assert sorted(set(files)) == sorted(name for name in MODELS if name not in OPTIONAL)
    # A misspelt key is said once, not a second time as the absence of the right one.
    assert files.count(TOPICS) == 1


def test_mistakes_between_the_files_are_said_at_once(folder: Path) -> None:
    replace(folder, TABLES, "keys: [order_id]", "keys: [oder_id]")
    replace(folder, GOLD, "prefix: MY", "prefix: PG")
    replace(folder, TABLE_GATE, "mostly: 0.9", "mostley: 0.9")
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    assert {Path(problem.file).relative_to(folder).as_posix() for problem in refused.value.problems} == {
        *(TABLES, GOLD, TABLE_GATE)
    }


@pytest.mark.parametrize("named", ["topics: [{topic}]", "topic_patterns: ['{topic}']"])
def test_a_start_names_topics_of_its_source_by_name_or_by_pattern(folder: Path, named: str) -> None:
    topic = "postgres_prod_tables.public.orders"
    replace(folder, TOPICS, f"topics: [{topic}]", named.format(topic=topic))
    replace(folder, TOPICS, "start: earliest", f"start: {{ offsets: {{ {topic}: {{ 0: 7 }} }} }}")
    assert load_contracts(folder).topics.sources["postgres"].start == StartAtOffsets(offsets={topic: {0: 7}})


def test_gold_may_have_no_fulfillment(folder: Path) -> None:
    text = (folder / GOLD).read_text()
    declared = text[text.index("fulfillment:") : text.index("marts:")]
    replace(folder, GOLD, declared, "")
    assert load_contracts(folder).gold.fulfillment is None


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("DOUBLE", "cannot carry DOUBLE, JSON has no NaN: leave the column out, or write format: json"),
        ("FLOAT", "cannot carry FLOAT, JSON has no NaN"),
        ("ARRAY<BIGINT>", "cannot carry ARRAY<BIGINT>, it writes no arrays"),
    ],
)
def test_a_column_that_connect_json_cannot_carry_is_refused(folder: Path, declared: str, said: str) -> None:
    for file in (folder / GOLD, folder / TABLES):
        file.write_text(file.read_text().replace("product_id: BIGINT", f"product_id: {declared}"))
    load_contracts(folder)
    replace(folder, GOLD, "format: json", "format: connect-json")
    with pytest.raises(ContractError, match=re.escape(said)) as refused:
        load_contracts(folder)
    assert [problem.key for problem in refused.value.problems] == ["columns.product_id"]


def test_what_silver_accepts_fits_the_topic(folder: Path) -> None:
    replace(folder, TABLES, "keys: [order_id]", "keys: [order_id]\n    max_record_bytes: 8_323_072")
    load_contracts(folder)
    replace(folder, TABLES, "8_323_072", "8_323_073")
    with pytest.raises(ContractError, match=r"is 8323073: write 8388609 or more, or lower that one") as refused:
        load_contracts(folder)
    assert [problem.key for problem in refused.value.problems] == ["publication.max_message_bytes"]


def test_connect_json_carries_every_column_of_the_packaged_contracts(folder: Path) -> None:
    replace(folder, GOLD, "format: json", "format: connect-json")
    assert load_contracts(folder).gold.unified_topic.format == "connect-json"


def test_broken_yaml_is_said_with_its_line(folder: Path) -> None:
    (folder / TOPICS).write_text("sources:\n  postgres: [\n  kind: x\n")
    with pytest.raises(ContractError, match=r"topics\.yaml:4: .*not valid YAML"):
        load_contracts(folder)


def test_a_character_that_yaml_does_not_have_is_said_with_its_place(folder: Path) -> None:
    (folder / TOPICS).write_text("sources:\n  # a bell: \a\n  postgres: {}\n")
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    assert [(problem.line, problem.what) for problem in refused.value.problems] == [
        (2, "not valid YAML: the character U+0007 in column 13 is not allowed there")
    ]


def test_a_file_that_is_not_utf_8_is_named(folder: Path) -> None:
    (folder / TOPICS).write_bytes("sources: # für".encode("latin-1"))
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    assert [(problem.file, problem.line, problem.what) for problem in refused.value.problems] == [
        (str(folder / TOPICS), 1, "the file is not UTF-8 text")
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_text_of_a_packaged_contract_is_that_of_its_file(name: str) -> None:
    assert packaged_text(name) == (SOURCES / name).read_text(encoding="utf-8")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no folder of contracts .*nowhere"):
        load_contracts(tmp_path / "nowhere")


PARAMETERS = [
    "rows_before",
    "round(rows_before * 1.5)",
    "-rows_before + 2^3",
    "now() - timedelta(hours=24)",
    "datetime(2026, 1, 1)",
]


@pytest.mark.parametrize("expression", PARAMETERS)
def test_a_bound_of_a_table_rule_may_be_computed(folder: Path, expression: str) -> None:
    replace(folder, TABLE_GATE, "rows_before * 0.9", expression)
    (rule,) = [rule for rule in load_contracts(folder).gold_gate.expectations if rule.name == "rows_kept"]
    assert expressions(rule) == {"min_value": expression}
    assert needed(rule) == ({"rows_before"} if "rows_before" in expression else set())


def test_a_column_is_sensitive_in_gold_when_it_is_in_a_feed(folder: Path) -> None:
    assert load_contracts(folder).sensitive_in_gold == frozenset()
    replace(folder, TABLES, "order_id: BIGINT", "order_id: { type: BIGINT, sensitive: true }")
    assert load_contracts(folder).sensitive_in_gold == {"order_id", "composite_key"}


def test_a_rule_for_one_feed_is_not_asked_of_the_others() -> None:
    gate = load_contracts().silver_gate
    assert "amount_present" in {rule.name for rule in gate.rules("mysql_outbox_orders")}
    assert "amount_present" not in {rule.name for rule in gate.rules("mysql_orders")}
    assert gate.rules("unknown") == ()


def test_a_rule_of_tables_for_one_feed_is_not_asked_of_the_others(folder: Path) -> None:
    replace(folder, TABLE_GATE, "mostly: 0.9 }", "mostly: 0.9 }\n    feeds: [mysql_orders]")
    gate = load_contracts(folder).gold_gate
    of_feed = {feed: {rule.name for rule in gate.rules(feed)} for feed in ("mysql_orders", "postgres_orders")}
    assert of_feed["mysql_orders"] - of_feed["postgres_orders"] == {"customer_mostly_known"}
    assert "rows_kept" in of_feed["postgres_orders"]
    assert gate.rules("unknown") == ()


@pytest.mark.parametrize(
    ("mostly", "failed", "is_met"),
    [(None, 0, True), (None, 1, False), (0.9, 10, True), (0.9, 11, False), (0, 100, True)],
)
def test_mostly_says_how_many_may_fail(mostly: float | None, failed: int, is_met: bool) -> None:
    kwargs = {"column": "x"} if mostly is None else {"column": "x", "mostly": mostly}
    rule = Expectation(name="x", type="expect_x", kwargs=kwargs, on_failure="warn", description="")
    assert rule.is_met(failed=failed, evaluated=100) is is_met


def test_a_changed_copy_has_the_changed_feeds() -> None:
    contracts = load_contracts()
    assert len(contracts.feeds) > 1
    silver = SilverTables(tables={"mysql_orders": contracts.silver.tables["mysql_orders"]})
    assert set(contracts.model_copy(update={"silver": silver}).feeds) == {"mysql_orders"}


def test_a_column_is_the_same_when_it_is_made_of_its_parts() -> None:
    column = Column.model_validate({"type": "STRING", "source_type": "numeric(65,30)"})
    assert Column.model_validate(vars(column)) == column
    assert column.source_type == SourceType("numeric", (65, 30))


def test_a_source_reads_the_topics_of_its_feeds_and_those_that_are_ignored(contracts: Contracts) -> None:
    mysql = contracts.topics.sources["mysql"]
    by_pattern = {"topics": (), "topic_patterns": (r"shop_[0-9]+\.orders",)}
    feeds = {**mysql.feeds, "mysql_orders": mysql.feeds["mysql_orders"].model_copy(update=by_pattern)}
    source = mysql.model_copy(update={"feeds": feeds, "ignored_topics": ("heartbeat",)})
    assert source.topic_names == ("outbox.event.mysql.orders",)
    known = ["shop_2.orders", "shop_1.orders", "shop_x.orders", "shop_1.orders.old", "heartbeat", "of_another"]
    assert source.assigned(known) == ("heartbeat", "shop_1.orders", "shop_2.orders")
    assert source.assigned(["outbox.event.mysql.orders"]) == source.topic_names


@pytest.mark.parametrize(
    ("one", "other", "may_share"),
    [
        ({"topics": ("a", "b")}, {"topics": ("b",)}, True),
        ({"topics": ("a",)}, {"topics": ("b",)}, False),
        ({"topics": ("shop_1.a",)}, {"topic_patterns": (r"shop_[0-9]\.a",)}, True),
        ({"topics": ("shop_x.a",)}, {"topic_patterns": (r"shop_[0-9]\.a",)}, False),
        # Which topics the broker has is not known here.
        ({"topic_patterns": ("a.*",)}, {"topic_patterns": (".*b",)}, True),
    ],
)
def test_feeds_are_siblings_where_they_may_share_a_topic(
    contracts: Contracts, one: dict[str, Any], other: dict[str, Any], may_share: bool
) -> None:
    shared = sharing(contracts)
    mysql = shared.topics.sources["mysql"]
    of_feeds = {ORDERS: one, CUSTOMERS: other}
    feeds = {
        name: mysql.feeds[name].model_copy(update={"topics": (), "topic_patterns": (), **given})
        for name, given in of_feeds.items()
    }
    topics = shared.topics.model_copy(update={"sources": {"mysql": mysql.model_copy(update={"feeds": feeds})}})
    found = shared.model_copy(update={"topics": topics}).feeds
    assert {name: len(found[name].siblings) for name in of_feeds} == dict.fromkeys(of_feeds, int(may_share))


@pytest.mark.parametrize(
    ("of_orders", "of_customers", "sentence"),
    [
        ({}, {}, None),
        ({}, {"tables": ()}, "so both need `tables` or `table_patterns`: they distinguish the records"),
        ({}, {"tables": ("ecommerce.orders", "ecommerce.customers")}, "and table ecommerce.orders as well"),
        ({}, {"tables": (), "table_patterns": (r"ecommerce\..*",)}, "and table ecommerce.orders as well"),
        ({}, {"table_patterns": (r"archive\..*",)}, None),
        (
            {"table_patterns": (r"a\..*",)},
            {"table_patterns": (r"archive\..*",)},
            "and `table_patterns` of both may name one table",
        ),
        ({}, {"other_tables": "ignore"}, "so both need the same `other_tables`"),
        ({}, {"topics": ("other",), "topic_patterns": (r"mysql_prod.*",)}, None),
        ({"topics": ("other",)}, {}, None),
    ],
)
def test_feeds_share_a_topic_where_their_records_can_be_told_apart(
    contracts: Contracts, of_orders: dict[str, Any], of_customers: dict[str, Any], sentence: str | None
) -> None:
    shared = sharing(contracts)
    mysql = shared.topics.sources["mysql"]
    feeds = {
        ORDERS: mysql.feeds[ORDERS].model_copy(update=of_orders),
        CUSTOMERS: mysql.feeds[CUSTOMERS].model_copy(update=of_customers),
    }
    sources = {"mysql": mysql.model_copy(update={"feeds": feeds})}
    changed = shared.model_copy(update={"topics": shared.topics.model_copy(update={"sources": sources})})
    found = [mistake.what for mistake in mistakes(changed) if "belongs to" in mistake.what]
    assert found == ([] if sentence is None else [f"topic {TOPIC} belongs to {ORDERS} too, {sentence}"])


def test_a_topic_that_patterns_of_two_feeds_match_is_refused_unless_tables_tell_them_apart(
    contracts: Contracts,
) -> None:
    mysql = sharing(contracts).topics.sources["mysql"]
    patterns = {ORDERS: (r"mysql_prod.*",), CUSTOMERS: (r".*\.all",)}
    feeds = {
        name: feed.model_copy(update={"topics": (), "topic_patterns": patterns[name]})
        for name, feed in mysql.feeds.items()
    }
    named = mysql.model_copy(update={"feeds": feeds})
    require_distinguished("mysql", named, [TOPIC, "another"])
    feeds = {**feeds, CUSTOMERS: feeds[CUSTOMERS].model_copy(update={"tables": ()})}
    with pytest.raises(ContractError, match=f"topic {TOPIC} belongs to {ORDERS} too, so both need `tables`"):
        require_distinguished("mysql", mysql.model_copy(update={"feeds": feeds}), [TOPIC])
    require_distinguished("mysql", mysql.model_copy(update={"feeds": feeds}), ["another.all"])


def test_the_schemas_are_as_the_code_would_write_them() -> None:
    stale = [str(path) for path, text in schemas().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make generated`"


@pytest.mark.parametrize("file", MODELS)
def test_every_contract_names_the_schema_of_its_model(file: str) -> None:
    first, _rest = (SOURCES / file).read_text().split("\n", 1)
    schema = (SOURCES / file).parent / first.removeprefix("# yaml-language-server: $schema=")
    assert SCHEMAS[schema.name] is MODELS[file]
    assert schema.is_file()


def test_contracts_errors_and_the_command_load_without_spark() -> None:
    """They are wanted where no Spark is: `lakehouse --help`, checks of contracts, the bundle's tests."""
    code = (
        "import sys; import cli.main, lakehouse.contracts.files, lakehouse.errors, lakehouse.config;"
        "import lakehouse.spark.jars;"
        "lakehouse.contracts.files.load_contracts();"
        "heavy = ','.join(m for m in ('pyspark', 'great_expectations', 'delta') if m in sys.modules);"
        "print(len(sys.modules)); sys.exit(heavy or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # What loading takes, in a number that is the same on every machine: 418 when this was written.
    assert int(done.stdout) < 450


def replace(folder: Path, file: str, right: str, wrong: str) -> None:
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong, 1))
