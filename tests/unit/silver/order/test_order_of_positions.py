"""Positions: what comes later in the source's history compares higher. The lists here are in the order of history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.decode.reference.message import Source
from silver.decode.reference.table import sequence_of
from silver.order.positions import COORDINATES, add_coordinates, add_positions
from tests.support.positions import KnownRuns, known_of, located, repeats, source_position

COLUMNS = {
    **dict.fromkeys(("label", "topic", "topic_id", "run_id"), pl.String),
    "partition": pl.Int32,
    **dict.fromkeys(("offset", "timestamp_ms", "read_ms"), pl.Int64),
}
Change = Mapping[str, Any]


def positioned(
    contracts: Contracts,
    feed: str,
    history: Sequence[Change],
    *,
    position_contexts: Sequence[Change] = (),
    kind: SourceKind | None = None,
) -> pl.DataFrame:
    """The changes with their positions; in some other order than history's."""
    declared = contracts.feeds[feed]
    if kind is not None:
        declared = declared.model_copy(update={"kind": kind})
    defaults = {"topic": "t", "topic_id": "", "partition": 0, "offset": 0, "timestamp_ms": 0, "run_id": "run"}
    defaults |= {"read_ms": None}
    rows = [{**defaults, "label": str(number), **change} for number, change in enumerate(history)]
    for row in rows:
        if source := row.get("source"):
            row["source"] = {**source, "sequence": sequence_of(source.get("sequence"))}
    records = pl.DataFrame([{name: row[name] for name in COLUMNS} for row in rows], schema=COLUMNS)
    changes = records.hstack(located([row.get("source") for row in rows], declared.kind))
    changes = pl.concat([changes.gather_every(2, 1), changes.gather_every(2).reverse()])
    if declared.sequence_by == "kafka_offset":
        changes = changes.sort("topic", "topic_id", "partition", "offset")
    none: dict[str, Any] = {"topic": "t", "topic_id": "", "partition": 0, "epochs": [], "snapshots": [], "runs": []}
    of_places = [_place({**none, "highest_timestamp_ms": None, **one}) for one in position_contexts]
    found = add_positions(add_coordinates(changes, declared), declared, of_places)
    if declared.sequence_by == "source_position":
        held_to_the_definition(found, declared, rows, known_of(of_places[0]) if of_places else KnownRuns())
    return found


def _place(topic_partition: Change) -> Change:
    """What is known of a topic-partition; what a case does not say is not known."""
    runs = [{"epoch": None, "repeats_to": None, **one} for one in topic_partition["runs"]]
    snapshots = [{"read_from_ms": None, "epoch": None, **one} for one in topic_partition["snapshots"]]
    return {**topic_partition, "runs": runs, "snapshots": snapshots}


def held_to_the_definition(found: pl.DataFrame, feed: Feed, rows: Sequence[Change], of_place: KnownRuns) -> None:
    """The positions, and which records repeat others, are those of the oracle."""
    by_label = {row["label"]: (row["position"], row["is_replay"]) for row in found.iter_rows(named=True)}
    assert len(by_label) == len(rows)
    for row in rows:
        source, run = Source(**row["source"]) if row.get("source") else None, row["run_id"]
        own = source_position(
            source, feed.kind, run_id=run, read_ms=row["read_ms"], offset=row["offset"], known=of_place
        )
        position, is_replay = by_label[row["label"]]
        assert (None if position is None else tuple(position.values())) == own
        assert is_replay == repeats(source, feed.kind, run_id=run, known=of_place)


def order(changes: pl.DataFrame) -> list[str]:
    """The labels by position, from the lowest; no two positions are equal."""
    labels = {tuple(row["position"].values()): row["label"] for row in changes.iter_rows(named=True)}
    assert len(labels) == len(changes), "positions are total"
    return [labels[position] for position in sorted(labels)]


def postgres(
    lsn: int, *, commit: int | None, offset: int, snapshot: str = "false", run: str = "run", read_ms: int | None = None
) -> Change:
    sequence = json.dumps([None if commit is None else str(commit), str(lsn)])
    source = {"lsn": lsn, "sequence": sequence, "snapshot": snapshot}
    return {"offset": offset, "run_id": run, "source": source, "read_ms": read_ms}


def mysql(number: int, pos: int, *, offset: int, row: int | None = 0, snapshot: str = "false") -> Change:
    source = {"file": f"mysql-bin.{number:06}", "pos": pos, "row": row, "snapshot": snapshot}
    return {"offset": offset, "source": source}


