"""Contracts for a database: which topics are its own, the rule for them, and what a person is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cli.proposal.broker import by_likelihood
from cli.proposal.database import DatabaseProposal, SchemaChanges, TopicRow, propose_database
from cli.proposal.looked import EMPTY, Looked, by_name, looked_at
from cli.proposal.texts.shown import MAX_OTHERS, as_data, shown
from lakehouse.contracts.files import SCHEMAS, load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import TableRule
from lakehouse.errors import LakehouseError, SettingsError, TopicMissingError
from lakehouse.process.steps import wide_console
from silver.decode.reference.message import Record
from tests.support.avro import recorded_postgres
from tests.unit.cli.proposal.dw import (
    ROWS,
    change,
    encoded,
    heartbeat,
    looked,
    schema_change,
    schema_changes,
    tables,
)

ROOT = Path(__file__).parents[4]
OTHER = looked(change("shop.crm.client", {"id": 1}, table="client", name="shop", db="crm"))
TEXT = looked(Record("clicks", b"s3cr3t", b"s3cr3t, no JSON"))


def load(proposal: DatabaseProposal, folder: Path) -> Contracts:
    for name, text in proposal.texts.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    return load_contracts(folder)


def the_rule(proposal: DatabaseProposal, folder: Path) -> TableRule:
    """The one rule of a proposal."""
    ((_name, source),) = load(proposal, folder).topics.sources.items()
    ((_name, rule),) = source.by_rule.items()
    return rule


def row(proposal: DatabaseProposal, topic: str) -> TopicRow:
    (found,) = [one for one in proposal.rows if one.topic == topic]
    return found


def empty(topic: str) -> Looked:
    return looked_at(topic, (), None)


@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize(
    ("name", "include"),
    [
        ("order_dw.order_dw.{table}", [r"order_dw\.order_dw\..*"]),
        ("topic_{table}", ["topic_.*"]),
        ("dw.{table}.cdc", [r"dw\..*\.cdc"]),
        ("{table}s", ["feedbacks", "orders", "users"]),
        ("{table}", ["feedback", "order", "user"]),
    ],
)
def test_the_topics_of_a_database_whatever_they_are_called(
    name: str, include: Sequence[str], tmp_path: Path, *, schemas: bool
) -> None:
    found = [*tables(name, schemas=schemas), OTHER, TEXT, heartbeat("__debezium-heartbeat.order_dw")]
    proposal = propose_database("order_dw", found)
    contracts = load(proposal, tmp_path)
    (source,) = contracts.topics.sources.values()
    assert [*contracts.topics.sources] == ["order_dw"]
    assert (source.kind, source.ignored_topics) == ("mysql", ("__debezium-heartbeat.order_dw",))
    rule = source.by_rule["order_dw"]
    assert list(rule.include) == include
    assert rule.exclude == ()
    assert all(source.names(name.format(table=table)) for table in ROWS)
    assert not any(source.names(one.topic) for one in (OTHER, TEXT))
    is_open = any(pattern.endswith("*") or ".*" in pattern for pattern in include)
    assert ("a new table is not included" in proposal.texts["bronze/topics.yaml"]) != is_open
    assert [one.silver_table for one in proposal.rows if one.taken] == [
        "silver.order_dw_feedback",
        "silver.order_dw_order",
        "silver.order_dw_user",
    ]
    order = row(proposal, name.format(table="order"))
    assert (order.table, order.keys, order.columns, order.records) == ("order_dw.order", ("id",), 4, 1)
    assert order.types_by == ("schema of the messages" if schemas else "values")
    assert row(proposal, "shop.crm.client").remark == "of database crm"
    assert row(proposal, "clicks").remark == "1 record: 1 value that is not JSON"


def test_a_common_prefix_is_left_where_something_else_has_it() -> None:
    names = [*tables("topic_{table}"), looked(Record("topic_clicks", None, b"text"))]
    assert "- 'topic_feedback'\n" in propose_database("order_dw", names).texts["bronze/topics.yaml"]
    unread = Looked("topic_more", "unread", "not looked at: the time was over")
    proposal = propose_database("order_dw", [*tables("topic_{table}"), unread])
    assert "'topic_.*'" not in proposal.texts["bronze/topics.yaml"]
    assert row(proposal, "topic_more").remark == "not looked at: the time was over"


def test_a_topic_without_records_may_be_of_a_table_to_come() -> None:
    proposal = propose_database("order_dw", [*tables("topic_{table}"), empty("topic_more"), empty("x")])
    assert "without a record yet: topic_more" in proposal.texts["bronze/topics.yaml"]
    assert (row(proposal, "topic_more").remark, row(proposal, "x").remark) == (f"{EMPTY}; the rule includes it", EMPTY)


def test_a_name_with_the_database_in_it_is_a_pattern_for_its_tables(tmp_path: Path) -> None:
    mirrored = tables("mirror.order_dw.{table}")[:1]
    assert the_rule(propose_database("order_dw", mirrored), tmp_path).include == (r"mirror\.order_dw\..*",)
    short = tables("order_dw.{table}")[:1]
    assert the_rule(propose_database("order_dw", short), tmp_path).include == (r"order_dw\..*",)


def test_one_topic_with_a_prefix_shows_no_pattern(tmp_path: Path) -> None:
    assert the_rule(propose_database("order_dw", tables("topic_{table}")[:1]), tmp_path).include == ("topic_user",)


def test_what_matches_and_is_no_table_of_the_database_is_excluded(tmp_path: Path) -> None:
    own = tables("order_dw.order_dw.{table}")
    flat = looked(Record("order_dw.order_dw.flat", encoded({"id": 1}), encoded({"id": 1})))
    foreign = looked(change("order_dw.order_dw.foreign", {"id": 1}, table="x", db="other"))
    proposal = propose_database("order_dw", [*own, flat, foreign, heartbeat("order_dw.order_dw.beat")])
    rule = the_rule(proposal, tmp_path)
    assert rule.exclude == (r"order_dw\.order_dw\.flat", r"order_dw\.order_dw\.foreign")
    assert "declared by hand" in proposal.texts["bronze/topics.yaml"]
    (source,) = load(proposal, tmp_path).topics.sources.values()
    assert source.ignored_topics == ("order_dw.order_dw.beat",)
    assert source.rule_of("order_dw.order_dw.beat") is None


def test_the_topic_of_schema_changes_states_the_types(tmp_path: Path) -> None:
    records = schema_changes()
    found = [*tables("order_dw.order_dw.{table}"), looked(*records)]
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records))
    assert the_rule(proposal, tmp_path).schema_changes == "order_dw"
    assert "where messages have no schema: for order_dw_feedback" in flowing(proposal)
    assert {one.types_by for one in proposal.rows if one.taken} == {"topic of schema changes"}
    assert row(proposal, "order_dw").remark == "schema changes of the connector"


def flowing(proposal: DatabaseProposal) -> str:
    """The topics' file with its comments in one line."""
    return re.sub(r"\n *# ", " ", proposal.texts["bronze/topics.yaml"])


