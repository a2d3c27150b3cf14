"""What breaks connectors: every check on a connector that has the mistake, and on one that has not."""

from __future__ import annotations

import pytest

from connectors.checking.checks import OF_DEBEZIUM, OF_EVERY_CONNECTOR, findings_of
from connectors.checking.placement import placement_findings
from connectors.checking.together import KeptTopic, all_findings, described, topic_findings
from connectors.connectors import CLASSES, EVENT_ROUTER, FLATTENER, JSON_CONVERTER, Connector
from lakehouse.contracts.models import Feed
from tests.support.feeds import feed

CLASS_OF = {database: kind for kind, database in CLASSES.items()}


def postgres(name: str = "pg", **more: str) -> Connector:
    """A connector of PostgreSQL's tables without a mistake, with these options too (`__` for a dot)."""
    config = {
        "connector.class": CLASS_OF["postgresql"],
        "topic.prefix": name,
        "database.hostname": "db",
        "database.user": "u",
        "database.password": "${env:P}",
        "database.dbname": "shop",
        "plugin.name": "pgoutput",
        "slot.name": name,
        "table.include.list": "public.orders",
        "skipped.operations": "none",
    }
    return connector(name, config, more)


def mysql(name: str = "my", **more: str) -> Connector:
    """A connector of MySQL's tables without a mistake."""
    config = {
        "connector.class": CLASS_OF["mysql"],
        "topic.prefix": name,
        "database.hostname": "db",
        "database.user": "u",
        "database.password": "${env:P}",
        "database.server.id": f"7{len(name)}",
        "schema.history.internal.kafka.topic": f"history-{name}",
        "schema.history.internal.kafka.bootstrap.servers": "b:9092",
        "table.include.list": "shop.orders",
        "skipped.operations": "none",
    }
    return connector(name, config, more)


def connector(name: str, config: dict[str, str], more: dict[str, str]) -> Connector:
    options = {**config, **{key.replace("__", "."): value for key, value in more.items()}}
    return Connector(
        name=name, config={key: value for key, value in options.items() if value != "(absent)"}, file=f"{name}.json"
    )


def outbox(**more: str) -> Connector:
    routed = {"transforms": "outbox", "transforms__outbox__type": EVENT_ROUTER, "skipped__operations": "(absent)"}
    return postgres("out", **{**routed, **more})


def found(one: Connector) -> list[tuple[str, str]]:
    return [(finding.check, finding.key) for finding in findings_of(one)]


@pytest.mark.parametrize("one", [postgres(), mysql(), outbox()])
def test_a_connector_without_a_mistake_has_no_finding(one: Connector) -> None:
    assert findings_of(one) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("database.server.name", "topic.prefix"),
        ("database.history.kafka.topic", "schema.history.internal.kafka.topic"),
        ("database.history.kafka.bootstrap.servers", "schema.history.internal.kafka.bootstrap.servers"),
        (
            "database.history.store.only.monitored.tables.ddl",
            "schema.history.internal.store.only.captured.tables.ddl",
        ),
        ("table.whitelist", "table.include.list"),
        ("table.blacklist", "table.exclude.list"),
        ("column.blacklist", "column.exclude.list"),
        ("database.whitelist", "database.include.list"),
        ("schema.whitelist", "schema.include.list"),
        ("toasted.value.placeholder", "unavailable.value.placeholder"),
        ("slot.drop_on_stop", "slot.drop.on.stop"),
    ],
)
def test_an_old_name_is_told_with_that_of_today(old: str, new: str) -> None:
    (finding,) = findings_of(connector("pg", postgres().config, {old: "x"}))
    assert (finding.check, finding.key) == ("old_name", old)
    assert f"Today it is {new}." in finding.hint


