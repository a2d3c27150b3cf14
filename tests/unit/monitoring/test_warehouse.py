"""What the tables say of the flow, by small tables with the columns and structs that the jobs write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from gold.state import NOTHING_CONSUMED, GoldState
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import GoldTables
from lakehouse.errors import TableError
from lakehouse.process.lock import LOCK_FILE, FolderLock, Holder, hold
from lakehouse.versions import Version
from monitoring.model import Freshness, Gate, Pass, Quarantine, Records
from monitoring.readings import warehouse
from monitoring.readings.freshness import MAX_LOOKS, Reads, freshness, read_times
from monitoring.readings.passes import LAST_PASSES, drain_rates, last_passes
from monitoring.readings.tables import Commit
from monitoring.readings.warehouse import Behind
from tests.unit.monitoring.delta import (
    GOLD,
    LEASE,
    NOON,
    QUARANTINE,
    RESULTS,
    SILVER,
    at,
    restate,
    tables_in,
    write,
    write_batches,
)

Row = Mapping[str, Any]
CONTRACTS = load_contracts()
TOPIC = "mysql_prod_tables.ecommerce.orders"
OUTCOMES = ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")


def planned(first: int, until: int, minutes: float, **given: Any) -> Row:
    """A batch of bronze: `until` is not included; so many records came as there are offsets, unless given."""
    records = given.pop("records", until - first)
    return {
        **{"layer": "bronze", "source": "mysql", "topic": TOPIC, "topic_id": "id", "partition": 0},
        **{"planned": {"from_offset": first, "until_offset": until, "records": records}, "written_at": at(minutes)},
        **given,
    }


def moved(to: int, minutes: float, **given: Any) -> Row:
    """A move of bronze in a topic-partition."""
    step = {"change": 1, "from_offset": 0, "to_offset": to, "skipped": 0, "read_again": 0, "reason": "a test"}
    return {**planned(0, 0, minutes), "planned": None, "step": step, **given}


def audit(first: int, last: int, minutes: float, **given: Any) -> Row:
    """What silver has read of the topic-partition; both offsets are included."""
    count = last - first + 1
    return {
        **{"layer": "silver", "source": "mysql", "feed": "mysql_orders", "generation": "one", "batch": 0},
        **{"sequence": int(minutes * 10), "topic": TOPIC, "topic_id": "id", "partition": 0, "read": count},
        **{"first_offset": first, "last_offset": last, "applied": count, "written_at": at(minutes)},
        **dict.fromkeys(OUTCOMES[1:], 0),
        **given,
    }


# Bronze.


def offsets(folder: Path, *rows: Row) -> dict[tuple[str, str, int], int]:
    write_batches(folder, *rows)
    return warehouse.bronze_offsets(tables_in(folder))


def test_bronze_goes_on_where_its_latest_batch_ended(tmp_path: Path) -> None:
    found = offsets(
        tmp_path,
        planned(0, 10, 1),
        planned(10, 25, 2),
        planned(0, 7, 1, partition=1),
        planned(3, 4, 1, source="postgres", topic="t"),
        audit(0, 99, 3),
    )
    assert found == {("mysql", TOPIC, 0): 25, ("mysql", TOPIC, 1): 7, ("postgres", "t", 0): 4}


def test_a_move_after_a_batch_is_where_bronze_goes_on(tmp_path: Path) -> None:
    assert offsets(tmp_path, planned(0, 10, 1), moved(4, 2)) == {("mysql", TOPIC, 0): 4}
    assert offsets(tmp_path, planned(4, 8, 3)) == {("mysql", TOPIC, 0): 8}


def test_of_what_was_written_at_once_the_highest_offset_holds(tmp_path: Path) -> None:
    assert offsets(tmp_path, planned(10, 12, 1), planned(0, 10, 1)) == {("mysql", TOPIC, 0): 12}


def test_what_other_layers_say_is_no_offset_of_bronze(tmp_path: Path) -> None:
    assert offsets(tmp_path, {**planned(0, 10, 1), "layer": "silver"}, {"layer": "bronze", "source": "x"}) == {}


# What silver has not read.


def pending(folder: Path, *rows: Row) -> dict[str, Behind]:
    write_batches(folder, *rows)
    return warehouse.pending_for_silver(tables_in(folder))


def test_nothing_is_pending_that_silver_has_read(tmp_path: Path) -> None:
    assert pending(tmp_path, planned(0, 10, 1), audit(0, 9, 2)) == {}


def test_batches_behind_what_silver_has_read_are_pending(tmp_path: Path) -> None:
    found = pending(
        tmp_path,
        planned(0, 10, 1),
        audit(0, 9, 2),
        planned(10, 15, 3),
        planned(15, 16, 4),
        planned(0, 6, 5, partition=1),
        planned(0, 2, 6, source="postgres", topic="t"),
    )
    assert found == {"mysql": Behind(12, at(3)), "postgres": Behind(2, at(6))}


def test_a_batch_without_records_is_not_pending(tmp_path: Path) -> None:
    assert pending(tmp_path, planned(0, 10, 1, records=0), moved(5, 2)) == {}


def test_a_topic_that_was_created_again_is_pending(tmp_path: Path) -> None:
    rows = planned(0, 10, 1), audit(0, 9, 2), planned(0, 4, 3, topic_id="another")
    assert pending(tmp_path, *rows) == {"mysql": Behind(4, at(3))}
    assert pending(tmp_path, audit(0, 3, 4, topic_id="another")) == {}


def test_a_topic_without_an_id_is_the_one_with_an_empty_id(tmp_path: Path) -> None:
    assert pending(tmp_path, planned(0, 10, 1, topic_id=None), audit(0, 9, 2, topic_id="")) == {}


def test_only_what_the_newest_generation_has_read_counts(tmp_path: Path) -> None:
    rows = planned(0, 10, 1), planned(10, 20, 2), audit(0, 9, 3), audit(10, 19, 4)
    assert pending(tmp_path, *rows) == {}
    rebuilt = audit(0, 9, 5, generation="two", sequence=60)
    assert pending(tmp_path, rebuilt) == {"mysql": Behind(10, at(2))}


# Outcomes.


def test_records_have_outcomes_and_what_is_missing_has_none(tmp_path: Path) -> None:
    write_batches(
        tmp_path,
        audit(0, 9, 1, applied=6, superseded=1, duplicate=1, tombstone=1, ignored=1),
        audit(10, 19, 2, applied=5, quarantined=3),
        # a record that was retried goes from one outcome to another, and is not read again
        audit(0, 0, 3, read=0, applied=1, quarantined=-1, first_offset=None, last_offset=None),
        audit(0, 4, 3, source="postgres", topic="t"),
        {"layer": "silver", "source": "postgres", "generation": "one", "written_at": at(3), "sequence": 31},
    )
    mysql, postgres = warehouse.records(tables_in(tmp_path))
    assert (mysql.source, [mysql.outcomes[name] for name in OUTCOMES]) == ("mysql", [12, 1, 1, 1, 1, 2])
    assert (postgres.source, [postgres.outcomes[name] for name in OUTCOMES]) == ("postgres", [5, 0, 0, 0, 0, 0])
    assert [mysql.unaccounted, postgres.unaccounted] == [2, 0]


def test_the_outcomes_of_a_source_add_up_to_its_records(tmp_path: Path) -> None:
    write_batches(tmp_path, audit(0, 9, 1, applied=7, ignored=2))
    expected = {**dict.fromkeys(OUTCOMES, 0), "applied": 7, "ignored": 2}
    assert warehouse.records(tables_in(tmp_path)) == [Records("mysql", expected, 1)]


def test_records_of_an_earlier_silver_are_not_counted(tmp_path: Path) -> None:
    write_batches(tmp_path, audit(0, 9, 1), audit(0, 2, 2, generation="two"))
    (found,) = warehouse.records(tables_in(tmp_path))
    assert (found.outcomes["applied"], found.unaccounted) == (3, 0)


# Tables that are suspended.


def suspended(batch: int, **given: Any) -> Row:
    waits = {"first_offset": 1, "last_offset": 2, "records": 2, "rule": "r", "why": None}
    return {**audit(0, 0, batch), "read": 0, "applied": 0, "batch": batch, "suspended": waits, **given}


def resumed(batch: int, **given: Any) -> Row:
    return {**suspended(batch), "suspended": None, "resumed": True, **given}


def test_a_table_is_suspended_until_it_goes_on(tmp_path: Path) -> None:
    write_batches(tmp_path, audit(0, 3, 0))
    assert warehouse.suspended_tables(tables_in(tmp_path)) == []
    write_batches(tmp_path, suspended(1), suspended(2, feed="mysql_outbox_orders"))
    both = ["silver.mysql_orders", "silver.mysql_outbox_orders"]
    assert warehouse.suspended_tables(tables_in(tmp_path)) == both
    write_batches(tmp_path, suspended(3), resumed(3))
    assert warehouse.suspended_tables(tables_in(tmp_path)) == ["silver.mysql_outbox_orders"]
    write_batches(tmp_path, suspended(4))
    assert warehouse.suspended_tables(tables_in(tmp_path)) == both


def test_a_silver_that_was_rebuilt_is_not_suspended(tmp_path: Path) -> None:
    write_batches(tmp_path, suspended(1), audit(0, 3, 5, generation="two"))
    assert warehouse.suspended_tables(tables_in(tmp_path)) == []


# Passes.


def began(row: Row, minutes: float, **given: Any) -> Row:
    return {**row, "started_at": at(minutes), **given}


def of_gold(minutes: float, **given: Any) -> Row:
    return {"layer": "gold", "sequence": 1, "written_at": at(minutes), "started_at": at(minutes - 0.1), **given}


def test_batches_are_grouped_into_passes(tmp_path: Path) -> None:
    write_batches(
        tmp_path,
        began(planned(0, 10, 1), 0.5),
        began(planned(0, 5, 2, source="postgres"), 1.5),
        began(audit(0, 9, 3), 2.5, run="first"),
        began(audit(0, 4, 4, source="postgres"), 3.5, run="first"),
        # a second feed of the same batch
        began(audit(0, 1, 4, source="postgres", feed="postgres_outbox_orders"), 3.5, run="first"),
        of_gold(5),
        of_gold(5),
        # the second pass finds nothing for gold, and has no gold
        began(planned(10, 12, 10), 9.9),
        began(audit(10, 11, 11), 10.75, run="second"),
        # the third brings nothing but gold
        began(planned(12, 12, 20), 19),
        of_gold(22),
        # rows without a beginning are no part of a pass
        moved(3, 21),
        {"layer": "run", "started_at": at(21), "written_at": at(21)},
    )
    passes, by_source = last_passes(tables_in(tmp_path), since=NOON)
    assert passes == [
        Pass("first", at(5), 17, {"bronze": 90.0, "silver": 90.0, "gold": 6.0}),
        Pass("second", at(11), 2, {"bronze": 6.0, "silver": 15.0}),
        Pass(at(22).isoformat(), at(22), 0, {"bronze": 60.0, "gold": 6.0}),
    ]
    assert by_source == {"first": {"mysql": 10, "postgres": 7}, "second": {"mysql": 2}, at(22).isoformat(): {}}


def test_passes_before_a_time_are_left_out_and_so_are_all_but_the_last_ones(tmp_path: Path) -> None:
    write_batches(tmp_path, *(of_gold(number) for number in range(3)))
    assert [one.ended_at for one in last_passes(tables_in(tmp_path), since=at(1))[0]] == [at(2)]
    write_batches(
        tmp_path,
        *(began(audit(0, 0, 10 + number), 9.5 + number, run=f"run {number}") for number in range(0, 50, 2)),
        *(of_gold(11 + number) for number in range(0, 50, 2)),
    )
    passes, by_source = last_passes(tables_in(tmp_path), since=at(9))
    assert [one.run for one in passes] == [f"run {number}" for number in range(10, 50, 2)]
    assert len(passes) == LAST_PASSES
    assert set(by_source) == {one.run for one in passes}


def test_without_batches_there_are_no_passes(tmp_path: Path) -> None:
    write_batches(tmp_path, {"layer": "gold"})
    assert last_passes(tables_in(tmp_path), since=NOON) == ([], {})


def test_rates_are_of_the_pass_with_most_records() -> None:
    passes = [
        Pass("a", NOON, 30, {"bronze": 1.0, "silver": 2.0}),
        Pass("b", NOON, 900, {"bronze": 4.0, "silver": 5.0, "gold": 1.0}),
        Pass("c", NOON, 9_999, {}),
        Pass("d", NOON, 1, {"silver": 1.0}),
    ]
    taken = {"a": {"mysql": 20, "postgres": 10}, "b": {"mysql": 900}, "c": {"mysql": 9_999}}
    assert drain_rates(passes, taken) == {"mysql": 90.0, "postgres": pytest.approx(10 / 3)}
    assert drain_rates([], {}) == {}


# Quarantine.


def entry(minutes: float, **given: Any) -> Row:
    return {
        **{"source": "mysql", "feed": "mysql_orders", "state": "open", "first_seen": at(minutes)},
        **{"reasons": ["The record is no JSON."], "rules": [], "is_damaged": False},
        **given,
    }


def test_open_entries_have_reasons_an_age_and_a_share(tmp_path: Path) -> None:
    write(
        tmp_path,
        "quality.quarantine",
        QUARANTINE,
        [
            entry(10),
            entry(3, reasons=["The record is no JSON.", "no key"]),
            entry(1, state="released"),
            entry(5, source="postgres", reasons=None),
        ],
    )
    write_batches(
        tmp_path,
        audit(0, 999, 2, applied=998, quarantined=2),
        audit(0, 499, -24 * 60 - 30, quarantined=400),
        audit(0, 9, 2, source="other"),
        audit(0, 0, 2, source="postgres", read=0),
    )
    found = warehouse.quarantine(tables_in(tmp_path), now=at(13))
    assert found == [
        Quarantine("mysql", 2, 0.002, 600.0, {"The record is no JSON.": 2, "no key": 1}),
        Quarantine("other", 0, 0.0, None, {}),
        Quarantine("postgres", 1, None, 480.0, {}),
    ]


def test_entries_that_no_rule_put_there_could_not_be_decoded(tmp_path: Path) -> None:
    write(
        tmp_path,
        "quality.quarantine",
        QUARANTINE,
        [
            entry(1),
            entry(1, rules=None, is_damaged=None),
            entry(1, rules=["amount_not_negative"]),
            entry(1, is_damaged=True),
            entry(1, state="discarded"),
            entry(1, source="postgres"),
        ],
    )
    assert warehouse.undecodable(tables_in(tmp_path)) == {"mysql": 2, "postgres": 1}


# Gates.


def result(gate: str, rule: str, minutes: float, **given: Any) -> Row:
    return {
        **{"gate": gate, "source": "mysql", "feed": "mysql_orders", "rule": rule, "on_failure": "warn"},
        **{"passed": True, "evaluated_at": at(minutes)},
        **given,
    }


def judged(folder: Path, *rows: Row) -> list[Gate]:
    write(folder, "quality.results", RESULTS, rows)
    return warehouse.gates(tables_in(folder))


def test_only_the_last_judgement_of_a_gate_counts(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        result("gold", "no_duplicates", 1, passed=False, on_failure="fail"),
        result("gold", "rows_are_there", 1, passed=False),
        result("gold", "no_duplicates", 2, on_failure="fail"),
        result("gold", "rows_are_there", 2, passed=False),
    )
    assert found == [Gate("gold", "mysql", ("rows_are_there",), blocks=False)]


def test_every_feed_of_a_source_has_a_last_judgement(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        result("gold", "b", 1, passed=False, feed="mysql_outbox_orders"),
        result("gold", "b", 5, passed=False),
        result("gold", "a", 5, passed=False),
    )
    assert found == [Gate("gold", "mysql", ("a", "b"), blocks=False)]


@pytest.mark.parametrize(
    ("gate", "on_failure", "blocks"),
    [
        ("gold", "fail", True),
        ("publication", "fail", True),
        ("silver", "fail", False),
        ("gold", "warn", False),
        ("publication", "drop", False),
    ],
)
def test_a_rule_that_fails_blocks_at_the_gates_of_tables(
    tmp_path: Path, gate: str, on_failure: str, blocks: bool
) -> None:
    feed = None if gate == "publication" else "mysql_orders"
    found = judged(tmp_path, result(gate, "r", 1, passed=False, on_failure=on_failure, feed=feed))
    assert found == [Gate(gate, "mysql", ("r",), blocks=blocks)]
    assert judged(tmp_path, result(gate, "r", 2, on_failure=on_failure, feed=feed)) == [
        Gate(gate, "mysql", (), blocks=False)
    ]


# Who works on the warehouse.


def lease(folder: Path, **given: Any) -> None:
    row = {
        **{"token": "t", "command": "lakehouse silver", "run_id": "0123456789abcdef", "host": "worker-3", "user": "ci"},
        **{"pid": 17, "started_at": at(1), "expires_at": at(10)},
    }
    write(folder, "ops.lease", LEASE, [{**row, **given}])


def test_a_lease_that_is_in_force(tmp_path: Path) -> None:
    lease(tmp_path)
    said = "`lakehouse silver` (run 01234567, user ci on host worker-3, process 17) since 12:01:00"
    assert warehouse.lock(tables_in(tmp_path), now=at(9)) == (said, at(1))


@pytest.mark.parametrize(("token", "minutes"), [("t", 10), ("t", 500), (None, 9)])
def test_a_lease_that_has_expired_or_was_released(tmp_path: Path, token: str | None, minutes: float) -> None:
    lease(tmp_path, token=token)
    assert warehouse.lock(tables_in(tmp_path), now=at(minutes)) == (None, at(1))


def test_without_a_lease_nobody_works(tmp_path: Path) -> None:
    assert warehouse.lock(tables_in(tmp_path), now=NOON) == (None, None)
    write(tmp_path, "ops.lease", LEASE, [])
    assert warehouse.lock(tables_in(tmp_path), now=NOON) == (None, None)


def test_the_lock_of_a_folder_goes_before_a_lease_that_an_earlier_release_left_there(tmp_path: Path) -> None:
    lease(tmp_path)
    holder = Holder("0123456789abcdef", "lakehouse run", "here", "ci", 18, at(3))
    with hold(FolderLock(tmp_path, holder), say=print):
        said = "`lakehouse run` (run 01234567, user ci on host here, process 18) since 12:03:00"
        assert warehouse.lock(tables_in(tmp_path), now=at(9)) == (said, at(3))
        (tmp_path / LOCK_FILE).write_bytes(b"")
        assert warehouse.lock(tables_in(tmp_path), now=at(9)) == ("a run that has just begun", None)
    with hold(FolderLock(tmp_path, holder), say=print):
        pass
    assert warehouse.lock(tables_in(tmp_path), now=at(9)) == (None, at(3))


def test_when_something_was_last_written_down(tmp_path: Path) -> None:
    write_batches(tmp_path, {"layer": "run"})
    assert warehouse.last_written(tables_in(tmp_path)) is None
    write_batches(tmp_path, planned(0, 1, 5), audit(0, 1, 3))
    assert warehouse.last_written(tables_in(tmp_path)) == at(5)


# What gold has not taken.


def commits(*rows: int) -> Iterable[Commit]:
    """Commits of so many rows, the newest first; none of them changes the data where it changes no row."""
    return [
        Commit(version, at(version), rows[version], 10, bool(rows[version])) for version in reversed(range(len(rows)))
    ]


@pytest.mark.parametrize(
    ("version", "behind"),
    [
        (None, Behind(15, at(0))),
        (-1, Behind(15, at(0))),
        (0, Behind(10, at(2))),
        (1, Behind(10, at(2))),
        (2, Behind(7, at(3))),
        (3, Behind()),
        (9, Behind()),
    ],
)
def test_what_is_behind_a_version(version: int | None, behind: Behind) -> None:
    assert warehouse.behind(commits(5, 0, 3, 7), version) == behind


def silver(folder: Path, name: str, *rows: int) -> int:
    """A silver table with a commit of each so many rows; when it was created (ms)."""
    for count in rows:
        path = write(folder, f"silver.{name}", SILVER, [{"order_id": 1}])
        version = DeltaTable(path).version()
        restate(path, version, "MERGE", at(version), numTargetRowsInserted=count)
    return int(DeltaTable(path).metadata().created_time or 0)


def state(sequence: int, *consumed: Version) -> Row:
    """Gold's state when its orders had these commits, and the gate had let others pass."""
    passed = [replace(version, number=version.number + 1) for version in consumed]
    of_gold = GoldState(
        orders=NOTHING_CONSUMED.with_later("one", consumed), passed=NOTHING_CONSUMED.with_later("two", passed)
    )
    return {
        "layer": "gold",
        "sequence": sequence,
        "state": of_gold.model_dump_json(),
        "written_at": at(sequence),
    }


