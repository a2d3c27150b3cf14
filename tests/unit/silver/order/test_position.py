"""Where one change stands: by what its source block says, and by nothing where that says too little."""

from __future__ import annotations

import pytest

from lakehouse.contracts.topics import SourceKind
from silver.decode.reference.message import Source
from silver.order.position import Position, epoch_of, position_fields
from silver.order.runs import Coordinates
from tests.support.feeds import feed
from tests.support.positions import KnownRuns, Run, coordinates, source_position

BINLOG = Source(file="binlog.000003", pos=700, row=2)


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("postgresql", None, None),
        ("postgresql", Source(lsn=5), (5, 5)),
        ("postgresql", Source(lsn=5, sequence=["9", "7"]), (9, 7)),
        ("postgresql", Source(lsn=5, sequence=[None, "7"]), (7, 7)),
        ("postgresql", Source(sequence=["9", None]), None),
        ("postgresql", Source(lsn=-1), None),
        ("postgresql", Source(lsn=5, sequence=["-1", "7"]), None),
        ("mysql", BINLOG, (3, 700, 2)),
        ("mariadb", BINLOG._replace(row=None), (3, 700, 0)),
        ("mysql", BINLOG._replace(file=None), None),
        ("mysql", BINLOG._replace(file="binlog"), None),
        ("mysql", BINLOG._replace(pos=None), None),
        ("mysql", BINLOG._replace(pos=-1), None),
        ("mysql", BINLOG._replace(row=-1), None),
    ],
)
def test_coordinates_are_what_the_source_says_of_a_place_in_its_log(
    kind: SourceKind, source: Source | None, expected: Coordinates | None
) -> None:
    assert coordinates(source, kind) == expected


def position(
    source: Source | None, kind: SourceKind, *, run: str = "", known: KnownRuns | None = None
) -> Position | None:
    """The position of a change at offset 30."""
    return source_position(source, kind, run_id=run, read_ms=None, offset=30, known=known or KnownRuns())


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("postgresql", None),
        ("postgresql", Source(sequence=["9", None])),
        ("mysql", BINLOG._replace(file=None)),
        ("mysql", BINLOG._replace(file="binlog")),
        ("mysql", BINLOG._replace(pos=None)),
    ],
)
def test_a_change_whose_source_names_no_place_has_no_position(kind: SourceKind, source: Source | None) -> None:
    assert position(source, kind) is None


def test_a_change_is_of_the_epoch_of_its_run_and_without_one_of_that_at_its_offset() -> None:
    runs = {"known": Run(7, 10, None), "nameless": Run(None, 10, None)}
    known = KnownRuns(epochs=[(0, 1), (30, 5), (31, 9)], runs=runs)
    expected = {"known": 7, "nameless": 5, "unknown": 5, "": 5}
    assert {run: (position(BINLOG, "mysql", run=run, known=known) or ())[0] for run in expected} == expected
    lsn = Source(lsn=5)
    assert {run: (position(lsn, "postgresql", run=run, known=known) or ())[0] for run in expected} == expected
    assert position(BINLOG, "mysql") == (0, 3, 700, 2, 1, 30)
    assert position(lsn, "postgresql") == (0, 5, 1, 5, 5, 30)


@pytest.mark.parametrize(
    ("run", "offset", "epoch"),
    [
        ("first", 99, 0),
        ("second", 0, 7),
        ("", 9, 0),
        ("", 10, 7),
        ("", 29, 7),
        ("", 30, 9),
        ("bare", 30, 9),
        ("unknown", 12, 7),
    ],
)
def test_a_record_is_of_the_epoch_of_its_run_or_of_the_last_that_began_before_it(
    run: str, offset: int, epoch: int
) -> None:
    runs = [{"run_id": "first", "epoch": 0}, {"run_id": "second", "epoch": 7}, {"run_id": "bare", "epoch": None}]
    begun = [{"from_offset": 10, "epoch": 7}, {"from_offset": 30, "epoch": 9}]
    assert epoch_of({"runs": runs, "epochs": begun}, run_id=run, offset=offset) == epoch


def test_the_fields_of_a_position_end_with_the_offset() -> None:
    postgres, mysql, kafka = (
        position_fields(feed(**given)) for given in ({}, {"kind": "mysql"}, {"sequence_by": "kafka_offset"})
    )
    assert postgres == ["epoch", "ordered_lsn", "streamed", "commit_lsn", "lsn", "kafka_offset"]
    assert mysql == ["epoch", "binlog_file", "binlog_pos", "binlog_row", "streamed", "kafka_offset"]
    assert kafka == ["timestamp_ms", "kafka_topic", "kafka_partition", "kafka_offset"]
