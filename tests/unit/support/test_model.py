"""The model of a table's history: it tells what Debezium would, and says rightly what the table holds in the end."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from lakehouse.contracts.topics import SourceKind
from tests.support.events import mysql_image, postgres_image
from tests.support.model import batches
from tests.support.model.clocks import HOUR_MS
from tests.support.model.connector import PLACEHOLDER
from tests.support.model.history import EXTREMES, History, features_of
from tests.support.model.reader import Told, rows_of
from tests.support.model.stories import random_history

KINDS = cast(Sequence[SourceKind], ("postgresql", "mysql", "mariadb"))
SEEDS = range(10)
RECORDINGS = Path(__file__).parents[3] / "demo" / "data"
# With these, the last record of a key is its last word. PostgreSQL's large notes are left out of this.
LAST_OFFSET_DECIDES = (
    "compacted",
    "compressed",
    "first_snapshot",
    "interleaved",
    "key_change",
    "null_first",
    "open_transaction",
    "partial_snapshot",
    "partitions",
    "replay",
    "rotation",
    "several_rows",
    "torn_replay",
)
# What a reader of records alone cannot tell.
NOT_READABLE = frozenset({"blocking_opens_partition"})


def histories(kind: SourceKind, features: Sequence[str] | None) -> Iterator[History]:
    for seed in SEEDS:
        yield random_history(kind, Random(f"{kind} {features} {seed}"), topic="t", features=features)  # noqa: S311


def each_alone(*, extremes: bool = True) -> list[tuple[SourceKind, str]]:
    return [(kind, name) for kind in KINDS for name in sorted(features_of(kind, extremes=extremes))]


def expected(history: History) -> Mapping[int, Mapping[str, Any] | None]:
    image = postgres_image if history.kind == "postgresql" else mysql_image
    return {key: None if row is None else image(row) for key, row in history.rows.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_any_history_ends_with_its_rows(kind: SourceKind) -> None:
    for history in histories(kind, None):
        assert rows_of(history.records) == expected(history), history.features


@pytest.mark.parametrize(("kind", "feature"), [pair for pair in each_alone() if pair[1] not in NOT_READABLE])
def test_a_history_with_one_feature_ends_with_its_rows(kind: SourceKind, feature: str) -> None:
    for history in histories(kind, [feature]):
        assert rows_of(history.records) == expected(history)


@pytest.mark.parametrize(("kind", "feature"), [pair for pair in each_alone() if pair[1] in LAST_OFFSET_DECIDES])
def test_the_last_record_of_a_key_is_its_last_word(kind: SourceKind, feature: str) -> None:
    for history in histories(kind, [feature]):
        told = sorted(map(Told, history.records), key=lambda change: change.at)
        assert {change.key: change.after for change in told} == expected(history)


@pytest.mark.parametrize(("kind", "feature"), each_alone())
def test_what_was_asked_for_is_there(kind: SourceKind, feature: str) -> None:
    for history in histories(kind, [feature]):
        assert feature in history.features
        assert SIGNS[feature]([Told(record) for record in history.records])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_there_that_was_not_asked_for(kind: SourceKind) -> None:
    for history in histories(kind, []):
        told = [Told(record) for record in history.records]
        found = {name for name in features_of(kind, extremes=True) if name in ALONE and SIGNS[name](told)}
        assert not found | history.features
        assert not history.bad_offsets


@pytest.mark.parametrize("kind", KINDS)
def test_every_history_inserts_updates_and_deletes(kind: SourceKind) -> None:
    ops = Counter(Told(record).op for history in histories(kind, []) for record in history.records)
    assert set(ops) == {"c", "u", "d"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_tells_the_same(kind: SourceKind) -> None:
    assert list(histories(kind, None)) == list(histories(kind, None))


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_grow_and_only_compaction_leaves_gaps(kind: SourceKind) -> None:
    for history in histories(kind, None):
        for partition in {record["partition"] for record in history.records}:
            offsets = [record["offset"] for record in history.records if record["partition"] == partition]
            assert offsets == sorted(set(offsets))
            assert "compacted" in history.features or offsets == list(range(len(offsets)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_the_records_has_its_row_or_none(kind: SourceKind) -> None:
    for history in histories(kind, None):
        keys = {Told(record).key for record in history.records} - {None}
        assert set(history.rows) == keys


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_snapshot_stands_at_one_position_and_ends_with_a_marker(kind: SourceKind) -> None:
    for history in histories(kind, ["first_snapshot"]):
        rows = [told for told in map(Told, history.records) if told.op == "r"]
        markers = [row.source["snapshot"] for row in rows]
        assert len({row.coordinates for row in rows}) == 1
        assert markers[-1] in {"last", "last_in_data_collection"}
        assert len(rows) == 1 or markers[0] in {"first", "first_in_data_collection"}
        assert set(markers[1:-1]) <= {"true"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_key_is_two_events_with_one_source_block(kind: SourceKind) -> None:
    for history in histories(kind, ["key_change"]):
        told = [Told(record) for record in history.records]
        creates = [number for number, change in enumerate(told) if change.old_key is not None]
        for number in creates:
            delete, tombstone, create = told[number - 2 : number + 1]
            assert (delete.op, delete.key, delete.source) == ("d", create.old_key, create.source)
            assert (tombstone.value, tombstone.key) == (None, delete.key)
            assert delete.headers["__debezium.newkey"] == create.record["key"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_tells_what_was_told_in_the_same_order(kind: SourceKind) -> None:
    for history in histories(kind, ["replay"]):
        told = [same(Told(record)) for record in history.records if record["value"] is not None]
        again = [number for number, each in enumerate(told) if each in told[:number]]
        first = told.index(told[again[0]])
        assert told[again[0] : again[-1] + 1] == told[first : again[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_records_for_the_quarantine_are_named(kind: SourceKind) -> None:
    for history in histories(kind, ["quarantine", "replay", "partial_snapshot"]):
        assert {told.at for told in map(Told, history.records) if told.is_bad} == history.bad_offsets


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_record_is_followed_by_a_change_of_its_key_in_its_run(kind: SourceKind) -> None:
    for history in histories(kind, ["forged", "replay"]):
        told = {change.at: change for change in map(Told, history.records)}
        ((partition, offset),) = history.bad_offsets
        forged = told[partition, offset]
        assert max(forged.coordinates) == 9 * 10**18
        later = [change for change in told.values() if change.at > forged.at and change.key == forged.key]
        assert later[0].run == forged.run


def test_only_what_has_positions_of_one_epoch_can_be_shuffled() -> None:
    for feature in sorted(features_of("mysql", extremes=True)):
        history = random_history("mysql", Random(1), topic="t", features=[feature])  # noqa: S311
        assert history.shufflable == (feature not in {"epoch", "epoch_overlap", "compacted", "forged", "no_run_header"})


def test_mariadb_has_times_in_whole_seconds_and_gtids_of_its_own() -> None:
    for history in histories("mariadb", None):
        for told in map(Told, history.records):
            assert told.source.get("ts_us", 0) % 1_000_000 == 0
            assert (told.source.get("gtid") or "0-2-1").startswith("0-2-")


@pytest.mark.parametrize(("kind", "capture"), [("postgresql", "pg_default"), ("mysql", "mysql")])
def test_records_have_the_shape_of_recorded_ones(kind: SourceKind, capture: str) -> None:
    lines = gzip.decompress((RECORDINGS / f"{capture}.jsonl.gz").read_bytes()).decode().splitlines()
    recorded = [Told(record) for record in map(json.loads, lines) if record["value"] and '"op":' in record["value"]]
    orders = [told for told in recorded if told.source.get("table") == "orders"]
    for history in histories(kind, None):
        for told in map(Told, history.records):
            if "no_run_header" not in history.features:
                assert list(told.headers)[-4:] == list(orders[0].headers)[-4:]
            assert told.source.keys() <= orders[0].source.keys()
            assert (told.value or {}).keys() <= (orders[0].value or {}).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_hold_every_record_once_and_partitions_in_order(kind: SourceKind) -> None:
    for seed, history in enumerate(histories(kind, None)):
        cut = batches.in_offset_order(history.records, Random(seed), count=4)  # noqa: S311
        at = [Told(record).at for batch in cut for record in batch]
        assert sorted(at) == sorted(Told(record).at for record in history.records)
        for partition in {place[0] for place in at}:
            offsets = [place[1] for place in at if place[0] == partition]
            assert offsets == sorted(offsets)


def test_doubled_batches_hold_every_record_twice_and_the_first_time_where_it_was() -> None:
    history = random_history("mysql", Random(1), topic="t")  # noqa: S311
    cut = batches.in_any_order(history.records, Random(2), count=3)  # noqa: S311
    doubled = batches.doubled(cut, Random(3))  # noqa: S311
    assert [list(batch) for batch in cut] == [
        list(more[: len(batch)]) for batch, more in zip(cut, doubled, strict=True)
    ]
    assert set(Counter(Told(record).at for batch in doubled for record in batch).values()) == {2}


@pytest.mark.parametrize("kind", KINDS)
def test_every_worker_has_a_clock_of_its_own_that_never_goes_back(kind: SourceKind) -> None:
    goes_back = 0
    for history in histories(kind, ["replay", "full_snapshot"]):
        stamps: dict[str, list[int]] = {}
        for record in history.records:
            stamps.setdefault(Told(record).run, []).append(record["timestamp"])
        assert all(of_run == sorted(of_run) for of_run in stamps.values())
        began = [of_run[0] for of_run in stamps.values()]
        goes_back += began != sorted(began)
        assert max(began) - min(began) < 3 * HOUR_MS
    assert goes_back > 1


def test_where_no_partition_orders_two_runs_their_clocks_do() -> None:
    for seed in range(60):
        history = random_history("mysql", Random(seed), topic="t", features=["partitions", "replay"])  # noqa: S311
        first: dict[str, int] = {}
        partitions: dict[str, set[int]] = {}
        for told in map(Told, history.records):
            first[told.run] = min(told.record["timestamp"], first.get(told.run, told.record["timestamp"]))
            partitions.setdefault(told.run, set()).add(told.at[0])
        (earlier, later) = sorted(first)
        assert partitions[earlier] & partitions[later] or first[earlier] < first[later]


@pytest.mark.parametrize("kind", KINDS)
def test_a_producer_sends_every_record_again_at_a_later_offset(kind: SourceKind) -> None:
    """Also alone: a tombstone without its delete."""
    lone = 0
    for seed, history in enumerate(histories(kind, ["replay"])):
        again = batches.sent_again(history, Random(seed))  # noqa: S311
        for partition in {record["partition"] for record in again.records}:
            offsets = [record["offset"] for record in again.records if record["partition"] == partition]
            assert offsets == list(range(len(offsets)))
        sent, once = (Counter(map(without_offset, one.records)) for one in (again, history))
        assert sent == {record: 2 * times for record, times in once.items()}
        assert len(again.bad_offsets) == 2 * len(history.bad_offsets)
        lone += has_lone_tombstone([Told(record) for record in again.records])
    assert lone > 1


def without_offset(record: Mapping[str, Any]) -> str:
    return json.dumps({**record, "offset": None})


@pytest.mark.parametrize(
    ("kind", "features", "message"),
    [
        ("mysql", ["toast"], "not a feature of a mysql history: toast"),
        ("postgresql", ["compacted", "truncate"], "never together: compacted, truncate"),
    ],
)
def test_what_cannot_be_is_refused(kind: SourceKind, features: Sequence[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_history(kind, Random(1), topic="t", features=features)  # noqa: S311


# The signs by which each feature is known in the records.

Sign = Callable[[Sequence[Told]], bool]


def same(told: Told) -> str:
    """What is equal in a replay."""
    assert told.value is not None
    return json.dumps([told.key, *(told.value[name] for name in ("op", "before", "after", "source"))])


def streamed(told: Sequence[Told]) -> list[Told]:
    return [change for change in told if change.is_streamed]


def runs(told: Sequence[Told]) -> list[list[Told]]:
    """The changes of each run, in order."""
    names = list(dict.fromkeys(change.run for change in told))
    return [[change for change in told if change.run == name and change.value is not None] for name in names]


def opens_with_snapshot(run: Sequence[Told]) -> bool:
    return run[0].is_of_snapshot


def first_commits(run: Sequence[Told]) -> list[str | None]:
    return [json.loads(change.source["sequence"])[0] for change in streamed(run)]


def is_placeholder(told: Told) -> bool:
    return told.after is not None and told.after["note"] == PLACEHOLDER


def falls(told: Sequence[Told]) -> bool:
    """A run's first coordinates lie below those that the run before ended with."""
    return any(
        later[0].coordinates < max(change.coordinates for change in earlier)
        for earlier, later in zip(runs(told), runs(told)[1:], strict=False)
    )