def test_with_schemas_in_the_messages_schema_changes_are_not_needed(tmp_path: Path) -> None:
    records = schema_changes()
    found = [*tables("topic_{table}", schemas=True), looked(*records)]
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records))
    assert the_rule(proposal, tmp_path).schema_changes == "order_dw"
    assert "not needed, all messages here have one" in flowing(proposal)
    assert {one.types_by for one in proposal.rows if one.taken} == {"schema of the messages"}


def test_schema_changes_that_state_none_of_the_tables_are_not_waited_for(tmp_path: Path) -> None:
    records = [schema_change("order_dw", "other", {"id": "BIGINT"})]
    found = [*tables("topic_{table}"), looked(*records)]
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records))
    assert the_rule(proposal, tmp_path).schema_changes is None
    assert "order_dw states none of the tables: columns are BIGINT" in flowing(proposal)
    assert row(proposal, "order_dw").remark == "schema changes of the connector: none of these tables"
    # Of a part of them nothing is known.
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records, is_whole=False))
    assert the_rule(proposal, tmp_path).schema_changes == "order_dw"
    assert row(proposal, "topic_user").remark == "not in what was read of order_dw"
    assert row(proposal, "topic_user").types_by == "values"


def test_a_table_that_schema_changes_lack_is_pointed_out() -> None:
    records = schema_changes()[:1]
    found = [*tables("topic_{table}"), looked(*records)]
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records))
    assert row(proposal, "topic_user").columns == 3
    lacking = row(proposal, "topic_order")
    assert (lacking.columns, lacking.remark) == (None, "topic order_dw does not say yet what order_dw.order is")


