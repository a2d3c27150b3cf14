"""Options by their names of Debezium 1.x, and what they are called today.

A connector of today ignores a name that it does not know, so an old name is a setting that does not hold. The names of
today are those that Debezium 3.6.1 declares; the old ones are those that its release notes of 2.0 to 2.5 retired.
"""

from __future__ import annotations

from collections.abc import Mapping

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