def lsn_falls(told: Sequence[Told]) -> bool:
    lsns = [change.source["lsn"] for change in streamed(told)]
    return lsns != sorted(lsns)


def below_snapshot(told: Sequence[Told]) -> bool:
    """A change behind the snapshot, in whatever run, with an LSN below it."""
    snapshots = [number for number, change in enumerate(told) if change.is_of_snapshot]
    return any(
        change.source["lsn"] < told[number].source["lsn"] for number in snapshots for change in streamed(told[number:])
    )


def one_place(told: Sequence[Told]) -> Counter[tuple[int, ...]]:
    """How many changes stand at each position; `row` apart."""
    changes = [change for change in streamed(told) if change.old_key is None]
    of_postgres = [change.source["connector"] == "postgresql" for change in changes]
    return Counter(
        change.coordinates if is_postgres else change.coordinates[:2]
        for change, is_postgres in zip(changes, of_postgres, strict=True)
    )


def has_partial_snapshot(told: Sequence[Told]) -> bool:
    incremental = any(change.source.get("snapshot") == "incremental" for change in told)
    return incremental or any(
        change.is_of_snapshot and not opens_with_snapshot(run) for run in runs(told) for change in run
    )


def has_replay(told: Sequence[Told]) -> bool:
    changes = [same(change) for change in told if change.value is not None]
    return len(set(changes)) < len(changes)