def test_the_history_that_a_connector_keeps_is_no_topic_of_schema_changes() -> None:
    history = looked(
        schema_change("history", "user", {"id": "BIGINT"}, position={"pos": 4}, source={"server": "order_dw"})
    )
    proposal = propose_database("order_dw", [*tables("topic_{table}"), history])
    assert "schema_changes:" not in proposal.texts["bronze/topics.yaml"]
    assert row(proposal, "history").remark == "a connector's own history of schemas"


def test_of_several_topics_of_schema_changes_that_of_the_connector_is_taken(tmp_path: Path) -> None:
    block = {"connector": "mysql", "name": "elsewhere", "db": "order_dw"}
    found = [
        *tables("topic_{table}"),
        looked(schema_change("elsewhere", "user", {"id": "BIGINT"}, source=block)),
        looked(schema_change("a_ddl", "x", {"id": "BIGINT"}, databaseName="other")),
        looked(*schema_changes("ddl")),
    ]
    changes = SchemaChanges(schema_changes("ddl"))
    proposal = propose_database("order_dw", found, schema_changes=changes)
    assert the_rule(proposal, tmp_path).schema_changes == "ddl"
    assert row(proposal, "elsewhere").remark == "schema changes of another connector (elsewhere)"


def test_a_table_without_a_key_is_the_list_of_its_changes() -> None:
    proposal = propose_database("order_dw", [looked(change("topic_log", {"a": 1}, table="log", key=()))])
    assert row(proposal, "topic_log").keys == ()
    assert row(proposal, "topic_log").remark == "no key: silver has the list of its changes"
    assert "none has one yet" in proposal.texts["gold/tables.yaml"]


def test_a_topic_that_states_no_row_yet_is_included(tmp_path: Path) -> None:
    deleted = looked(change("order_dw.order_dw.user", None, table="user", op="d"))
    proposal = propose_database("order_dw", [deleted])
    assert the_rule(proposal, tmp_path).has_topic("order_dw.order_dw.user")
    assert row(proposal, deleted.topic).columns is None
    assert row(proposal, deleted.topic).remark == (
        "nothing in topic order_dw.order_dw.user states a row yet: 1 record: 1 delete"
    )


def test_a_topic_of_several_tables_or_databases_is_left_to_feeds(tmp_path: Path) -> None:
    both = looked(change("all", {"id": 1}, table="user"), change("all", {"id": 1}, table="order"))
    shared = looked(change("shared", {"id": 1}, table="user"), change("shared", {"id": 1}, table="user", db="crm"))
    proposal = propose_database("order_dw", [*tables("topic_{table}"), both, shared])
    assert row(proposal, "all").remark == "events of 2 tables: declare a feed for each"
    assert row(proposal, "shared").remark == "events of other databases too: crm; declare feeds for it"
    assert the_rule(proposal, tmp_path).include == ("topic_.*",)
    with pytest.raises(SettingsError, match=r"alone\. all: events of 2 tables"):
        propose_database("order_dw", [both])