def test_gold_is_behind_by_the_rows_after_the_version_that_it_has(tmp_path: Path) -> None:
    created = silver(tmp_path, "mysql_orders", 4, 20, 30)
    of_outbox = silver(tmp_path, "mysql_outbox_orders", 5)
    write_batches(
        tmp_path,
        state(2, Version("silver.mysql_orders", created, 1), Version("silver.mysql_outbox_orders", of_outbox, 0)),
        state(1, Version("silver.mysql_orders", created, 0)),
    )
    found = warehouse.behind_of_gold(tables_in(tmp_path), CONTRACTS)
    assert found == {"mysql": Behind(30, at(2)), "postgres": Behind()}


def test_gold_has_nothing_of_a_table_that_was_created_again(tmp_path: Path) -> None:
    created = silver(tmp_path, "mysql_orders", 4, 20)
    write_batches(tmp_path, state(2, Version("silver.mysql_orders", created - 1_000, 1)))
    assert warehouse.behind_of_gold(tables_in(tmp_path), CONTRACTS)["mysql"] == Behind(24, at(0))


def test_what_gold_had_by_another_definition_is_behind(tmp_path: Path) -> None:
    created = silver(tmp_path, "mysql_orders", 4, 20)
    write_batches(tmp_path, state(2, Version("silver.mysql_orders", created, 1)))
    assert warehouse.behind_of_gold(tables_in(tmp_path), CONTRACTS)["mysql"] == Behind()
    write_batches(tmp_path, state(3))
    assert warehouse.behind_of_gold(tables_in(tmp_path), CONTRACTS)["mysql"] == Behind(24, at(0))