def has_lone_tombstone(told: Sequence[Told]) -> bool:
    present = {change.at: change.op for change in told}
    return any(change.value is None and present.get((change.at[0], change.at[1] - 1)) != "d" for change in told)


def is_broken_off(run: Sequence[Told]) -> bool:
    ends = {"last", "last_in_data_collection"}
    return all(change.is_of_snapshot and change.source["snapshot"] not in ends for change in run)


def snapshot_opens_a_partition(told: Sequence[Told]) -> bool:
    for run in runs(told):
        first_of = {change.at[0]: change for change in reversed(run)}
        if not opens_with_snapshot(run) and any(change.is_of_snapshot for change in first_of.values()):
            return True
    return False


SIGNS: Mapping[str, Sign] = {
    "blocking_opens_partition": snapshot_opens_a_partition,
    "broken_snapshot": lambda told: any(is_broken_off(run) for run in runs(told)),
    "compacted": has_lone_tombstone,
    "compressed": lambda told: any(count > 3 for count in one_place(told).values()),
    "epoch": falls,
    "epoch_overlap": falls,
    "first_snapshot": lambda told: opens_with_snapshot(runs(told)[0]),
    "forged": lambda told: any(max(change.coordinates) == 9 * 10**18 for change in streamed(told)),
    "full_snapshot": lambda told: any(opens_with_snapshot(run) for run in runs(told)[1:]),
    "interleaved": lsn_falls,
    "key_change": lambda told: any(change.old_key is not None for change in told),
    "key_change_toast": lambda told: any(is_placeholder(change) and change.old_key is not None for change in told),
    "no_run_header": lambda told: (
        not any(name.startswith("__debezium.context") for one in told for name in one.headers)
    ),
    "null_first": lambda told: any(first_commits(run)[:1] == [None] for run in runs(told)),
    "open_transaction": below_snapshot,
    "open_transaction_next_run": below_snapshot,
    "partial_snapshot": has_partial_snapshot,
    "partitions": lambda told: len({change.at[0] for change in told}) > 1,
    "quarantine": lambda told: any(change.is_bad for change in told),
    "replay": has_replay,
    "rotation": lambda told: {999_999, 1_000_000} <= {change.coordinates[0] for change in streamed(told)},
    "several_rows": lambda told: any(count > 1 for count in one_place(told).values()),
    "toast": lambda told: any(is_placeholder(change) for change in told),
    "torn_replay": has_replay,
    "truncate": lambda told: any(change.op == "t" and change.record["key"] is None for change in told),
}
# Those that no other feature brings along.
ALONE = frozenset(SIGNS) - {"open_transaction_next_run", "epoch_overlap"}


def test_every_feature_has_a_sign() -> None:
    assert set(SIGNS) == {name for kind in KINDS for name in features_of(kind, extremes=True)} >= EXTREMES