def test_a_table_by_two_connectors_is_taken_once() -> None:
    again = looked(change("avro.order_dw.user", {"id": 1}, table="user", name="avro"))
    moved = looked(change("users_before", {"id": 1}, table="user"))
    proposal = propose_database("order_dw", [*tables("topic_{table}"), again, moved])
    assert row(proposal, again.topic).remark == "the same table as in topic_user, by another connector (avro)"
    assert not row(proposal, again.topic).taken
    assert row(proposal, moved.topic).remark == "the same table as in topic_user: it has a silver table of its own"
    assert row(proposal, moved.topic).silver_table == "silver.order_dw_user_2"


def test_several_connectors_of_one_database_are_one_source(tmp_path: Path) -> None:
    more = looked(change("dw2.order_dw.more", {"id": 1}, table="more", name="dw2"))
    proposal = propose_database("order_dw", [*tables("order_dw.order_dw.{table}"), more])
    assert the_rule(proposal, tmp_path).include == (r"dw2\.order_dw\..*", r"order_dw\.order_dw\..*")
    assert "# of 2 connectors (dw2, order_dw): check" in proposal.texts["bronze/topics.yaml"]


def postgres(topic: str, table: str, *, schema: str = "public", db: str = "erp") -> Looked:
    return looked(change(topic, {"id": 1}, table=table, connector="postgresql", name="pg", schema=schema, db=db))


def test_a_database_of_postgresql(tmp_path: Path) -> None:
    found = [postgres("pg.public.orders", "orders"), postgres("pg.sales.lines", "lines", schema="sales")]
    proposal = propose_database("erp", found)
    rule = the_rule(proposal, tmp_path)
    assert rule.include == (r"pg\.public\..*", r"pg\.sales\..*")
    assert "PostgreSQL has no topic of schema changes" in flowing(proposal)
    assert [(one.table, one.silver_table) for one in proposal.rows] == [
        ("public.orders", "silver.erp_orders"),
        ("sales.lines", "silver.erp_lines"),
    ]
    same = propose_database("erp", [*found, postgres("pg.sales.orders", "orders", schema="sales")])
    assert [one.silver_table for one in same.rows] == [
        "silver.erp_public_orders",
        "silver.erp_sales_lines",
        "silver.erp_sales_orders",
    ]


def test_a_schema_of_postgresql_is_a_database_where_none_has_its_name(tmp_path: Path) -> None:
    found = [postgres("pg.public.orders", "orders"), postgres("pg.sales.lines", "lines", schema="sales")]
    proposal = propose_database("sales", found)
    assert the_rule(proposal, tmp_path).include == (r"pg\.sales\..*",)
    assert [one.silver_table for one in proposal.rows if one.taken] == ["silver.sales_lines"]
    assert "Proposed for the schema sales" in proposal.texts["bronze/topics.yaml"]
    database = postgres("x.public.notes", "notes", db="sales")
    proposal = propose_database("sales", [*found, database])
    assert [one.topic for one in proposal.rows if one.taken] == ["x.public.notes"]


def test_databases_of_one_name_by_two_kinds_of_connectors() -> None:
    other = postgres("pg.public.user", "user", db="order_dw")
    proposal = propose_database("order_dw", [*tables("topic_{table}"), other])
    assert row(proposal, other.topic).remark == "of a database of the same name, by the connector 'postgresql'"
    with pytest.raises(SettingsError, match="connector 'oracle'") as refused:
        propose_database("order_dw", tables("topic_{table}", connector="oracle"))
    assert "postgresql, mysql, mariadb" in refused.value.hint


