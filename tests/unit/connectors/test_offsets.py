"""Offsets of connectors: what is forward and what is back, what a person may give, and what follows from a move."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.connectors import EVENT_ROUTER, Connector
from connectors.moving import of_moves, of_reset
from connectors.offsets import ahead, direction, is_in_snapshot, lsn_text, moves, parsed, position, saved, wanted_from
from lakehouse.errors import SettingsError

KINDS = {"pg": "postgresql.Postgres", "my": "mysql.MySql", "maria": "mariadb.MariaDb"}


def connector(kind: str, **more: str) -> Connector:
    config = {"connector.class": f"io.debezium.connector.{KINDS[kind]}Connector", "topic.prefix": "p"}
    return Connector(
        name="c", config={**config, **{key.replace("__", "."): value for key, value in more.items()}}, file="f"
    )


A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("old", "new", "is_it"),
    [
        ({"lsn": 5}, {"lsn": 6}, "forward"),
        ({"lsn": 5}, {"lsn": 4}, "back"),
        ({"lsn": 5}, {"lsn": 5}, "nowhere"),
        # The connector goes on at lsn_proc, whatever lsn says.
        ({"lsn": 9, "lsn_proc": 5}, {"lsn": 7, "lsn_proc": 7, "lsn_commit": 7}, "forward"),
        ({"lsn": 5}, {"file": "b.1", "pos": 1}, "unknown"),
        (None, {"lsn": 5}, "unknown"),
        ({"file": "b.000009", "pos": 500}, {"file": "b.000010", "pos": 4}, "forward"),
        ({"file": "b.999999", "pos": 500}, {"file": "b.1000000", "pos": 4}, "forward"),
        ({"file": "b.000010", "pos": 500}, {"file": "b.000010", "pos": 4}, "back"),
        ({"file": "b.000010", "pos": 4}, {"file": "b.000010", "pos": 4}, "nowhere"),
        ({"file": "a.000010", "pos": 4}, {"file": "b.000010", "pos": 5}, "unknown"),
        # With GTIDs on both sides they count, and not the files.
        (
            {"file": "b.000010", "pos": 4, "gtids": f"{A}:1-9"},
            {"file": "b.000001", "pos": 4, "gtids": f"{A}:1-10"},
            "forward",
        ),
        ({"file": "b.000010", "pos": 4, "gtids": f"{A}:1-9"}, {"file": "b.000001", "pos": 4}, "back"),
    ],
)
def test_which_way_a_move_goes(old: dict[str, Any] | None, new: dict[str, Any], is_it: str) -> None:
    assert direction(old, new) == is_it


@pytest.mark.parametrize(
    ("old", "new", "is_it"),
    [
        (f"{A}:1-5", f"{A}:1-5", "nowhere"),
        (f"{A}:1-5", f"{A}:1-6", "forward"),
        (f"{A}:1-5", f"{A}:1-5,{B}:1", "forward"),
        (f"{A}:1-5:7-9", f"{A}:1-9", "forward"),
        (f"{A}:1-3:4-5", f"{A}:1-5", "nowhere"),
        (f"{A}:1-9", f"{A}:1-5:7-9", "back"),
        (f"{A}:1-9", f"{B}:1-9", "unknown"),
        (f"{A}:1-9", f"{A.upper()}:1-9,\n{B}:1-2", "forward"),
        (f"{A}:tag:1-5", f"{A}:tag:1-6", "forward"),
        (f"{A}:tag:1-5", f"{A}:1-6", "unknown"),
        ("0-1-5", "0-2-6", "forward"),
        ("0-1-5,1-1-9", "0-1-6", "unknown"),
        ("0-1-5", "0-1-4", "back"),
        ("what", f"{A}:1", "unknown"),
    ],
)
def test_which_set_of_gtids_is_ahead(old: str, new: str, is_it: str) -> None:
    assert ahead(old, new) == is_it


def test_an_lsn_is_given_as_postgresql_writes_it_or_as_its_number() -> None:
    whole = {"lsn": 97500059720, "lsn_proc": 97500059720, "lsn_commit": 97500059720}
    assert parsed(["lsn=16/B374D848"], connector("pg")) == whole
    assert parsed(["lsn=97500059720"], connector("pg")) == whole
    assert lsn_text(97500059720) == "16/B374D848"
    assert parsed(["lsn=7", "lsn_commit=5"], connector("pg")) == {"lsn": 7, "lsn_proc": 7, "lsn_commit": 5}


def test_a_binlog_position_is_given_with_file_and_pos() -> None:
    given = ["file=binlog.000012", "pos=4", f"gtids={A}:1-5,\n {B}:1"]
    assert parsed(given, connector("my")) == {"file": "binlog.000012", "pos": 4, "gtids": f"{A}:1-5,{B}:1"}
    assert parsed(["file=m.000001", "pos=4"], connector("maria")) == {"file": "m.000001", "pos": 4}


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("pg", ["file=b.1"], "has no 'file'"),
        ("pg", ["lsn=1/G"], "not a number"),
        ("pg", ["lsn=-1"], "not a number"),
        ("pg", ["lsn"], "has no value"),
        ("pg", ["lsn="], "has no value"),
        ("pg", ["txId=7"], "has no lsn"),
        ("my", ["lsn=1"], "has no 'lsn'"),
        ("my", ["file=b.000001"], "no pos"),
        ("my", [f"gtids={A}:1-5", "pos=4"], "no file"),
        ("my", ["file=binlog", "pos=4"], "no binlog file"),
        ("my", ["file=b.000001", "pos=x"], "not a number"),
    ],
)
def test_what_is_no_offset_is_an_error(kind: str, given: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parsed(given, connector(kind))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"offsets": []}', '{"offsets": [{"partition": {}}]}'])
def test_what_was_not_saved_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match="offsets show NAME --json"):
        saved(text, file="f")


def test_a_partition_of_another_connector_is_an_error() -> None:
    current = [{"partition": {"server": "p"}, "offset": {"lsn": 1}}]
    with pytest.raises(SettingsError, match="saved from another connector"):
        moves(current, [{"partition": {"server": "q"}, "offset": {"lsn": 1}}])
    (move,) = moves([], [{"partition": {"server": "q"}, "offset": {"lsn": 1}}])
    assert (move.old, move.direction) == (None, "unknown")


def test_the_one_partition_is_that_of_the_prefix() -> None:
    assert wanted_from({"lsn": 1}, [], connector("pg")) == [{"partition": {"server": "p"}, "offset": {"lsn": 1}}]
    two = [{"partition": {"server": name}, "offset": {}} for name in "ab"]
    with pytest.raises(SettingsError, match="2 partitions"):
        wanted_from({"lsn": 1}, two, connector("pg"))


def test_gtids_alone_keep_the_file_and_its_position() -> None:
    present = [{"partition": {"server": "p"}, "offset": {"file": "b.000003", "pos": 9, "row": 1, "gtids": f"{A}:1-9"}}]
    (wanted,) = wanted_from(parsed([f"gtids={A}:1-5"], connector("my")), present, connector("my"))
    assert wanted["offset"] == {"file": "b.000003", "pos": 9, "gtids": f"{A}:1-5"}
    with pytest.raises(SettingsError, match="no offset whose file"):
        wanted_from({"gtids": f"{A}:1-5"}, [], connector("my"))


def test_a_place_without_gtids_is_refused_where_mysql_goes_by_them() -> None:
    present = [{"partition": {"server": "p"}, "offset": {"file": "b.000003", "pos": 9, "gtids": f"{A}:1-9"}}]
    place = {"file": "b.000001", "pos": 4}
    with pytest.raises(SettingsError, match=r"has GTIDs.*Previous_gtids"):
        wanted_from(place, present, connector("my"))
    without = [{"partition": {"server": "p"}, "offset": {"file": "b.000003", "pos": 9, "gtids": ""}}]
    assert wanted_from(place, without, connector("my"))[0]["offset"] == place


def test_positions_for_a_person() -> None:
    assert position({"lsn": 100, "lsn_proc": 90}) == "lsn 90 (0/5A)"
    assert position({"file": "b.000001", "pos": 4, "gtids": "0-1-5"}) == "b.000001 at 4, gtids 0-1-5"
    assert position({"x": 1}) == '{"x": 1}'
    assert is_in_snapshot({"lsn": 1, "snapshot": True})
    assert not is_in_snapshot({"lsn": 1, "snapshot_completed": True})


# What follows.

TABLES = {"table__include__list": "public.orders", "signal__data__collection": "public.signals", "slot__name": "s"}
OUTBOX = {"transforms": "o", "transforms__o__type": EVENT_ROUTER}


def test_forward_loses_changes_and_names_what_mends_it() -> None:
    said = " ".join(of_moves(connector("pg", **TABLES), ["forward"]))
    assert "never sent" in said
    assert "lakehouse connect offsets reset c" in said
    assert "incremental snapshot of public.orders by a row in public.signals" in said
    assert "does not state what was deleted" in said
    assert "Back:" not in said
    assert "incremental" not in " ".join(of_moves(connector("pg", slot__name="s"), ["forward"]))


def test_forward_of_an_outbox_loses_events() -> None:
    said = " ".join(of_moves(connector("pg", **OUTBOX), ["forward"]))
    assert "events in between are lost" in said
    assert "incremental" not in said


def test_back_needs_nothing_but_the_log() -> None:
    said = " ".join(of_moves(connector("pg", **TABLES), ["back"]))
    assert "by their position in the source's log" in said
    assert "nothing has to be done" in said
    assert "confirmed_flush_lsn" in said
    assert "by their id" in " ".join(of_moves(connector("pg", **OUTBOX), ["back"]))
    assert "SHOW BINARY LOGS" in " ".join(of_moves(connector("my"), ["back"]))


def test_what_cannot_be_compared_is_told_both_ways() -> None:
    said = " ".join(of_moves(connector("my"), ["unknown"]))
    assert "cannot be compared" in said
    assert "Forward:" in said
    assert "Back:" in said
    assert of_moves(connector("my"), ["nowhere"]) == ("Nothing moves: the connector goes on where it stands.",)


def test_a_reset_makes_a_snapshot_that_removes_what_is_gone() -> None:
    said = " ".join(of_reset(connector("pg", **TABLES, snapshot__mode="when_needed")))
    assert "with snapshot.mode=when_needed the connector makes a new full snapshot" in said
    assert "removes the rows that were deleted" in said
    assert "pg_drop_replication_slot('s')" in said
    assert "schema history" in " ".join(of_reset(connector("my")))


def test_a_reset_without_a_snapshot_is_told() -> None:
    assert "makes no new snapshot" in " ".join(of_reset(connector("pg", snapshot__mode="no_data")))


def test_a_reset_of_an_outbox_tells_the_rows_that_are_left() -> None:
    said = " ".join(of_reset(connector("my", **OUTBOX)))
    assert "sent again" in said
    assert "Events whose rows were removed" in said
