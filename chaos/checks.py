"""Whether all is right after a round: I1 to I7 of the design, against the databases and the topic themselves.

Nothing here uses the product's transforms: tables are read by delta-rs, the topic by a consumer, the databases by SQL.
`lakehouse verify`, the product's own proof, is asked besides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from chaos.world import SOURCES, UNIFIED_TOPIC, SourceNames, World
from lakehouse.kafka.log import committed_records

COLUMNS = ("order_id", "customer_id", "product_id", "status", "total_amount", "created_at", "updated_at", "note")
OUTBOX_COLUMNS = ("order_id", "customer_id", "product_id", "status", "total_amount", "created_at", "note")
FULFILLMENT = {"completed": "FULFILLED", "cancelled": "CANCELLED"}
MAX_NAMED = 5
Row = Mapping[str, str | None]
# Compares field by field; NULL is lower than all.
Position = tuple[tuple[bool, Any], ...]
Rows = Mapping[Any, Row]


@dataclass
class Memory:
    """What earlier rounds have seen: the position of every key, by table."""

    positions: dict[str, dict[int, Position]] = field(default_factory=dict)


def findings(world: World, memory: Memory) -> Sequence[str]:
    """A sentence for everything that is not as it must be."""
    tables = world.tables
    world.take_events()
    found: list[str] = []
    expected: dict[str, Row] = {}
    for names in SOURCES:
        orders = _source_orders(world, names)
        events = _last_events(world, names)
        for feed, truth, columns in (
            (f"{names.name}_orders", orders, COLUMNS),
            (f"{names.name}_outbox_orders", events, OUTBOX_COLUMNS),
        ):
            rows = tables.rows(f"SELECT {', '.join(columns)}, _is_deleted, _position FROM {{silver.{feed}}}")
            live = {row["order_id"]: _texts(row, columns) for row in rows if not row["_is_deleted"]}
            found += differences(live, truth, of=f"I1: silver.{feed}", against="its source")
            found += _fallen(memory, feed, rows, is_rebuilt=names.name in world.rebuilt)
        for rows_of in (events, orders):  # the tables' feed comes first
            expected |= {f"{names.prefix}-{key}": _gold_row(row, names) for key, row in rows_of.items()}
    gold = {row["composite_key"]: _texts(row, GOLD_COLUMNS) for row in tables.rows(GOLD_QUERY)}
    found += differences(gold, expected, of="I5: gold.unified_orders", against="the databases")
    found += differences(_topic(world), expected, of=f"I6: topic {UNIFIED_TOPIC}", against="the databases")
    torn = world.observer.torn()
    if torn:
        found.append(f"I6: a reader of committed records has seen parts of passes: {', '.join(torn[:MAX_NAMED])}")
    (open_entries,) = (
        tables.rows("SELECT count(*) AS number FROM {quality.quarantine} WHERE state = 'open'")
        if (tables.exists("quality.quarantine"))
        else ({"number": 0},)
    )
    if open_entries["number"]:
        found.append(f"I2: {open_entries['number']} records in quarantine")
    verified = world.pipeline.command("verify", "--json")
    if verified.code:
        found.append(f"I2/I5/I6: lakehouse verify ended with {verified.code}: {verified.last_words}")
    return found


GOLD_COLUMNS = (
    "order_id",
    "customer_id",
    "product_id",
    "status",
    "total_amount",
    "created_at",
    "source_database",
    "fulfillment_status",
)
GOLD_QUERY = f"SELECT composite_key, {', '.join(GOLD_COLUMNS)} FROM {{gold.unified_orders}}"


def _source_orders(world: World, names: SourceNames) -> Rows:
    rows = world.databases[names.name].rows(f"SELECT {', '.join(COLUMNS)} FROM orders")
    return {row["order_id"]: _texts(row, COLUMNS) for row in rows}


def _last_events(world: World, names: SourceNames) -> Rows:
    """Of every order the payload of its last event, as silver has it."""
    rows = {}
    for order, by_number in world.events[names.name].items():
        payload = by_number[max(by_number)]
        row = {**payload, "total_amount": payload["amount"], "created_at": payload["created_at"]}
        rows[order] = {name: None if row.get(name) is None else str(row[name]) for name in OUTBOX_COLUMNS}
    return rows


def _gold_row(row: Row, names: SourceNames) -> Row:
    status = row["status"]
    return {
        **{name: row[name] for name in GOLD_COLUMNS[:6]},
        "source_database": names.gold,
        "fulfillment_status": FULFILLMENT.get(status or "", "PENDING"),
    }


def _topic(world: World) -> Rows:
    """The last value of every key of the topic, without those that are deleted."""
    view: dict[str, Row] = {}
    for record in committed_records(world.kafka, UNIFIED_TOPIC):
        key = json.loads(record.key)["composite_key"]
        if record.value is None:
            view.pop(key, None)
        else:
            view[key] = _texts(json.loads(record.value, parse_float=Decimal), GOLD_COLUMNS)
    return view


def _fallen(memory: Memory, feed: str, rows: Sequence[Mapping[str, Any]], *, is_rebuilt: bool) -> list[str]:
    """I3: the position of a key never goes down. A table that was rebuilt begins anew."""
    now = {row["order_id"]: tuple((value is not None, value) for value in row["_position"].values()) for row in rows}
    before = {} if is_rebuilt else memory.positions.get(feed, {})
    memory.positions[feed] = now
    fallen = [key for key, position in before.items() if key not in now or now[key] < position]
    named = ", ".join(map(str, fallen[:MAX_NAMED]))
    return [f"I3: silver.{feed}: the position of {len(fallen)} keys has gone down: {named}"] if fallen else []


def differences(actual: Rows, expected: Rows, *, of: str, against: str) -> list[str]:
    """At most one sentence: how many keys differ, and the first of them. No values."""
    keys = [key for key in {**expected, **actual} if actual.get(key) != expected.get(key)]
    if not keys:
        return []
    absent = sum(key not in actual for key in keys)
    more = sum(key not in expected for key in keys)
    named = ", ".join(
        f"{key} ({_what(actual.get(key), expected.get(key))})" for key in sorted(keys, key=str)[:MAX_NAMED]
    )
    return [f"{of} differs from {against} in {len(keys)} keys ({absent} absent, {more} too many): {named}"]


def _what(actual: Row | None, expected: Row | None) -> str:
    if actual is None or expected is None:
        return "absent" if actual is None else "too many"
    return "/".join(name for name in expected if actual.get(name) != expected[name])


def _texts(row: Mapping[str, Any], columns: Sequence[str]) -> Row:
    return {name: _text(row[name]) for name in columns}


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
        case Decimal():
            return f"{value:.2f}"
        case str() if len(value) == 27 and value.endswith("Z") and value[10] == "T":
            return value.removesuffix("Z").removesuffix(".000000")
        case _:
            return str(value)
