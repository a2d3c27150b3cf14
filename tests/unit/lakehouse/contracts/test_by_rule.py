"""Tables that a rule makes, in contracts: which topics are a rule's, and how what is made stands beside what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lakehouse.contracts.by_rule import DiscoveredTable, MadeColumn
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts, Gate, GoldTables, TableGate
from lakehouse.contracts.parts.names import as_name, column_name, is_table_name, route_name, unique
from lakehouse.contracts.tables import Column, SilverTable, SilverTables
from lakehouse.contracts.topics import FeedTopics, Source, TableRule, Topics
from lakehouse.errors import ContractError
from tests.support.unified import written

ALL = r"order_dw\..*"
USER = "order_dw.order_dw.user"
FEED = {"topics": ("order_dw.shop.items",), "envelope": "table"}
TABLE = {"keys": ("id",), "sequence_by": "source_position", "columns": {"id": "BIGINT"}}


def rule(**declared: Any) -> TableRule:
    return TableRule.model_validate({"include": (ALL,), **declared})


def source(**declared: Any) -> Source:
    return Source.model_validate({"kind": "mysql", **declared})


def made(name: str = "order_dw_user", **given: Any) -> DiscoveredTable:
    told = {
        **{"source": "dw", "rule": "all", "name": name, "topic": USER, "table": "order_dw.user"},
        **{"known_by": "values", "keys": ("id",), "columns": {"id": {"declared": "BIGINT"}}},
    }
    return DiscoveredTable.model_validate({**told, **given})


def contracts(of: Source, **silver: Any) -> Contracts:
    tables = {name: SilverTable.model_validate(one) for name, one in silver.items()}
    return Contracts(
        topics=Topics(sources={"dw": of}),
        silver=SilverTables(tables=tables),
        silver_gate=Gate(),
        gold=GoldTables(),
        gold_gate=TableGate(),
        thresholds=load_contracts().thresholds,
    )


# A rule.


def test_a_rule_includes_topics_by_their_whole_names() -> None:
    of = rule(include=(ALL, "other"), exclude=(r".*\.log", "order_dw.a"))
    topics = ["order_dw.a", "order_dw.ab", "xorder_dw.a", "order_dw.log", "order_dw.x.log", "other", "others"]
    assert [topic for topic in topics if of.has_topic(topic)] == ["order_dw.ab", "other"]


def test_a_rule_has_the_options_of_a_connector() -> None:
    of = rule(decimal_handling_mode="string")
    assert of.parse_errors == "fail"
    assert of.options["decimal_handling_mode"] == "string"
    assert of.options["parse_errors"] == "fail"
    assert {**FEED, **of.options}.keys() >= {"snapshots", "map_null_key"}
    FeedTopics.model_validate({**FEED, **of.options})


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"include": ()}, "at least 1 item"),
        ({"include": ("(",)}, "is not a regular expression"),
        ({"exclude": ("(",)}, "is not a regular expression"),
        (
            {"name": "{shard}_{table}"},
            r"\{shard\} is not known in a name of tables; there are \{database\}, \{schema\}",
        ),
        ({"name": "{}_<>"}, r"\{\} is not known"),
        ({"name": "{database}"}, r"all tables would have one name: it needs \{table\}, <> or \{topic\}"),
        ({"name": ""}, "all tables would have one name"),
        ({"names": {"user": "people"}}, "String should match pattern"),
        ({"names": {"order_dw.user": "People"}}, "String should match pattern"),
        ({"schema_changes": "a topic"}, "String should match pattern"),
        ({"parse_errors": "skip-field"}, "skip-field would make a NULL"),
        ({"max_record_bytes": 0}, "greater than or equal to 1"),
    ],
)
def test_a_rule_says_what_is_wrong_with_it(declared: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        rule(**declared)


@pytest.mark.parametrize("name", ["<>", "topic_<>", "{topic}", "{database}_{schema}_{table}_v2"])
def test_a_route_has_the_table_or_the_topic(name: str) -> None:
    assert rule(name=name).name == name


# Which topics are whose.


def test_a_source_needs_feeds_or_rules() -> None:
    with pytest.raises(ValidationError, match="a source needs `feeds` or `by_rule`"):
        source()
    assert source(feeds={"items": FEED}).by_rule == {}
    assert source(by_rule={"all": rule()}).topic_names == ()


def test_a_topic_is_of_the_first_rule_that_nothing_else_has() -> None:
    of = source(
        feeds={"items": FEED},
        ignored_topics=("order_dw.heartbeat",),
        by_rule={"shop": rule(include=(r"order_dw\.shop\..*",), schema_changes="order_dw.ddl"), "all": rule()},
    )
    whose = {
        "order_dw.shop.items": None,
        "order_dw.heartbeat": None,
        "order_dw.ddl": None,
        "order_dw.shop.kinds": "shop",
        USER: "all",
        "another": None,
    }
    assert {topic: of.rule_of(topic) for topic in whose} == whose
    # Bronze reads them all, whoever has them.
    assert of.assigned(whose) == tuple(sorted(whose.keys() - {"another"}))


def test_a_topic_of_schema_changes_may_stand_outside_of_the_rule() -> None:
    of = source(by_rule={"all": rule(schema_changes="ddl", exclude=(r".*\.log",))})
    assert [topic for topic in ("ddl", "order_dw.log", USER) if of.names(topic)] == ["ddl", USER]


# What is made.


def test_a_made_table_is_the_same_through_json() -> None:
    columns = {
        "id": MadeColumn(declared=Column.model_validate("BIGINT"), came_as=("int32", "int64")),
        "amount": MadeColumn(
            declared=Column.model_validate(
                {"type": "DECIMAL(20,0)", "source_type": "unsigned_bigint", "fields": ("Amount",), "optional": True}
            )
        ),
        "many": MadeColumn(declared=Column.model_validate({"type": "ARRAY<INT>"})),
        "at": MadeColumn(declared=Column.model_validate({"type": "TIMESTAMP", "epoch_unit": "millis"})),
        "bits": MadeColumn(declared=Column.model_validate({"type": "STRING", "source_type": "bit(8)"})),
    }
    for one in (
        made(columns=columns, version=7),
        made(known_by="topic of schema changes", columns={}, keys=(), table="", why="nothing yet"),
    ):
        assert DiscoveredTable.model_validate_json(one.model_dump_json()) == one


def test_a_made_table_is_a_feed_and_a_silver_table() -> None:
    of = rule(max_record_bytes=9, max_reject_ratio={"share": 0.5}, parse_errors="skip-record")
    feed, table = made().feed(of), made().silver_table(of)
    assert (feed.topics, feed.tables, feed.parse_errors) == ((USER,), ("order_dw.user",), "skip-record")
    assert (table.keys, table.max_record_bytes) == (("id",), 9)
    assert table.max_reject_ratio is not None and table.max_reject_ratio.share == 0.5
    keyless = made(keys=()).silver_table(of)
    assert (keyless.append_only, list(keyless.columns)) == (True, ["id"])


def test_made_tables_are_feeds_beside_the_declared_ones() -> None:
    declared = contracts(source(feeds={"items": FEED}, by_rule={"all": rule()}), items=TABLE)
    one = made()
    both = declared.with_discovered([one, made("order_dw_order", topic="order_dw.order_dw.order")])
    assert list(declared.feeds) == ["items"]
    assert list(both.feeds) == ["items", "order_dw_user", "order_dw_order"]
    feed = both.feeds["order_dw_user"]
    assert (feed.discovered, feed.source, feed.kind, feed.siblings) == (one, "dw", "mysql", ())
    assert both.feeds["items"].discovered is None
    assert list(both.of_source("dw")) == list(both.feeds)
    # They take the place of those that were made before.
    assert list(both.with_discovered([one]).feeds) == ["items", "order_dw_user"]
    assert both.declared.feeds == declared.feeds
    assert declared.declared is declared


def test_a_contract_goes_before_what_is_made() -> None:
    of = source(feeds={"items": FEED, "users": {**FEED, "topics": (USER,)}}, by_rule={"all": rule()})
    declared = contracts(of, items=TABLE, users=TABLE)
    assert declared.with_discovered([made()]).discovered == {}
    assert declared.with_discovered([made("items", topic="order_dw.order_dw.items")]).discovered == {}


def test_what_is_made_by_a_rule_that_is_gone_is_left_out() -> None:
    of = contracts(source(by_rule={"all": rule()}))
    assert list(of.with_discovered([made()]).discovered) == ["order_dw_user"]
    gone = [made(rule="other"), made(source="other"), made(topic="another")]
    assert [of.with_discovered([one]).discovered for one in gone] == [{}, {}, {}]
    ignored = contracts(source(by_rule={"all": rule()}, ignored_topics=(USER,)))
    assert ignored.with_discovered([made()]).discovered == {}
    excluded = contracts(source(by_rule={"all": rule(exclude=(USER,))}))
    assert excluded.with_discovered([made()]).discovered == {}


def test_what_could_not_be_made_yet_is_no_feed_that_goes_on() -> None:
    waiting = made("order_dw_order", topic="order_dw.order_dw.order", table="", columns={}, keys=(), why="nothing yet")
    of = contracts(source(by_rule={"all": rule()})).with_discovered([made(), waiting])
    assert (made().is_made, waiting.is_made) == (True, False)
    assert list(of.feeds) == ["order_dw_user"]
    feed = of.undiscovered("dw")["order_dw_order"]
    assert (feed.discovered, feed.append_only, feed.tables, list(feed.columns)) == (waiting, True, (), ["nothing"])
    assert of.undiscovered("other") == {}


def test_a_copy_puts_its_feeds_together_again() -> None:
    of = contracts(source(feeds={"items": FEED}, by_rule={"all": rule()}), items=TABLE)
    assert list(of.feeds) == ["items"]
    assert list(of.model_copy(update={"discovered": {"order_dw_user": made()}}).feeds) == ["items", "order_dw_user"]
    assert list(of.model_copy(update={"silver": SilverTables()}).feeds) == []
    assert list(of.feeds) == ["items"]


@pytest.mark.parametrize(
    ("route", "names", "others"),
    [
        ("{database}_{table}", ("order_dw_user", "order_dw_user_2"), ()),
        ("topic_<>", ("topic_user", "topic_user_2", "topic"), ("user", "topi", "xtopic_user")),
        ("<>_raw", ("user_raw", "user_raw_2"), ("user", "raw_user")),
        ("<>_2024", ("user_2024",), ("user", "user_2023x")),
        ("2024_<>", ("column_2024_user",), ("user_2024",)),
        ("A-<>-{schema}-z", ("a_user_z", "a_user_public_z"), ("user_z", "a_user")),
        ("{schema}_<>", ("u",), ()),
    ],
)
def test_a_name_may_come_of_a_rule(route: str, names: tuple[str, ...], others: tuple[str, ...]) -> None:
    of = contracts(source(by_rule={"all": rule(name=route, names={"order_dw.order": "orders"})}))
    assert {name: of.may_be_discovered(name) for name in (*names, *others)} == {
        **dict.fromkeys(names, True),
        **dict.fromkeys(others, False),
    }
    assert of.may_be_discovered("orders") and of.may_be_discovered("orders_2")


def test_what_is_there_does_not_come() -> None:
    of = contracts(source(by_rule={"all": rule()})).with_discovered([made()])
    assert not of.may_be_discovered("order_dw_user")
    assert of.declared.may_be_discovered("order_dw_user")
    assert not contracts(source(feeds={"items": FEED})).may_be_discovered("order_dw_user")


# Names.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("user", "user"),
        ("TotalAmount", "total_amount"),
        ("HTTPCode", "httpcode"),
        ("a-b c.d", "a_b_c_d"),
        ("__x__", "x"),
        ("Straße", "strasse"),
        ("naïve", "naive"),
        ("2024", "column_2024"),
        ("注文", ""),
        ("", ""),
    ],
)
def test_a_text_becomes_a_name(text: str, name: str) -> None:
    assert as_name(text) == name
    assert column_name(text, number=3) == (name or "column_3")


def test_a_field_keeps_a_name_that_it_may_have() -> None:
    assert column_name("a__b_", number=1) == "a__b_"
    assert column_name("a\n", number=1) == "a"


def test_a_name_that_is_taken_is_numbered() -> None:
    assert unique("a", ()) == "a"
    assert unique("a", {"a"}) == "a_2"
    assert unique("a", {"a", "a_2", "a_3"}) == "a_4"


def test_a_route_is_filled_once() -> None:
    given = {"database": "Order DW", "schema": "", "table": "{topic}", "topic": "t.x"}
    assert route_name("{database}_<>", **given) == "order_dw_topic"
    assert route_name("{schema}.{topic}", **given) == "t_x"
    assert route_name("<>", **{**given, "table": "注文"}) == ""


def test_the_name_of_a_table_has_what_it_is_in() -> None:
    names = ("a.b", "a.b.c", "a. ", "a", ".b", "a.", "", "a\n.b", "a.b\n")
    assert [name for name in names if is_table_name(name)] == ["a.b", "a.b.c", "a. "]
    for name in names:
        if is_table_name(name):
            made(table=name).feed(rule())


def test_a_rule_never_means_topics_of_kafka_itself() -> None:
    every = source(by_rule={"all": rule(include=(".*",))})
    assert every.assigned(["__consumer_offsets", "__debezium-heartbeat.dw", "dw.order_dw.user"]) == (
        "dw.order_dw.user",
    )


def test_a_rule_takes_no_topic_of_another_source_or_of_gold(tmp_path: Path) -> None:
    sources = {
        "shop": {"kind": "mysql", "feeds": {"items": {"topics": ["shop.items"], "envelope": "table"}}},
        "dw": {"kind": "mysql", "by_rule": {"all": {"include": [".*"]}}},
    }
    columns = {"id": "BIGINT"}
    gold = {
        "key": "id",
        "columns": columns,
        "sources": {"shop": {"name": "mysql", "prefix": "MY", "feeds": ["items"]}},
        "publication": {"topic": "unified", "partitions": 1, "replication_factor": 1},
    }
    files = {
        "bronze/topics.yaml": {"sources": sources},
        "silver/tables.yaml": {
            "tables": {"items": {"keys": ["id"], "sequence_by": "source_position", "columns": columns}}
        },
        "gold/tables.yaml": gold,
    }
    with pytest.raises(ContractError) as refused:
        load_contracts(written(tmp_path, files))
    said = {problem.key: problem.what for problem in refused.value.problems}
    assert said == {
        "sources.dw.by_rule.all.include": "topic shop.items belongs to source shop: name it in `exclude`",
        "publication.topic": "unified.progress is a topic that bronze reads: gold would feed itself",
    }
