"""Proposed contracts: what a sample of real records tells of a topic, and none of the rows' values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.proposal.propose import propose
from lakehouse.contracts.files import MODELS, OPTIONAL, SCHEMAS, load_contracts
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.parts.column_types import SourceType
from lakehouse.errors import SettingsError
from silver.by_rule.events import Event, events_of, schema_ids
from silver.decode.reference.message import Record
from tests.support.avro import recorded_postgres
from tests.support.recordings import read

ROOT = Path(__file__).parents[4]
CAPTURES, DEMO = ROOT / "tests" / "captures", ROOT / "demo" / "data"

TOPICS = {
    # a topic, and the recording that has it
    "pg.public.orders": DEMO / "pg_default",
    "pg.public.orders_types": DEMO / "pg_default",
    "pgstr.public.orders_types": CAPTURES / "pg_decimal-string_time-isostring",
    "pgschema.public.orders": CAPTURES / "pg_schema-include",
    "pgschema.public.orders_types": CAPTURES / "pg_schema-include",
    "mysql.ecommerce.orders": DEMO / "mysql",
    "mysqlschema.ecommerce.orders_types": CAPTURES / "mysql_schema-include",
    "outbox.event.postgres.orders": DEMO / "outbox_pg_envelope",
    "outbox.event.mysql.orders": DEMO / "outbox_mysql_envelope",
    "outboxplain.event.postgres.orders": CAPTURES / "outbox_pg_plain",
    "outboxexpand.event.mysql.orders": DEMO / "outbox_mysql_expand",
}


def recorded(recording: Path, topic: str) -> list[Record]:
    """The records of one topic of a recording, as Kafka has them."""
    return [
        Record(
            topic=topic,
            key=encoded(record["key"]),
            value=encoded(record["value"]),
            headers=tuple((name, encoded(value)) for name, value in record["headers"]),
        )
        for record in read(recording.with_name(recording.name + ".jsonl.gz"))
        if record["topic"] == topic
    ]


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def change(row: Mapping[str, Any] | None, *, key: object, op: str = "c", **source: object) -> Record:
    """A change event of a table."""
    block = {"connector": "postgresql", "name": "shop", "table": "orders", **source}
    value = {"before": None, "after": row, "source": block, "op": op}
    return Record("shop.orders", json.dumps(key).encode(), json.dumps(value).encode())


def event(payload: Mapping[str, Any], *, aggregate_id: str = "1", connector: str | None = "mysql") -> Record:
    """An outbox event whose value is the payload."""
    headers = [("id", b"e1"), *([("__debezium.context.connectorName", connector.encode())] if connector else [])]
    return Record("shop.orders", json.dumps(aggregate_id).encode(), json.dumps(payload).encode(), tuple(headers))


def load(texts: Mapping[str, str], folder: Path) -> Contracts:
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return load_contracts(folder)


def the_feed(texts: Mapping[str, str], folder: Path) -> Feed:
    """The one feed of a proposal."""
    (feed,) = load(texts, folder).feeds.values()
    return feed


def types(feed: Feed) -> dict[str, str]:
    return {
        name: column.type.ddl + (f" {column.epoch_unit or 'micros'}" if column.type.ddl == "TIMESTAMP" else "")
        for name, column in feed.columns.items()
    }


def comment_of(texts: Mapping[str, str], begin: str, *, file: str = "silver/tables.yaml") -> str:
    """The comment behind the line that begins so, or right above it."""
    lines = [line.strip() for line in texts[file].splitlines()]
    (number,) = [number for number, line in enumerate(lines) if line.startswith(f"{begin}:")]
    above = takewhile(lambda line: line.startswith("#"), reversed(lines[:number]))
    _text, _hash, behind = lines[number].partition(" # ")
    return " ".join([*reversed([line.removeprefix("# ") for line in above]), behind]).strip()


@pytest.fixture(scope="module")
def proposals() -> dict[str, Mapping[str, str]]:
    return {topic: propose(topic, recorded(recording, topic)) for topic, recording in TOPICS.items()}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_proposal_loads_without_mistakes_and_names_its_schemas(
    topic: str, proposals: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    texts = proposals[topic]
    assert tuple(texts) == tuple(name for name in MODELS if name not in OPTIONAL)
    for file, text in texts.items():
        prefix, name = text.splitlines()[0].rsplit("/", 1)
        assert prefix == "# yaml-language-server: $schema=../schemas"
        assert SCHEMAS[name] is MODELS[file]
        assert max(len(line) for line in text.splitlines()) <= 120
    feed = the_feed(texts, tmp_path)
    assert feed.topics == (topic,)
    assert feed.keys == ("order_id",)
    assert feed.columns["order_id"].type.ddl == "BIGINT"


@pytest.mark.parametrize("topic", TOPICS)
def test_no_value_of_a_row_is_in_a_proposal(topic: str, proposals: Mapping[str, Mapping[str, str]]) -> None:
    text = "\n".join(proposals[topic].values())
    # What gold makes of a status is this project's own rule, not the sample's.
    text = text.replace("completed: FULFILLED", "").replace("cancelled: CANCELLED", "").replace("PENDING", "")
    events = [reading for reading in events_of(recorded(TOPICS[topic], topic)) if isinstance(reading, Event)]
    values = {value for event in events for value in leaves((event.row, event.key)) if len(value.strip()) > 3}
    assert len(values) > 10
    words = set(re.findall(r"[\w.+/=-]+", text))
    assert not {value for value in values if value in words or (len(value) > 8 and value in text)}


def leaves(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def test_columns_of_a_postgres_table(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    texts = proposals["pg.public.orders"]
    contracts = load(texts, tmp_path)
    (feed,) = contracts.feeds.values()
    assert (feed.name, feed.source, feed.kind) == ("pg_orders", "pg", "postgresql")
    assert (feed.envelope, feed.sequence_by) == ("table", "source_position")
    assert types(feed) == {
        "order_id": "BIGINT",
        "customer_id": "BIGINT",
        "product_id": "BIGINT",
        "status": "STRING",
        "total_amount": "STRING",
        "created_at": "TIMESTAMP micros",
        "updated_at": "TIMESTAMP micros",
        "note": "STRING",
        "channel": "STRING",
    }
    assert [name for name, column in feed.columns.items() if column.optional] == ["channel"]
    assert "base64 of a decimal" in comment_of(texts, "total_amount")
    assert "DECIMAL(p,s)" in comment_of(texts, "total_amount")
    assert re.search(r"99 of 99 values .* 15 or 16 digits.*epoch micros", comment_of(texts, "created_at"))


def test_columns_of_a_mysql_table(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    feed = the_feed(proposals["mysql.ecommerce.orders"], tmp_path)
    assert (feed.name, feed.source, feed.kind) == ("mysql_orders", "mysql", "mysql")
    assert feed.columns["created_at"].type.ddl == "TIMESTAMP"


def test_types_come_from_the_values_without_a_schema(
    proposals: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    texts = proposals["pg.public.orders_types"]
    feed = the_feed(texts, tmp_path)
    assert types(feed) == {
        "order_id": "BIGINT",
        "d10_2": "STRING",
        "d38_10": "STRING",
        "dnum": "STRING",
        "dbl": "DOUBLE",
        "ts0": "TIMESTAMP millis",
        "ts3": "TIMESTAMP millis",
        "ts6": "TIMESTAMP micros",
        "tstz": "TIMESTAMP micros",
        "dt": "DATE",
        "tm": "BIGINT",
        "iv": "BIGINT",
        "bl": "BOOLEAN",
        "uid": "STRING",
        "js": "STRING",
        "bin": "STRING",
        "arr": "STRING",
    }
    for column in ("d10_2", "d38_10"):
        assert "base64 of a decimal" in comment_of(texts, column)
    assert "3 of 6 values" in comment_of(texts, "ts6")
    assert "decimal without a fixed scale" in comment_of(texts, "dnum")


def test_types_come_from_the_schema_in_the_messages(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    texts = proposals["pgschema.public.orders_types"]
    feed = the_feed(texts, tmp_path)
    assert types(feed) == {
        "order_id": "BIGINT",
        "d10_2": "DECIMAL(12,4)",  # it was (10,2) when the recording began
        "d38_10": "DECIMAL(38,10)",
        "dnum": "STRING",
        "dbl": "DOUBLE",
        "ts0": "TIMESTAMP millis",
        "ts3": "TIMESTAMP millis",
        "ts6": "TIMESTAMP micros",
        "tstz": "TIMESTAMP micros",
        "dt": "DATE",
        "tm": "STRING",
        "iv": "STRING",
        "bl": "BOOLEAN",
        "uid": "STRING",
        "js": "STRING",
        "bin": "STRING",
        "arr": "STRING",
    }
    assert "DECIMAL(10,2), DECIMAL(12,4)" in texts["silver/tables.yaml"]
    assert {name: column.source_name for name, column in feed.columns.items() if column.source_type} == {
        "dnum": "numeric",
        "tstz": "timestamptz",
        "tm": "time",
        "iv": "interval",
    }


def test_a_decimal_that_spark_cannot_hold_is_text(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    texts = proposals["mysqlschema.ecommerce.orders_types"]
    feed = the_feed(texts, tmp_path)
    assert types(feed)["dnum"] == "STRING"
    assert feed.columns["dnum"].source_type == SourceType("numeric", (65, 30))
    assert "more than 38 digits" in comment_of(texts, "dnum")
    assert types(feed)["yr"] == "BIGINT"


def test_a_schema_names_a_decimal(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    feed = the_feed(proposals["pgschema.public.orders"], tmp_path)
    assert types(feed)["total_amount"] == "DECIMAL(10,2)"
    assert types(feed)["created_at"] == "TIMESTAMP micros"
    assert feed.columns["channel"].optional


def test_decimals_and_times_as_text(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    texts = proposals["pgstr.public.orders_types"]
    feed = the_feed(texts, tmp_path)
    assert feed.decimal_handling_mode == "string"
    assert [types(feed)[name] for name in ("ts0", "ts6", "tstz", "dt")] == [*["TIMESTAMP micros"] * 3, "DATE"]
    assert "write DECIMAL(p,s)" in comment_of(texts, "d10_2")


@pytest.mark.parametrize(
    ("topic", "kind", "name"),
    [
        ("outbox.event.postgres.orders", "postgresql", "pgoutenv_orders"),
        ("outbox.event.mysql.orders", "mysql", "myoutenv_orders"),
        ("outboxplain.event.postgres.orders", "postgresql", "pgoutplain_orders"),
        ("outboxexpand.event.mysql.orders", "mysql", "myoutexp_orders"),
    ],
)
def test_an_outbox_in_its_three_forms(
    topic: str, kind: str, name: str, proposals: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    feed = the_feed(proposals[topic], tmp_path)
    assert (feed.envelope, feed.sequence_by, feed.kind, feed.name) == ("outbox", "kafka_offset", kind, name)
    assert types(feed) == {
        "note": "STRING",
        "status": "STRING",
        "order_id": "BIGINT",
        "created_at": "TIMESTAMP micros",
        "product_id": "BIGINT",
        "customer_id": "BIGINT",
        "total_amount": "DOUBLE",
        "amount": "BIGINT",
        "nested": "STRING",
    }
    # Order 60 has nothing but an amount, and order 777 only a nested object.
    assert [column for column, declared in feed.columns.items() if not declared.optional] == ["order_id"]
    assert "write DECIMAL(p,s)" in comment_of(proposals[topic], "total_amount")


def test_gold_and_the_gates(proposals: Mapping[str, Mapping[str, str]], tmp_path: Path) -> None:
    contracts = load(proposals["pg.public.orders"], tmp_path)
    assert contracts.gold.fulfillment is not None
    assert contracts.gold.key == "order_id"
    assert contracts.gold.fulfillment is not None
    assert contracts.gold.fulfillment.column == "status"
    assert tuple(contracts.gold.columns) == tuple(contracts.feeds["pg_orders"].columns)
    assert contracts.gold.sources["pg"].prefix == "PG"
    assert contracts.gold.unified_topic.topic == "bigquery.unified.orders"
    (present,) = contracts.silver_gate.expectations
    assert (present.type, present.kwargs) == ("expect_column_values_to_not_be_null", {"column": "order_id"})
    assert present.on_failure == "quarantine"
    (unique,) = contracts.gold_gate.expectations
    assert (unique.type, unique.on_failure) == ("expect_column_values_to_be_unique", "fail")


def test_the_tables_of_a_feed_are_those_of_its_events(
    proposals: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    postgres, mysql = proposals["pg.public.orders"], proposals["mysql.ecommerce.orders"]
    assert the_feed(postgres, tmp_path).tables == ("public.orders",)
    assert comment_of(postgres, "tables", file="bronze/topics.yaml") == (
        "in 110 of 110 events; a record of another table goes to quarantine: check"
    )
    assert the_feed(mysql, tmp_path).tables == ("ecommerce.orders",)
    assert the_feed(proposals["outbox.event.mysql.orders"], tmp_path).tables == ()


def test_topics_to_ignore_are_taken_over(tmp_path: Path) -> None:
    texts = propose("shop.orders", [change({"id": 1}, key={"id": 1})], ignored_topics=["__debezium-heartbeat.shop"])
    assert load(texts, tmp_path).topics.sources["shop"].ignored_topics == ("__debezium-heartbeat.shop",)


def test_names_that_a_contract_cannot_have_keep_their_field(tmp_path: Path) -> None:
    row = {
        **{"OrderID": 1, "_rev": 2, "total amount": 3, "größe": 4, "1st": 5, "注文": 6, "on": 7, "a#b": 8},
        **{"orderId": 9, "processed_at": "x", "it's": 1, 'say "so"': 1, "line\nbreak": 1, "plain": 1},
    }
    records = [change(row, key={"OrderID": 1}, name="Shop-EU", table="Order Lines")]
    feed = the_feed(propose("Shop-EU.public.Order_Lines", records), tmp_path)
    assert feed.name == "shop_eu_order_lines"
    assert {name: feed.fields_of(name)[0] for name in feed.columns} == {
        "order_id": "OrderID",
        "rev": "_rev",
        "total_amount": "total amount",
        "grosse": "größe",
        "column_1st": "1st",
        "column_6": "注文",
        "on": "on",
        "a_b": "a#b",
        "order_id_2": "orderId",
        "processed_at_of_source": "processed_at",
        "it_s": "it's",
        "say_so": 'say "so"',
        "line_break": "line\nbreak",
        "plain": "plain",
    }
    assert feed.columns["plain"].fields == ()


GUESSES: dict[str, tuple[list[object], str, str]] = {
    # a column, its values, its type, and what is said of it
    "n": ([1, 2**63 - 1], "BIGINT", "2 of 2 values are whole numbers"),
    "too_large": ([2**63], "STRING", "too large for BIGINT"),
    "of_many_digits": ([10**4000], "STRING", "too large for BIGINT"),
    "leading_zeros": ([0.001, 100.5], "DOUBLE", "up to 3 digits after the point"),
    "fraction": ([1, 2.50], "DOUBLE", "1 digit after the point"),
    "not_finite": ([2.5, "NaN"], "DOUBLE", "2 of 2 values"),
    "flag": ([True, False], "BOOLEAN", "true or false"),
    "flag_or_number": ([True, 1], "STRING", "several kinds"),
    "text_or_number": (["x", 1], "STRING", "several kinds"),
    "nothing": ([None], "STRING", "no value"),
    "unchanged_toast": (["__debezium_unavailable_value"], "STRING", "no value"),
    "words": (["paid", "open"], "STRING", "2 of 2 values are text"),
    "amount": (["AQID", "BAUG"], "STRING", "base64 of a decimal"),
    "padded": (["AQ==", "BAUG"], "STRING", "base64 of a decimal"),
    "padded_bytes": (["AAE=", "BAUG"], "STRING", "2 of 2 values are text"),
    "decimal_text": (["12.50", "-1.00"], "STRING", "2 digits after the point: write DECIMAL(p,s)"),
    "number_text": (["1", "2"], "STRING", "2 of 2 values are text"),
    "left_out_array": ([["__debezium_unavailable_value"]], "STRING", "no value"),
    "object": ([{"a": 1}, [1]], "STRING", "JSON text"),
    "created_at": ([1704103200000], "TIMESTAMP millis", "epoch millis"),
    "ts": ([1704103200000001], "TIMESTAMP micros", "epoch micros"),
    "updated_at": ([1704103200], "BIGINT", "epoch seconds"),
    "born": ([1704103200000], "BIGINT", "TIMESTAMP with epoch_unit: millis"),
    "price": ([1704103200], "BIGINT", "DECIMAL(p,s)"),
    "iso": (["2024-01-01T00:00:00Z", "2024-01-01 00:00:00.5"], "TIMESTAMP micros", "2 of 2 values are ISO"),
    "iso_or_never": (["2024-01-01T00:00:00Z", "infinity"], "TIMESTAMP micros", "1 of 2 values are ISO"),
    "nanos": (["2024-01-01T00:00:00.123456789Z"], "STRING", "finer than microseconds"),
    "iso_or_not": (["2024-01-01T00:00:00Z", "yesterday"], "STRING", "are text"),
    "iso_date": (["2024-01-01"], "DATE", "ISO dates"),
    "order_date": ([19782], "DATE", "days since 1970"),
    "quantity": ([19782], "BIGINT", "whole numbers"),
}


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, str], dict[str, str]]:
    """A proposal for a table with all these columns: its texts, and the types of its columns."""
    rows = zip_longest(*(values for values, _type, _said in GUESSES.values()))
    records = [
        change({"id": number, **dict(zip(GUESSES, row, strict=True))}, key={"id": number})
        for number, row in enumerate(rows)
    ]
    texts = propose("shop.orders", records)
    return texts, types(the_feed(texts, tmp_path_factory.mktemp("guessed")))


@pytest.mark.parametrize("name", GUESSES)
def test_a_type_is_guessed_from_values(name: str, guessed: tuple[Mapping[str, str], dict[str, str]]) -> None:
    texts, found = guessed
    _values, expected, summary = GUESSES[name]
    assert found[name] == expected
    assert summary in comment_of(texts, name)


@pytest.mark.parametrize(
    ("payloads", "aggregate_ids", "key", "summary"),
    [
        ([{"x": 1, "order_id": 7}, {"x": 1, "order_id": 7}], ["7", "7"], "order_id", "2 of 2 events equals"),
        ([{"id": 3, "order_id": 7}], ["3"], "id", "1 of 1 events equals"),
        ([{"number": 3, "order_id": 7}], ["3"], "number", "1 of 1 events equals"),
        ([{"id": 1, "order_id": 7}, {"id": 2, "order_id": 8}], ["x", "y"], "order_id", "another value in each"),
        ([{"id": 1, "order_id": 7}, {"id": 2, "order_id": 7}], ["x", "y"], "id", "another value in each"),
        ([{"orderId": 7}, {"orderId": 7}], ["x", "y"], "order_id", "check"),
        ([{"amount": 7}, {"amount": 8}], ["1", "2"], "order_id", "aggregateid"),
    ],
)
def test_the_key_of_an_outbox(
    payloads: Sequence[Mapping[str, Any]], aggregate_ids: Sequence[str], key: str, summary: str, tmp_path: Path
) -> None:
    records = [event(payload, aggregate_id=one) for payload, one in zip(payloads, aggregate_ids, strict=True)]
    texts = propose("outbox.event.orders", records)
    feed = the_feed(texts, tmp_path)
    assert feed.keys == (key,)
    assert feed.columns[key].type.ddl == "BIGINT"
    assert summary in comment_of(texts, "keys")


@pytest.mark.parametrize("payload", ['{"order_id": 7}', {"order_id": 7}])
def test_a_payload_in_an_envelope_is_the_row(payload: object, tmp_path: Path) -> None:
    record = event({"payload": payload, "eventType": "OrderPaid"})
    assert types(the_feed(propose("outbox.event.orders", [record]), tmp_path)) == {"order_id": "BIGINT"}


def test_an_outbox_that_does_not_name_its_database(tmp_path: Path) -> None:
    texts = propose("outbox.event.mysql.orders", [event({"order_id": 1}, connector=None)])
    assert the_feed(texts, tmp_path).kind == "mysql"
    assert "no record names the database" in texts["bronze/topics.yaml"]


def test_values_of_any_place_stay_out_of_proposals_and_errors() -> None:
    told = "s3cr3t"
    headers = (("id", told.encode()), ("eventType", told.encode()), (told, told.encode()))
    payload = {"order_id": told, "status": told, "more": {told: [told]}, "at": f"2024-01-01T{told}"}
    outbox = Record("shop.orders", json.dumps(told).encode(), json.dumps(payload).encode(), headers)
    table = change(payload, key={"order_id": told}, query=told, db=told)
    for records in ([outbox], [table], [outbox, table]):
        assert told not in str(dict(propose("shop.orders", records)))
    with pytest.raises(SettingsError) as refused:
        propose("shop.orders", [Record("shop.orders", told.encode(), told.encode())])
    assert told not in str(refused.value)


def test_a_topic_of_both_kinds_is_what_most_of_it_is(tmp_path: Path) -> None:
    records = [*[event({"order_id": 1})] * 2, change({"order_id": 1}, key={"order_id": 1})]
    texts = propose("mixed.orders", records)
    assert the_feed(texts, tmp_path).envelope == "outbox"
    assert "1 change event" in texts["bronze/topics.yaml"]


def test_a_deleted_row_gives_its_key(tmp_path: Path) -> None:
    records = [change(None, key={"id": "a"}, op="d"), change({"x": 1}, key={"id": "b"})]
    assert types(the_feed(propose("shop.orders", records), tmp_path)) == {"id": "STRING", "x": "BIGINT"}


@pytest.mark.parametrize(
    ("connector", "sources", "tables"),
    [
        ("postgresql", [{"db": "shop", "schema": "public"}], ("public.orders",)),
        ("mysql", [{"db": "shop"}], ("shop.orders",)),
        ("mariadb", [{"db": "shop"}, {"db": "shop", "table": None}], ("shop.orders",)),
        ("postgresql", [{"schema": "My Schema", "table": "a.b, c"}], ("My Schema.a.b, c",)),
        ("postgresql", [{"schema": "public"}, {"schema": "sales"}], ()),
        ("postgresql", [{"schema": "public"}, {"schema": "public", "table": "orders_2"}], ()),
        ("postgresql", [{"db": "shop"}], ()),
        ("postgresql", [{"schema": "line\nbreak"}], ()),
    ],
)
def test_the_table_is_the_one_that_all_source_blocks_name(
    connector: str, sources: Sequence[Mapping[str, Any]], tables: tuple[str, ...], tmp_path: Path
) -> None:
    records = [
        change({"id": number}, key={"id": number}, connector=connector, **source)
        for number, source in enumerate(sources)
    ]
    assert the_feed(propose("shop.orders", records), tmp_path).tables == tables


@pytest.mark.parametrize(
    ("topic", "tables"),
    [
        ("pg.public.orders", ("public.orders",)),
        ("pgschema.public.orders_types", ("public.orders_types",)),
        ("mysql.ecommerce.orders", ("ecommerce.orders",)),
        ("outbox.event.postgres.orders", ()),
    ],
)
def test_the_table_of_a_recording(
    topic: str, tables: tuple[str, ...], proposals: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    assert the_feed(proposals[topic], tmp_path).tables == tables


@pytest.mark.parametrize("row", [{"id": 1}, {"id": 1, "state": "x"}, {"id": 1, "status": 5}])
def test_without_a_status_of_text_there_is_no_fulfillment(row: Mapping[str, Any], tmp_path: Path) -> None:
    texts = propose("shop.orders", [change(row, key={"id": 1})])
    assert load(texts, tmp_path).gold.fulfillment is None
    assert "fulfillment_status is NULL" in texts["gold/tables.yaml"]


HEARTBEAT = Record("shop.orders", b'{"serverName":"pg"}', b'{"ts_ms":1795250998185}')
TOMBSTONE = Record("shop.orders", b'{"id":1}', None)


def test_a_flattened_topic_is_not_taken_for_one_that_silver_cannot_read() -> None:
    """Silver reads flattened rows; it is the proposal that needs the envelope."""
    with pytest.raises(SettingsError) as refused:
        propose("shop.orders", [Record("shop.orders", b'{"id":1}', b'{"id":1,"status":"x"}')])
    assert "out of the connector" not in refused.value.hint
    assert "Silver reads flattened rows" in refused.value.hint
    assert "sequence_by: kafka_offset" in refused.value.hint


@pytest.mark.parametrize(
    ("records", "summary"),
    [
        ([], "has no records"),
        ([HEARTBEAT] * 12, "12 records: 12 heartbeats"),
        ([TOMBSTONE, HEARTBEAT], "2 records: 1 heartbeat, 1 tombstone"),
        ([change(None, key={"id": 1}, op="d"), TOMBSTONE], "2 records: 1 delete, 1 tombstone"),
        ([change(None, key=None, op="t")], "1 record: 1 truncate"),
        ([Record("shop.orders", b"\0\0\0\0\1", b"\0\0\0\0\2\2")], "1 record: 1 binary value"),
        ([Record("shop.orders", None, b"\xff\xfe")], "1 binary value"),
        ([Record("shop.orders", None, b"so, text")], "1 value that is not JSON"),
        ([Record("shop.orders", None, b"[" * 100_000)], "1 value that is not JSON"),
        # JSON, of any number of digits: silver reads it, and so the sample does.
        ([Record("shop.orders", None, b"9" * 10_000)], "1 value of another shape"),
        ([Record("shop.orders", None, b'{"n": 1e99999999999999999999}')], "1 row without an envelope"),
        # Half of a surrogate pair is no text: silver reads no such record.
        ([change({"\ud800": 1}, key={"id": 1})], "1 value that is not JSON"),
        ([Record("shop.orders", None, b"[1]")], "1 value of another shape"),
        ([Record("shop.orders", None, b'{"op": ["c"], "source": {}, "after": {"id": 1}}')], "1 value of another shape"),
        (
            [change({"id": 7}, key={"id": 7})._replace(key=b"\0\0\0\7")] * 2,
            "2 records: 2 records whose keys cannot be read",
        ),
        ([Record("shop.orders", None, b'{"specversion":"1.0","id":"7","source":"/shop","type":"x"}')], "another shape"),
        ([Record("shop.orders", b'{"id":1}', b'{"id":1,"status":"x"}')], "1 row without an envelope"),
        ([change({"id": 1}, key=None)], "no key"),
        ([change({"a": 1, "b": 2}, key={"a": 1, "b": 2})], "a, b"),
        ([change({"id": 1}, key={"id": 1}, connector="oracle")], "'oracle'"),
    ],
)
def test_what_cannot_be_proposed_is_said_with_a_next_step(records: Sequence[Record], summary: str) -> None:
    with pytest.raises(SettingsError) as refused:
        propose("shop.orders", records)
    assert summary in refused.value.what
    assert "shop.orders" in refused.value.what
    assert refused.value.hint.endswith(".")


@pytest.mark.parametrize(
    ("topic", "summary"),
    [
        ("pg.public.orders_nopk", "no key"),
        ("__debezium-heartbeat.pg", "15 records: 15 heartbeats"),
        ("pg.transaction", "142 records: 142 transaction markers"),
    ],
)
def test_recorded_topics_that_are_no_feed(topic: str, summary: str) -> None:
    with pytest.raises(SettingsError, match=summary):
        propose(topic, recorded(DEMO / "pg_default", topic))


def test_recorded_schema_changes_are_no_feed() -> None:
    with pytest.raises(SettingsError, match="18 records: 18 schema changes"):
        propose("mysql", recorded(DEMO / "mysql", "mysql"))


def test_an_outbox_table_without_the_event_router_is_pointed_out() -> None:
    row = {"id": "e1", "aggregatetype": "orders", "aggregateid": "7", "type": "OrderCreated", "payload": "{}"}
    texts = propose("shop.outbox", [change(row, key={"id": "e1"}, table="outbox")])
    assert "without the EventRouter" in comment_of(texts, "envelope", file="bronze/topics.yaml")


def test_the_reasons_count_what_was_seen(proposals: Mapping[str, Mapping[str, str]]) -> None:
    texts = proposals["pg.public.orders"]
    assert "121 records: 99 change events, 11 deletes, 11 tombstones." in texts["bronze/topics.yaml"]
    assert comment_of(texts, "keys") == "the key of 110 of 110 events"
    assert comment_of(texts, "order_id") == "110 of 110 values are whole numbers"
    assert comment_of(texts, "optional") == "92 of 99 events lack it"


def test_a_topic_in_avro_is_proposed_as_the_same_table_in_json() -> None:
    """Recorded: one table by two connectors, through the Avro converter and as JSON with its schema."""
    registered, of_topic = recorded_postgres()
    for table in ("life", "orders_types"):
        in_avro, in_json = (f"live_postgres_{way}.public.{table}" for way in ("avro", "schemas"))
        assert schema_ids(of_topic[in_avro]) <= registered.keys()
        assert schema_ids(of_topic[in_json]) == set()
        proposed = (
            propose(in_avro, of_topic[in_avro], registered=registered),
            propose(in_json, of_topic[in_json]),
        )
        tables = [next(iter(yaml.safe_load(one["silver/tables.yaml"])["tables"].values())) for one in proposed]
        assert tables[0] == tables[1]
        with pytest.raises(SettingsError, match="name schema_registry"):
            propose(in_avro, of_topic[in_avro])