@pytest.mark.parametrize(("old", "new"), [("schema_only", "no_data"), ("schema_only_recovery", "recovery")])
def test_an_old_snapshot_mode_is_told_with_that_of_today(old: str, new: str) -> None:
    (finding,) = findings_of(mysql(snapshot__mode=old))
    assert (finding.check, finding.key) == ("old_name", "snapshot.mode")
    assert new in finding.hint


@pytest.mark.parametrize(
    ("kind", "option", "new"),
    [
        (EVENT_ROUTER, "table.field.payload", "table.field.event.payload"),
        (EVENT_ROUTER, "table.field.payload.id", "table.field.event.key"),
        (EVENT_ROUTER, "debezium.op.invalid.behavior", "table.op.invalid.behavior"),
        (FLATTENER, "drop.tombstones", "delete.tombstone.handling.mode"),
        (FLATTENER, "delete.handling.mode", "delete.tombstone.handling.mode"),
    ],
)
def test_an_old_name_of_a_transform_is_told(kind: str, option: str, new: str) -> None:
    more = {"transforms": "t", "transforms.t.type": kind, f"transforms.t.{option}": "x"}
    skipped = {"skipped.operations": "(absent)"} if kind == EVENT_ROUTER else {}
    (finding,) = findings_of(connector("pg", postgres().config, {**more, **skipped}))
    assert (finding.check, finding.key) == ("old_name", f"transforms.t.{option}")
    assert new in finding.hint


def test_a_class_that_is_no_more_is_told() -> None:
    more = {"transforms": "t", "transforms__t__type": "io.debezium.transforms.UnwrapFromEnvelope"}
    assert found(postgres(**more)) == [("old_name", "transforms.t.type")]


@pytest.mark.parametrize("key", ["topic.prefix", "database.hostname", "database.dbname"])
def test_what_postgresql_cannot_do_without(key: str) -> None:
    assert found(connector("pg", postgres().config, {key: "(absent)"})) == [("missing", key)]


@pytest.mark.parametrize("key", ["topic.prefix", "database.server.id", "schema.history.internal.kafka.topic"])
def test_what_mysql_cannot_do_without(key: str) -> None:
    assert found(connector("my", mysql().config, {key: "(absent)"})) == [("missing", key)]


def test_a_prefix_that_no_topic_can_have() -> None:
    assert found(postgres(topic__prefix="my shop")) == [("missing", "topic.prefix")]


@pytest.mark.parametrize(
    ("key", "value"), [("slot.name", "My-Slot"), ("slot.drop.on.stop", "true"), ("plugin.name", "(absent)")]
)
def test_a_slot_that_fails_or_forgets(key: str, value: str) -> None:
    assert found(connector("pg", postgres().config, {key: value})) == [("slot", key)]


@pytest.mark.parametrize("value", ["(absent)", "t", "c, t"])
def test_truncates_that_are_hidden_from_tables(value: str) -> None:
    assert found(postgres(skipped__operations=value)) == [("truncates", "skipped.operations")]


@pytest.mark.parametrize("value", ["none", "u,d", "u"])
def test_a_truncate_fails_the_event_router(value: str) -> None:
    assert found(outbox(skipped__operations=value)) == [("truncates", "skipped.operations")]


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("given", ["(absent)", "true"])
def test_a_converter_that_writes_defaults_for_null(side: str, given: str) -> None:
    option = f"{side}.converter.replace.null.with.default"
    more = {f"{side}.converter": JSON_CONVERTER, option: given}
    assert found(connector("pg", postgres().config, more)) == [("null_default", option)]
    assert found(connector("pg", postgres().config, {**more, option: "false"})) == []
    assert found(connector("pg", postgres().config, {f"{side}.converter": "org.Other"})) == []


def test_headers_that_are_off() -> None:
    assert found(postgres(extended__headers__enabled="false")) == [("headers", "extended.headers.enabled")]


CONVERTERS = "org.apache.kafka.connect."
SIMPLE = f"{CONVERTERS}storage.SimpleHeaderConverter"
TEXT = f"{CONVERTERS}storage.StringConverter"