@pytest.mark.parametrize(
    ("database", "found", "summary", "hint"),
    [
        ("order_dv", tables("topic_{table}"), "did you mean 'order_dw'?", "lakehouse connect status"),
        ("ORDER_DW", tables("topic_{table}"), "did you mean 'order_dw'?", "Check the name"),
        ("x", [OTHER, postgres("p", "t")], "that have some: crm, erp, public.", "Check the name"),
        ("order_dw", [TEXT], "No other database has any.", "published a first change"),
        ("order_dw", [looked(*schema_changes("ddl"))], "Its schema changes are in ddl.", "Check"),
        ("order_dw", [empty("a.ORDER_DW.b")], "Without a record yet: a.ORDER_DW.b.", "Check"),
        ("x", [Looked("t", "unread", "not looked at: x")], "database x.", "1 of 1 topics were not looked at"),
        ("x", [looked(Record("a", b"\0\0\0\0\1", b"\0\0\0\0\2\2"))], "x.", "schema_registry in the file"),
    ],
)
def test_no_topic_of_the_database(database: str, found: Sequence[Looked], summary: str, hint: str) -> None:
    with pytest.raises(TopicMissingError) as refused:
        propose_database(database, found)
    assert f"No topic has change events of a database {database}" in refused.value.what
    assert summary in refused.value.what
    assert hint in refused.value.hint
    assert refused.value.hint.endswith(".")


OUTBOX = Record("o", encoded("1"), encoded({"id": 7}), (("id", b"e1"),))


@pytest.mark.parametrize(
    ("found", "summary"),
    [
        (looked(OUTBOX), "1 record: 1 outbox event; an outbox is proposed with --from-topic"),
        (looked(Record("o", encoded("1"), encoded({"id": 7}))), "no change events: 1 record without an envelope"),
        (looked(Record("o", b"[1]", b"\xff\xfe")), "1 record: 1 binary value"),
        (looked_at("o", [Record("o", None, b"\0\0\0\0\1\2")], {}), "1 record: 1 binary value"),
        (looked(Record("o", encoded({"a": 1}), encoded({"a": 1}))), "declared by hand"),
        (looked(Record("o", b'["dw",{"server":"x"}]', b"{}")), "internal: of Kafka or of Kafka Connect"),
        (looked(Record("o", b'["dw",', b"{}")), "1 record: 1 row without an envelope"),
        (looked(Record("o", b"connector-dw", b"{}"), Record("o", b"session-key", b"{}")), "internal"),
        (looked(Record("o", None, encoded({"status": "BEGIN", "id": "1", "data_collections": None}))), "transaction"),
        (looked(change("o", {"id": 1}, table="t", db=None)), "events that do not name their database"),
    ],
)
def test_what_is_passed_over_is_named_with_what_it_is(found: Looked, summary: str) -> None:
    assert summary in row(propose_database("order_dw", [*tables("topic_{table}"), found]), found.topic).remark


@pytest.mark.parametrize(
    "topic",
    [
        *("__consumer_offsets", "_schemas", "_confluent-metrics", "my_connect_configs", "connect-offsets"),
        *("connect-cluster-status", "a.connect.statuses", "kafkasql-journal"),
    ],
)
def test_internal_topics_are_not_read(topic: str) -> None:
    found = by_name(topic)
    assert found is not None
    assert (found.what, found.light()) == ("internal", found)
    beats = by_name("__debezium-heartbeat.order_dw")
    assert beats is not None
    assert beats.what == "heartbeats"
    assert beats.prefixes == {"order_dw"}


def test_topics_of_tables_are_read_whatever_they_are_called() -> None:
    names = ["connections", "a.connect.user", "_user", "zz.ORDER_DW.user", "__transaction_state"]
    assert by_likelihood("order_dw", dict.fromkeys(names, (0,))) == [
        "zz.ORDER_DW.user",
        "_user",
        "a.connect.user",
        "connections",
    ]


def test_a_damaged_message_among_schema_changes_and_heartbeats_is_passed_over() -> None:
    broken = Record("ddl", None, b"{")
    assert looked(*schema_changes("ddl"), broken).databases == {"order_dw"}
    beat = Record("beat", encoded({"serverName": "a"}), encoded({"ts_ms": 1}))
    assert looked(beat, Record("beat", None, b"[1]")).prefixes == {"a"}