def test_what_is_stated_by_source_of_gold_is_stated_by_source_of_the_topics() -> None:
    of_two = CONTRACTS.gold.sources["mysql"].model_copy(update={"feeds": ("mysql_orders", "postgres_outbox_orders")})
    sources = {**CONTRACTS.gold.sources, "mysql": of_two}
    contracts = CONTRACTS.model_copy(update={"gold": CONTRACTS.gold.model_copy(update={"sources": sources})})
    found = warehouse.by_source({"mysql": Behind(3, at(5)), "postgres": Behind(4, at(2))}, contracts)
    assert found == {"mysql": Behind(3, at(5)), "postgres": Behind(7, at(2))}


# How old the rows of gold are.


def ages(
    folder: Path, seconds: Iterable[float], *, name: str = "mysql_orders", database: str = "mysql", **given: Any
) -> None:
    """Rows of gold that were processed at noon, so long after the commit of their change. `given`: of silver's rows."""
    numbered = [*enumerate(seconds)]
    write(
        folder,
        f"silver.{name}",
        SILVER,
        [
            {"order_id": number, "_source_ts": at(-age / 60), "_applied_at": at(-0.5), "status": "new", **given}
            for number, age in numbered
        ],
    )
    write(
        folder,
        "gold.unified_orders",
        GOLD,
        [{"order_id": number, "source_database": database, "processed_at": NOON} for number, _age in numbered],
    )