@pytest.mark.parametrize("kind", ["(absent)", "", SIMPLE, JSON_CONVERTER])
def test_a_converter_of_headers_that_silver_reads(kind: str) -> None:
    for one in (postgres(header__converter=kind), mysql(header__converter=kind), outbox(header__converter=kind)):
        assert found(one) == []


@pytest.mark.parametrize(
    "kind", [f"{CONVERTERS}converters.ByteArrayConverter", "io.confluent.connect.avro.AvroConverter"]
)
def test_a_converter_of_headers_that_silver_does_not_know_is_named(kind: str) -> None:
    for one in (postgres(header__converter=kind), outbox(header__converter=kind)):
        (finding,) = findings_of(one)
        assert (finding.check, finding.key) == ("header_converter", "header.converter")
        assert kind in finding.what


def test_keys_in_headers_of_a_string_converter_are_not_read() -> None:
    assert found(outbox(header__converter=TEXT)) == []
    assert found(mysql(header__converter=TEXT)) == [("header_converter", "header.converter")]


@pytest.mark.parametrize("kind", ["Integer", "Long", "Short", "Double", "Float", "Boolean", "ByteArray"])
def test_a_converter_of_keys_that_silver_cannot_read_is_named(kind: str) -> None:
    for one in (postgres, outbox):
        (finding,) = findings_of(one(key__converter=f"{CONVERTERS}converters.{kind}Converter"))
        assert (finding.check, finding.key) == ("key_converter", "key.converter")
        assert f"{kind}Converter" in finding.what


POLICY = "topic.creation.default.cleanup.policy"


def test_compaction_takes_no_truncate() -> None:
    assert found(connector("pg", postgres().config, {POLICY: "compact"})) == [("compaction", POLICY)]
    assert found(connector("pg", postgres().config, {POLICY: "delete"})) == []


def test_compaction_without_tombstones() -> None:
    more = {POLICY: "compact,delete", "skipped.operations": "t", "tombstones.on.delete": "false"}
    assert ("compaction", POLICY) in found(connector("pg", postgres().config, more))
    assert "tombstones" in findings_of(connector("pg", postgres().config, more))[-1].what
    assert ("compaction", POLICY) not in found(
        connector("pg", postgres().config, {**more, "tombstones.on.delete": "true"})
    )


def test_compaction_of_a_group_counts_for_its_own_topics() -> None:
    key = "topic.creation.other.cleanup.policy"
    more = {"topic.creation.groups": "other", key: "compact", "topic.creation.other.include": "pg"}
    assert found(connector("pg", postgres().config, more)) == []
    taken = {**more, "topic.creation.other.include": r"pg\.public\..*"}
    assert found(connector("pg", postgres().config, taken)) == [("compaction", key)]


def test_compaction_of_an_outbox_forgets_events_and_needs_a_key() -> None:
    key = "transforms.outbox.table.field.event.key"
    assert found(connector("out", outbox().config, {POLICY: "compact"})) == [("compaction", POLICY)]
    both = found(connector("out", outbox().config, {POLICY: "compact", key: ""}))
    assert both == [("compaction", POLICY), ("compaction", key)]


def test_a_misspelt_group_in_the_name_of_topics() -> None:
    key = "transforms.outbox.route.topic.replacement"
    assert found(connector("out", outbox().config, {key: "outbox.${routeByValue}"})) == [("routing", key)]
    assert found(connector("out", outbox().config, {key: "outbox.${routedByValue}"})) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("database.password", "hunter2-plain"),
        ("database.ssl.keystore.password", "hunter2-plain"),
        ("schema.history.internal.producer.sasl.jaas.config", 'x required password="hunter2-plain";'),
        ("database.password", "hunter2-plain${env:P}"),
    ],
)
def test_a_secret_in_plain_text_is_found_and_not_shown(key: str, value: str) -> None:
    (finding,) = findings_of(connector("my", mysql().config, {key: value}))
    assert (finding.check, finding.key) == ("plain_secret", key)
    assert "hunter2" not in str(finding) + repr(finding)


