"""What is wrong with one connector, each rule a function of its own. All are about Debezium's, but the last two.

Defaults and names are those that Debezium 3.6.1 declares; what EventRouter and PostgreSQL do with a record or a slot is
from their documentation and was seen on running connectors. A connector of today ignores a name that it does not know,
so a name of Debezium 1.x is a setting without effect: they are those that its release notes of 2.0 to 2.5 retired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from connectors.checking.findings import Finding
from connectors.connectors import (
    BINARY_CONVERTERS,
    EVENT_ROUTER,
    FLATTENER,
    JSON_CONVERTER,
    SIMPLE_HEADERS,
    STRING_CONVERTER,
    Connector,
    has_reference,
    is_reference,
    is_secret,
)

# Key, what, hint.
Mistake = tuple[str, str, str]
Check = Callable[[Connector], Iterator[Mistake]]


def findings_of(connector: Connector) -> tuple[Finding, ...]:
    """Everything that is wrong with one connector by itself."""
    checks = [*OF_EVERY_CONNECTOR, *(OF_DEBEZIUM if _is_debezium(connector) else ())]
    return tuple(finding(connector, check.__name__, mistake) for check in checks for mistake in check(connector))


def finding(connector: Connector, check: str, mistake: Mistake) -> Finding:
    """What a check said of a connector, with its file and line."""
    key, what, hint = mistake
    return Finding(
        check=check,
        file=connector.file,
        line=connector.lines.get(key),
        connector=connector.name,
        key=key,
        what=what,
        hint=hint,
    )


def _is_debezium(connector: Connector) -> bool:
    return connector.database is not None


def old_name(connector: Connector) -> Iterator[Mistake]:
    """Options and values of Debezium 1.x."""
    for key in connector.config:
        new = name_of_today(key)
        if new is not None:
            yield key, "the option's name of Debezium 1.x: it is ignored.", f"Today it is {new}."
    mode = connector.get("snapshot.mode")
    if mode in SNAPSHOT_MODES:
        yield "snapshot.mode", f"{mode} is no more.", f"Today it is {SNAPSHOT_MODES[mode]}."
    for name in connector.listed("transforms"):
        prefix = f"transforms.{name}."
        kind = connector.get(f"{prefix}type")
        if kind in CLASSES:
            yield f"{prefix}type", f"{kind} is no more.", f"Today it is {CLASSES[kind]}."
        renamed = {EVENT_ROUTER: EVENT_ROUTER_OPTIONS, FLATTENER: FLATTENER_OPTIONS}.get(kind, {})
        for old, new in renamed.items():
            if f"{prefix}{old}" in connector.config:
                yield f"{prefix}{old}", "an older release's name of the option: it is ignored.", f"Today it is {new}."


def missing(connector: Connector) -> Iterator[Mistake]:
    """Options that the connector cannot do without."""
    required = ["topic.prefix", "database.hostname", "database.user"]
    if connector.database == "postgresql":
        required.append("database.dbname")
    if connector.reads_binlog:
        required.append("database.server.id")
        if "schema.history.internal" not in connector.config:
            required += ["schema.history.internal.kafka.topic", "schema.history.internal.kafka.bootstrap.servers"]
    for key in required:
        if not connector.get(key):
            yield (
                key,
                "the option is required and absent; Kafka Connect answers with a NullPointerException or a bare 400.",
                "Set it.",
            )
    prefix = connector.get("topic.prefix")
    if prefix and not has_reference(prefix) and not re.fullmatch(r"[A-Za-z0-9._-]+", prefix):
        yield "topic.prefix", "a topic's name cannot have this.", "Use letters, digits, dots, hyphens and underscores."


def slot(connector: Connector) -> Iterator[Mistake]:
    """PostgreSQL's replication slot, and the plugin that fills it."""
    if connector.database != "postgresql":
        return
    if not has_reference(connector.slot) and not re.fullmatch(r"[a-z0-9_]{1,63}", connector.slot):
        what = "PostgreSQL takes only a-z, 0-9 and _ in a slot's name, 63 of them at most."
        yield "slot.name", what, "Name it so."
    if connector.is_on("slot.drop.on.stop", default=False):
        what = "the slot goes when the connector stops: what happens until it starts again is never sent."
        yield "slot.drop.on.stop", what, "Remove the option."
    if "plugin.name" not in connector.config:
        what = "absent, it is decoderbufs, which most servers do not have."
        yield "plugin.name", what, "Set it to pgoutput, which every PostgreSQL has."


