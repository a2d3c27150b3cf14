"""The troubles that `lakehouse doctor` knows by their symptoms: docs/troubleshooting.md is made of this table.

Sources: the documentation of Debezium's connectors for PostgreSQL and MySQL ("Behavior when things go wrong"), of
PostgreSQL (pg_replication_slots), MySQL (binary log options) and Kafka Connect (REST API), and what was seen on running
servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class KnownIssue(NamedTuple):
    """A trouble. `expected`: what should be; `symptom`: how people notice; `hint`: what to do."""

    name: str
    expected: str
    symptom: str
    hint: str


_ALL = (
    KnownIssue(
        "connect-answers",
        "Kafka Connect answers.",
        "No new records at all; `connect status` fails.",
        "Start a worker, or check --connect-url and the port of its REST API.",
    ),
    KnownIssue(
        "connectors-running",
        "Every connector and every task is RUNNING.",
        "One source gets no new records; the others do. A connector can be RUNNING while its task has FAILED.",
        "Read the trace: lakehouse connect status. Repair what it names, then: lakehouse connect restart NAME.",
    ),
    KnownIssue(
        "duplicate-server-id",
        "Every connector of MySQL or MariaDB has a server id of its own.",
        "Two connectors take turns failing: the server says that a slave with the same server id has connected.",
        "Give each another database.server.id, also unlike that of every replica: lakehouse connect deploy.",
    ),
    KnownIssue(
        "shared-schema-history",
        "Every connector of MySQL or MariaDB has a schema history topic of its own.",
        "A connector fails after a restart: it finds tables of another one in its schema history.",
        "Give each another schema.history.internal.kafka.topic, and use snapshot.mode=recovery once.",
    ),
    KnownIssue(
        "shared-topic-prefix",
        "Every connector has a topic prefix of its own.",
        "Events of two databases are mixed on one topic; rows change to and fro.",
        "Give each another topic.prefix. Then delete and read again what was mixed.",
    ),
    KnownIssue(
        "shared-slot",
        "Every PostgreSQL connector has a replication slot of its own.",
        "One of two connectors fails: the slot is active for another process.",
        "Give each another slot.name.",
    ),
    KnownIssue(
        "database-answers",
        "The database answers as the connector's user.",
        "The connector's task fails with a connection error.",
        "Start the server, or check its address, the firewall and the user's password.",
    ),
    KnownIssue(
        "wal-level",
        "PostgreSQL has wal_level=logical.",
        "The connector does not start: logical decoding requires wal_level >= logical.",
        "Set wal_level = logical in postgresql.conf, and restart the server.",
    ),
    KnownIssue(
        "slot-exists",
        "The replication slot exists, and has all of its WAL.",
        "The connector fails: the slot was dropped or invalidated, so changes are missing.",
        "Stop the connector, delete its offsets and resume it: docs/connect.md, Moving a connector. It takes a full "
        "snapshot, after which silver removes what was deleted meanwhile.",
    ),
    KnownIssue(
        "slot-active",
        "The replication slot is active.",
        "The connector is stopped or has failed; PostgreSQL keeps WAL for it.",
        "lakehouse connect status; then resume or restart it.",
    ),
    KnownIssue(
        "wal-growing",
        "PostgreSQL keeps little WAL for the slot.",
        "The disk of the database fills. The slot is idle, or the captured tables are quiet while others are busy: "
        "then only heartbeats move the slot.",
        "Run the connector; where the tables are quiet set heartbeat.interval.ms and heartbeat.action.query. "
        "Drop a slot that no connector uses: SELECT pg_drop_replication_slot(NAME).",
    ),
    KnownIssue(
        "binlog-format",
        "MySQL has log_bin=ON and binlog_format=ROW.",
        "The connector does not start, or misses changes that were logged as statements.",
        "Set log_bin and binlog_format=ROW in my.cnf, and restart the server.",
    ),
    KnownIssue(
        "binlog-row-image",
        "MySQL has binlog_row_image=FULL.",
        "Columns of an event are absent that the change did not touch.",
        "SET PERSIST binlog_row_image=FULL; open sessions keep the old value.",
    ),
    KnownIssue(
        "binlog-row-value-options",
        "MySQL has an empty binlog_row_value_options.",
        "Updates of JSON columns never arrive: with PARTIAL_JSON the binlog has only the changed parts of a document, "
        "in events that Debezium does not read.",
        "SET PERSIST binlog_row_value_options=''; open sessions keep the old value. Lost updates come again by an "
        "incremental snapshot: docs/connect.md.",
    ),
    KnownIssue(
        "binlog-purged",
        "The server still has the binlog file of the connector's position.",
        "The connector fails: the position is no longer available on the server.",
        "Stop the connector, delete its offsets and resume it: docs/connect.md, Moving a connector. It takes a full "
        "snapshot. Raise binlog_expire_logs_seconds.",
    ),
    KnownIssue(
        "binlog-retention",
        "The binlog is kept for a day at least.",
        "A connector that stood for a weekend cannot go on.",
        "SET PERSIST binlog_expire_logs_seconds to some days.",
    ),
    KnownIssue(
        "replica-identity",
        "Every captured PostgreSQL table has a replica identity.",
        "Updates and deletes of a table fail in the application, or come without a key.",
        "ALTER TABLE … REPLICA IDENTITY DEFAULT, with a primary key, or FULL.",
    ),
    KnownIssue(
        "topics-there",
        "The broker has every topic that the contracts name.",
        "Bronze stops: a topic is missing.",
        "lakehouse connect status; start the connector that writes it, or fix bronze/topics.yaml.",
    ),
    KnownIssue(
        "topic-policy",
        "Topics are kept as the connectors need: cleanup.policy, one partition of a schema history.",
        "Events are compacted away before they are read, or a connector's task fails at a record without a key.",
        "kafka-configs.sh --alter … --add-config cleanup.policy=delete",
    ),
    KnownIssue(
        "registry-answers",
        "The schema registry answers, and lets schemas be read by their ids.",
        "Silver stops at the first record with a schema that it does not know yet; nothing goes to quarantine.",
        "Start the registry, or check schema_registry in the file of --kafka-config: docs/kafka.md.",
    ),
    KnownIssue(
        "schema-ids",
        "An id of the schema registry means one schema for ever.",
        "New Avro records have values of other columns, or go to quarantine: the registry lost its storage, and gives"
        " ids out again.",
        "Restore its storage (the topic _schemas of Confluent's), or import the schemas under their old ids. What came "
        "meanwhile names the wrong ones: let an incremental snapshot send it again (docs/connect.md).",
    ),
    KnownIssue(
        "record-keys",
        "Records have the key of their row.",
        "Changes of one row are in several partitions, in no order.",
        "Give the table a primary key, or the connector message.key.columns.",
    ),
    KnownIssue(
        "run-header",
        "Records name the run of their connector.",
        "A failover, or a later full snapshot, cannot be seen: rows that are gone stay, and a table whose source begins"
        " its log again is suspended.",
        "Debezium 3.2 or later names it, unless extended.headers.enabled=false: docs/ordering.md, without the names of"
        " runs.",
    ),
    KnownIssue(
        "records-kept",
        "Kafka still has every record that was not read.",
        "Bronze names a gap of offsets.",
        "Raise retention.ms. What is gone comes again by a snapshot: docs/connect.md, incremental snapshots.",
    ),
    KnownIssue(
        "heartbeat",
        "Every connector sends heartbeats.",
        "A connector is RUNNING and sends nothing, while the database changes: it hangs, or is hours behind.",
        "Restart it: lakehouse connect restart NAME. Set heartbeat.interval.ms where there is none.",
    ),
    KnownIssue(
        "undecodable-events",
        "Events can be decoded.",
        "Bronze grows, silver does not; quarantine grows.",
        "lakehouse quarantine list names the reasons. Repair the contract or the connector, then: "
        "lakehouse quarantine retry.",
    ),
    KnownIssue(
        "unified-topic",
        "The unified topic has orders of every source of gold.",
        "No events in the unified topic, or of one source alone. A consumer that begins at the end sees only new ones: "
        "kafka-console-consumer.sh --topic TOPIC --from-beginning --max-messages 10",
        "lakehouse status: which stage stands? Then lakehouse run, or lakehouse quality report where a gate blocks.",
    ),
    KnownIssue(
        "outbox-schemas",
        "The outbox tables of all sources have the same columns.",
        "Events of one source lack a field, or their type is another.",
        "Change the one that differs: resources/databases has both.",
    ),
    KnownIssue(
        "probe",
        "An order that is written to an outbox arrives in the unified topic.",
        "Everything seems to be well, and nothing arrives.",
        "lakehouse status: the first stage that is late is where it stands.",
    ),
)
TROUBLES: Mapping[str, KnownIssue] = {one.name: one for one in _ALL}


def as_page() -> str:
    """docs/troubleshooting.md."""
    parts = [
        "# Troubleshooting",
        "",
        "`lakehouse doctor` looks for all of these, and says what it saw. It only reads; `--probe` alone writes.",
        "",
        "```",
        "lakehouse doctor --warehouse ./warehouse --bootstrap-servers HOST:PORT --connect-url http://HOST:8083",
        "```",
    ]
    for one in TROUBLES.values():
        parts += [
            *("", f"## {one.name}", "", f"**Expected.** {one.expected}", "", f"**Symptom.** {one.symptom}", ""),
            f"**What to do.** {one.hint}",
        ]
    return "\n".join(parts) + "\n"
