"""The history of rows is a function of the set of events: whatever the batches are, it is what all events lead to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.contracts.models import Feed
from silver.decode.arrow import row_of
from silver.decode.reference.message import Record
from silver.fold.rows import Plan
from silver.order.narrow_events import narrow_batches
from silver.order.runs import Cutoff
from silver.row_history.versions import versions_of_all, versions_of_batch
from tests.support.decoding import batch_of
from tests.support.feeds import feed

TOPIC = "shop.things"
COLUMNS = {"id": "BIGINT", "name": "STRING", "note": "STRING", "rank": "BIGINT"}
HISTORY = {"scd_type": 2, "columns": COLUMNS}
MYSQL = feed(kind="mysql", **HISTORY)
POSTGRES = feed(**HISTORY)
BY_NAME = feed(kind="mysql", track_history_columns=("name",), **HISTORY)
BUT_RANK = feed(kind="mysql", track_history_except=("rank", "note"), **HISTORY)
UNAVAILABLE = "__debezium_unavailable_value"


def change(at: int, key: int, row: Mapping[str, Any] | None, *, kind: str = "mysql", snapshot: bool = False) -> Record:
    """A change at this place of the log and this second; None: a delete."""
    stated = {"id": key, "name": None, "note": None, "rank": None}
    log: dict[str, Any] = {"connector": kind, "snapshot": "true" if snapshot else "false", "ts_ms": at * 1000}
    if kind == "mysql":
        log |= {"file": "mysql-bin.000003", "pos": at, "row": 0}
    else:
        log |= {"lsn": at, "sequence": json.dumps([str(at), str(at)])}
    op = "d" if row is None else "r" if snapshot else "u" if UNAVAILABLE in row.values() else "c"
    before = {**stated} if row is None else None
    value = {"before": before, "after": None if row is None else {**stated, **row}, "source": log, "op": op, "ts_ms": 1}
    return Record(TOPIC, json.dumps({"id": key}).encode(), json.dumps(value).encode())


def cutoff(at: int, *, reason: str = "truncate") -> Cutoff:
    """Of MySQL: just below this place of the log."""
    position = {"epoch": 0, "binlog_file": 3, "binlog_pos": at, "binlog_row": 0}
    position |= {"streamed": int(reason == "truncate"), "kafka_offset": -1}
    return Cutoff(reason, json.dumps(position), None, TOPIC, 0, 77, at * 1000)


@dataclass
class History:
    """A history table that is told batches, and derives again what a batch cannot decide."""

    feed: Feed
    cutoffs: Sequence[Cutoff] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    read: list[pa.Table] = field(default_factory=list)
    rederived: int = 0
    written: int = 0

    def tell(self, records: Sequence[Record], offset: int) -> None:
        events = self._events(records, offset)
        self.read.append(events)
        keys = set(_keys(events))
        current = [row for row in self.rows if row["_is_current"] and row["id"] in keys]
        known = pa.Table.from_pylist(current, schema=self._schema()) if current else None
        found = versions_of_batch(events, known, self._plan)
        self._put(found.rows)
        undecided = {key for key, is_one in zip(_keys(events), found.is_undecided.to_pylist(), strict=True) if is_one}
        if undecided:
            self.rederived += len(undecided)
            everything = pa.concat_tables(self.read)
            of_keys = everything.filter(pa.array([key in undecided for key in _keys(everything)]))
            self.rows = [row for row in self.rows if row["id"] not in undecided]
            self._put(versions_of_all(of_keys, self._plan).rows)

    def whole(self) -> list[dict[str, Any]]:
        """What all events lead to."""
        return list(_comparable(versions_of_all(pa.concat_tables(self.read), self._plan).rows.to_pylist()))

    def comparable(self) -> list[dict[str, Any]]:
        return list(_comparable(self.rows))

    def spans(self, *columns: str) -> list[tuple[Any, ...]]:
        """Of each version: key, seconds from and to, whether it is deleted, and these columns."""
        rows = sorted(self.rows, key=lambda row: (row["id"], _position(row["_from_position"])))
        return [
            (
                *(row["id"], _second(row["_valid_from"]), _second(row["_valid_to"]), row["_is_deleted"]),
                *(row[column] for column in columns),
            )
            for row in rows
        ]

    @property
    def _plan(self) -> Plan:
        place = {"topic": TOPIC, "topic_id": "", "partition": 0, "epochs": [], "snapshots": [], "runs": []}
        contexts = [{**place, "highest_timestamp_ms": None}]
        return Plan(self.feed, contexts, {}, every_cutoff=[("", one) for one in self.cutoffs])

    def _events(self, records: Sequence[Record], offset: int) -> pa.Table:
        events = pa.Table.from_batches(narrow_batches([batch_of(records, offset=offset)], feeds=[self.feed]))
        names = ["row" if name == row_of(self.feed.name) else name for name in events.column_names]
        return events.rename_columns(names)

    def _schema(self) -> pa.Schema:
        return versions_of_all(self.read[-1].slice(0, 0), self._plan).rows.schema

    def _put(self, rows: pa.Table) -> None:
        """As the MERGE does: by key and where a version begins."""
        self.written += rows.num_rows
        new = {(row["id"], _position(row["_from_position"])): row for row in rows.to_pylist()}
        old = {(row["id"], _position(row["_from_position"])): row for row in self.rows}
        self.rows = [*{**old, **new}.values()]


def _keys(events: pa.Table) -> list[int]:
    return [row["id"] for row in events.column("row").to_pylist()]


def _position(position: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(position.values())


def _second(time: Any) -> int | None:
    return None if time is None else round(time.timestamp())


def _comparable(rows: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Without which of several copies of a change a row is of."""
    for row in sorted(rows, key=lambda row: (row["id"], _position(row["_from_position"]))):
        kept = {name: value for name, value in row.items() if name not in {"_topic", "_partition", "_offset"}}
        positions = {name: value for name, value in kept.items() if name.endswith("_position") and value is not None}
        yield kept | {name: _position(value)[:-1] for name, value in positions.items()}


