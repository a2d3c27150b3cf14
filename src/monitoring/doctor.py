"""`lakehouse doctor`: a checklist. What is wrong has a name (monitoring.known_issues).

A check is a function of what was seen (`Diagnostics`) that yields its results; one that had nothing to look at yields
none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from connectors.checking.findings import Finding
from connectors.checking.together import shared
from connectors.connectors import Connector
from lakehouse.contracts.models import NO_UNIFIED, Contracts
from lakehouse.contracts.thresholds import Thresholds
from lakehouse.errors import LakehouseError
from monitoring.readings.databases import Database
from monitoring.readings.running import Running, heartbeats_of
from monitoring.readings.topics import HEARTBEATS, RUN_ID, SourceTopics
from monitoring.readings.unified_topic import MAX_RECORDS
from monitoring.units import duration

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Result:
    """What a check found: the trouble's name, where it looked, whether all is well, and what it saw."""

    check: str
    where: str
    ok: bool
    seen: str


@dataclass(frozen=True)
class Diagnostics:
    """What was seen. `on_unified`: of the unified topic, which sources it has orders of (None: not among its newest
    records, and it has more); None: not read.

    `topic_findings`: of connectors.checking.together. `undecodable`: by source, open quarantine entries of no rule.
    `registry`: the address of the schema registry; None where none is named. `changed_schemas`: the ids under which it
    has another schema than the warehouse keeps.
    """

    contracts: Contracts
    now_ms: int
    running: Sequence[Running] | None = None
    topics: Mapping[str, SourceTopics] = field(default_factory=dict)
    topic_findings: Sequence[Finding] | None = None
    on_unified: Mapping[str, bool | None] | None = None
    undecodable: Mapping[str, int] = field(default_factory=dict)
    registry: str | None = None
    changed_schemas: Sequence[int] = ()
    troubles: Mapping[str, LakehouseError] = field(default_factory=dict)

    @property
    def limits(self) -> Thresholds:
        """The thresholds of the contracts."""
        return self.contracts.thresholds

    @property
    def connectors(self) -> list[Connector]:
        """The Debezium connectors that run."""
        return [one.connector for one in self.running or ()]

    @property
    def databases(self) -> list[tuple[Running, Database]]:
        """The connectors whose databases answered."""
        found = [(one, one.database) for one in self.running or () if one.database is not None]
        return [(one, database) for one, database in found if not (database.trouble or database.unasked)]

    @property
    def unasked_databases(self) -> dict[str, str]:
        """By connector, why nobody asked its database."""
        found = ((one.connector.name, one.database) for one in self.running or ())
        return {name: database.unasked for name, database in found if database is not None and database.unasked}


Check = Callable[[Diagnostics], Iterator[Result]]


def results_of(scene: Diagnostics) -> list[Result]:
    """What all checks found, in their order."""
    return [result for check in CHECKS for result in check(scene)]


def _connect_answers(scene: Diagnostics) -> Iterator[Result]:
    error = scene.troubles.get("connect")
    if error is not None:
        yield Result("connect-answers", "Kafka Connect", False, error.what)
    elif scene.running is not None:
        yield Result("connect-answers", "Kafka Connect", True, f"{len(scene.running)} Debezium connectors")


def _connectors_running(scene: Diagnostics) -> Iterator[Result]:
    for one in scene.running or ():
        states = [one.state.state, *(task.state for task in one.state.tasks)]
        seen = f"connector {states[0] or 'unassigned'}, tasks {', '.join(states[1:]) or 'none'}"
        if one.state.first_line:
            seen += f": {one.state.first_line}"
        yield Result("connectors-running", one.connector.name, one.runs, seen)


# What a server says to the one of two replicas of one id that came first.
_SAME_ID = re.compile(r"same server_(uu)?id|server_(uu)?id.*(already|another)|with the same server", re.IGNORECASE)
# What a server says, or Debezium, when the position is gone.
_PURGED = re.compile(
    r"no longer available on the server|purged|Could not find first log file|is needed.*but.*not available",
    re.IGNORECASE,
)


def _trace(one: Running) -> str:
    return "\n".join([one.state.trace, *(task.trace for task in one.state.tasks)])