NOTHING_KNOWN = Reads()


def fresh(folder: Path, since: datetime = NOON, reads: Reads = NOTHING_KNOWN) -> list[Freshness]:
    return freshness(tables_in(folder), CONTRACTS, since=since, reads=reads)


def test_the_age_of_a_row_is_from_its_commit_to_gold(tmp_path: Path) -> None:
    ages(tmp_path, (float(age) for age in range(100, 0, -1)))
    ages(tmp_path, [30.0], name="postgres_orders", database="postgresql")
    assert fresh(tmp_path) == [Freshness("postgres", 30.0, 30.0, 1), Freshness("mysql", 51.0, 100.0, 100)]


YEARS = 81_255_014.0


def test_a_recording_is_as_old_as_the_run_that_could_first_read_it(tmp_path: Path) -> None:
    place: Row = {"_topic": TOPIC, "_partition": 0, "_offset": 41}
    ages(tmp_path, [YEARS], **place)
    assert fresh(tmp_path) == [Freshness("mysql", YEARS, YEARS, 1)]
    assert fresh(tmp_path, reads=Reads({"postgres": at(-1)})) == [Freshness("mysql", YEARS, YEARS, 1)]
    first = Reads({"mysql": at(-2)})
    assert fresh(tmp_path, reads=first) == [Freshness("mysql", 120.0, 120.0, 1)]
    # a later run has found the topic to end before it, and one has not
    looks = Reads({"mysql": at(-60)}, {(TOPIC, 0): ([40, 41, 42], [at(-30), at(-5), at(-1)])})
    assert fresh(tmp_path, reads=looks) == [Freshness("mysql", 300.0, 300.0, 1)]