@pytest.mark.parametrize("name", ["order_dw.order_dw.{table}", "users", "{table}"])
def test_no_value_is_in_anything(name: str) -> None:
    records = schema_changes()
    found = [*tables(name if "{" in name else "x_{table}"), TEXT, OTHER, looked(*records)]
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records))
    summary = "\n".join([*proposal.texts.values(), str(as_data(proposal.rows))])
    assert not re.search("s3cr3t|1700000000000", summary)
    with pytest.raises(LakehouseError) as refused:
        propose_database("nowhere", found)
    assert "s3cr3t" not in str(refused.value)


def test_the_files_name_their_schemas_and_hold_the_line() -> None:
    proposal = propose_database("order_dw", [*tables("order_dw.order_dw.{table}"), *tables("some_long_name_{table}")])
    assert [*proposal.texts] == ["bronze/topics.yaml", "gold/tables.yaml"]
    for text in proposal.texts.values():
        prefix, name = text.splitlines()[0].rsplit("/", 1)
        assert prefix == "# yaml-language-server: $schema=../schemas"
        assert name in SCHEMAS
        assert max(len(line) for line in text.splitlines()) <= 120


def with_examples(proposal: DatabaseProposal) -> DatabaseProposal:
    """The proposal with the examples of gold in place of what stands above them."""
    text = proposal.texts["gold/tables.yaml"]
    text = text.replace("joins: {}\n", "", 1).replace("upsert_topics: {}\n", "", 1)
    text = re.sub(r"(?m)^# (joins:|upsert_topics:|  )", r"\1", text)
    return DatabaseProposal({**proposal.texts, "gold/tables.yaml": text}, proposal.rows)


def test_the_examples_of_gold_are_contracts(tmp_path: Path) -> None:
    proposal = propose_database("order_dw", tables("order_dw.order_dw.{table}"))
    none = load(proposal, tmp_path).gold
    assert (none.joins, none.upsert_topics, none.publication) == ({}, {}, None)
    gold = load(with_examples(proposal), tmp_path).gold
    assert gold.upsert_topics["order_dw_feedback"].table == "silver.order_dw_feedback"
    join = gold.joins["order_dw_feedback_joined"]
    assert (join.table, join.left_join[0].table) == ("order_dw_feedback", "order_dw_order")
    assert join.left_join[0].by == {"id": "order_id"}


def test_the_examples_of_gold_without_a_reference(tmp_path: Path) -> None:
    proposal = propose_database("order_dw", tables("lakehouse.order_dw_{table}")[:1])
    gold = with_examples(proposal).texts["gold/tables.yaml"]
    assert "by: { id: customer_id }" in gold
    two_keys = looked(change("topic_pair", {"a": 1, "b": 2}, table="pair", key=("a", "b")))
    assert "left_join" in propose_database("order_dw", [two_keys]).texts["gold/tables.yaml"]
    own = tables("lakehouse.order_dw_{table}")
    rule = the_rule(propose_database("order_dw", own), tmp_path)
    assert rule.include == (r"lakehouse\.order_dw_.*",)
    text = propose_database("order_dw", own).texts["gold/tables.yaml"]
    assert "topic: published.order_dw_feedback.rows" in text


def test_the_table_shows_the_topics_and_some_of_the_others() -> None:
    others = [looked(Record(f"more{number:02}", None, b"text")) for number in range(MAX_OTHERS + 5)]
    proposal = propose_database("order_dw", [*tables("topic_{table}"), *others])
    console = wide_console()
    with console.capture() as captured:
        console.print(shown("order_dw", proposal.rows))
    summary = captured.get()
    assert "topic_user" in summary
    assert "and 5 more" in summary
    assert len(as_data(proposal.rows)) == 3 + len(others)
    assert as_data(proposal.rows)[0] == asdict(proposal.rows[0])
    few = propose_database("order_dw", tables("topic_{table}"))
    with console.capture() as captured:
        console.print(shown("order_dw", few.rows))
    assert "more" not in captured.get()