@pytest.mark.parametrize("value", ["${env:P}", "${file:/run/secrets/p.properties:password}", "${vault:a/b:c}"])
def test_a_secret_by_reference_is_fine(value: str) -> None:
    assert found(postgres(database__password=value)) == []


def test_a_connector_does_not_show_its_configuration() -> None:
    one = connector("pg", postgres().config, {"database.password": "hunter2"})
    assert "hunter2" not in f"{one!r} {one} {[one]}"


def test_a_secret_of_any_other_connector_is_found_too() -> None:
    sink = Connector(name="s", config={"connector.class": "x.Sink", "key.password": "plain"}, file="s.json")
    assert found(sink) == [("plain_secret", "key.password")]


def test_a_variable_that_was_not_filled_in() -> None:
    assert found(postgres(database__hostname="${var.host}")) == [("not_filled_in", "database.hostname")]


# Several connectors.


def test_connectors_that_share_nothing_have_no_finding() -> None:
    assert all_findings([postgres(), outbox(), mysql(), mysql("second")]) == ()


@pytest.mark.parametrize(
    ("first", "second", "check", "key"),
    [
        (mysql(), mysql("other", database__server__id="72"), "shared_server_id", "database.server.id"),
        (postgres(), postgres("other", slot__name="pg"), "shared_slot", "slot.name"),
        (postgres(), mysql("other", topic__prefix="pg"), "shared_prefix", "topic.prefix"),
        (
            mysql(),
            mysql("other", schema__history__internal__kafka__topic="history-my"),
            "shared_history",
            "schema.history.internal.kafka.topic",
        ),
    ],
)
def test_what_two_connectors_share_is_told_of_the_later_one(
    first: Connector, second: Connector, check: str, key: str
) -> None:
    (finding,) = all_findings([first, second])
    assert (finding.connector, finding.check, finding.key) == ("other", check, key)
    assert first.name in finding.what
    # The same with one that runs on the cluster already.
    (finding,) = all_findings([second], running_beside=[first])
    assert (finding.connector, finding.check) == ("other", check)


def test_two_of_one_name() -> None:
    assert "shared_name" in {finding.check for finding in all_findings([postgres(), postgres()])}


def test_a_connector_takes_the_place_of_the_one_of_its_name() -> None:
    assert all_findings([postgres()], running_beside=[postgres()]) == ()


def test_a_slot_of_another_server_is_another_slot() -> None:
    other = postgres("other", slot__name="pg", database__port="5433")
    assert all_findings([postgres(), other]) == ()
    (finding,) = all_findings([postgres(), postgres("other", slot__name="pg", database__port="5432")])
    assert finding.check == "shared_slot"


def test_the_id_of_the_server_itself() -> None:
    (finding,) = all_findings([mysql()], own_server_ids=["1", "72"])
    assert (finding.check, finding.key) == ("own_server_id", "database.server.id")
    assert all_findings([mysql(), postgres(database__server__id="1")], own_server_ids=["1"]) == ()


# Where types of events are placed.

PLACEMENT = "transforms.outbox.table.fields.additional.placement"
DELETING = feed(
    envelope="outbox",
    topics=("outbox.event.orders",),
    sequence_by="kafka_offset",
    apply_as_deletes=("OrderDeleted",),
)


def placed(option: str, *feeds: Feed) -> list[tuple[str, str]]:
    one = connector("out", outbox().config, {PLACEMENT: option})
    return [(finding.check, finding.key) for finding in placement_findings([postgres(), one], feeds)]


@pytest.mark.parametrize(
    "option", ["type:header:eventType", "type:envelope:eventType", "at:envelope:ts, kind:header:eventType"]
)
def test_a_type_that_is_placed_where_the_contract_reads_it(option: str) -> None:
    assert placed(option, DELETING) == []