def test_a_change_that_was_committed_after_the_last_look_is_as_old_as_its_commit(tmp_path: Path) -> None:
    ages(tmp_path, [90.0], _topic=TOPIC, _partition=0, _offset=41)
    reads = Reads({"mysql": at(-60)}, {(TOPIC, 0): ([3], [at(-2)])})
    assert fresh(tmp_path, reads=reads) == [Freshness("mysql", 90.0, 90.0, 1)]


def look(minutes: float, ends: Mapping[str, int], **given: Any) -> Row:
    """A run of all jobs that ended well, and where the topics ended when it began."""
    left = {"made_by": "a test", "ends": [*ends.items()], "published": [("topic", "id")], "tables": []}
    return {"layer": "run", "fingerprint": left, "started_at": at(minutes), "written_at": at(minutes + 1), **given}


def test_a_source_was_first_read_when_its_first_batch_began_or_it_was_first_looked_at(tmp_path: Path) -> None:
    write_batches(
        tmp_path,
        began(planned(0, 10, 5), 4),
        began(planned(10, 20, 9), 8),
        moved(0, 3, source="postgres"),
        planned(0, 10, 7, source="postgres"),
        audit(0, 9, 1, source="other"),
    )
    assert read_times(tables_in(tmp_path)) == Reads({"mysql": at(4), "postgres": at(3)})