def test_a_database_in_avro() -> None:
    """Recorded: one table by two connectors, through the Avro converter and as JSON with its schema."""
    registered, of_topic = recorded_postgres()
    found = [looked_at(topic, records, registered) for topic, records in of_topic.items() if "_avro" in topic]
    (database,) = {place.database for one in found for place in one.origins}
    proposal = propose_database(database, found, registered=registered)
    assert {one.types_by for one in proposal.rows if one.taken} == {"schema of the messages"}
    assert len([one for one in proposal.rows if one.taken]) >= 2
    assert "schema_registry" in looked_at(found[0].topic, of_topic[found[0].topic], None).summary


def values(*rows: Mapping[str, Any]) -> list[Looked]:
    return [looked(*(change("order_dw.order_dw.order", one, table="order") for one in rows))]


@pytest.mark.parametrize(
    ("column", "of_rows", "option"),
    [
        ("DECIMAL(10,2)", ["1.50", "100"], "decimal_handling_mode: string"),
        ("DECIMAL(10,2)", [1.5, 2.25], "decimal_handling_mode: double"),
        ("DECIMAL(10,2)", ["AfQ=", "AA=="], None),
        ("DECIMAL(10,0)", [15, 225], None),
        ("DECIMAL(10,0)", [None, None], None),
        ("DECIMAL(10,2)", [True], None),
        ("VARCHAR(9)", ["1.50", "2.25"], None),
        ("DATETIME", ["2024-01-01T00:00:00"], "time_precision_mode: isostring"),
        ("DATE", ["2024-01-01"], "time_precision_mode: isostring"),
        ("DATETIME", [1_700_000_000_000_000], "time_precision_mode: microseconds"),
        ("DATETIME(6)", [1_700_000_000_000_000], None),
        ("DATETIME(6)", [1_700_000_000_000], "time_precision_mode: connect"),
        ("DATETIME", [1_700_000_000_000], None),
        ("DATETIME", [1_700_000_000_000_000_000], "time_precision_mode: nanoseconds"),
        ("DATETIME", [{"x": 1}], None),
        ("BIGINT UNSIGNED", ["AQ=="], "bigint_unsigned_handling_mode: precise"),
        ("BIGINT UNSIGNED", [1], None),
    ],
)
def test_options_of_the_connector_that_values_show(
    column: str, of_rows: Sequence[object], option: str | None, tmp_path: Path
) -> None:
    records = [schema_change("order_dw", "order", {"id": "BIGINT", "it": column})]
    found = [*values(*({"id": 1, "it": one} for one in of_rows)), looked(*records)]
    proposal = propose_database("order_dw", found, schema_changes=SchemaChanges(records))
    text = proposal.texts["bronze/topics.yaml"]
    if option is None:
        assert "_mode:" not in text
        assert "_format:" not in text
    else:
        assert option in text
        name, value = option.split(": ")
        assert getattr(the_rule(proposal, tmp_path), name) == value


def test_decimals_that_are_numbers_with_their_zeros(tmp_path: Path) -> None:
    records = [schema_change("order_dw", "order", {"id": "BIGINT", "it": "DECIMAL(10,2)"})]
    event = change("order_dw.order_dw.order", {"id": 1, "it": 12.25}, table="order")
    event = event._replace(value=(event.value or b"").replace(b"12.25", b"12.50"))
    proposal = propose_database("order_dw", [looked(event), looked(*records)], schema_changes=SchemaChanges(records))
    assert the_rule(proposal, tmp_path).decimal_format == "numeric"


def test_options_without_a_definition_are_those_of_a_topics_proposal() -> None:
    text = propose_database("order_dw", values({"id": 1, "it": "1.5", "no": None})).texts["bronze/topics.yaml"]
    assert "decimal_handling_mode: string # 1 column is text of numbers" in text
    text = propose_database("order_dw", values({"id": 1, "it": "1.5", "more": "2.5"})).texts["bronze/topics.yaml"]
    assert "2 columns are text of numbers" in text