def test_postgres_goes_by_commit_then_lsn_and_streamed_changes_stand_behind_their_snapshot(
    contracts: Contracts,
) -> None:
    history = [
        postgres(900, commit=890, offset=40, run="a run without a snapshot"),
        postgres(950, commit=None, offset=5),  # before its run's snapshot: no S
        postgres(1000, commit=None, offset=10, snapshot="first"),
        postgres(1000, commit=None, offset=11, snapshot="last"),
        postgres(930, commit=None, offset=41, run="the run after"),  # open then, told after the connector's restart
        postgres(940, commit=None, offset=12),  # open while the slot was created
        postgres(960, commit=950, offset=13),
        postgres(1000, commit=None, offset=14),  # at the snapshot's position
        postgres(1010, commit=None, offset=15),
        postgres(1100, commit=1100, offset=16),
        postgres(1150, commit=1100, offset=17),
        postgres(1150, commit=1100, offset=27),  # the same again
        postgres(1120, commit=1200, offset=18),  # an older LSN, committed later
        postgres(1180, commit=1200, offset=19),
        postgres(1999, commit=1200, offset=20),
        postgres(9_223_372_036_854_775_807, commit=1200, offset=21),
    ]
    elsewhere = {"snapshots": [{"run_id": "run", "from_offset": 0, "lsn": 5000}]}
    position_contexts: list[Change] = [
        {
            "snapshots": [
                {"run_id": "run", "epoch": 0, "from_offset": 10, "lsn": 1000},
                {"run_id": "run", "epoch": 0, "from_offset": 50, "lsn": 9},
            ],
            "runs": [
                {"run_id": "run", "epoch": 0, "from_offset": 5},
                {"run_id": "a run without a snapshot", "epoch": 0, "from_offset": 40},
                {"run_id": "the run after", "epoch": 0, "from_offset": 41},
            ],
        },
        {"partition": 1, **elsewhere},
        {"topic": "u", **elsewhere},
        {"topic_id": "of the topic before", **elsewhere},
    ]
    changes = positioned(contracts, "postgres_orders", history, position_contexts=position_contexts)
    assert order(changes) == [str(number) for number in range(len(history))]


def test_an_epoch_comes_before_all_coordinates_and_a_later_snapshot_concerns_only_what_follows_it(
    contracts: Contracts,
) -> None:
    history = [
        postgres(500, commit=500, offset=1),
        postgres(900, commit=900, offset=3),
        postgres(900, commit=900, offset=20, read_ms=10),  # sent again when the log had begun again
        postgres(2000, commit=None, offset=4, snapshot="last"),
        postgres(950, commit=940, offset=5),
        postgres(1, commit=1, offset=6, run="new"),  # the log has begun again
        postgres(2, commit=2, offset=7, run="new"),
        postgres(2, commit=None, offset=21, run="new"),  # sent again behind the next run's snapshot
        postgres(1, commit=1, offset=9, run="newest"),  # and again
    ]
    position_contexts = [
        {
            "epochs": [{"from_offset": 6, "epoch": 70}, {"from_offset": 9, "epoch": 80}],
            "snapshots": [
                {"run_id": "run", "epoch": 0, "from_offset": 4, "lsn": 2000, "read_from_ms": 50},
                {"run_id": "newest", "epoch": 80, "from_offset": 9, "lsn": 0},
                {"run_id": "another", "epoch": 70, "from_offset": 12, "lsn": 3000},
            ],
            "runs": [
                {"run_id": "run", "epoch": 0, "from_offset": 1},
                {"run_id": "new", "epoch": 70, "from_offset": 6},
                {"run_id": "newest", "epoch": 80, "from_offset": 9},
            ],
        }
    ]
    changes = positioned(contracts, "postgres_orders", history, position_contexts=position_contexts)
    assert order(changes) == [str(number) for number in range(len(history))]


def test_a_change_that_is_sent_again_behind_a_snapshot_in_the_middle_of_its_run_stays_before_it(
    contracts: Contracts,
) -> None:
    history = [
        postgres(300, commit=300, offset=5, read_ms=50),
        postgres(300, commit=300, offset=60, read_ms=50),
        postgres(400, commit=400, offset=8, read_ms=60),
        postgres(1000, commit=None, offset=20, snapshot="true", read_ms=100),
        postgres(890, commit=890, offset=22, read_ms=100),  # open while the snapshot was taken
        postgres(900, commit=900, offset=21, read_ms=120),  # and so was this
    ]
    snapshot = {"run_id": "run", "epoch": 0, "from_offset": 20, "lsn": 1000, "read_from_ms": 100}
    position_contexts = [{"snapshots": [snapshot], "runs": [{"run_id": "run", "epoch": 0, "from_offset": 5}]}]
    changes = positioned(contracts, "postgres_orders", history, position_contexts=position_contexts)
    assert order(changes) == [str(number) for number in range(len(history))]