def test_a_version_ends_where_the_next_one_begins() -> None:
    history = History(MYSQL)
    history.tell([change(10, 1, {"name": "a"}), change(20, 1, {"name": "b"}), change(15, 2, {"name": "x"})], 0)
    assert history.spans("name") == [(1, 10, 20, False, "a"), (1, 20, None, False, "b"), (2, 15, None, False, "x")]
    history.tell([change(30, 1, None)], 3)
    history.tell([change(40, 1, {"name": "c"})], 4)
    of_first = [span for span in history.spans("name") if span[0] == 1]
    assert of_first[1:] == [(1, 20, 30, False, "b"), (1, 30, 40, True, None), (1, 40, None, False, "c")]
    assert history.rederived == 0
    assert [row["_op"] for row in history.rows if row["id"] == 1] == ["c", "c", "d", "c"]


def test_a_batch_reads_and_writes_the_last_version_alone() -> None:
    history = History(MYSQL)
    for second in range(1, 50):
        history.tell([change(second, 1, {"name": str(second)})], second)
    assert (history.written, len(history.rows)) == (1 + 48 * 2, 49)


def test_a_late_change_splits_the_version_that_it_falls_into() -> None:
    history = History(MYSQL)
    history.tell([change(10, 1, {"name": "a"}), change(30, 1, {"name": "c"})], 0)
    history.tell([change(20, 1, {"name": "b"})], 2)
    assert history.spans("name") == [(1, 10, 20, False, "a"), (1, 20, 30, False, "b"), (1, 30, None, False, "c")]
    assert history.rederived == 1


def test_what_states_nothing_new_begins_no_version_until_something_comes_between() -> None:
    history = History(MYSQL)
    history.tell([change(10, 1, {"name": "a"})], 0)
    history.tell([change(30, 1, {"name": "a"}, snapshot=True)], 1)
    assert history.spans("name") == [(1, 10, None, False, "a")]
    history.tell([change(20, 1, {"name": "b"})], 2)
    assert history.spans("name") == [(1, 10, 20, False, "a"), (1, 20, 30, False, "b"), (1, 30, None, False, "a")]


def test_a_repeated_batch_changes_nothing() -> None:
    history = History(MYSQL)
    batch = [change(10, 1, {"name": "a"}), change(20, 1, {"name": "b"}), change(30, 2, None)]
    history.tell(batch, 0)
    before = history.comparable()
    history.tell(batch, 0)
    history.tell(batch, 3)
    assert history.comparable() == before == history.whole()


@pytest.mark.parametrize(("tracked", "last"), [(BY_NAME, "name"), (BUT_RANK, "name")])
def test_other_columns_are_what_they_were_last_in_a_version(tracked: Feed, last: str) -> None:
    history = History(tracked)
    history.tell([change(10, 1, {last: "a", "rank": 1, "note": "x"})], 0)
    history.tell([change(20, 1, {last: "a", "rank": 2, "note": "y"})], 1)
    assert history.spans(last, "rank", "note") == [(1, 10, None, False, "a", 2, "y")]
    history.tell([change(30, 1, {last: "b", "rank": 3, "note": "z"})], 2)
    assert history.spans(last, "rank") == [(1, 10, 30, False, "a", 2), (1, 30, None, False, "b", 3)]
    history.tell([change(25, 1, {last: "c", "rank": 9})], 3)
    assert history.comparable() == history.whole()


def test_a_cutoff_deletes_what_does_not_live_through_it() -> None:
    history = History(MYSQL, cutoffs=[cutoff(20), cutoff(40, reason="snapshot"), cutoff(60)])
    history.tell([change(10, 1, {"name": "a"})], 0)
    assert history.spans("name") == [(1, 10, 20, False, "a"), (1, 20, None, True, None)]
    history.tell([change(30, 1, {"name": "b"}), change(30, 2, {"name": "x"})], 1)
    assert history.spans("name")[-2:] == [(2, 30, 40, False, "x"), (2, 40, None, True, None)]
    history.tell([change(40, 1, {"name": "b"}, snapshot=True)], 3)
    # Its row is in the snapshot, so it was there all the time.
    of_first = [span for span in history.spans("name") if span[0] == 1]
    assert of_first[2:] == [(1, 30, 60, False, "b"), (1, 60, None, True, None)]
    assert [row["_op"] for row in history.rows if row["id"] == 2] == ["c", "r"]
    assert history.comparable() == history.whole()