def truncates(connector: Connector) -> Iterator[Mistake]:
    """A connector of tables must send TRUNCATEs, and none may reach the EventRouter."""
    sends_truncates = connector.tells_truncates
    if connector.routes_outbox and sends_truncates:
        what = "TRUNCATE becomes an event without a row, and the EventRouter's task fails at it."
        yield "skipped.operations", what, "Remove the option from a connector of an outbox."
    if not connector.routes_outbox and not sends_truncates:
        absent = "skipped.operations" not in connector.config
        what = f"{'absent, it skips' if absent else 'it skips'} TRUNCATE (t): the rows stay in silver for good."
        yield "skipped.operations", what, "Set it to none."


def null_default(connector: Connector) -> Iterator[Mistake]:
    """JsonConverter writes a column's default where the source has NULL, unless it is set not to."""
    for side in ("key", "value"):
        option = f"{side}.converter.replace.null.with.default"
        is_json = connector.get(f"{side}.converter") == JSON_CONVERTER
        if is_json and connector.is_on(option, default=True):
            what = "JsonConverter writes the column's default where the source has NULL (default: true)."
            yield option, what, "Set it to false."


def headers(connector: Connector) -> Iterator[Mistake]:
    """The headers that say which run of the connector made a record."""
    if not connector.is_on("extended.headers.enabled", default=True):
        what = "records lack __debezium.context.runId: silver takes a failover or a new snapshot for a replay."
        yield "extended.headers.enabled", what, "Remove the option: the default is true."


def header_converter(connector: Connector) -> Iterator[Mistake]:
    """Silver reads a header as three converters write it: the type of an event, a key before its change, a run."""
    kind = connector.get("header.converter") or SIMPLE_HEADERS
    hint = f"Remove the option: the default is {SIMPLE_HEADERS}."
    if kind not in (SIMPLE_HEADERS, JSON_CONVERTER, STRING_CONVERTER):
        yield "header.converter", f"silver does not know how {kind} writes a header.", hint
    elif kind == STRING_CONVERTER and not connector.routes_outbox:
        what = "StringConverter writes the previous key of a changed one as Struct{…}, which silver does not read."
        yield "header.converter", what, hint


def key_converter(connector: Connector) -> Iterator[Mistake]:
    """A key names the row that a tombstone deletes."""
    kind = connector.get("key.converter")
    if kind.startswith(BINARY_CONVERTERS):
        what = f"{kind.rpartition('.')[2]} writes keys as bytes: silver cannot read them, and suspends the table."
        yield "key.converter", what, f"Set it to {JSON_CONVERTER}."


def compaction(connector: Connector) -> Iterator[Mistake]:
    """A topic that is created compacted takes no record without a key, and needs tombstones to forget a row."""
    for group in ("default", *connector.listed("topic.creation.groups")):
        key = f"topic.creation.{group}.cleanup.policy"
        if "compact" not in connector.get(key) or not _has_tables(connector, group):
            continue
        if not connector.routes_outbox and connector.tells_truncates:
            what = (
                "a TRUNCATE is an event without a key, and the broker refuses it on a compacted topic: the task fails."
            )
            yield key, what, "Set it to delete, with a retention longer than silver may ever be behind."
        if not connector.routes_outbox and not connector.is_on("tombstones.on.delete", default=True):
            what = "without tombstones (tombstones.on.delete=false) a compacted topic keeps deleted rows for ever."
            yield key, what, "Set tombstones.on.delete to true, or the policy to delete."
        if connector.routes_outbox:
            yield from _routed_compaction(connector, key)


def _routed_compaction(connector: Connector, key: str) -> Iterator[Mistake]:
    what = "of every aggregate, compaction keeps the last event only: events that were not read yet are gone."
    yield key, what, "Set it to delete."
    for prefix in connector.transforms(EVENT_ROUTER):
        if not connector.get(f"{prefix}table.field.event.key", "aggregateid"):
            what = "without a column for the key, events have none, and a compacted topic refuses them."
            yield f"{prefix}table.field.event.key", what, "Remove the option: the default is aggregateid."


def _has_tables(connector: Connector, group: str) -> bool:
    """Whether a group of topic.creation takes in a topic of a table or of the outbox, as far as names show."""
    if group == "default":
        return True
    patterns = connector.listed(f"topic.creation.{group}.include")
    if not connector.table_topics:
        return any(pattern != connector.get("topic.prefix") for pattern in patterns)
    return any(_matches(pattern, topic) for pattern in patterns for topic in connector.table_topics)


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return True