def test_an_incremental_snapshot_row_loses_at_an_equal_position(contracts: Contracts) -> None:
    history = [postgres(1000, commit=1000, offset=2, snapshot="incremental"), postgres(1000, commit=1000, offset=1)]
    assert order(positioned(contracts, "postgres_orders", history)) == ["0", "1"]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_mysql_and_mariadb_go_by_file_number_then_pos_then_row(contracts: Contracts, kind: SourceKind) -> None:
    history = [
        mysql(2, 4_294_967_295, offset=90),
        mysql(999_999, 900, offset=80),
        mysql(1_000_000, 4, offset=70, snapshot="true"),
        mysql(1_000_000, 4, offset=60, row=None),  # no row is row 0
        mysql(1_000_000, 4, offset=61),
        mysql(1_000_000, 4, offset=50, row=1),
        mysql(1_000_000, 4, offset=49, row=10),
        mysql(1_000_000, 157, offset=40),
        mysql(1_000_000, 157, offset=41),
        mysql(1_000_000, 1570, offset=1),
        mysql(1_000_001, 4, offset=0),
    ]
    changes = positioned(contracts, "mysql_orders", history, kind=kind)
    assert order(changes) == [str(number) for number in range(len(history))]


def test_outbox_events_go_by_time_across_partitions_and_by_offset_within_one(
    contracts: Contracts,
) -> None:
    history = [
        {"partition": 0, "offset": 5, "timestamp_ms": 1000},
        {"partition": 1, "offset": 0, "timestamp_ms": 2000},
        {"partition": 0, "offset": 6, "timestamp_ms": 3000},
        {"partition": 0, "offset": 7, "timestamp_ms": 500},  # the clock went back
        {"partition": 2, "offset": 9, "timestamp_ms": 1500},  # behind what was read of the partition before: 3500
        {"partition": 1, "offset": 1, "timestamp_ms": 4000},
    ]
    position_contexts = [{"partition": 2, "highest_timestamp_ms": 3500}]
    changes = positioned(contracts, "postgres_outbox_orders", history, position_contexts=position_contexts)
    assert order(changes) == [str(number) for number in range(len(history))]


def at(feed: str, contracts: Contracts, **columns: Sequence[int | None]) -> list[tuple[int | None, ...]]:
    """The coordinates of records with these columns of the log."""
    log = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))
    records = log.with_columns(snapshot=pl.lit(None, pl.String))
    return add_coordinates(records, contracts.feeds[feed]).select(COORDINATES).rows()


def test_coordinates_are_those_of_the_log_and_none_where_one_is_before_its_beginning(contracts: Contracts) -> None:
    none = None, None, None
    postgres_log: dict[str, list[int | None]] = {
        "last_commit": [0, None, 9, 9, -1, -1, None, 9],
        "lsn": [0, 5, 5, 0, 5, -1, -1, None],
    }
    assert at("postgres_orders", contracts, **postgres_log) == [
        (0, 0, None),
        (5, 5, None),
        (9, 5, None),
        (9, 0, None),
        none,
        none,
        none,
        none,
    ]
    mysql_log: dict[str, list[int | None]] = {
        "binlog_file": [0, 3, None, 3, 3, 3, 3],
        "binlog_pos": [0, 700, 700, None, -1, 700, -1],
        "binlog_row": [0, 2, 2, 2, 2, -1, -1],
    }
    assert at("mysql_orders", contracts, **mysql_log) == [(0, 0, 0), (3, 700, 2), none, none, none, none, none]


@pytest.mark.parametrize(
    ("snapshot", "streamed", "is_snapshot"),
    [(None, 1, False), ("incremental", 0, False), ("true", 0, True), ("first", 0, True), ("last", 0, True)],
)
def test_a_row_of_a_snapshot_is_not_streamed(
    contracts: Contracts, snapshot: str | None, streamed: int, is_snapshot: bool
) -> None:
    log = {"snapshot": pl.String, "last_commit": pl.Int64, "lsn": pl.Int64}
    records = pl.DataFrame({"snapshot": [snapshot], "last_commit": [None], "lsn": [5]}, schema=log)
    (row,) = add_coordinates(records, contracts.feeds["postgres_orders"]).iter_rows(named=True)
    assert (row["streamed"], row["is_snapshot"], row["commit_lsn"]) == (streamed, is_snapshot, 5)


