"""The packaged connectors: options that there are, filled in and clean for every target, fit for the contracts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from connectors.checking.together import all_findings
from connectors.connectors import Connector
from connectors.files import read_file
from connectors.variables import (
    OF_CONNECTORS,
    Variables,
    chosen_files,
    load_bundle,
    own_server_ids,
    rendered,
    resource_files,
    variables_of,
)
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from tools.bundle import read_bundle

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "bundle.yaml"
DATABASES = ROOT / "resources/databases"
FILES = {path.stem: path for path in resource_files(BUNDLE) if path.stem != "bigquery-sink"}
DEPLOYED = {
    "postgres-outbox-connector",
    "postgres-tables-connector",
    "mysql-outbox-connector",
    "mysql-tables-connector",
}
# Read by the commands themselves, not by a connector.
VARIABLES_OF_COMMANDS = {"connect_url", "connectors", "mysql_own_server_id", "mariadb_own_server_id"}
# What whoever deploys passes where the bundle has no value.
PASSED = {
    "bootstrap_servers": "broker-1:9092,broker-2:9092",
    "connect_url": "https://connect.example.com",
    "postgres_host": "postgres.example.com",
    "mysql_host": "mysql.example.com",
    "mariadb_host": "mariadb.example.com",
}

# Options that Debezium's connectors of 3.6.1 (MariaDB's: 3.5.0) declare, as far as such connectors may want them.
OF_EVERY_DATABASE = {
    *("topic.prefix", "database.hostname", "database.port", "database.user", "database.password"),
    *("table.include.list", "snapshot.mode", "snapshot.locking.mode", "skipped.operations", "tombstones.on.delete"),
    *("signal.data.collection", "heartbeat.interval.ms", "heartbeat.action.query", "decimal.handling.mode"),
    *("time.precision.mode", "binary.handling.mode", "provide.transaction.metadata", "extended.headers.enabled"),
    *("unavailable.value.placeholder", "snapshot.select.statement.overrides", "max.batch.size", "max.queue.size"),
}
OF_POSTGRESQL = {
    *("database.dbname", "database.sslmode", "database.sslrootcert", "plugin.name", "slot.name", "slot.failover"),
    *("publication.name", "publication.autocreate.mode", "interval.handling.mode", "hstore.handling.mode"),
}
OF_BINLOG = {
    *("database.server.id", "database.ssl.mode", "database.include.list", "include.schema.changes"),
    "connect.keep.alive.interval.ms",
    *("schema.history.internal.kafka.topic", "schema.history.internal.kafka.bootstrap.servers"),
    *("bigint.unsigned.handling.mode", "gtid.source.includes", "gtid.source.excludes"),
}
OF_THE_ROUTER = {
    f"transforms.outbox.{option}"
    for option in (
        *("type", "route.by.field", "route.topic.regex", "route.topic.replacement", "table.field.event.id"),
        *("table.field.event.key", "table.field.event.payload", "table.field.event.timestamp"),
        *("table.fields.additional.placement", "table.expand.json.payload", "table.op.invalid.behavior"),
    )
}
OF_KAFKA_CONNECT = {
    *("connector.class", "tasks.max", "transforms", "topic.creation.groups"),
    *(
        f"{side}.converter{option}"
        for side in ("key", "value")
        for option in ("", ".schemas.enable", ".replace.null.with.default")
    ),
    *(
        f"topic.creation.{group}.{option}"
        for group in ("default", "schemachanges")
        for option in ("replication.factor", "partitions", "include", "cleanup.policy")
    ),
}


def of(target: str) -> Variables:
    given = [f"{name}={value}" for name, value in PASSED.items()]
    return variables_of(load_bundle(BUNDLE), target, given=given, environment={})


def connector(name: str, target: str = "prod") -> Connector:
    read = rendered(FILES[name], of(target))
    assert read.findings == ()
    assert read.connector is not None
    return read.connector


def test_every_variable_of_the_connectors_is_described_and_used_and_none_is_the_bundles() -> None:
    own = yaml.safe_load((ROOT / OF_CONNECTORS).read_text(encoding="utf-8"))
    declared = own["variables"]
    used = {name for path in FILES.values() for name in re.findall(r"\$\{var\.(\w+)\}", path.read_text())}
    assert used - {"bootstrap_servers"} | VARIABLES_OF_COMMANDS == declared.keys()
    assert all(variable["description"].strip() for variable in declared.values())
    for target in own["targets"].values():
        assert target["variables"].keys() <= declared.keys()
    assert not declared.keys() & read_bundle(ROOT).settings["variables"].keys()


def test_there_are_six_and_those_of_the_flow_are_deployed() -> None:
    assert FILES.keys() == {*DEPLOYED, "mariadb-tables-connector", "mysql-database-connector"}
    for target in ("dev", "staging", "prod"):
        assert {path.stem for path in chosen_files(resource_files(BUNDLE), of(target), ())} == DEPLOYED


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_json_of_strings_named_for_its_connector(name: str) -> None:
    told = json.loads(FILES[name].read_text())
    assert told.keys() == {"name", "config"}
    assert told["name"] == name
    assert all(isinstance(value, str) for value in told["config"].values())


@pytest.mark.parametrize("name", FILES)
def test_a_connector_has_only_options_that_there_are(name: str) -> None:
    known = OF_EVERY_DATABASE | OF_KAFKA_CONNECT
    known |= OF_POSTGRESQL if name.startswith("postgres") else OF_BINLOG
    known |= OF_THE_ROUTER if "outbox" in name else set()
    assert connector(name).config.keys() <= known


@pytest.mark.parametrize("target", ["dev", "staging", "prod"])
def test_nothing_is_left_to_fill_in_and_nothing_is_found(target: str) -> None:
    connectors = [connector(name, target) for name in FILES]
    for one in connectors:
        left = {text for value in one.config.values() for text in re.findall(r"\$\{[^}]*\}", value)}
        assert left <= {"${routedByValue}", f"${{env:{one.get('database.password')[6:-1]}}}"}
    assert all_findings(connectors, own_server_ids=own_server_ids(of(target))) == ()


def test_only_passwords_come_from_the_worker() -> None:
    for name in FILES:
        database = name.split("-", maxsplit=1)[0].upper()
        assert connector(name).config["database.password"] == f"${{env:DEBEZIUM_{database}_PASSWORD}}"


def test_they_write_the_topics_that_the_contracts_read() -> None:
    sources = load_contracts().topics.sources
    for source, database in (("postgres", "postgres"), ("mysql", "mysql")):
        contract = sources[source]
        tables, outbox = connector(f"{database}-tables-connector"), connector(f"{database}-outbox-connector")
        feeds = {feed.envelope: set(feed.topics) for feed in contract.feeds.values()}
        assert set(tables.table_topics) == feeds["table"]
        assert feeds["outbox"]
        for topic in feeds["outbox"]:
            assert any(re.fullmatch(pattern, topic) for pattern in outbox.routed_topics)
        heartbeats = {f"__debezium-heartbeat.{one.get('topic.prefix')}" for one in (tables, outbox)}
        assert heartbeats == {topic for topic in contract.ignored_topics if "heartbeat" in topic}


def test_no_two_connectors_feed_one_topic() -> None:
    topics = [topic for name in FILES for topic in connector(name).table_topics]
    assert len(topics) == len(set(topics))


@pytest.mark.parametrize("database", ["postgres", "mysql"])
def test_the_outbox_is_sent_in_its_envelope(database: str) -> None:
    config = connector(f"{database}-outbox-connector").config
    assert config["transforms.outbox.type"] == "io.debezium.transforms.outbox.EventRouter"
    assert config["transforms.outbox.route.topic.replacement"] == f"outbox.event.{database}.${{routedByValue}}"
    placement = "type:header:eventType,created_at:envelope:timestamp"
    assert config["transforms.outbox.table.fields.additional.placement"] == placement
    assert config["topic.prefix"] == f"{database}_prod"
    # The signal table's rows would go through the EventRouter, too, and fail there.
    assert "signal.data.collection" not in config


@pytest.mark.parametrize("name", [name for name in FILES if "outbox" not in name])
def test_tables_tell_truncates_and_deletes_and_take_signals(name: str) -> None:
    config = connector(name).config
    assert (config["skipped.operations"], config["tombstones.on.delete"]) == ("none", "true")
    # Of a whole database the signal table would be one more table.
    assert ("signal.data.collection" in config) is ("tables" in name)
    assert config.get("signal.data.collection", ".debezium_signal").endswith(".debezium_signal")


def test_the_whole_database_differs_from_its_tables_in_names_alone() -> None:
    whole, tables = connector("mysql-database-connector"), connector("mysql-tables-connector")
    own = {"table.include.list", "signal.data.collection", "include.schema.changes"}
    assert whole.config.keys() ^ tables.config.keys() == own
    assert {key for key in whole.config.keys() - own if whole.config[key] != tables.config[key]} == {
        *("topic.prefix", "database.include.list", "database.server.id", "schema.history.internal.kafka.topic"),
        "topic.creation.schemachanges.include",
    }
    assert whole.get("topic.prefix") == whole.get("database.include.list") == "order_dw"
    assert whole.get("include.schema.changes") == "true"
    assert whole.table_topics == ()
    assert whole.topic_of("order_dw.user") == "order_dw.order_dw.user"


def test_the_whole_database_follows_its_variable() -> None:
    read = rendered(FILES["mysql-database-connector"], replace(of("prod"), given={**PASSED, "mysql_database": "crm"}))
    assert read.connector is not None
    assert "order_dw" not in str(read.connector.config)
    assert read.connector.get("topic.creation.schemachanges.include") == read.connector.get("topic.prefix") == "crm"


@pytest.mark.parametrize("name", FILES)
def test_every_connector_keeps_nulls_beats_and_snapshots_when_it_must(name: str) -> None:
    config = connector(name).config
    assert (config["heartbeat.interval.ms"], config["snapshot.mode"]) == ("10000", "when_needed")
    for side in ("key", "value"):
        assert config[f"{side}.converter"] == "org.apache.kafka.connect.json.JsonConverter"
        assert config[f"{side}.converter.schemas.enable"] == "false"
        assert config[f"{side}.converter.replace.null.with.default"] == "false"


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("postgres")])
def test_an_idle_binlog_beats_well_within_the_packaged_limit(name: str, contracts: Contracts) -> None:
    """Of an idle binlog Debezium writes a heartbeat only when the server sends one: after 0.8 of the keep-alive."""
    seconds = float(connector(name).config["connect.keep.alive.interval.ms"]) * 0.8 / 1000
    assert seconds < contracts.thresholds.heartbeat_seconds.warning / 2


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("postgres")])
def test_schema_changes_keep_their_order(name: str) -> None:
    config = connector(name).config
    assert config["snapshot.locking.mode"] == "minimal"
    group = config["topic.creation.groups"]
    assert config[f"topic.creation.{group}.include"] == config["topic.prefix"]
    assert config[f"topic.creation.{group}.partitions"] == "1"


# The databases' files say the same names.


def sql(path: str) -> str:
    return (DATABASES / path).read_text()


def test_the_publications_are_those_of_the_connectors() -> None:
    published: Mapping[str, set[str]] = {
        name: {table.strip() for table in tables.split(",")}
        for name, tables in re.findall(
            r"CREATE PUBLICATION (\w+) FOR TABLE ([^']+)'", sql("postgresql/3_publications.sql")
        )
    }
    for name in ("postgres-outbox-connector", "postgres-tables-connector"):
        one = connector(name)
        wanted = {*one.listed("table.include.list"), *one.listed("signal.data.collection")}
        assert published[one.get("publication.name")] == wanted
        assert one.get("publication.autocreate.mode") == "disabled"
    assert len(published) == 2


@pytest.mark.parametrize("folder", ["postgresql", "mysql", "mariadb"])
def test_the_user_may_read_what_its_connectors_read_and_no_more(folder: str) -> None:
    database = folder.replace("postgresql", "postgres")
    granted = set()
    for tables in re.findall(r"GRANT SELECT(?:, INSERT)? ON ([\w., ]+?) TO", sql(f"{folder}/2_user.sql")):
        granted |= {table.strip() for table in tables.split(",")}
    wanted = set()
    for name in FILES:
        if name.startswith(database):
            wanted |= {*connector(name).listed("table.include.list"), connector(name).get("signal.data.collection")}
    extra = {"ecommerce.outbox_events"} if folder == "mariadb" else set()
    assert granted == (wanted - {""}) | extra
    text = re.sub(r"--[^\n]*", "", sql(f"{folder}/2_user.sql"))
    assert "ALL PRIVILEGES" not in text
    assert not re.search(r"PASSWORD '(?!debezium)|IDENTIFIED BY '[^ ,]", text)


@pytest.mark.parametrize("path", ["mysql/1_tables.sql", "mysql/1_tables_before_8_0_13.sql", "mariadb/1_tables.sql"])
def test_the_outboxes_of_mysql_differ_in_the_id_alone(path: str) -> None:
    text = sql(path)
    assert "payload JSON NOT NULL" in text
    assert "created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)" in text
    assert "INDEX idx_created_at (created_at)" in text
    assert "ENGINE = InnoDB" in text
    is_old = "before" in path
    assert ("DEFAULT (UUID())" in re.sub(r"--[^\n]*", "", text)) is not is_old
    assert ("BEFORE INSERT ON outbox_events" in text) is is_old


def test_the_outbox_of_postgresql_makes_ids_and_keeps_whole_rows() -> None:
    text = sql("postgresql/1_tables.sql")
    assert "id UUID PRIMARY KEY DEFAULT gen_random_uuid()" in text
    assert "payload JSONB NOT NULL" in text
    assert "ALTER TABLE public.outbox_events REPLICA IDENTITY FULL" in text


@pytest.mark.parametrize("folder", ["mysql", "mariadb"])
def test_the_servers_own_id_is_none_of_the_connectors(folder: str) -> None:
    own = re.search(r"^server-id = (\d+)$", sql(f"{folder}/my.cnf"), re.MULTILINE)
    assert own is not None
    assert of("prod").value(f"{folder}_own_server_id") == own[1]
    assert own[1] not in {connector(name).get("database.server.id") for name in FILES}
    assert read_file(FILES[f"{folder}-tables-connector"]).findings == ()