def _shared_things(scene: Diagnostics) -> Iterator[Result]:
    """What two connectors may not share: by their options, and of server ids by what the server says too."""
    names = {
        "shared_server_id": "duplicate-server-id",
        "shared_history": "shared-schema-history",
        "shared_prefix": "shared-topic-prefix",
        "shared_slot": "shared-slot",
    }
    if scene.running is None:
        return
    found = {(names[one.check], one.connector): one.what for one in shared(scene.connectors) if one.check in names}
    for one in scene.running:
        if one.connector.reads_binlog and _SAME_ID.search(_trace(one)):
            found.setdefault(("duplicate-server-id", one.connector.name), one.state.first_line)
    for (check, name), what in found.items():
        yield Result(check, name, False, what)
    for check in names.values():
        if not any(broken == check for broken, _name in found):
            yield Result(check, "all connectors", True, "none shared")


def _database_answers(scene: Diagnostics) -> Iterator[Result]:
    for one in scene.running or ():
        database = one.database
        if database is not None and not database.unasked:
            seen = database.trouble or f"{database.server} answers"
            yield Result("database-answers", one.connector.name, not database.trouble, seen)


def _wal_level(scene: Diagnostics) -> Iterator[Result]:
    for one, database in scene.databases:
        level = database.settings.get("wal_level")
        if level is not None:
            yield Result("wal-level", one.connector.name, level == "logical", f"wal_level={level}")


def _slots(scene: Diagnostics) -> Iterator[Result]:
    for one, database in scene.databases:
        slot, name = database.slot, one.connector.name
        if slot is None:
            continue
        is_whole = slot.exists and slot.wal_status != "lost"
        state = "it exists" if is_whole else "its WAL is lost" if slot.exists else "it does not exist"
        yield Result("slot-exists", name, is_whole, f"slot {slot.name}: {state}")
        if not is_whole:
            continue
        active = "it is active" if slot.active else "it is not active"
        yield Result("slot-active", name, slot.active, f"slot {slot.name}: {active}")
        level = scene.limits.wal_bytes.level(slot.lag_bytes)
        kept = f"slot {slot.name} keeps {slot.kept_bytes:,} bytes, {slot.lag_bytes:,} of them not confirmed"
        yield Result("wal-growing", name, level == "ok", kept)


def _binlogs(scene: Diagnostics) -> Iterator[Result]:
    for one, database in scene.databases:
        binlog, name, settings = database.binlog, one.connector.name, database.settings
        if binlog is None:
            continue
        form = f"log_bin={settings.get('log_bin')}, binlog_format={settings.get('binlog_format')}"
        is_row = settings.get("log_bin") == "ON" and settings.get("binlog_format", "").upper() == "ROW"
        yield Result("binlog-format", name, is_row, form)
        image = settings.get("binlog_row_image", "")
        yield Result("binlog-row-image", name, image.upper() == "FULL", f"binlog_row_image={image}")
        partial = settings.get("binlog_row_value_options")
        if partial is not None:  # MariaDB does not have it, and MySQL only from 8.0.3 on
            seen = f"binlog_row_value_options={partial or 'empty'}"
            yield Result("binlog-row-value-options", name, not partial.strip(), seen)
        has_all = binlog.has_file and not _PURGED.search(_trace(one))
        at = f"reads {binlog.file}" if binlog.file else "has no position yet"
        kept = f"the server has {binlog.files[0]} to {binlog.files[-1]}" if binlog.files else "the server has no binlog"
        yield Result("binlog-purged", name, has_all, f"it {at}; {kept}")
        seconds = binlog.expire_seconds
        keeps = "it never expires" if seconds is None else f"it expires after {seconds / 3600:,.0f} h"
        yield Result("binlog-retention", name, seconds is None or seconds >= DAY_SECONDS, keeps)


def _replica_identity(scene: Diagnostics) -> Iterator[Result]:
    words = {"d": "DEFAULT", "f": "FULL", "i": "USING INDEX", "n": "NOTHING"}
    for _one, database in scene.databases:
        for table, identity in database.identities.items():
            yield Result(
                "replica-identity", table, identity != "n", f"REPLICA IDENTITY {words.get(identity, identity)}"
            )


def _registry(scene: Diagnostics) -> Iterator[Result]:
    if scene.registry is None:
        return
    error = scene.troubles.get("registry")
    seen = "schemas can be read by their ids" if error is None else error.what
    yield Result("registry-answers", scene.registry, error is None, seen)
    if error is None:
        others = ", ".join(map(str, scene.changed_schemas))
        seen = f"another schema than the warehouse keeps: {others}" if others else "schemas are those that were kept"
        yield Result("schema-ids", scene.registry, not others, seen)