def test_a_record_was_not_there_when_a_run_found_the_partition_to_end_before_it(tmp_path: Path) -> None:
    one, other, quiet = f"{TOPIC}/0/id", f"{TOPIC}/1/id", "a.b.c/0/1Qx/y"  # an id may have a slash
    write_batches(
        tmp_path,
        began(planned(0, 10, 1), 0),
        look(10, {one: 10, other: 3}),
        look(20, {one: 25, other: 3, quiet: 0}),
        look(30, {one: 40}),
        # recreated: it ends earlier than it did
        look(40, {f"{TOPIC}/0/another": 5}),
        look(50, {one: 900}, started_at=None),
    )
    reads = read_times(tables_in(tmp_path))

    def known(offset: int, partition: int = 0, topic: str = TOPIC, source: str = "mysql") -> datetime | None:
        return reads.not_before(source, topic, partition, offset)

    assert [known(offset) for offset in (0, 4, 5, 24, 40, 1_000)] == [at(0), at(0), *[at(40)] * 4]
    assert [known(offset, 1) for offset in (2, 3, 99)] == [at(0), at(20), at(20)]
    assert (known(0, topic="a.b.c"), known(7, topic="unknown"), known(7, 9)) == (at(20), at(0), at(0))
    assert (known(3, 1, source="another"), known(2, 1, source="another")) == (at(20), None)


