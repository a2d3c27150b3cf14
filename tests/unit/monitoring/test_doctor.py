"""The checks of `lakehouse doctor`: each finds its trouble, by its name, and nothing where all is well."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from connectors.checking.findings import Finding
from connectors.checking.together import KeptTopic, topic_findings
from connectors.cluster import Task
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import NO_UNIFIED, GoldTables
from lakehouse.errors import ConnectError, KafkaError, RegistryGoneError
from lakehouse.kafka.offsets import Partition
from monitoring.doctor import CHECKS, Diagnostics, Result, results_of
from monitoring.known_issues import TROUBLES, as_page
from monitoring.readings.databases import Database
from monitoring.readings.running import Running
from tests.unit.monitoring.scenes import (
    BEATS,
    MYSQL_ORDERS,
    NOW_MS,
    ORDERS,
    OUTBOX,
    binlog,
    database,
    mysql,
    postgres,
    running,
    sent,
    slot,
    topics,
)

COLUMNS = {"id": "uuid", "aggregatetype": "varchar", "aggregateid": "varchar", "type": "varchar", "payload": "json"}
MYSQL_SETTINGS = {
    **{"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"},
    "binlog_row_value_options": "",
}


def of_postgres(**given: Any) -> Database:
    """PostgreSQL as it should be."""
    well = {
        "settings": {"wal_level": "logical"},
        "slot": slot(),
        "identities": {"public.orders": "d", "public.notes": "f"},
        "outbox": COLUMNS,
    }
    return database(**{**well, **given})


def of_mysql(**given: Any) -> Database:
    """MySQL as it should be."""
    well = {"connector": "orders-mysql", "server": "db2:3306", "settings": MYSQL_SETTINGS, "binlog": binlog()}
    return database(**{**well, "outbox": COLUMNS, **given})


def healthy(**given: Any) -> Diagnostics:
    """A scene in which every check has something to look at, and finds it well."""
    beats = Partition("__debezium-heartbeat.mysql_prod_tables", 0)
    return Diagnostics(
        **{
            "contracts": load_contracts(),
            "now_ms": NOW_MS,
            "running": [running(postgres(), of_postgres()), running(mysql(), of_mysql())],
            "topics": {
                "postgres": topics(),
                "mysql": topics(last={MYSQL_ORDERS: sent(5, delay=1), beats: sent(9)}),
            },
            "topic_findings": [],
            "on_unified": {"postgres": True, "mysql": True},
            "undecodable": {"postgres": 0},
            "registry": "http://registry:8081",
            **given,
        }
    )


def broken(scene: Diagnostics) -> list[Result]:
    return [one for one in results_of(scene) if not one.ok]


def only(scene: Diagnostics) -> Result:
    """The one thing that is not well."""
    (result,) = broken(scene)
    return result


def with_database(one: Database, *, connector: Callable[[], Any] = postgres) -> Diagnostics:
    return healthy(running=[running(connector(), one)])


def test_a_healthy_scene_is_well_and_every_check_has_looked() -> None:
    results = results_of(healthy())
    assert [one for one in results if not one.ok] == []
    assert {one.check for one in results} == set(TROUBLES) - {"probe"}
    assert all(one.seen and one.where for one in results)


def test_a_scene_of_nothing_has_no_results() -> None:
    assert results_of(Diagnostics(load_contracts(), NOW_MS)) == []


def test_a_source_whose_orders_are_older_than_what_was_looked_at_is_not_wrong() -> None:
    found = [
        one
        for one in results_of(healthy(on_unified={"postgres": None, "mysql": False}))
        if one.check == "unified-topic"
    ]
    assert [(one.where, one.ok) for one in found] == [("postgres", True), ("mysql", False)]
    assert found[0].seen.endswith("has no order of it among its last 500,000 records; older ones were not looked at")


def test_without_unified_orders_one_sentence_says_so() -> None:
    contracts = load_contracts().model_copy(update={"gold": GoldTables()})
    (result,) = results_of(Diagnostics(contracts, NOW_MS, on_unified={}))
    assert result == Result("unified-topic", "gold/tables.yaml", True, NO_UNIFIED)


def test_checks_that_have_nothing_to_look_at_say_nothing() -> None:
    results = results_of(Diagnostics(load_contracts(), NOW_MS, running=[running(postgres())]))
    assert {one.check for one in results} == {
        *("connect-answers", "connectors-running", "duplicate-server-id"),
        *("shared-schema-history", "shared-topic-prefix", "shared-slot"),
    }


def connect_is_gone() -> Diagnostics:
    error = ConnectError("Kafka Connect does not answer.", hint="Start a worker.")
    return healthy(running=None, troubles={"connect": error})


def broker_is_gone() -> Diagnostics:
    error = KafkaError("The broker does not answer.", hint="Start it.")
    return healthy(topics={}, troubles={"topics": error})


def registry_is_gone() -> Diagnostics:
    error = RegistryGoneError("It does not answer (HTTP 503).", servers="http://registry:8081", hint="Start it.")
    return healthy(troubles={"registry": error})


def two_of_mysql(**options: str) -> Sequence[Running]:
    other = {
        "database_server_id": "5402",
        "topic_prefix": "other",
        "schema_history_internal_kafka_topic": "history.other",
    }
    return [running(mysql(), of_mysql()), running(mysql("mysql-two", **{**other, **options}), of_mysql())]


def two_of_postgres(**options: str) -> Sequence[Running]:
    other = {"topic_prefix": "other", "slot_name": "other"}
    return [running(postgres(), of_postgres()), running(postgres("two", **{**other, **options}), of_postgres())]


def with_settings(**settings: str) -> Diagnostics:
    return with_database(of_mysql(settings={**MYSQL_SETTINGS, **settings}), connector=mysql)


def with_topics(**given: Any) -> Diagnostics:
    return healthy(topics={"postgres": topics(**given)})


def compacted() -> Sequence[Finding]:
    connector = mysql(tombstones_on_delete="false")
    return topic_findings([connector], {MYSQL_ORDERS.topic: KeptTopic(1, "compact")}, broker="broker:9092")


TROUBLED: list[tuple[str, Diagnostics, str, str]] = [
    # the trouble, a scene that has it alone, where it is, and a part of what was seen
    ("connect-answers", connect_is_gone(), "Kafka Connect", "Kafka Connect does not answer."),
    (
        "schema-ids",
        healthy(changed_schemas=[3, 7]),
        "http://registry:8081",
        "another schema than the warehouse keeps: 3, 7",
    ),
    ("registry-answers", registry_is_gone(), "http://registry:8081", "It does not answer (HTTP 503)."),
    (
        "connectors-running",
        healthy(running=[running(postgres(), of_postgres(), tasks=("RUNNING", "FAILED"), trace="Broken\nmore")]),
        "orders-postgres",
        "connector RUNNING, tasks RUNNING, FAILED: Broken",
    ),
    (
        "connectors-running",
        healthy(running=[running(postgres(), of_postgres(), state="PAUSED", tasks=("PAUSED",))]),
        "orders-postgres",
        "connector PAUSED, tasks PAUSED",
    ),
    (
        "connectors-running",
        healthy(running=[running(postgres(), of_postgres(), state="", tasks=())]),
        "orders-postgres",
        "connector unassigned, tasks none",
    ),
    (
        "duplicate-server-id",
        healthy(running=two_of_mysql(database_server_id="5401")),
        "mysql-two",
        "orders-mysql (test) replicates with server id 5401 too",
    ),
    (
        "shared-schema-history",
        healthy(running=two_of_mysql(schema_history_internal_kafka_topic="history.mysql")),
        "mysql-two",
        "keeps its schema history in history.mysql too",
    ),
    (
        "shared-topic-prefix",
        healthy(running=two_of_mysql(topic_prefix="mysql_prod_tables")),
        "mysql-two",
        "has the prefix mysql_prod_tables too",
    ),
    ("shared-slot", healthy(running=two_of_postgres(slot_name="orders")), "two", "reads the slot orders of db:5432"),
    (
        "database-answers",
        with_database(database(trouble="db:5432 does not answer as dbz (InterfaceError).")),
        "orders-postgres",
        "db:5432 does not answer as dbz",
    ),
    ("wal-level", with_database(of_postgres(settings={"wal_level": "replica"})), "orders-postgres", "=replica"),
    (
        "slot-exists",
        with_database(of_postgres(slot=slot(exists=False, active=False))),
        "orders-postgres",
        "slot orders: it does not exist",
    ),
    (
        "slot-exists",
        with_database(of_postgres(slot=slot(wal_status="lost", active=False))),
        "orders-postgres",
        "slot orders: its WAL is lost",
    ),
    (
        "slot-active",
        with_database(of_postgres(slot=slot(active=False))),
        "orders-postgres",
        "slot orders: it is not active",
    ),
    (
        "wal-growing",
        with_database(of_postgres(slot=slot(lag_bytes=100_000_000, kept_bytes=120_000_000))),
        "orders-postgres",
        "slot orders keeps 120,000,000 bytes, 100,000,000 of them not confirmed",
    ),
    ("binlog-format", with_settings(log_bin="OFF"), "orders-mysql", "log_bin=OFF, binlog_format=ROW"),
    ("binlog-format", with_settings(binlog_format="STATEMENT"), "orders-mysql", "binlog_format=STATEMENT"),
    ("binlog-row-image", with_settings(binlog_row_image="MINIMAL"), "orders-mysql", "binlog_row_image=MINIMAL"),
    (
        "binlog-row-value-options",
        with_settings(binlog_row_value_options="PARTIAL_JSON"),
        "orders-mysql",
        "binlog_row_value_options=PARTIAL_JSON",
    ),
    (
        "binlog-purged",
        with_database(of_mysql(binlog=binlog(file="bin.000000", has_file=False)), connector=mysql),
        "orders-mysql",
        "it reads bin.000000; the server has bin.000001 to bin.000002",
    ),
    (
        "binlog-retention",
        with_database(of_mysql(binlog=binlog(expire_seconds=86_399)), connector=mysql),
        "orders-mysql",
        "it expires after 24 h",
    ),
    (
        "replica-identity",
        with_database(of_postgres(identities={"public.orders": "n", "public.notes": "i"})),
        "public.orders",
        "REPLICA IDENTITY NOTHING",
    ),
    ("topics-there", broker_is_gone(), "broker", "The broker does not answer."),
    ("topics-there", with_topics(absent=("a.b", "c.d")), "postgres", "absent: a.b, c.d"),
    (
        "topic-policy",
        healthy(topic_findings=compacted()),
        f"orders-mysql, topic {MYSQL_ORDERS.topic}",
        "it is compacted and gets no tombstones",
    ),
    (
        "record-keys",
        with_topics(keyless={"z.topic", "a.topic"}),
        "postgres",
        "without a key: a.topic, z.topic",
    ),
    (
        "run-header",
        with_topics(nameless={ORDERS.topic, "another.topic"}),
        "postgres_orders",
        f"without the header __debezium.context.runId: {ORDERS.topic}",
    ),
    (
        "records-kept",
        with_topics(lost=[ORDERS, OUTBOX]),
        "postgres",
        f"gone before they were read: {ORDERS.topic}, partition 0; {OUTBOX.topic}, partition 0",
    ),
    (
        "heartbeat",
        with_topics(last={ORDERS: sent(0), BEATS: sent(60)}),
        f"postgres, {BEATS.topic}",
        "the last one came 1 min ago",
    ),
    ("heartbeat", with_topics(last={ORDERS: sent(0)}), "postgres", "no heartbeat has come"),
    ("undecodable-events", healthy(undecodable={"mysql": 1_200}), "mysql", "1,200 records in quarantine"),
    (
        "unified-topic",
        healthy(on_unified={"postgres": True, "mysql": False}),
        "mysql",
        "bigquery.unified.orders has no order of it",
    ),
    (
        "outbox-schemas",
        healthy(
            running=[
                running(postgres(), of_postgres()),
                running(mysql(), of_mysql(outbox={"id": "char", "aggregateid": "varchar", "type": "varchar"})),
            ]
        ),
        "orders-mysql",
        "its outbox lacks aggregatetype, payload",
    ),
]


@pytest.mark.parametrize(("trouble", "scene", "where", "part"), TROUBLED)
def test_a_trouble_is_found_alone_by_its_name(trouble: str, scene: Diagnostics, where: str, part: str) -> None:
    result = only(scene)
    assert (result.check, result.where) == (trouble, where)
    assert part in result.seen


def test_every_trouble_is_found_by_a_check() -> None:
    assert {trouble for trouble, *_rest in TROUBLED} == set(TROUBLES) - {"probe"}
    assert len(CHECKS) == len(set(CHECKS))


SAME_ID = [
    "ErrorPacket: A replica with the same server_uuid/server_id as this replica has connected to the source; "
    "the first event 'bin.000002' at 157",
    "ErrorPacket: A slave with the same server_uuid/server_id as this slave has connected to the master",
]


@pytest.mark.parametrize("said", SAME_ID)
def test_a_duplicate_server_id_is_found_by_what_the_server_says(said: str) -> None:
    trace = f"ConnectException: An exception occurred in the change event producer.\nCaused by: {said}"
    other = two_of_mysql()[1]
    one = running(mysql(), of_mysql(), tasks=("FAILED",), trace=trace)
    results = {(result.check, result.where): result.seen for result in broken(healthy(running=[one, other]))}
    assert set(results) == {("connectors-running", "orders-mysql"), ("duplicate-server-id", "orders-mysql")}


def test_a_duplicate_server_id_of_a_connectors_own_trace_is_found() -> None:
    one = running(mysql(), of_mysql())
    failed = replace(one, state=one.state.model_copy(update={"trace": SAME_ID[0]}))
    assert only(healthy(running=[failed])) == Result("duplicate-server-id", "orders-mysql", False, SAME_ID[0])


def test_a_server_without_partial_json_is_not_asked_for_it() -> None:
    settings = {name: value for name, value in MYSQL_SETTINGS.items() if name != "binlog_row_value_options"}
    results = results_of(with_database(of_mysql(settings=settings), connector=mysql))
    assert "binlog-row-value-options" not in {one.check for one in results}


def test_a_duplicate_server_id_is_said_once_of_a_connector() -> None:
    first, second = two_of_mysql(database_server_id="5401")
    tasks = (Task(number=0, state="RUNNING", worker="w", trace=SAME_ID[0]),)
    seen_too = replace(second, state=second.state.model_copy(update={"tasks": tasks}))
    result = only(healthy(running=[first, seen_too]))
    assert (result.check, result.where) == ("duplicate-server-id", "mysql-two")
    assert "replicates with server id 5401 too" in result.seen


def test_postgresql_has_no_server_id() -> None:
    one = running(postgres(), of_postgres(), tasks=("FAILED",), trace=SAME_ID[0])
    assert [result.check for result in broken(healthy(running=[one]))] == ["connectors-running"]


PURGED = [
    "Could not find first log file name in binary log index file Error code: 1236; SQLSTATE: HY000.",
    "The connector is trying to read binlog starting at SourceInfo [currentBinlogFilename=bin.000001], but this is no "
    "longer available on the server. Reconfigure the connector to use a snapshot when needed.",
    "Cannot replicate because the source purged required binary logs.",
]


@pytest.mark.parametrize("said", PURGED)
def test_a_purged_binlog_is_found_by_what_the_server_says(said: str) -> None:
    one = running(mysql(), of_mysql(), tasks=("FAILED",), trace=f"DebeziumException: {said}")
    results = broken(healthy(running=[one]))
    assert [result.check for result in results] == ["connectors-running", "binlog-purged"]


@pytest.mark.parametrize(
    "trace", ["DebeziumException: Lost connection to the server.", "Failed to find expected server id."]
)
def test_another_failure_of_mysql_is_not_taken_for_these(trace: str) -> None:
    one = running(mysql(), of_mysql(), tasks=("FAILED",), trace=trace)
    assert [result.check for result in broken(healthy(running=[one]))] == ["connectors-running"]


@pytest.mark.parametrize(
    ("given", "check", "seen"),
    [
        (binlog(file=None), "binlog-purged", "it has no position yet; the server has bin.000001 to bin.000002"),
        (binlog(files=(), file=None), "binlog-purged", "it has no position yet; the server has no binlog"),
        (binlog(expire_seconds=None), "binlog-retention", "it never expires"),
        (binlog(expire_seconds=86_400), "binlog-retention", "it expires after 24 h"),
    ],
)
def test_a_binlog_that_is_well(given: Any, check: str, seen: str) -> None:
    scene = with_database(of_mysql(binlog=given), connector=mysql)
    assert Result(check, "orders-mysql", True, seen) in results_of(scene)


def test_settings_of_mariadb_are_compared_whatever_their_case() -> None:
    assert broken(with_settings(binlog_format="row", binlog_row_image="full")) == []


def test_binlog_settings_that_the_server_does_not_say_are_not_taken_for_well() -> None:
    results = broken(with_database(of_mysql(settings={}), connector=mysql))
    assert {result.check for result in results} == {"binlog-format", "binlog-row-image"}


@pytest.mark.parametrize(("identity", "words"), [("d", "DEFAULT"), ("f", "FULL"), ("i", "USING INDEX"), ("x", "x")])
def test_a_replica_identity_that_is_well_is_named(identity: str, words: str) -> None:
    results = results_of(with_database(of_postgres(identities={"public.orders": identity})))
    assert Result("replica-identity", "public.orders", True, f"REPLICA IDENTITY {words}") in results


def test_of_a_database_that_did_not_answer_nothing_else_is_said() -> None:
    for silent in (of_postgres(trouble="It does not answer."), of_postgres(unasked="The password is a reference.")):
        checks = {one.check for one in results_of(with_database(silent))}
        assert not checks & {"wal-level", "slot-exists", "slot-active", "wal-growing", "replica-identity"}
        assert ("database-answers" in checks) == bool(silent.trouble)


def test_a_heartbeat_is_judged_by_its_own_topic() -> None:
    other = Partition("__debezium-heartbeat.postgres_prod", 0)
    result = only(with_topics(last={ORDERS: sent(0), BEATS: sent(4_000), other: sent(1)}))
    assert (result.check, result.where) == ("heartbeat", f"postgres, {BEATS.topic}")
    assert result.seen == "the last one came 1.1 h ago"


def test_of_topics_without_records_no_heartbeat_is_missed() -> None:
    assert "heartbeat" not in {one.check for one in results_of(with_topics(last={}))}


def test_one_outbox_is_compared_with_nothing() -> None:
    assert "outbox-schemas" not in {one.check for one in results_of(with_database(of_postgres()))}


def test_each_outbox_that_lacks_columns_is_named() -> None:
    scene = healthy(
        running=[
            running(postgres(), of_postgres(outbox={"id": "uuid", "payload": "json"})),
            running(mysql(), of_mysql(outbox={"id": "char", "type": "varchar"})),
        ]
    )
    lacking: Mapping[str, str] = {one.where: one.seen for one in broken(scene)}
    assert lacking == {"orders-postgres": "its outbox lacks type", "orders-mysql": "its outbox lacks payload"}


def test_a_trouble_has_all_its_parts_and_a_heading_of_its_own() -> None:
    page = as_page()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(TROUBLES)
    for name, trouble in TROUBLES.items():
        assert trouble.name == name
        assert all(part.strip() and part in page for part in trouble)