def test_a_large_value_that_is_not_sent_is_that_of_the_version_before() -> None:
    history = History(POSTGRES)
    history.tell([change(10, 1, {"name": "a", "note": "long"}, kind="postgresql")], 0)
    history.tell([change(20, 1, {"name": "b", "note": UNAVAILABLE}, kind="postgresql")], 1)
    history.tell([change(15, 2, {"name": "x", "note": UNAVAILABLE}, kind="postgresql")], 2)
    history.tell([change(25, 2, {"name": "y", "note": UNAVAILABLE}, kind="postgresql")], 3)
    assert history.spans("name", "note", "_unresolved_columns") == [
        (1, 10, 20, False, "a", "long", None),
        (1, 20, None, False, "b", "long", None),
        (2, 15, 25, False, "x", None, ["note"]),
        (2, 25, None, False, "y", None, ["note"]),
    ]
    history.tell([change(12, 2, {"name": "w", "note": "late"}, kind="postgresql")], 4)
    assert history.spans("note", "_unresolved_columns")[2:] == [
        (2, 12, 15, False, "late", None),
        (2, 15, 25, False, "late", None),
        (2, 25, None, False, "late", None),
    ]


def test_the_time_of_a_version_does_not_go_back_where_the_clock_of_the_source_does() -> None:
    history = History(MYSQL)
    records = [change(10, 1, {"name": "a"}), change(20, 1, {"name": "b"})]
    value = json.loads(records[1].value or b"")
    value["source"]["ts_ms"] = 5_000
    history.tell([records[0], records[1]._replace(value=json.dumps(value).encode())], 0)
    assert history.spans("name") == [(1, 10, 10, False, "a"), (1, 10, None, False, "b")]


@pytest.mark.parametrize("chosen", [MYSQL, POSTGRES, BY_NAME], ids=["mysql", "postgres", "tracked"])
@pytest.mark.parametrize("seed", range(25))
def test_it_is_the_same_for_any_batches_and_any_order(chosen: Feed, seed: int) -> None:
    random = Random(seed)  # noqa: S311
    kind = chosen.kind
    cutoffs = [cutoff(random.randrange(100)) for _one in range(random.randrange(3))] if kind == "mysql" else []
    records = []
    for at in random.sample(range(100), random.randrange(2, 25)):
        note = UNAVAILABLE if kind == "postgresql" and random.random() < 0.4 else random.choice("xyz")
        row = {"name": random.choice("ab"), "note": note, "rank": random.randrange(3)}
        records.append(change(at, random.randrange(3), row if random.random() < 0.8 else None, kind=kind))
    records += random.sample(records, random.randrange(len(records)))
    random.shuffle(records)
    history = History(chosen, cutoffs=cutoffs)
    offset = 0
    while offset < len(records):
        size = random.randrange(1, 8)
        history.tell(records[offset : offset + size], offset)
        offset += size
    assert history.comparable() == history.whole()
    assert history.spans("name", *(["note", "rank"] if chosen is not BY_NAME else [])) == _expected(
        records,
        [json.loads(one.position)["binlog_pos"] for one in cutoffs],
        tracked=("name",) if chosen is BY_NAME else (),
    )


def _expected(records: Sequence[Record], cutoffs: Sequence[int], *, tracked: Sequence[str]) -> list[tuple[Any, ...]]:
    """The same by the definition, a key after the other: what it was at each second, and where that changes."""
    columns = tracked or ("name", "note", "rank")
    stated: dict[int, dict[int, Mapping[str, Any] | None]] = {}
    for record in records:
        value = json.loads(record.value or b"")
        place = value["source"].get("pos", value["source"].get("lsn"))
        stated.setdefault(json.loads(record.key or b"")["id"], {})[place] = value["after"]
    found: list[tuple[Any, ...]] = []
    for key in sorted(stated):
        spans: list[list[Any]] = []
        row: dict[str, Any] | None = None
        is_known = False
        for second in range(101):
            if second in stated[key]:
                after = stated[key][second]
                before = row or {}
                row = (
                    None
                    if after is None
                    else {name: before.get(name) if after[name] == UNAVAILABLE else after[name] for name in COLUMNS}
                )
                is_known = True
            elif second in cutoffs and row is not None:
                row = None
            elif not is_known:
                continue
            now = [row is None, *(None if row is None else row[name] for name in columns)]
            if not spans or spans[-1][2:] != [*now]:
                if spans:
                    spans[-1][1] = second
                spans.append([second, None, *now])
        found += [(key, *span) for span in spans]
    return found