def _topics_there(scene: Diagnostics) -> Iterator[Result]:
    error = scene.troubles.get("topics")
    if error is not None:
        yield Result("topics-there", "broker", False, error.what)
    for source, topics in scene.topics.items():
        seen = f"absent: {', '.join(topics.absent)}" if topics.absent else f"{len(topics.ends)} partitions"
        yield Result("topics-there", source, not topics.absent, seen)
        gone = [f"{topic_partition.topic}, partition {topic_partition.number}" for topic_partition in topics.lost]
        lost = f"gone before they were read: {'; '.join(gone)}" if gone else "nothing unread is gone"
        yield Result("records-kept", source, not gone, lost)
        bare = sorted(topics.keyless)
        seen = f"without a key: {', '.join(bare)}" if bare else "the newest records have keys"
        yield Result("record-keys", source, not bare, seen)


def _run_headers(scene: Diagnostics) -> Iterator[Result]:
    """Of the feeds that go by source positions: others have no order that a run could begin again."""
    for source, topics in scene.topics.items():
        there = {topic_partition.topic for topic_partition in topics.last}
        for name, feed in scene.contracts.of_source(source).items():
            own = sorted(topic for topic in there if feed.has_topic(topic))
            if own and feed.sequence_by == "source_position":
                bare = [topic for topic in own if topic in topics.nameless]
                seen = (
                    f"without the header {RUN_ID}: {', '.join(bare)}" if bare else "the newest records name their run"
                )
                yield Result("run-header", name, not bare, seen)


def _topic_policy(scene: Diagnostics) -> Iterator[Result]:
    if scene.topic_findings is None:
        return
    for one in scene.topic_findings:
        yield Result("topic-policy", f"{one.connector}, {one.key}", False, one.what)
    if not scene.topic_findings:
        yield Result("topic-policy", "all topics", True, "as the connectors need")


def _heartbeat(scene: Diagnostics) -> Iterator[Result]:
    for source, topics in scene.topics.items():
        beats = {
            topic_partition.topic: sent
            for topic_partition, sent in topics.last.items()
            if topic_partition.topic.startswith(HEARTBEATS)
        }
        if scene.running:  # a topic of heartbeats may be left of a connector that is gone
            own = {heartbeats_of(one) for one in scene.connectors}
            beats = {topic: sent for topic, sent in beats.items() if topic in own} or beats
        for topic, sent in sorted(beats.items()):
            age = max(scene.now_ms - sent.timestamp_ms, 0) / 1000
            is_fresh = scene.limits.heartbeat_seconds.level(age) == "ok"
            yield Result("heartbeat", f"{source}, {topic}", is_fresh, f"the last one came {duration(age)} ago")
        if not beats and topics.last:
            yield Result("heartbeat", source, False, "no heartbeat has come")


def _undecodable(scene: Diagnostics) -> Iterator[Result]:
    for source, entries in scene.undecodable.items():
        seen = f"{entries:,} records in quarantine could not be decoded" if entries else "every record was decoded"
        yield Result("undecodable-events", source, not entries, seen)


def _unified_topic(scene: Diagnostics) -> Iterator[Result]:
    if not scene.contracts.gold.has_unified:
        yield Result("unified-topic", "gold/tables.yaml", True, NO_UNIFIED)
    for source, is_there in (scene.on_unified or {}).items():
        topic = scene.contracts.gold.unified_topic.topic
        seen = f"{topic} has orders of it" if is_there else f"{topic} has no order of it"
        if is_there is None:
            seen += f" among its last {MAX_RECORDS:,} records; older ones were not looked at"
        yield Result("unified-topic", source, is_there is not False, seen)


def _outbox_schemas(scene: Diagnostics) -> Iterator[Result]:
    of_tables = {one.connector.name: set(database.outbox) for one, database in scene.databases if database.outbox}
    if len(of_tables) < 2:
        return
    every = set.union(*of_tables.values())
    differing = {name: sorted(every - columns) for name, columns in of_tables.items() if columns != every}
    for name, lacking in differing.items():
        yield Result("outbox-schemas", name, False, f"its outbox lacks {', '.join(lacking)}")
    if not differing:
        yield Result("outbox-schemas", ", ".join(of_tables), True, f"the same columns: {', '.join(sorted(every))}")


CHECKS: tuple[Check, ...] = (
    *(_connect_answers, _connectors_running, _shared_things, _database_answers, _wal_level, _slots, _binlogs),
    *(
        _replica_identity,
        _topics_there,
        _run_headers,
        _topic_policy,
        _registry,
        _heartbeat,
        _undecodable,
        _unified_topic,
    ),
    _outbox_schemas,
)