def routing(connector: Connector) -> Iterator[Mistake]:
    """The EventRouter's name for topics: a misspelt group is known only when the first event comes."""
    for prefix in connector.transforms(EVENT_ROUTER):
        pattern = connector.get(f"{prefix}route.topic.regex", "(?<routedByValue>.*)")
        groups = set(re.findall(r"\(\?<(\w+)>", pattern))
        key = f"{prefix}route.topic.replacement"
        for group in re.findall(r"\$\{(\w+)\}", connector.get(key)):
            if group not in groups:
                what = f"${{{group}}} is no group of route.topic.regex: the task fails at the first event."
                yield key, what, f"There is: {', '.join(f'${{{name}}}' for name in sorted(groups)) or 'none'}."


def own_server_id(connector: Connector, own: Iterable[str]) -> Iterator[Mistake]:
    """A connector replicates as a server of its own; with a server's own id the two cut each other off."""
    given = connector.get("database.server.id")
    if connector.reads_binlog and given and given in set(own):
        what = f"{given} is the id of a database server itself: the server closes the connection."
        yield "database.server.id", what, "Take one that SELECT @@server_id says on no server and no other replica has."


def plain_secret(connector: Connector) -> Iterator[Mistake]:
    """A secret in plain text is shown by Kafka Connect's REST API to whoever asks."""
    for key, value in connector.config.items():
        in_parts = "jaas" in key or "user.info" in key
        is_safe = has_reference(value) if in_parts else is_reference(value)
        if is_secret(key) and value.strip() and not is_safe:
            what = "a secret in plain text: everyone who can read this file or Kafka Connect's REST API has it."
            yield key, what, "Write a reference, such as ${env:NAME}, and set NAME where the worker runs."


def not_filled_in(connector: Connector) -> Iterator[Mistake]:
    """A variable of the bundle that was not filled in."""
    for key, value in connector.config.items():
        for name in re.findall(r"\$\{var\.([\w-]+)\}", value):
            what = f"${{var.{name}}} is a variable of the bundle, not filled in."
            yield key, what, "Render it first: lakehouse connect render --target TARGET."


OF_DEBEZIUM: tuple[Check, ...] = (
    old_name,
    missing,
    slot,
    truncates,
    null_default,
    headers,
    header_converter,
    key_converter,
    compaction,
    routing,
)
OF_EVERY_CONNECTOR: tuple[Check, ...] = (plain_secret, not_filled_in)


# Of a connector.
OPTIONS: Mapping[str, str] = {
    "database.server.name": "topic.prefix",
    "database.whitelist": "database.include.list",
    "database.blacklist": "database.exclude.list",
    "schema.whitelist": "schema.include.list",
    "schema.blacklist": "schema.exclude.list",
    "table.whitelist": "table.include.list",
    "table.blacklist": "table.exclude.list",
    "column.whitelist": "column.include.list",
    "column.blacklist": "column.exclude.list",
    "database.history": "schema.history.internal",
    "database.history.store.only.monitored.tables.ddl": "schema.history.internal.store.only.captured.tables.ddl",
    "toasted.value.placeholder": "unavailable.value.placeholder",
    "slot.drop_on_stop": "slot.drop.on.stop",
    "snapshot.minimal.locks": "snapshot.locking.mode",
    "sanitize.field.names": "field.name.adjustment.mode=avro",
    "transaction.topic": "topic.transaction",
}
# Whole families that were renamed.
PREFIXES: Mapping[str, str] = {"database.history.": "schema.history.internal."}

# Values of `snapshot.mode` that are no more.
SNAPSHOT_MODES: Mapping[str, str] = {
    "schema_only": "no_data",
    "schema_only_recovery": "recovery",
    "never": "no_data",
    "exported": "initial",
}

# Of the EventRouter.
EVENT_ROUTER_OPTIONS: Mapping[str, str] = {
    "table.field.payload": "table.field.event.payload",
    "table.field.payload.id": "table.field.event.key",
    "table.field.event.payload.id": "table.field.event.key",
    "table.field.schema.version": "table.field.event.schema.version",
    "debezium.op.invalid.behavior": "table.op.invalid.behavior",
}

# Of ExtractNewRecordState.
FLATTENER_OPTIONS: Mapping[str, str] = {
    "drop.tombstones": "delete.tombstone.handling.mode",
    "delete.handling.mode": "delete.tombstone.handling.mode",
    "drop.deletes": "delete.tombstone.handling.mode",
    "operation.header": "add.headers=op",
    "add.source.fields": "add.fields",
}

# Classes of transforms.
CLASSES: Mapping[str, str] = {
    "io.debezium.transforms.UnwrapFromEnvelope": "io.debezium.transforms.ExtractNewRecordState"
}


def name_of_today(option: str) -> str | None:
    """What the connector's option is called today; None for one that is not known as old."""
    if option in OPTIONS:
        return OPTIONS[option]
    for old, new in PREFIXES.items():
        if option.startswith(old):
            return new + option.removeprefix(old)
    return None
