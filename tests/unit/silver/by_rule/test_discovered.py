"""The table that a rule makes of a topic: its name, its key and its columns, and why there is none yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.parts.column_types import HOLDERS
from silver.by_rule.definitions import definitions, guess_of
from silver.by_rule.discovered import Rule, discovered_table
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record
from tests.support.avro import Registered
from tests.support.by_rule import TOPIC, connect, defined, event, feed_of, made, rule, types
from tests.support.decoding import row_of

ROW = {"id": 1, "name": "Tom"}
RESERVED = ("user", "order", "group", "select", "from", "left", "using", "table")
MILLIS, MICROS = 1_767_225_600_123, 1_767_225_600_123_456


def read(table: DiscoveredTable, record: Record, of: Rule | None = None, **given: Any) -> dict[str, Any]:
    """The row of a record as the made table has it, in which nothing is wrong and nothing is new."""
    feed = feed_of(table, of, **given)
    found = ReferenceDecoder(feed).event(record)
    assert (found.kind, list(found.problems), list(found.drift)) == ("change", [], [])
    return row_of(found, feed)


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("{database}_{table}", "order_dw_user"),
        ("topic_<>", "topic_user"),
        ("<>", "user"),
        ("{schema}_{table}", "user"),
        ("{topic}", "order_dw_order_dw_user"),
        ("Raw<>", "rawuser"),
        ("2024_<>", "column_2024_user"),
    ],
)
def test_a_name_is_that_of_the_route(route: str, name: str) -> None:
    assert made(event(ROW), of=rule(name=route)).name == name


def test_a_table_may_have_a_name_of_its_own() -> None:
    of = rule(names={"order_dw.user": "people"}, name="topic_<>")
    assert made(event(ROW), of=of).name == "people"
    assert made(event(ROW, table="order"), of=of).name == "topic_order"


@pytest.mark.parametrize("word", RESERVED)
def test_a_word_of_sql_is_a_name(word: str) -> None:
    table = made(event({word: 1, "id": 2}, key={word: 1}, table=word), of=rule(name="<>"))
    assert (table.name, table.keys, list(table.columns)) == (word, (word,), [word, "id"])
    assert feed_of(table).columns.keys() == {word, "id"}


def test_a_name_that_is_taken_gets_a_number() -> None:
    assert made(event(ROW), taken=("order_dw_user", "order_dw_user_2")).name == "order_dw_user_3"
    # Of another table, whose name differs in what a name cannot have.
    assert made(event(ROW, table="User"), taken=("order_dw_user",)).name == "order_dw_user_2"


def test_a_topic_gives_the_name_where_the_table_gives_none() -> None:
    assert made(Record(TOPIC, None, None)).name == "order_dw_order_dw_user"
    assert made(event(ROW, table="注文", db="数"), of=rule(name="<>")).name == "order_dw_order_dw_user"
    assert made(event(ROW, table="注文", topic="..."), of=rule(name="<>")).name == "table"


def test_keys_are_those_of_the_records() -> None:
    assert made(event(ROW, key={"id": 1})).keys == ("id",)
    both = made(event({"b": 1, "A Z": 2, "c": 3}, key={"A Z": 2, "b": 1}))
    assert both.keys == ("a_z", "b")
    assert both.columns["a_z"].declared.fields == ("A Z",)
    table = both.silver_table(rule().declared)
    assert (table.keys, table.append_only) == (("a_z", "b"), False)
    # A column of the key that no row has is one too.
    assert list(made(event({"name": "Tom"}, key={"id": 1})).columns) == ["name", "id"]


def test_the_key_that_most_records_have_is_the_key() -> None:
    records = [event(ROW), event(ROW, key={"name": "Tom"}), *[event(ROW, key={"id": 1})] * 2]
    assert made(*records).keys == ("id",)


def test_a_table_without_a_key_is_the_list_of_its_changes() -> None:
    table = made(event(ROW))
    declared = table.silver_table(rule(max_record_bytes=7).declared)
    assert (declared.keys, declared.append_only, declared.max_record_bytes) == ((), True, 7)
    assert read(table, event(ROW)) == ROW


def test_a_feed_has_the_options_of_its_rule() -> None:
    of = rule(decimal_handling_mode="string", parse_errors="skip-record")
    feed = feed_of(made(event(ROW, key={"id": 1}), of=of), of)
    assert (feed.topics, feed.tables, feed.envelope) == ((TOPIC,), ("order_dw.user",), "table")
    assert (feed.decimal_handling_mode, feed.parse_errors) == ("string", "skip-record")


# Types by the messages' schemas.


def named(kind: str, name: str, **more: Any) -> Mapping[str, Any]:
    return {"type": kind, "name": name, **more}


def decimal(scale: int, precision: int | None = None) -> Mapping[str, Any]:
    sizes = {"scale": str(scale)} | ({} if precision is None else {"connect.decimal.precision": str(precision)})
    return named("bytes", "org.apache.kafka.connect.data.Decimal", parameters=sizes)


TIME, DATA = "io.debezium.time", "io.debezium.data"
THOUSAND = "A+g="  # 1000, unscaled
SCHEMAS: Mapping[str, tuple[Any, str, Any, Any]] = {
    "int8": ("int8", "BIGINT", 1, 1),
    "int16": ("int16", "BIGINT", -1, -1),
    "int32": ("int32", "BIGINT", 2**31 - 1, 2**31 - 1),
    "int64": ("int64", "BIGINT", 2**63 - 1, 2**63 - 1),
    "float": ("float", "DOUBLE", 1.5, 1.5),
    "double": ("double", "DOUBLE", -0.25, -0.25),
    "boolean": ("boolean", "BOOLEAN", True, True),
    "string": ("string", "STRING", "注文", "注文"),
    "bytes": ("bytes", "STRING", "AP8=", "AP8="),
    "decimal": (decimal(2, 10), "DECIMAL(10,2)", THOUSAND, Decimal("10.00")),
    "decimal of any precision": (decimal(2), "DECIMAL(38,2)", THOUSAND, Decimal("10.00")),
    "decimal of no decimal": (decimal(12, 10), "STRING", THOUSAND, THOUSAND),
    "large decimal": (decimal(30, 65), "STRING numeric(65,30)", "AQ==", "0.000000000000000000000000000001"),
    "decimal of any scale": (
        named("struct", f"{DATA}.VariableScaleDecimal", fields=connect(scale="int32", value="bytes")),
        "STRING numeric",
        {"scale": 2, "value": "A+k="},
        "10.01",
    ),
    "date": (named("int32", f"{TIME}.Date"), "DATE", 1, 1),
    "connect date": (named("int32", "org.apache.kafka.connect.data.Date"), "DATE", 1, 1),
    "timestamp": (named("int64", f"{TIME}.Timestamp"), "TIMESTAMP millis", MILLIS, MILLIS * 1000),
    "micro timestamp": (named("int64", f"{TIME}.MicroTimestamp"), "TIMESTAMP micros", MICROS, MICROS),
    "nano timestamp": (named("int64", f"{TIME}.NanoTimestamp"), "TIMESTAMP nanos", MICROS * 1000, MICROS),
    "zoned timestamp": (
        named("string", f"{TIME}.ZonedTimestamp"),
        "TIMESTAMP timestamptz",
        "2026-01-01T00:00:00.123456Z",
        MICROS,
    ),
    "micro time": (named("int64", f"{TIME}.MicroTime"), "STRING time", 1_000_000, "00:00:01"),
    "time": (named("int32", f"{TIME}.Time"), "STRING time millis", 1_000, "00:00:01"),
    "year": (named("int32", f"{TIME}.Year"), "BIGINT", 2026, 2026),
    "json": (named("string", f"{DATA}.Json"), "STRING", '{"a": 1.50}', '{"a": 1.50}'),
    "enum": (named("string", f"{DATA}.Enum"), "STRING", "small", "small"),
    "set": (named("string", f"{DATA}.EnumSet"), "STRING", "a,b", "a,b"),
    "bits": (named("bytes", f"{DATA}.Bits", parameters={"length": "8"}), "STRING", "BQ==", "BQ=="),
    "array": ({"type": "array", "items": {"type": "int32"}}, "STRING", [1, None], "[1,null]"),
    "struct": ({"type": "struct", "fields": connect(x="double")}, "STRING", {"x": 1.50}, '{"x":1.5}'),
    "map": (
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
        "STRING",
        {"a": "b"},
        '{"a":"b"}',
    ),
    "another": ({"type": "odd"}, "STRING", "x", "x"),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_types_are_those_of_the_schemas(name: str) -> None:
    schema, kind, came, value = SCHEMAS[name]
    record = event({"id": 1, "cell": came}, key={"id": 1}, schema=connect(id="int64", cell=schema))
    table = made(record)
    assert (table.known_by, types(table)) == ("schema of the messages", {"id": "BIGINT", "cell": kind})
    assert read(table, record) == {"id": 1, "cell": value}


def test_deletes_alone_are_enough_where_they_have_schemas() -> None:
    table = made(event(None, key={"id": 1}, op="d", schema=connect(id="int64", name="string")))
    assert (types(table), table.keys) == ({"id": "BIGINT", "name": "STRING"}, ("id",))
    assert not table.columns["name"].declared.optional


def test_a_schema_that_has_changed_leaves_what_it_was() -> None:
    before = event({"id": 1, "amount": "AQ=="}, schema=connect(id="int32", amount=decimal(2, 10)))
    after = event({"id": 1, "amount": "AQ=="}, schema=connect(id="int64", amount=decimal(4, 10)))
    table = made(before, after)
    assert types(table) == {"id": "BIGINT", "amount": "DECIMAL(12,4)"}
    assert table.columns["id"].came_as == ("int32", "int64")
    read(table, before), read(table, after)


def test_schemas_of_a_registry_are_read() -> None:
    registry, record = Registered(), event(ROW, schema=connect(id="int64", name="string"))
    key = json.dumps({"schema": {"type": "struct", "fields": connect(id="int64")}, "payload": {"id": 1}}).encode()
    in_avro = Record(TOPIC, registry.encoded(key), registry.encoded(_whole(record)))
    table = made(in_avro, registered=registry.schemas)
    assert (table.known_by, table.keys) == ("schema of the messages", ("id",))
    assert types(table) == {"id": "BIGINT", "name": "STRING"}
    assert read(table, in_avro, schemas=registry.schemas) == ROW


def _whole(record: Record) -> bytes:
    """The message with a schema for each of its fields."""
    told = json.loads(record.value or b"")
    source = {name: {int: "int64"}.get(type(value), "string") for name, value in told["payload"]["source"].items()}
    more = [{"field": "source", "type": "struct", "fields": connect(**source)}, *connect(op="string", ts_ms="int64")]
    for one in told["schema"]["fields"]:
        one |= {"optional": True, "name": "Row"}
    told["schema"]["fields"] += more
    return json.dumps(told).encode()


# Types by the definition of the database.

BY_DATABASE: Mapping[str, tuple[str, Any, Any]] = {
    **dict.fromkeys(
        ("TINYINT", "SMALLINT", "MEDIUMINT", "INT(11)", "INTEGER", "BIGINT(20)", "INT UNSIGNED", "INT ZEROFILL"),
        ("BIGINT", 7, 7),
    ),
    "YEAR": ("BIGINT", 2026, 2026),
    "BOOLEAN": ("BIGINT", 1, 1),
    "BIGINT UNSIGNED": ("DECIMAL(20,0) unsigned_bigint", -1, Decimal(2**64 - 1)),
    "FLOAT": ("DOUBLE", 1.5, 1.5),
    "DOUBLE PRECISION": ("DOUBLE", 1.5, 1.5),
    "DECIMAL": ("DECIMAL(10,0)", THOUSAND, Decimal(1000)),
    "DECIMAL(10,2)": ("DECIMAL(10,2)", THOUSAND, Decimal("10.00")),
    "DECIMAL(65,30)": ("STRING numeric(65,30)", "AQ==", "0.000000000000000000000000000001"),
    "DATE": ("DATE", 1, 1),
    **dict.fromkeys(("DATETIME", "DATETIME(0)", "DATETIME(3)"), ("TIMESTAMP millis", MILLIS, MILLIS * 1000)),
    "DATETIME(6)": ("TIMESTAMP", MICROS, MICROS),
    "TIMESTAMP": ("TIMESTAMP timestamptz", "2026-01-01T00:00:00.123456Z", MICROS),
    "TIME": ("STRING time", 1_000_000, "00:00:01"),
    "BIT": ("BOOLEAN bit(1)", True, True),
    "BIT(1)": ("BOOLEAN bit(1)", True, True),
    "BIT(8)": ("STRING bit(8)", "BQ==", "00000101"),
    "JSON": ("STRING json", '{"a": 1.50}', '{"a": 1.50}'),
    "ENUM": ("STRING enum", "small", "small"),
    "SET": ("STRING set", "a,b", "a,b"),
    **dict.fromkeys(("BLOB", "VARBINARY(16)", "BINARY(2)"), ("STRING", "AP8=", "AP8=")),
    **dict.fromkeys(("CHAR(3)", "VARCHAR(50)", "LONGTEXT"), ("STRING", "注文", "注文")),
    "GEOMETRY": ("STRING", {"wkb": "AQ==", "srid": None}, '{"wkb":"AQ==","srid":null}'),
    "": ("STRING", "x", "x"),
}
OF_DATABASE = rule(schema_changes="order_dw")


@pytest.mark.parametrize("sql", BY_DATABASE)
def test_types_are_those_of_the_database(sql: str) -> None:
    kind, came, value = BY_DATABASE[sql]
    record = event({"id": 1, "cell": came}, key={"id": 1})
    table = made(record, of=OF_DATABASE, by=[defined({"id": "BIGINT", "cell": sql})])
    assert (table.known_by, types(table)) == ("topic of schema changes", {"id": "BIGINT", "cell": kind})
    assert table.columns["cell"].came_as == (sql.replace("ZEROFILL", "UNSIGNED") or "UNKNOWN",)
    assert read(table, record, OF_DATABASE) == {"id": 1, "cell": value}


@pytest.mark.parametrize(
    ("mode", "sql", "kind", "came", "value"),
    [
        ({"decimal_handling_mode": "double"}, "DECIMAL(10,2)", "DOUBLE", 1.5, 1.5),
        ({"decimal_handling_mode": "string"}, "DECIMAL(10,2)", "DECIMAL(10,2)", "1.50", Decimal("1.50")),
        ({"decimal_handling_mode": "string"}, "DECIMAL(65,2)", "STRING numeric(65,2)", "1.50", "1.50"),
        ({"time_precision_mode": "connect"}, "DATETIME(6)", "TIMESTAMP", MILLIS, MILLIS * 1000),
        ({"time_precision_mode": "connect"}, "DATETIME", "TIMESTAMP", MILLIS, MILLIS * 1000),
        ({"time_precision_mode": "microseconds"}, "DATETIME", "TIMESTAMP", MICROS, MICROS),
        ({"time_precision_mode": "nanoseconds"}, "DATETIME", "TIMESTAMP", MICROS * 1000, MICROS),
        ({"time_precision_mode": "isostring"}, "DATETIME", "TIMESTAMP", "2026-01-01T00:00:00.123456Z", MICROS),
        ({"time_precision_mode": "connect"}, "TIME", "STRING time", 1_000, "00:00:01"),
        (
            {"bigint_unsigned_handling_mode": "precise"},
            "BIGINT UNSIGNED",
            "DECIMAL(20,0) unsigned_bigint",
            THOUSAND,
            Decimal(1000),
        ),
    ],
)
def test_types_of_the_database_follow_the_connectors_modes(
    mode: dict[str, Any], sql: str, kind: str, came: Any, value: Any
) -> None:
    of, record = rule(schema_changes="order_dw", **mode), event({"id": 1, "cell": came}, key={"id": 1})
    table = made(record, of=of, by=[defined({"id": "BIGINT", "cell": sql})])
    assert types(table)["cell"] == kind
    assert read(table, record, of)["cell"] == value


def test_every_type_of_the_database_is_held_by_its_column() -> None:
    for sql in BY_DATABASE:
        (column,) = definitions([defined({"cell": sql})])["order_dw.user"].columns.values()
        guess = guess_of(column, rule().declared)
        if guess.source_type is not None:
            assert guess.type.startswith(HOLDERS[guess.source_type.partition("(")[0]])


def test_columns_stand_in_the_order_of_the_database() -> None:
    record = event({"name": "Tom", "new": 1, "id": 1}, key={"id": 1})
    table = made(record, by=[defined({"id": "BIGINT", "name": "VARCHAR(50)", "none": "INT"})])
    assert list(table.columns) == ["id", "name", "none", "new"]
    # What the database does not define is known by its values.
    assert (types(table)["new"], table.columns["new"].came_as) == ("BIGINT", ())


def test_schemas_go_before_the_definition() -> None:
    table = made(event({"id": 1}, schema=connect(id="string")), by=[defined({"id": "BIGINT"})])
    assert (table.known_by, types(table)) == ("schema of the messages", {"id": "STRING"})


# Types by values.


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, None, -(2**63)), "BIGINT"),
        ((True, False, None), "BOOLEAN"),
        ((1, True), "STRING"),
        ((2**63,), "STRING"),
        ((1.5,), "STRING"),
        (("1",), "STRING"),
        ((None,), "STRING"),
        (("__debezium_unavailable_value", 1), "BIGINT"),
        (("__debezium_unavailable_value",), "STRING"),
        (([1], {"a": 1}), "STRING"),
    ],
)
def test_types_by_values_are_the_weakest(values: tuple[Any, ...], kind: str) -> None:
    table = made(*(event({"id": 1, "cell": one}) for one in values))
    assert (table.known_by, types(table)["cell"], table.columns["cell"].came_as) == ("values", kind, ())


def test_the_values_of_a_key_may_stand_in_the_key_alone() -> None:
    assert types(made(event({"name": "Tom"}, key={"id": 7}))) == {"name": "STRING", "id": "BIGINT"}


# Columns that not all events have.


def test_a_column_that_only_some_events_have_is_a_column() -> None:
    """Which events may lack it follows from their positions, in silver."""
    table = made(event(ROW, key={"id": 1}), event({**ROW, "age": 3}, key={"id": 1}))
    assert list(table.columns) == ["id", "name", "age"]
    # The newest events say the order.
    before = made(event({"old": 1, **ROW}), event(ROW))
    assert list(before.columns) == ["id", "name", "old"]
    assert not any(column.declared.optional for one in (table, before) for column in one.columns.values())


def test_fields_whose_names_are_one_are_two_columns() -> None:
    table = made(event({"ID": 1, "id": 2, "Total Amount": 3, "total_amount": 4, "注": 5, "1st": 6}, key={"ID": 1}))
    assert {name: column.declared.fields for name, column in table.columns.items()} == {
        "id": ("ID",),
        "id_2": ("id",),
        "total_amount": ("Total Amount",),
        "total_amount_2": ("total_amount",),
        "column_5": ("注",),
        "column_1st": ("1st",),
    }
    assert table.keys == ("id",)


# What cannot be made yet.


def test_what_states_no_row_makes_no_table() -> None:
    tombstone = Record(TOPIC, b'{"id":1}', None)
    garbage = Record(TOPIC, None, b"\xff\xfe")
    table = made(tombstone, tombstone, garbage)
    assert not table.is_made
    assert table.why == f"nothing in topic {TOPIC} states a row yet: 3 records: 2 tombstones, 1 binary value"
    assert (table.columns, table.keys, table.table, table.version) == ({}, (), "", 1)
    # A delete names its table and no more.
    delete = made(event(None, key={"id": 1}, op="d"))
    assert (delete.table, delete.is_made) == ("order_dw.user", False)
    assert delete.why.endswith("1 record: 1 delete")
    assert made().why == f"nothing in topic {TOPIC} states a row yet: 0 records: "


def test_a_table_that_is_not_made_has_a_feed_of_no_column() -> None:
    feed = feed_of(made(Record(TOPIC, None, None)))
    assert (feed.topics, feed.tables, feed.append_only) == ((TOPIC,), (), True)
    assert list(feed.columns) == ["nothing"]


def test_two_tables_in_a_topic_are_none() -> None:
    table = made(event(ROW), event(ROW, table="order"))
    assert table.why == f"topic {TOPIC} has events of 2 tables: order_dw.order, order_dw.user"
    assert not table.is_made


def test_a_table_without_its_definition_waits_for_it() -> None:
    table = made(event(ROW), of=OF_DATABASE, by=[])
    assert table.why == "topic order_dw does not say yet what order_dw.user is"
    assert (table.known_by, table.table, table.is_made) == ("topic of schema changes", "order_dw.user", False)
    assert made(event(ROW), of=OF_DATABASE, by=[defined({"id": "BIGINT", "name": "TEXT"})]).is_made


@pytest.mark.parametrize("source", [{"db": None}, {"table": ""}, {"db": None, "table": None}, {"db": ""}])
def test_a_source_block_that_names_no_whole_table_names_none(source: dict[str, Any]) -> None:
    """Its feed takes what comes: a name that a contract could not have would stop the whole source."""
    table = made(event(ROW, **source))
    assert (table.table, table.is_made, feed_of(table).tables) == ("", True, ())
    waiting = made(event(ROW, **source), of=OF_DATABASE, by=[])
    assert waiting.why == f"topic order_dw does not say yet what the table of topic {TOPIC} is"


def test_tables_of_postgresql_are_named_by_their_schema() -> None:
    of = rule("postgresql", name="{schema}_<>", names={"public.order": "orders"})
    user = _of_postgresql("user", of)
    assert (user.table, user.name) == ("public.user", "public_user")
    assert _of_postgresql("order", of).name == "orders"


def _of_postgresql(table: str, of: Rule) -> DiscoveredTable:
    body = {"op": "c", "after": ROW, "source": {"db": "shop", "schema": "public", "table": table}}
    return discovered_table(of, TOPIC, [Record(TOPIC, None, json.dumps(body).encode())], taken=())
