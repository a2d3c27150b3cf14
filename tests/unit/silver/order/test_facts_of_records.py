"""What the facts of a few records are, count by count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed
from silver.decode.reference.wrapper import OF_KEY
from silver.order.facts import facts, ignored_facts, key_hash, merge_facts
from silver.order.narrow_events import log_columns
from silver.order.positions import add_coordinates
from tests.support.feeds import feed

THINGS = feed(columns={"id": "BIGINT", "name": "STRING", "note": "STRING"})
_LISTS = ("unchanged_toast", "absent", "problems", "drift", "failed_rules")
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("topic", "topic_id", "run_id", "kind"), pl.String),
    **dict.fromkeys(("offset", "timestamp_ms", "read_ms", "key:id"), pl.Int64),
    **dict.fromkeys(("is_delete", "is_judged", "is_unread"), pl.Boolean),
    **dict.fromkeys(_LISTS, pl.List(pl.String)),
    "partition": pl.Int32,
    "key": pl.Binary,
    **{name: pl.String if kind == "STRING" else pl.Int64 for name, kind in log_columns("postgresql").items()},
}


def record(offset: int, kind: str = "change", /, **given: Any) -> dict[str, Any]:
    """A streamed change of PostgreSQL, in the columns of a judged record."""
    place = {"topic": "t", "topic_id": "id", "partition": 0, "offset": offset, "timestamp_ms": 1000 + offset}
    flags = {"is_delete": False, "is_judged": kind == "change", "is_unread": False}
    own: dict[str, Any] = {"key": b"k%d" % offset, "run_id": "run", "kind": kind, "key:id": offset, "lsn": 100}
    return {**dict.fromkeys(_KINDS), **{name: [] for name in _LISTS}, **place, **flags, **own, **given}


def found(*records: Mapping[str, Any], of: Feed = THINGS) -> list[dict[str, Any]]:
    """Their facts, by the offset of the first of each segment."""
    frame = pl.DataFrame([*records], schema={name: _KINDS[name] for name in records[0]})
    segments = facts(add_coordinates(frame, of), of, ["amount", "status"])
    return sorted(segments, key=lambda one: int(one["first_offset"]))


def test_the_records_of_a_run_are_counted_by_kind() -> None:
    (fact,) = found(
        record(1, lsn=105, last_commit=90, read_ms=50, unchanged_toast=["note"], failed_rules=["amount"]),
        record(2, lsn=103, last_commit=120, read_ms=40, is_delete=True, absent=["name"], **{"key:id": 70}),
        record(3, lsn=110, last_commit=120, read_ms=60, absent=["name", "note"], drift=["b", "a"], is_unread=True),
        record(4, "truncate", lsn=99, last_commit=120, key=None, drift=["b"], **{"key:id": None}),
        record(5, "tombstone", lsn=None, key=b"", **{"key:id": None}),
        record(6, "ignored", lsn=7, last_commit=3, read_ms=1, key=b"heartbeat", **{"key:id": None}),
        record(7, "quarantined", lsn=None, problems=["name: too long"], failed_rules=["status", "amount"]),
        record(8, "quarantined", lsn=50, last_commit=40, problems=[f"{OF_KEY}is a.", "name: …"], key=b"x", read_ms=45),
        record(9, "quarantined", lsn=None, problems=[f"{OF_KEY}is b."], key=b"last", timestamp_ms=3, is_delete=True),
        record(10, "quarantined", lsn=None, is_delete=True, key=None),
    )
    assert fact == {
        **{"feed": "things", "topic": "t", "topic_id": "id", "partition": 0, "run_id": "run", "snapshot_at": None},
        **{"first_offset": 1, "last_offset": 10, "read": 10, "changes": 3, "deletes": 1, "truncates": 1},
        **{"tombstones": 1, "ignored": 1, "quarantined": 4, "with_unchanged_toast": 1, "judged": 3, "unread": 1},
        **{"lowest": [50, 50], "highest": [120, 110], "has_end": False, "first_ms": 3, "highest_timestamp_ms": 1010},
        **{"read_from_ms": 1, "read_to_ms": 60, "source_names": [], "keyed": 6, "unread_keys": 2},
        **{"key_problem": f"{OF_KEY}is b.", "last_key": None, "last_is_delete": False},
        **{"failed_rules": {"amount": 2, "status": 1}, "absent_columns": {"name": 2, "note": 1}, "drift": ["a", "b"]},
        "key_ranges": {"id": {"lowest": 1, "highest": 70}},
    }


def test_rows_of_a_full_snapshot_are_a_segment_of_their_own() -> None:
    snapshot: dict[str, Any] = {"source_name": "shop", "lsn": 500, "is_delete": False}
    first, streamed, partial = found(
        record(1, snapshot="first", read_ms=9, **snapshot),
        record(2, snapshot="last", **{**snapshot, "source_name": "other"}),
        record(3, lsn=510, is_delete=True),
        record(4, snapshot="incremental", **{**snapshot, "lsn": 520, "run_id": "another"}),
    )
    assert (first["snapshot_at"], first["has_end"], first["source_names"]) == ([500, 500], True, ["other", "shop"])
    assert (first["lowest"], first["highest"], first["read_from_ms"]) == (None, None, 9)
    assert (first["read"], first["last_is_delete"]) == (2, False)
    assert (streamed["snapshot_at"], streamed["has_end"], streamed["source_names"]) == (None, False, [])
    assert (streamed["lowest"], streamed["highest"], streamed["last_is_delete"]) == ([510, 510], [510, 510], True)
    # A snapshot of some rows is none of the table: it is counted, and neither marked nor a streamed change.
    assert (partial["snapshot_at"], partial["lowest"], partial["has_end"], partial["read"]) == (None, None, False, 1)


def test_without_its_last_row_a_snapshot_has_no_end() -> None:
    (one,) = found(record(1, snapshot="true", source_name="shop", lsn=500))
    assert (one["has_end"], one["source_names"]) == (False, ["shop"])


def test_coordinates_compare_field_by_field() -> None:
    (one,) = found(
        record(1, last_commit=200, lsn=150), record(2, last_commit=200, lsn=190), record(3, last_commit=180, lsn=170)
    )
    assert (one["lowest"], one["highest"]) == ([180, 170], [200, 190])


def test_where_order_is_by_kafkas_offset_no_record_has_coordinates() -> None:
    by_offset = feed(columns=THINGS.columns, sequence_by="kafka_offset")
    (one,) = found(record(1, lsn=100, read_ms=5), record(2, snapshot="last", source_name="shop"), of=by_offset)
    assert (one["lowest"], one["highest"], one["snapshot_at"], one["has_end"]) == (None, None, None, False)
    assert (one["read_from_ms"], one["source_names"]) == (None, [])


def test_a_key_of_text_has_no_range_and_neither_has_one_that_no_record_has() -> None:
    texts = feed(keys=("name",), columns=THINGS.columns)
    (one,) = found({**record(1), "key:id": None}, of=THINGS)
    assert one["key_ranges"] == {}
    (one,) = found(record(1), of=texts)
    assert one["key_ranges"] == {}


def test_the_columns_of_the_key_are_never_absent_and_rules_that_nothing_fails_are_not_named() -> None:
    (one,) = found(record(1, absent=["id"], failed_rules=[]), record(2, failed_rules=["status"]))
    assert (one["absent_columns"], one["failed_rules"]) == ({}, {"status": 1})


def test_facts_of_two_parts_are_their_sums_and_ends() -> None:
    at_end: dict[str, Any] = {"snapshot": "last", "lsn": 500, "read_ms": 10}
    one, other = (
        found(record(offset, source_name=name, failed_rules=["amount"], absent=["name"], drift=[name], **at_end))[0]
        for offset, name in ((3, "b"), (8, "a"))
    )
    other = {**other, "has_end": False}
    only_one = {**one, "has_end": True, "key_problem": "x", "key_ranges": {}, "read_to_ms": None, "first_ms": None}
    for parts in ([only_one, other], [other, only_one]):
        (merged,) = merge_facts(parts)
        assert (merged["read"], merged["changes"], merged["judged"]) == (2, 2, 2)
        assert (merged["first_offset"], merged["last_offset"], merged["last_key"]) == (3, 8, other["last_key"])
        assert (merged["source_names"], merged["drift"], merged["has_end"]) == (["a", "b"], ["a", "b"], True)
        assert (merged["failed_rules"], merged["absent_columns"]) == ({"amount": 2}, {"name": 2})
        assert (merged["read_to_ms"], merged["first_ms"], merged["key_problem"]) == (10, 1008, "x")
        assert merged["key_ranges"] == {"id": {"lowest": 8, "highest": 8}}
    (merged,) = merge_facts([{**one, "has_end": False}, {**other, "failed_rules": {"status": 4}}])
    assert (merged["has_end"], merged["failed_rules"]) == (False, {"amount": 1, "status": 4})
    assert merged["key_ranges"] == {"id": {"lowest": 3, "highest": 8}}
    assert len(merge_facts([one, {**other, "snapshot_at": None}, {**other, "run_id": "another"}])) == 3


def test_records_of_no_feed_are_read_and_ignored() -> None:
    one = ignored_facts(("heartbeats", "id", 2), first=4, last=9, records=5, first_ms=7)
    assert {name: value for name, value in one.items() if value} == {
        **{"topic": "heartbeats", "topic_id": "id", "partition": 2, "first_offset": 4, "last_offset": 9},
        **{"read": 5, "ignored": 5, "first_ms": 7},
    }
    assert (one["feed"], one["run_id"], one["has_end"], one["snapshot_at"]) == (None, "", False, None)


def test_the_number_of_a_key_is_its_hash() -> None:
    """It is in `ops.batches`: another one would be another key."""
    assert key_hash(None) is None
    assert key_hash(b'{"order_id":1}') == -4_696_164_238_293_626_542
    assert key_hash(b"") != key_hash(b"1")