def test_only_the_last_looks_count(tmp_path: Path) -> None:
    write_batches(tmp_path, *(look(number, {f"{TOPIC}/0/id": number}) for number in range(MAX_LOOKS + 5)))
    reads = read_times(tables_in(tmp_path))
    assert (reads.not_before("mysql", TOPIC, 0, 4), reads.not_before("mysql", TOPIC, 0, 5)) == (None, at(5))


def test_an_age_is_never_negative(tmp_path: Path) -> None:
    ages(tmp_path, [-5.0])
    assert fresh(tmp_path) == [Freshness("mysql", 0.0, 0.0, 1)]


def test_rows_that_were_not_changed_lately_have_no_age(tmp_path: Path) -> None:
    ages(tmp_path, [10.0])
    assert fresh(tmp_path, since=at(0.1)) == []


def test_rows_that_gold_has_not_taken_or_of_unknown_commit_have_no_age(tmp_path: Path) -> None:
    ages(tmp_path, [10.0])
    more: list[Row] = [
        {"order_id": 50, "_source_ts": at(-1), "_applied_at": at(1)},
        {"order_id": 51, "_source_ts": None, "_applied_at": at(-0.5)},
        {"order_id": 52, "_source_ts": at(-1), "_applied_at": at(-61)},
    ]
    write(tmp_path, "silver.mysql_orders", SILVER, more)
    of_gold = [{"order_id": row["order_id"], "source_database": "mysql", "processed_at": NOON} for row in more]
    write(tmp_path, "gold.unified_orders", GOLD, of_gold)
    assert fresh(tmp_path) == [Freshness("mysql", 10.0, 10.0, 1)]


