"""Names for the topics of a connector's tables: what is rendered, what it renames, what is known of it afterwards."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from connectors.checking.together import KeptTopic, all_findings, data_topics, topic_findings, wanted_topics
from connectors.connectors import CLASSES, EVENT_ROUTER, FLATTENER, Connector
from connectors.files import ConnectorFile, read_text
from connectors.routes import REGEX_ROUTER, Route, default_topic, routed

CLASS_OF = {database: kind for kind, database in CLASSES.items()}
WHOLE = {
    "connector.class": CLASS_OF["mysql"],
    "topic.prefix": "order_dw",
    "database.hostname": "db",
    "database.user": "u",
    "database.server.id": "7",
    "database.include.list": "order_dw",
    "schema.history.internal.kafka.topic": "history",
    "schema.history.internal.kafka.bootstrap.servers": "b:9092",
    "skipped.operations": "none",
    "provide.transaction.metadata": "true",
}
POSTGRES = {
    "connector.class": CLASS_OF["postgresql"],
    "topic.prefix": "shop",
    "database.hostname": "db",
    "database.user": "u",
    "database.dbname": "orders",
    "plugin.name": "pgoutput",
    "slot.name": "s",
    "skipped.operations": "none",
}
# What is not a table's, of the connector above.
OTHERS = ("order_dw", "__debezium-heartbeat.order_dw", "order_dw.transaction", "history")
DEFAULTS = ("order_dw.order_dw.user", "order_dw.order_dw.order", "order_dw.order_dw.feedback")


def read(topics: Any, config: dict[str, str] = WHOLE, **more: str) -> ConnectorFile:
    options = {**config, **{key.replace("__", "."): value for key, value in more.items()}}
    told = {"name": "c", "topics": topics, "config": options}
    return read_text(json.dumps(told, indent=1), file="c.json", name="c")


def named(topics: Any, config: dict[str, str] = WHOLE, **more: str) -> Connector:
    """The connector, which has no mistake."""
    file = read(topics, config, **more)
    assert file.findings == ()
    assert file.connector is not None
    assert all_findings([file.connector]) == ()
    return file.connector


def names(connector: Connector, *topics: str) -> list[str]:
    return [routed(topic, connector.routes) for topic in topics]


def added(connector: Connector, config: dict[str, str] = WHOLE) -> dict[str, str]:
    """The options that the file did not have."""
    return {key: value for key, value in connector.config.items() if config.get(key) != value}


# The three routes.


def test_a_pattern_is_one_transform() -> None:
    connector = named("topic_<>")
    assert added(connector) == {
        "transforms": "topics",
        "transforms.topics.type": REGEX_ROUTER,
        "transforms.topics.regex": r"order_dw\.([^.]+)\.(.+)",
        "transforms.topics.replacement": "topic_$2",
    }
    assert names(connector, *DEFAULTS) == ["topic_user", "topic_order", "topic_feedback"]
    assert names(connector, *OTHERS) == list(OTHERS)


def test_fixed_names_are_a_transform_each_and_the_rest_keeps_its_name() -> None:
    connector = named({"order_dw.user": "users", "order_dw.order": "orders"})
    assert added(connector) == {
        "transforms": "topics1,topics2",
        "transforms.topics1.type": REGEX_ROUTER,
        "transforms.topics1.regex": r"order_dw\.order_dw\.user",
        "transforms.topics1.replacement": "users",
        "transforms.topics2.type": REGEX_ROUTER,
        "transforms.topics2.regex": r"order_dw\.order_dw\.order",
        "transforms.topics2.replacement": "orders",
    }
    assert names(connector, *DEFAULTS) == ["users", "orders", "order_dw.order_dw.feedback"]
    near = ("order_dw.order_dw.user2", "order_dw.order_dw.orders", "xorder_dw.order_dw.user", "order_dwxorder_dw.user")
    assert names(connector, *near, *OTHERS) == [*near, *OTHERS]


def test_without_topics_nothing_is_added() -> None:
    bare = read_text(json.dumps({"name": "c", "config": WHOLE}), file="c.json", name="c").connector
    assert bare is not None
    assert added(bare) == added(named({})) == {}
    assert names(bare, *DEFAULTS) == list(DEFAULTS)


@pytest.mark.parametrize(
    ("pattern", "user"),
    [
        ("{database}_{table}", "order_dw_user"),
        ("{database}.<>", "order_dw.user"),
        ("<>", "user"),
        ("{table}", "user"),
        ("a-<>.<>-{database}", "a-user.user-order_dw"),
        ("<>2024", "user2024"),
        ("{database}0.{table}", "order_dw0.user"),
        ("order_dw.{database}.{table}", "order_dw.order_dw.user"),
    ],
)
def test_what_a_pattern_makes_of_a_table(pattern: str, user: str) -> None:
    connector = named(pattern)
    assert connector.topic_of("order_dw.user") == user
    assert names(connector, *OTHERS) == list(OTHERS)
    assert set(data_topics(connector, [user, *OTHERS])) == {user}


def test_of_postgresql_it_is_the_schema() -> None:
    connector = named("{schema}_<>", POSTGRES)
    assert added(connector, POSTGRES)["transforms.topics.regex"] == r"shop\.([^.]+)\.(.+)"
    assert names(connector, "shop.public.orders", "shop.transaction") == ["public_orders", "shop.transaction"]
    assert named({"public.orders": "o"}, POSTGRES).topic_of("public.orders") == "o"


@pytest.mark.parametrize(
    ("table", "topic"),
    [
        ("a$b", "topic_a_b"),
        ("a.b", "topic_a.b"),
        ("größe", "topic_gr__e"),
        ("a-b", "topic_a-b"),
        ("order", "topic_order"),
    ],
)
def test_a_tables_name_is_that_which_debezium_writes(table: str, topic: str) -> None:
    assert named("topic_<>").topic_of(f"order_dw.{table}") == topic
    fixed = named({f"order_dw.{table}": "one"})
    assert fixed.topic_of(f"order_dw.{table}") == "one"
    assert names(fixed, "order_dw.order_dw.aXb") == ["order_dw.order_dw.aXb"]
    assert default_topic("p", f"d.{table}").startswith("p.d.")


def test_a_prefix_is_quoted() -> None:
    connector = named("t_<>", topic__prefix="a.b-c")
    assert added(connector)["transforms.topics.regex"] == r"a\.b-c\.([^.]+)\.(.+)"
    assert names(connector, "a.b-c.d.t", "aXb-c.d.t", "a.b-c", "a.b-c.transaction") == [
        *("t_t", "aXb-c.d.t", "a.b-c", "a.b-c.transaction"),
    ]


def test_topics_that_options_name_like_a_tables_are_let_be() -> None:
    """Heartbeats and transactions that begin with the prefix, and have a part between."""
    more = {"topic.heartbeat.prefix": "order_dw.beats", "topic.transaction": "meta.transaction"}
    connector = named("topic_<>", {**WHOLE, **more})
    own = ["order_dw.beats.order_dw", "order_dw.meta.transaction"]
    assert names(connector, *own, "order_dw.beats.order_dw2") == [*own, "topic_order_dw2"]
    assert data_topics(connector, [*own, "topic_user"]) == ["topic_user"]


def test_they_come_after_the_transforms_that_are_there() -> None:
    config = {**WHOLE, "transforms": "flat, topics", "transforms.flat.type": FLATTENER, "transforms.topics.type": "x.Y"}
    connector = named("topic_<>", config)
    assert connector.get("transforms") == "flat,topics,topics_"
    assert connector.get("transforms.topics.type") == "x.Y"
    assert connector.topic_of("order_dw.user") == "topic_user"


def test_the_bundles_variables_are_filled_in() -> None:
    told = {
        "name": "c",
        "topics": {"${var.db}.user": "${var.db}_users"},
        "config": {**WHOLE, "topic.prefix": "${var.db}"},
    }
    file = read_text(
        json.dumps(told), file="c.json", name="c", fill=lambda _place, text: text.replace("${var.db}", "order_dw")
    )
    assert file.findings == ()
    assert file.connector is not None
    assert file.connector.topic_of("order_dw.user") == "order_dw_users"


# Mistakes.


@pytest.mark.parametrize(
    ("topics", "key", "said"),
    [
        ("topic_{tabel}", "topics", r"\{tabel\} is no placeholder, .* There are: <> or \{table\}, and \{database\}\."),
        ("{schema}_<>", "topics", r"\{schema\} is no placeholder"),
        ("<table>", "topics", "<table> is no placeholder"),
        ("${var.x}_<>", "topics", r"\{var.x\} is no placeholder"),
        ("topic", "topics", "all tables would share one topic"),
        ("", "topics", "all tables would share one topic"),
        ("{database}", "topics", "all tables would share one topic"),
        ("topic/<>", "topics", "Kafka takes no topic of the name 'topic/<>'"),
        ("$1<>", "topics", "Kafka takes no topic"),
        ("x" * 250 + "<>", "topics", "249 of them at most"),
        (None, "topics", "neither a pattern nor an object"),
        (["users"], "topics", "neither a pattern nor an object"),
        ({"order_dw.user": "u s"}, "topics: order_dw.user", "Kafka takes no topic of the name 'u s'"),
        ({"order_dw.user": ".."}, "topics: order_dw.user", r"Kafka takes no topic of the name '\.\.'"),
        ({"order_dw.user": ""}, "topics: order_dw.user", "Kafka takes no topic of the name ''"),
        ({"order_dw.user": 1}, "topics: order_dw.user", "Kafka takes no topic of the name 1"),
        ({"order_dw.user": "t_<>"}, "topics: order_dw.user", "Kafka takes no topic of the name 't_<>'"),
        ({"user": "users"}, "topics: user", r"no table of the form database\.table"),
        ({"order_dw.": "users"}, "topics: order_dw.", r"no table of the form database\.table"),
        ({"order_dw. user": "users"}, "topics: order_dw. user", r"no table of the form database\.table"),
        ({"order_dw.order_dw.user": "u"}, "topics: order_dw.order_dw.user", "without the prefix"),
        ({"order_wd.user": "users"}, "topics: order_wd.user", "the connector does not read this table"),
        ({"order_dw.user": "order_dw"}, "topics: order_dw.user", "is the topic of the connector's schema changes"),
        ({"order_dw.user": "history"}, "topics: order_dw.user", "is the topic of the connector's schema history"),
        (
            {"order_dw.user": "__debezium-heartbeat.order_dw"},
            "topics: order_dw.user",
            "is the topic of the connector's heartbeats",
        ),
        (
            {"order_dw.user": "order_dw.order_dw.order"},
            "topics: order_dw.user",
            "Debezium's own name for the topic of another table",
        ),
        ({"order_dw.user": "a", "order_dw.order": "a"}, "topics: order_dw.order", "order_dw.user has the name a too"),
        ({"order_dw.user": "a_b", "order_dw.order": "a.b"}, "topics: order_dw.order", "and an underscore are the same"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_finding_with_file_and_key(topics: Any, key: str, said: str) -> None:
    file = read(topics)
    assert file.connector is not None
    assert added(file.connector) == {}
    finding = file.findings[0]
    assert (finding.check, finding.file, finding.key) == ("topics", "c.json", key)
    assert finding.line == (3 if key == "topics" else 3 + len(topics))
    assert re.search(said, f"{finding.what} {finding.hint}")
    assert len(file.findings) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"transforms": "o", "transforms__o__type": EVENT_ROUTER}, "the EventRouter names the topics"),
        ({"topic__delimiter": "_"}, "topic.delimiter gives topics other names"),
        ({"topic__naming__strategy": "x.Y"}, "topic.naming.strategy gives topics other names"),
        ({"topic__prefix": ""}, "topic.prefix, which is absent"),
        ({"topic__prefix": "${env:PREFIX}"}, "topic.prefix, which is absent or is filled in later"),
        ({"connector__class": "x.Sink"}, "only the topics of Debezium's connectors"),
    ],
)
@pytest.mark.parametrize("topics", ["topic_<>", {"order_dw.user": "users"}])
def test_a_connector_whose_topics_have_no_names_of_ours(topics: Any, more: dict[str, str], said: str) -> None:
    (finding,) = read(topics, WHOLE, **more).findings
    assert (finding.check, finding.key) == ("topics", "topics")
    assert said in finding.what


def test_of_postgresql_the_database_is_no_part_of_a_tables_name() -> None:
    (finding,) = read({"orders.public.user": "users"}, POSTGRES).findings
    assert "no table of the form schema.table" in finding.what
    assert "{database} is no placeholder" in read("{database}_<>", POSTGRES).findings[0].what


def test_the_lists_are_read_as_debezium_reads_them() -> None:
    named({"Order_DW.user": "users"}, database__include__list=r"crm,order.*")
    named({"order_dw.user": "users"}, database__include__list="${env:D}")
    named({"order_dw.user": "users"}, database__include__list="(")
    assert read({"order_dw.user": "users"}, table__include__list=r"order_dw\.ord.*").findings
    named({"public.user": "users"}, POSTGRES, schema__include__list="public")
    assert read({"crm.user": "users"}, POSTGRES, schema__include__list="public").findings


@pytest.mark.parametrize(
    ("pattern", "tables", "said"),
    [
        ("t_<>", "a.user,b.user", "a.user and b.user get the same topic, t_user."),
        ("{database}_<>", "a.b_c,a_b.c", "get the same topic"),
        ("{database}_<>", "a.b_c,a.b$c", "get the same topic"),
        ("<>", "a.order_dw,a.b", "is that of the connector's schema changes"),
    ],
)
def test_tables_that_a_pattern_puts_together(pattern: str, tables: str, said: str) -> None:
    file = read(pattern, table__include__list=tables, database__include__list="a,b,a_b")
    (finding,) = file.findings
    assert said in finding.what
    assert file.connector is not None
    assert file.connector.routes == ()


def test_a_key_that_is_there_twice_is_a_finding() -> None:
    text = json.dumps({"name": "c", "topics": {"order_dw.user": "a", "order_dw.X": "b"}, "config": WHOLE})
    (finding,) = read_text(text.replace("X", "user"), file="c.json", name="c").findings
    assert (finding.check, finding.key) == ("json", "order_dw.user")


def test_options_alone_have_no_topics() -> None:
    """There `topics` is an option, of a sink."""
    file = read_text('{"connector.class": "x.Sink", "topics": "a"}', file="c.json", name="c")
    assert file.findings == ()
    assert file.connector is not None
    assert file.connector.get("topics") == "a"


# What is known of the topics.


KNOWN = (
    *OTHERS,
    *DEFAULTS,
    "topic_user",
    "order_dw_user",
    "users",
    "user",
    "crm_user",
    "__consumer_offsets",
    "_schemas",
)


@pytest.mark.parametrize(
    ("topics", "own"),
    [
        ({}, DEFAULTS),
        ("topic_<>", ("topic_user",)),
        ("{database}_<>", ("order_dw_user",)),
        ({"order_dw.user": "users"}, (*DEFAULTS[1:], "users")),
    ],
)
def test_the_topics_of_a_whole_database(topics: Any, own: tuple[str, ...]) -> None:
    connector = named(topics)
    assert set(data_topics(connector, KNOWN)) == set(data_topics(connector, KNOWN, surely=True)) == set(own)
    assert set(wanted_topics([connector], KNOWN)) == {*own, "history"}
    compacted = {topic: KeptTopic(1, "compact" if topic != "history" else "delete") for topic in KNOWN}
    found = topic_findings([connector], compacted, broker="b")
    assert {finding.key for finding in found} == {f"topic {topic}" for topic in own}


def test_a_table_alone_leaves_no_sign_of_its_connector() -> None:
    connector = named("<>")
    assert "user" in data_topics(connector, KNOWN)
    assert not {*OTHERS, *DEFAULTS, "__consumer_offsets"} & set(data_topics(connector, KNOWN))
    assert data_topics(connector, KNOWN, surely=True) == []
    without = {key: value for key, value in WHOLE.items() if key != "database.include.list"}
    assert data_topics(named("{database}.<>", without), ["crm.user"]) == ["crm.user"]
    assert data_topics(named("{database}.<>", without), ["crm.user"], surely=True) == []


@pytest.mark.parametrize(
    ("topics", "own"),
    [
        ("topic_<>", {"topic_user", "topic_order"}),
        ("<>", {"user", "order"}),
        ({"order_dw.user": "users"}, {"users", "order_dw.order_dw.order"}),
    ],
)
def test_the_topics_of_tables_that_are_named(topics: Any, own: set[str]) -> None:
    connector = named(topics, table__include__list=r"order_dw\.user,order_dw.order")
    assert set(connector.table_topics) == own
    known = [*own, *KNOWN, "topic_feedback", "feedback"]
    assert set(data_topics(connector, known, surely=True)) == own


def test_a_policy_of_a_group_is_that_of_the_names_given() -> None:
    group = {"topic.creation.groups": "g", "topic.creation.g.cleanup.policy": "compact"}
    listed = {**WHOLE, **group, "table.include.list": "order_dw.user"}
    before = read("topic_<>", listed, topic__creation__g__include=r"order_dw\..*").connector
    after = read("topic_<>", listed, topic__creation__g__include="topic_.*").connector
    assert before is not None
    assert after is not None
    assert all_findings([before]) == ()
    assert [finding.check for finding in all_findings([after])] == ["compaction"]


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "made"),
    [
        (r"(?<a>\w+)\.(.*)", "${a}-$2", "x.y", "x-y"),
        (r"x\.y", r"a\$b", "x.y", "a$b"),
        (r"x\.y", "z", "x.y.z", "x.y.z"),
        (r"x\.(y)?", "[$1]", "x.", "[]"),
        (r"x", "$7${q}", "x", "$7${q}"),
        (r"(", "z", "(", "("),
    ],
)
def test_a_router_that_somebody_wrote(regex: str, replacement: str, topic: str, made: str) -> None:
    assert Route(regex, replacement).of(topic) == made


def test_the_routers_of_a_running_connector_count_without_a_file() -> None:
    config = {**WHOLE, "transforms": "r", "transforms.r.type": REGEX_ROUTER, "transforms.r.replacement": "dw-$1"}
    connector = Connector(name="c", config={**config, "transforms.r.regex": r"order_dw\.order_dw\.(.*)"}, file="f")
    assert data_topics(connector, [*KNOWN, "dw-user"], surely=True) == ["dw-user"]