@pytest.mark.parametrize(
    "option", ["(absent)", "type:header", "type:envelope:kind", "type:partition:eventType", "at:header"]
)
def test_a_type_that_is_placed_elsewhere_is_found(option: str) -> None:
    assert placed(option, DELETING) == [("event_type", PLACEMENT)]
    other = DELETING.model_copy(update={"event_type": "type"})
    assert placed(option, other) == ([] if option == "type:header" else [("event_type", PLACEMENT)])


def test_the_finding_names_feed_and_both_names() -> None:
    one = connector("out", outbox().config, {PLACEMENT: "type:header:kind"})
    (finding,) = placement_findings([one], [DELETING])
    assert "the column type as kind, and feed things reads the type of an event as eventType" in finding.what
    assert "type:header:eventType" in finding.hint


def test_a_feed_without_types_that_decide_and_one_of_other_topics_ask_for_none() -> None:
    assert placed("(absent)", DELETING.model_copy(update={"apply_as_deletes": ()})) == []
    assert placed("(absent)", DELETING.model_copy(update={"topics": ("elsewhere",)})) == []
    assert placed("(absent)", feed(topics=("outbox.event.orders",))) == []
    listing = DELETING.model_copy(update={"apply_as_deletes": (), "apply_as_upserts": ("OrderPlaced",)})
    assert placed("(absent)", listing) == [("event_type", PLACEMENT)]


# Topics that are there.


def kept(topics: dict[str, KeptTopic], *connectors: Connector) -> list[tuple[str, str]]:
    return [(finding.check, finding.key) for finding in topic_findings(connectors, topics, broker="b:9092")]


def test_topics_that_fit_have_no_finding() -> None:
    topics = {"pg.public.orders": KeptTopic(3, "delete"), "history-my": KeptTopic(1, "delete")}
    assert kept(topics, postgres(), mysql()) == []
    assert kept({}, postgres(), mysql(), outbox()) == []


def test_a_compacted_topic_of_a_table() -> None:
    topics = {"pg.public.orders": KeptTopic(3, "compact"), "elsewhere": KeptTopic(1, "compact")}
    assert kept(topics, postgres()) == [("topic", "topic pg.public.orders")]
    assert kept(topics, postgres(skipped__operations="t")) == []
    off = postgres(skipped__operations="t", tombstones__on__delete="false")
    assert kept(topics, off) == [("topic", "topic pg.public.orders")]


def test_a_compacted_topic_of_an_outbox() -> None:
    topics = {"outbox.event.orders": KeptTopic(3, "compact,delete"), "outbox.event": KeptTopic(3, "compact")}
    assert kept(topics, outbox()) == [("topic", "topic outbox.event.orders")]


def test_a_schema_history_that_is_compacted_or_split() -> None:
    assert kept({"history-my": KeptTopic(3, "compact")}, mysql()) == [("topic", "topic history-my")] * 2


def test_only_the_connectors_topics_are_asked_for() -> None:
    asked: list[list[str]] = []

    def policies_of(topics: object) -> dict[str, str]:
        asked.append(list(topics))  # type: ignore[call-overload]
        return dict.fromkeys(asked[-1], "delete")

    known = {"pg.public.orders": (0, 1), "history-my": (0,), "private": (0,)}
    topics = described([postgres(), mysql()], known, policies_of)
    assert asked == [["history-my", "pg.public.orders"]]
    assert topics == {"history-my": KeptTopic(1, "delete"), "pg.public.orders": KeptTopic(2, "delete")}
    assert described([postgres()], {"private": (0,)}, policies_of) == {}


def test_every_check_says_what_to_do() -> None:
    assert all(check.__doc__ for check in (*OF_DEBEZIUM, *OF_EVERY_CONNECTOR))