# What tables are made of.


def test_the_files_of_the_tables_that_are_there(tmp_path: Path) -> None:
    for rows in (8, 2):
        path = write(tmp_path, "silver.mysql_orders", SILVER, [{"order_id": number} for number in range(rows)])
    size = tables_in(tmp_path).facts("silver.mysql_orders").bytes
    restate(path, 0, "MERGE", at(0), numTargetRowsInserted=8, numTargetBytesAdded=size)
    restate(path, 1, "MERGE", at(1), numTargetRowsUpdated=2, numTargetBytesAdded=4 * size)
    gold = write(tmp_path, "gold.unified_orders", GOLD, [])
    restate(gold, 0, "CREATE TABLE", at(0))
    write(tmp_path, "silver.unknown_to_the_contracts", SILVER, [{"order_id": 1}])
    orders, unified = warehouse.table_files(tables_in(tmp_path), CONTRACTS)
    assert (orders.table, orders.files, orders.versions, orders.deletion_vectors) == ("silver.mysql_orders", 2, 1, 0)
    assert orders.bytes == size > 0
    assert orders.written_per_changed == pytest.approx(5.0)
    assert (unified.table, unified.files, unified.bytes, unified.written_per_changed) == (warehouse.UNIFIED, 0, 0, None)


def test_tables_of_every_layer_are_looked_at(tmp_path: Path) -> None:
    names = [
        *("bronze.postgres_events", "bronze.mysql_events", "silver.postgres_orders", "gold.orders_daily"),
        *("ops.batches", "quality.quarantine"),
    ]
    for name in names:
        write(tmp_path, name, SILVER, [{"order_id": 1}])
    assert {one.table for one in warehouse.table_files(tables_in(tmp_path), CONTRACTS)} == set(names)


def test_a_table_of_unified_orders_that_the_contracts_do_not_have_is_not_looked_at(tmp_path: Path) -> None:
    for name in ("gold.unified_orders", "gold.orders_daily", "silver.postgres_orders"):
        write(tmp_path, name, SILVER, [{"order_id": 1}])
    without = CONTRACTS.model_copy(update={"gold": GoldTables()})
    assert [one.table for one in warehouse.table_files(tables_in(tmp_path), without)] == ["silver.postgres_orders"]


@pytest.mark.parametrize(
    "ask",
    [
        warehouse.bronze_offsets,
        warehouse.pending_for_silver,
        warehouse.records,
        warehouse.suspended_tables,
        warehouse.undecodable,
        warehouse.gates,
        warehouse.last_written,
        read_times,
    ],
)
def test_a_table_that_is_missing_is_an_error(tmp_path: Path, ask: Any) -> None:
    with pytest.raises(TableError, match="cannot be read without Spark"):
        ask(tables_in(tmp_path))
