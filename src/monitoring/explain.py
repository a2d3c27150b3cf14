"""`lakehouse explain`: everything that is known of one order, from the events in bronze to the topic.

The events of the key are decoded, placed and folded by silver's own definition (silver.decode, silver.order), in plain
Python, with what `ops.batches` remembers: so what it says of an event is what silver has decided. Values that a changed
key took over from its previous key are not looked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.errors import SettingsError, TableError
from lakehouse.registered import RegisteredSchema
from lakehouse.secrets import MASK
from monitoring.readings.tables import Tables
from monitoring.readings.warehouse import OF_THIS_SILVER, moment
from silver.decode.avro import keys_of
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import NUMBERS_OF_SOURCE, Record, Source
from silver.fold.fold import fold
from silver.fold.operands import event_frame
from silver.order.history import history
from silver.order.narrow_events import read_log_columns
from silver.order.position import Position
from silver.order.positions import PositionContexts, add_coordinates, add_positions
from silver.order.state import State

# So many of a table's last versions are looked through for changes of the row.
MAX_VERSIONS = 200
# So many of a source's newest records are looked through for those of the key.
MAX_RECORDS = 2_000_000


@dataclass(frozen=True)
class Explained:
    """An event of the key: where it is, what it states, its position, and what became of it (`outcome`, `why`)."""

    feed: str
    topic: str
    partition: int
    offset: int
    at: datetime
    kind: str
    op: str | None
    source_ts_ms: int | None
    position: Position | None
    outcome: str
    why: str
    values: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """All of it. By feed: `silver`, its row now, and `versions`, its changes, the oldest first. `gold`: the row.

    `changed_at`: when the row in gold was changed last, else that in silver; None where there is none. `since`: events
    that are older were not looked at, for there are many; None: all were.
    """

    composite_key: str
    source: str
    events: Sequence[Explained]
    silver: Mapping[str, Mapping[str, str | None]]
    versions: Mapping[str, Sequence[Mapping[str, str | None]]]
    gold: Mapping[str, str | None] | None
    changed_at: datetime | None = None
    since: datetime | None = None


def explain(tables: Tables, contracts: Contracts, composite_key: str, *, whole: bool = False) -> Explanation:
    """What is known of the order, by its events among the newest MAX_RECORDS of its source, or (`whole`) among all.

    Raises SettingsError where there are no unified orders, and for a key that no source of gold has; TableError.
    """
    _ = contracts.gold.unified_topic
    source, number = _parsed(contracts, composite_key)
    composite_key = f"{contracts.gold.sources[source].prefix}-{number}"
    feeds = [contracts.feeds[name] for name in contracts.gold.sources[source].feeds]
    key = contracts.gold.key
    events: list[Explained] = []
    rows: dict[str, Mapping[str, str | None]] = {}
    versions: dict[str, Sequence[Mapping[str, str | None]]] = {}
    changed_at: list[datetime | None] = []
    bronze = f"bronze.{source}_events"
    if not tables.exists(bronze):
        raise TableError(f"There is no {bronze} yet.", hint="Run `lakehouse run` first.")
    since = None if whole else tables.newest_since(bronze, "timestamp", rows=MAX_RECORDS)
    for feed in feeds:
        events += _events(tables, feed, number, since)
        name = f"silver.{feed.name}"
        if tables.exists(name):
            for row in tables.rows(f"SELECT * FROM {{{name}}} AS kept WHERE kept.{key} = {number}"):
                rows[feed.name] = _shown(row, feed.sensitive_columns)
                changed_at.append(row.get("_applied_at"))
            changes = tables.changes(name, f"{key} = {number}", versions=MAX_VERSIONS)
            versions[feed.name] = [
                _shown(row, feed.sensitive_columns)
                for row in sorted(changes, key=lambda one: int(one["_commit_version"]))
                if row["_change_type"] != "update_preimage"
            ]
    gold = None
    if tables.exists("gold.unified_orders"):
        query = f"SELECT * FROM {{gold.unified_orders}} AS kept WHERE kept.composite_key = '{composite_key}'"
        for row in tables.rows(query):
            gold, changed_at = _shown(row, contracts.sensitive_in_gold), [row.get("processed_at")]
    last = max((at for at in changed_at if at is not None), default=None)
    return Explanation(composite_key, source, events, rows, versions, gold, last, since)


def _parsed(contracts: Contracts, composite_key: str) -> tuple[str, int]:
    prefix, _, number = composite_key.partition("-")
    by_prefix = {one.prefix: name for name, one in contracts.gold.sources.items()}
    if prefix not in by_prefix or not (number.isascii() and number.isdigit()):
        known = ", ".join(f"{one}-<{contracts.gold.key}>" for one in by_prefix)
        raise SettingsError(f"{composite_key!r} is no composite key.", hint=f"Composite keys are: {known}.")
    return by_prefix[prefix], int(number)


def _shown(row: Mapping[str, Any], sensitive: frozenset[str]) -> dict[str, str | None]:
    """The row as text, without what is sensitive and without what is not there."""
    return {
        name: MASK if name in sensitive else str(value)
        for name, value in row.items()
        if value is not None and not name.startswith("_column_versions")
    }


def _events(tables: Tables, feed: Feed, number: int, since: datetime | None) -> Iterator[Explained]:
    """The events of a key in bronze, in the order of their positions; those `since` a time."""
    registered = _schemas(tables)
    in_avro = "".join(f" OR b.key = X'{key.hex()}'" for key in keys_of(number, registered or {}))
    is_new = "" if since is None else f" AND b.timestamp >= {moment(since)}"
    # A key is JSON, with or without a schema, or text: the number stands in it by itself.
    records = tables.rows(f"""
        SELECT b.topic, coalesce(b._topic_id, '') AS topic_id, b.partition, b.offset, b.timestamp, b.key, b.value,
            b.headers
        FROM {{bronze.{feed.source}_events}} AS b
        WHERE (regexp_like(try_cast(b.key AS STRING), '(^|[^0-9]){number}([^0-9]|$)'){in_avro}){is_new}
    """)
    own = sorted(
        (one for one in records if feed.has_topic(one["topic"])), key=lambda one: (one["timestamp"], one["offset"])
    )
    entries = _entries(tables, feed, own)
    decode = ReferenceDecoder(feed.model_copy(update={"schemas": registered}))
    known, cutoffs, is_pending = _known(tables, feed)
    read: list[tuple[dict[str, Any], Event]] = []
    for record in own:
        headers = [(one["key"], one["value"]) for one in record["headers"] or ()]
        event = decode.own_event(Record(record["topic"], record["key"], record["value"], headers))
        if event is None:  # of another feed that shares the topic
            continue
        if _key_of(event, feed) != (number,) and event.row is not None:
            continue
        is_waiting = _at(record) in entries
        read.append((record, event._replace(kind="quarantined") if is_waiting or event.problems else event))
    # Those that silver has not read state nothing yet.
    read = sorted(read, key=lambda one: is_pending(one[0]))
    positioned = _positioned(read, feed, known)
    taken = [one for one, (record, _) in zip(positioned, read, strict=True) if not is_pending(record)]
    folded = fold(event_frame(taken, feed), feed, cutoffs)
    row = next(folded.rows.iter_rows(named=True), None)
    for position, (record, event) in enumerate(read):
        if is_pending(record):
            outcome = "pending"
        else:
            by_kind = "quarantined" if event.kind == "quarantined" else event.kind
            outcome = folded.outcomes[position] or by_kind
        why = _why(outcome, row, entries.get(_at(record)) or event.problems)
        values = dict(zip(feed.columns, event.row or (), strict=False)) if not event.is_delete else {}
        yield Explained(
            feed.name,
            record["topic"],
            record["partition"],
            record["offset"],
            record["timestamp"],
            event.kind,
            event.op,
            None if event.source_ts is None else event.source_ts // 1000,
            positioned[position]["position"],
            outcome,
            why,
            {**_shown(values, feed.sensitive_columns)},
        )


def _schemas(tables: Tables) -> dict[int, RegisteredSchema] | None:
    """The schemas of the registry that silver has needed."""
    if not tables.exists("ops.schemas"):
        return None
    rows = tables.rows("SELECT s.id, s.kind, s.schema FROM {ops.schemas} AS s")
    return {row["id"]: RegisteredSchema(row["kind"], row["schema"]) for row in rows}


def _at(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["topic"], record["topic_id"], record["partition"], record["offset"]


def _entries(tables: Tables, feed: Feed, records: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[str]]:
    """The reasons of those that the quarantine keeps back, by their coordinates."""
    if not records or not tables.exists("quality.quarantine"):
        return {}
    offsets = ", ".join(str(record["offset"]) for record in records)
    rows = tables.rows(f"""
        SELECT q.topic, q.topic_id, q.partition, q.offset, q.reasons FROM {{quality.quarantine}} AS q
        WHERE q.feed = '{feed.name}' AND q.state IN ('open', 'discarded') AND q.offset IN ({offsets})
    """)
    return {_at(row): list(row["reasons"] or ()) for row in rows}


def _known(
    tables: Tables, feed: Feed
) -> tuple[PositionContexts, Mapping[str, Any], Callable[[Mapping[str, Any]], bool]]:
    """What positions depend on, and the cutoffs, as silver knows them now; and whether a record is pending for it."""
    rows = tables.rows(f"{OF_THIS_SILVER} AND source = '{feed.source}' AND (feed = '{feed.name}' OR feed IS NULL)")
    state = State().after(sorted((row for row in rows), key=lambda row: int(row["sequence"])))
    past = history(feed, [], state)
    taken = tables.rows(f"""
        SELECT topic, topic_id, partition, max(last_offset) AS last_offset FROM ({OF_THIS_SILVER}) AS audit
        WHERE source = '{feed.source}' AND last_offset IS NOT NULL GROUP BY topic, topic_id, partition
    """)
    read_to = {(row["topic"], row["topic_id"], row["partition"]): row["last_offset"] for row in taken}
    ranges = state.ranges(feed.name)

    def is_pending(record: Mapping[str, Any]) -> bool:
        topic_partition, offset = (record["topic"], record["topic_id"], record["partition"]), record["offset"]
        is_suspended = any(one.topic_partition == topic_partition and one.first <= offset <= one.last for one in ranges)
        return is_suspended or offset > read_to.get(topic_partition, -1)

    return past.position_contexts(), past.cutoff_by_shard(), is_pending


def _key_of(event: Event, feed: Feed) -> tuple[Any, ...]:
    values = dict(zip(feed.columns, event.row or (), strict=False))
    return tuple(values.get(key) for key in feed.keys)


def _positioned(
    read: Sequence[tuple[Mapping[str, Any], Event]], feed: Feed, position_contexts: PositionContexts
) -> Sequence[Mapping[str, Any]]:
    """The events as a fold takes them (silver.fold.operands.event_frame)."""
    millis = [round(record["timestamp"].timestamp() * 1000) for record, _event in read]
    frame = pl.DataFrame(
        {
            **{
                name: [record[name] for record, _event in read] for name in ("topic", "topic_id", "partition", "offset")
            },
            **{name: [getattr(event, name) for _record, event in read] for name in ("run_id", "read_ms")},
            "source": [None if event.source is None else event.source._asdict() for _record, event in read],
            # Within a partition the offset decides; a key is in one.
            "timestamp_ms": millis,
            "highest_timestamp_ms": millis,
        },
        schema=_POSITIONED,
    )
    located = read_log_columns(frame.select(pl.col("source").struct.unnest()), feed.kind)
    found = add_positions(add_coordinates(frame.hstack(located), feed), feed, position_contexts)
    rows = found.select("position", "is_replay", "run_from", is_streamed=pl.col("streamed") == 1).iter_rows(named=True)
    return [
        {
            **{name: record[name] for name in ("topic", "topic_id", "partition", "offset", "key")},
            **{name: getattr(event, name) for name in ("run_id", "kind", "op", "is_delete", "event_id", "old_key")},
            **row,
            "position": None if row["position"] is None else tuple(row["position"].values()),
            "key_text": None if record["key"] is None else bytes(record["key"]).decode("utf-8", errors="replace"),
            "row_key": None if None in (key := _key_of(event, feed)) else key,
            "missing": event.unchanged_toast if feed.payload == "full" else event.absent,
            "image": None,
            "timestamp_ms": at,
        }
        for (record, event), row, at in zip(read, rows, millis, strict=True)
    ]


_SOURCE: dict[str, Any] = {name: pl.Int64 if name in NUMBERS_OF_SOURCE else pl.String for name in Source._fields}
_POSITIONED: dict[str, Any] = {
    **dict.fromkeys(("topic", "topic_id"), pl.String),
    "partition": pl.Int32,
    "offset": pl.Int64,
    "run_id": pl.String,
    "read_ms": pl.Int64,
    "source": pl.Struct({**_SOURCE, "sequence": pl.List(pl.String)}),
    **dict.fromkeys(("timestamp_ms", "highest_timestamp_ms"), pl.Int64),
}


_WHY = {
    "pending": "Silver has not taken it yet, or its table is suspended.",
    "applied": "It is the last word on its key, or on a column.",
    "duplicate": "Another record states the same change: it was sent twice.",
    "tombstone": "It follows the delete of its key, or deletes it.",
}


def _why(outcome: str, row: Mapping[str, Any] | None, reasons: Sequence[str]) -> str:
    """What was decided of an event, as a sentence. `row`: what its key's row is."""
    if outcome == "quarantined":
        return " ".join(reasons) or "Its position is ahead of a later one of its key and run."
    if outcome == "superseded" and row is not None:
        of_cutoff = row["is_below_cutoff"]
        by = "a cutoff (truncate or completed snapshot)" if of_cutoff else f"offset {row['offset']}"
        return f"A later change of its key has taken its place: {by}."
    return _WHY.get(outcome, "It changes no row.")


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation in parts that JSON has."""
    text: dict[str, Any] = json.loads(
        json.dumps(vars(explanation), default=lambda one: getattr(one, "__dict__", str(one)))
    )
    return text
