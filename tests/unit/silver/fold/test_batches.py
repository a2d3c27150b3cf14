"""Batches of judged records, one after the other: what each makes of the rows that the one before it has left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lakehouse.contracts.models import Feed
from silver.batch.position import _position_batches
from silver.decode.arrow import row_of
from silver.decode.reference.message import Record
from silver.fold.rows import FoldedTable, Plan, fold_batch, position_contexts_after, positioned_table
from silver.order.facts import key_hash
from silver.order.narrow_events import narrow_batches
from silver.order.runs import Cutoff
from tests.support.decoding import batch_of
from tests.support.events import EPOCH
from tests.support.feeds import feed

TOPIC = "shop.things"
PLACE = (TOPIC, "", 0)
PARTIAL = feed(
    envelope="outbox",
    sequence_by="kafka_offset",
    payload="partial",
    columns={"id": "BIGINT", "note": "STRING", "amount": "BIGINT"},
)
BY_OFFSET = feed(sequence_by="kafka_offset", columns={"id": "BIGINT", "name": "STRING"})
THINGS = feed(kind="mysql", columns={"id": "BIGINT", "name": "STRING", "tags": "ARRAY<STRING>", "rate": "DOUBLE"})


@dataclass
class Silver:
    """A table that is told batches. `highest`: the highest Kafka timestamp so far, in milliseconds."""

    feed: Feed
    plan: Plan = field(init=False)
    rows: pa.Table | None = None
    highest: int | None = None

    def __post_init__(self) -> None:
        self.plan = Plan(self.feed, (), {})

    def tell(self, offset: int, *records: Record, at_ms: int = 0) -> FoldedTable:
        """Records from this offset on, at this time."""
        place = {"topic": TOPIC, "topic_id": "", "partition": 0, "epochs": [], "snapshots": [], "runs": []}
        plan = replace(self.plan, position_contexts=[{**place, "highest_timestamp_ms": self.highest}])
        batch = batch_of(records, offset=offset)
        times = pa.array([EPOCH + timedelta(milliseconds=at_ms)] * len(records), batch.schema.field("timestamp").type)
        batch = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)
        events = pa.Table.from_batches(narrow_batches([batch], feeds=[self.feed]))
        names = ["row" if name == row_of(self.feed.name) else name for name in events.column_names]
        found = fold_batch(events.rename_columns(names), self.rows, plan)
        if found.rows.num_rows:
            keys = set(found.rows.column("id").to_pylist())
            kept = [] if self.rows is None else [row for row in self.rows.to_pylist() if row["id"] not in keys]
            self.rows = pa.concat_tables([pa.Table.from_pylist(kept, schema=found.rows.schema), found.rows])
        self.highest = max(at_ms + round(EPOCH.timestamp() * 1000), self.highest or 0)
        return found

    def live(self, *columns: str) -> list[tuple[Any, ...]]:
        rows = [] if self.rows is None else self.rows.to_pylist()
        return [tuple(row[name] for name in columns) for row in rows if not row["_is_deleted"]]


def event(event_id: str, **payload: Any) -> Record:
    """Of an outbox, with its payload as the value."""
    return Record(TOPIC, b'{"id":1}', json.dumps(payload).encode(), [("id", event_id.encode())])


def flat(key: int, row: Mapping[str, Any] | None) -> Record:
    """A row without an envelope; None: a tombstone."""
    value = None if row is None else json.dumps({"id": key, **row}).encode()
    return Record(TOPIC, json.dumps({"id": key}).encode(), value)


def change(pos: int, key: int, **row: Any) -> Record:
    """A streamed insert at this position of the binlog."""
    source = {"connector": "mysql", "file": "mysql-bin.000003", "pos": pos, "row": 0, "snapshot": "false"}
    value = {"before": None, "after": {"id": key, **row}, "source": source, "op": "c", "ts_ms": 1}
    return Record(TOPIC, json.dumps({"id": key}).encode(), json.dumps(value).encode())


def test_columns_of_partial_payloads_are_kept_over_batches_whatever_the_clock_says() -> None:
    silver = Silver(PARTIAL)
    silver.tell(0, event("a", id=1, note="first", amount=1), at_ms=9_000)
    found = silver.tell(1, event("b", id=1, amount=2), at_ms=5_000)
    assert found.outcomes.to_pylist() == ["applied"]
    assert silver.live("id", "note", "amount") == [(1, "first", 2)]
    assert silver.rows is not None
    (row,) = silver.rows.to_pylist()
    # The partition has come as far as the first event, so the second is not before it.
    assert row["_position"]["timestamp_ms"] == round(EPOCH.timestamp() * 1000) + 9_000
    assert row["_position"]["kafka_offset"] == 1


def test_an_event_that_comes_twice_in_a_batch_counts_once() -> None:
    silver = Silver(PARTIAL)
    found = silver.tell(0, event("a", id=1, amount=1), event("b", id=1, amount=2), event("a", id=1, amount=1))
    assert found.outcomes.to_pylist() == ["superseded", "applied", "duplicate"]


def test_a_tombstone_by_offset_deletes_unless_the_record_before_the_batch_deletes_its_key() -> None:
    silver = Silver(BY_OFFSET)
    silver.tell(0, flat(1, {"name": "a"}), flat(2, {"name": "b"}))
    silver.plan = replace(silver.plan, deleted_last={PLACE: key_hash(b'{"id": 2}') or 0})
    found = silver.tell(2, flat(2, None), flat(1, None))
    assert found.outcomes.to_pylist() == ["tombstone", "applied"]
    assert silver.live("id") == [(2,)]


def test_what_repeats_a_row_changes_nothing_whatever_the_types_of_its_columns() -> None:
    silver = Silver(THINGS)
    first = change(100, 1, name="a", tags=["x", None], rate=0.5)
    silver.tell(0, first, change(110, 2, name=None, tags=None, rate=None))
    found = silver.tell(5, first, change(110, 2, name=None, tags=None, rate=None))
    assert (found.rows.num_rows, found.outcomes.to_pylist()) == (0, ["duplicate", "duplicate"])
    for other in ({"name": "b"}, {"tags": ["x"]}, {"rate": None}):
        found = silver.tell(9, change(100, 1, **{"name": "a", "tags": ["x", None], "rate": 0.5, **other}))
        assert found.outcomes.to_pylist() == ["applied"], other
        silver.tell(9, first)


def test_a_record_that_was_found_damaged_stays_out() -> None:
    silver = Silver(THINGS)
    silver.plan = replace(silver.plan, damaged={(TOPIC, "", 0, 1)})
    found = silver.tell(0, change(100, 1, name="a", tags=[], rate=1.0), change(999, 1, name="b", tags=[], rate=1.0))
    assert found.outcomes.to_pylist() == ["applied", "quarantined"]
    assert silver.live("name") == [("a",)]


def test_below_what_was_purged_a_key_that_the_table_does_not_have_stays_unknown() -> None:
    silver = Silver(THINGS)
    position = {"epoch": 0, "binlog_file": 3, "binlog_pos": 200, "binlog_row": 0, "streamed": 0, "kafka_offset": -1}
    silver.plan = replace(silver.plan, purged_below=Cutoff("collected", json.dumps(position), None, "", -1, -1))
    found = silver.tell(0, change(100, 1, name="a", tags=[], rate=1.0), change(300, 2, name="b", tags=[], rate=1.0))
    assert found.outcomes.to_pylist() == ["superseded", "applied"]
    assert silver.live("id") == [(2,)]


def test_a_batch_without_a_change_leaves_the_table_as_it_is() -> None:
    silver = Silver(THINGS)
    found = silver.tell(0, Record(TOPIC, b'{"id": 1}', None))
    assert (found.rows.num_rows, found.outcomes.to_pylist()) == (0, ["tombstone"])
    names: Sequence[str] = found.rows.column_names
    assert "_position" in names


def test_a_table_has_its_positions_as_columns_of_their_own() -> None:
    """By the highest timestamp up to a record; also of one that is read again, of which bronze knows that."""
    place = {"topic": TOPIC, "topic_id": "", "partition": 0, "epochs": [], "snapshots": [], "runs": []}
    known = [{**place, "highest_timestamp_ms": 7_000 + round(EPOCH.timestamp() * 1000)}]
    batch = batch_of([flat(1, {"name": "a"}), flat(1, None)], offset=4)
    records = pa.Table.from_batches(narrow_batches([batch], feeds=[BY_OFFSET]))
    found = positioned_table(records, BY_OFFSET, known)
    assert found.column_names == [*records.column_names, "position", "is_streamed", "is_replay", "run_from"]
    at = round(EPOCH.timestamp() * 1000)
    positions = [tuple(one.values()) for one in found.column("position").to_pylist()]
    assert positions == [(at + 7_000, TOPIC, 0, 4), (at + 7_000, TOPIC, 0, 5)]
    of_bronze = records.append_column("highest_timestamp_ms", pa.array([at + 1, at + 2], pa.int64()))
    again = positioned_table(of_bronze, BY_OFFSET, known).column("position").to_pylist()
    assert [one["timestamp_ms"] for one in again] == [at + 1, at + 2]


def test_positions_of_batches_in_order_are_those_of_all_records_together() -> None:
    place = {"topic": TOPIC, "topic_id": "", "partition": 0, "epochs": [], "snapshots": [], "runs": []}
    at = round(EPOCH.timestamp() * 1000)
    known = [{**place, "highest_timestamp_ms": None}, {**place, "partition": 1, "highest_timestamp_ms": 5}]
    batch = batch_of([flat(number, {"name": "a"}) for number in range(4)], offset=4)
    records = pa.Table.from_batches(narrow_batches([batch], feeds=[BY_OFFSET]))
    times = [datetime.fromtimestamp(seconds, UTC) for seconds in (70, 90, 80, 60)]
    column = records.schema.get_field_index("timestamp")
    records = records.set_column(column, "timestamp", pa.array(times, records.schema.field(column).type))
    whole = positioned_table(records, BY_OFFSET, known).column("position").to_pylist()
    assert [one["timestamp_ms"] - at for one in whole] == [70_000, 90_000, 90_000, 90_000]
    parts = [*records.slice(0, 2).combine_chunks().to_batches(), *records.slice(2, 2).combine_chunks().to_batches()]
    in_order = [pa.Table.from_batches([part]) for part in _position_batches(parts, BY_OFFSET, known)]
    assert pa.concat_tables(in_order).column("position").to_pylist() == whole
    assert [one["highest_timestamp_ms"] for one in position_contexts_after(records, known)] == [at + 90_000, 5]