def test_the_highest_timestamp_of_an_outbox_may_stand_at_the_record(contracts: Contracts) -> None:
    """Where records are not all of a batch, what came before them is known by itself."""
    feed = contracts.feeds["postgres_outbox_orders"]
    place = {"topic": ["t"] * 2, "topic_id": [""] * 2, "run_id": [""] * 2, "offset": [7, 6]}
    times = {"timestamp_ms": [900, 500], "highest_timestamp_ms": [None, 800]}
    records = pl.DataFrame({**place, **times}).with_columns(partition=pl.lit(0, pl.Int32))
    context = {"topic": "t", "topic_id": "", "partition": 0, "runs": [], "highest_timestamp_ms": 9000}
    found = add_positions(records, feed, [context])
    assert [tuple(one.values()) for one in found.get_column("position")] == [(900, "t", 0, 7), (800, "t", 0, 6)]
    assert found.get_column("is_replay").to_list() == [False, False]


def test_records_without_a_run_are_of_the_epoch_that_their_offset_lies_in(contracts: Contracts) -> None:
    history = [
        postgres(900, commit=900, offset=5, run=""),
        postgres(5, commit=5, offset=6, run=""),
        postgres(6, commit=6, offset=8, run="unknown"),
        postgres(3, commit=3, offset=9, run=""),
    ]
    epochs = [{"from_offset": 6, "epoch": 70}, {"from_offset": 9, "epoch": 80}]
    others: Change = {"epochs": [{"from_offset": 0, "epoch": 99}]}
    position_contexts: list[Change] = [{"epochs": epochs}, {"partition": 1, **others}, {"topic": "u", **others}]
    changes = positioned(contracts, "postgres_orders", history, position_contexts=position_contexts)
    assert order(changes) == [str(number) for number in range(len(history))]


@pytest.mark.parametrize("missing", ["file", "pos"])
def test_a_change_of_a_binlog_without_its_file_or_its_place_has_no_position(contracts: Contracts, missing: str) -> None:
    change = mysql(3, 700, offset=1)
    found = positioned(contracts, "mysql_orders", [{**change, "source": {**change["source"], missing: None}}])
    assert found.get_column("position").to_list() == [None]


@pytest.mark.parametrize(
    ("change", "is_replay"),
    [
        (mysql(3, 700, offset=9, row=2), True),
        (mysql(3, 700, offset=9, row=1), True),
        (mysql(3, 699, offset=9, row=9), True),
        (mysql(2, 900, offset=9, row=9), True),
        (mysql(3, 700, offset=9, row=3), False),
        (mysql(3, 701, offset=9, row=0), False),
        (mysql(4, 1, offset=9, row=0), False),
        (mysql(3, 100, offset=9, snapshot="true"), False),
        ({"offset": 9, "source": None}, False),
    ],
)
def test_a_change_is_a_replay_up_to_where_earlier_runs_came(
    contracts: Contracts, change: Change, is_replay: bool
) -> None:
    runs = [{"run_id": "run", "from_offset": 5, "repeats_to": (3, 700, 2)}]
    found = positioned(contracts, "mysql_orders", [change], position_contexts=[{"runs": runs}])
    assert found.select("is_replay", "run_from").rows() == [(is_replay, 5)]
    first = positioned(
        contracts, "mysql_orders", [change], position_contexts=[{"runs": [{**runs[0], "repeats_to": None}]}]
    )
    assert first.get_column("is_replay").to_list() == [False]


def test_the_clock_tells_what_stands_behind_a_snapshot_only_where_runs_have_no_names(contracts: Contracts) -> None:
    history = [
        postgres(800, commit=None, offset=30, run="", read_ms=99),  # sent again: it was read before the snapshot
        postgres(1000, commit=None, offset=20, snapshot="last", read_ms=100),
        postgres(700, commit=None, offset=31, run="after", read_ms=10),  # of a worker whose clock is behind
        postgres(710, commit=None, offset=32, run="", read_ms=100),
        postgres(720, commit=None, offset=33, run="", read_ms=None),
    ]
    snapshot: Change = {"run_id": "run", "epoch": 0, "from_offset": 20, "lsn": 1000, "read_from_ms": 100}
    runs: list[Change] = [
        {"run_id": "run", "epoch": 0, "from_offset": 5},
        {"run_id": "after", "epoch": 0, "from_offset": 31},
    ]
    position_contexts: list[Change] = [{"snapshots": [snapshot], "runs": runs}]
    changes = positioned(contracts, "postgres_orders", history, position_contexts=position_contexts)
    assert order(changes) == [str(number) for number in range(len(history))]
