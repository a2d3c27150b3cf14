"""Tables that gate 1 stops: nothing of the batch is applied to them, the others go on, and no record is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.records import store
from bronze.events import events_table
from cli.tables.accounts import account_of
from cli.tables.verify_messages import HARMLESS
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts, Expectation
from lakehouse.contracts.tables import MaxRejectRatio
from lakehouse.errors import ContractError, FeedSuspendedError
from lakehouse.quality.results import RESULTS
from lakehouse.spark.materialized import materialized
from silver import apply
from silver import validated as judged
from silver.accounts.audit import read_state
from silver.batch import records as batch_records
from silver.gate import require_rules
from silver.rejects import suspended
from tests.spark.test_decisions import AMOUNT, FEED, OUTBOX, RUN, TOPIC, amounts, event, outbox_event
from tests.support.bronze import bronze_rows
from tests.support.events import Record, change, mysql_image, mysql_source, order, record
from tests.support.recordings import write
from tests.support.silver import Told, with_gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.delta.tables import Warehouse
    from tests.support.events import Record

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OUTBOX_FEED = "mysql_outbox_orders"
STATUS = Expectation(
    name="status_known",
    type="expect_column_values_to_be_in_set",
    kwargs={"column": "status", "value_set": ["pending"]},
    on_failure="fail",
    description="An order is pending.",
    feeds=(FEED,),
)


def in_sql(condition: str) -> Expectation:
    query = f"SELECT * FROM {{batch}} WHERE {condition}"
    return Expectation(
        name="status_is_a_number",
        type="unexpected_rows_expectation",
        kwargs={"unexpected_rows_query": query},
        on_failure="quarantine",
        description="A status is a number.",
        feeds=(OUTBOX_FEED,),
    )


def with_budget(contracts: Contracts, budget: MaxRejectRatio) -> Contracts:
    tables = {**contracts.silver.tables}
    tables[FEED] = tables[FEED].model_copy(update={"max_reject_ratio": budget})
    return contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})})


@dataclass(frozen=True)
class Seen:
    """What is in the tables after a step; `why` a table is stopped, and what verify finds beside what is harmless."""

    orders: Mapping[int, str]
    outbox: Mapping[int, str]
    waiting: int
    counted: Mapping[str, int]
    why: Mapping[str, str]
    wrong: Mapping[str, int]
    suspended: int


@pytest.fixture(scope="module")
def story(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Seen]:
    """One source: a batch of which most is bad, a rule that must not fail, a rule that raises; and how each goes on."""
    budgeted = with_budget(with_gate(contracts, AMOUNT), MaxRejectRatio(share=0.5, records=2))
    told = Told(empty_silver(), budgeted, "mysql", tmp_path_factory.mktemp("story"))
    steps = {}

    def see(step: str) -> None:
        account = account_of(told.warehouse, "mysql")
        # Of bronze these records have no batches.
        found = {kind: found.records for kind, found in account.findings.items() if kind != "never_read"}
        steps[step] = Seen(
            orders={key: str(amount) for key, amount in told.rows(FEED, "total_amount").items()},
            outbox={key: str(amount) for key, amount in told.rows(OUTBOX_FEED, "total_amount").items()},
            waiting=told.warehouse.read("quality.quarantine").count(),
            counted=told.counted(),
            why=told.suspended(),
            wrong={kind: records for kind, records in found.items() if kind not in HARMLESS},
            suspended=found.get("suspended", 0),
        )

    bad = [event("c", key, 100 * key, key, "-1.00") for key in (0, 1, 2)]
    told.tell(*bad, event("c", 3, 300, 3), outbox_event(0, 10, 1.0))
    told.tell(event("c", 4, 400, 4), outbox_event(1, 20, 2.0, key=2))
    see("most is bad")
    assert told.resume(FEED) == "3 of 5 records may not pass, and the budget is 50% (amount_not_negative 3)"
    see("tried again")
    assert told.resume(FEED, accepted=[FEED]) is None
    see("accepted")
    told.contracts = with_gate(told.contracts, AMOUNT, STATUS, in_sql("CAST(status AS INT) = 0"))
    told.tell(event("c", 5, 500, 5, status="gone"), event("c", 6, 600, 6), outbox_event(2, 30, 3.0, key=3))
    see("both are stopped")
    told.contracts = with_gate(told.contracts, AMOUNT, in_sql("try_cast(status AS INT) = 0"))
    assert (told.resume(FEED), told.resume(OUTBOX_FEED)) == (None, None)
    see("mended")
    return steps


def test_a_batch_of_which_most_is_bad_stops_its_table_and_no_other(story: Mapping[str, Seen]) -> None:
    seen = story["most is bad"]
    assert (seen.orders, seen.outbox, seen.waiting) == ({}, {1: "1.00", 2: "2.00"}, 0)
    why = "3 of 4 records may not pass, and the budget is 50% (amount_not_negative 3)"
    assert seen.why == {FEED: why}
    assert seen.counted == {"read": 2, "applied": 2}


def test_what_waits_is_known_and_is_no_hole(story: Mapping[str, Seen]) -> None:
    assert [step.wrong for step in story.values()] == [{}] * len(story)
    assert [story[step].suspended for step in ("most is bad", "both are stopped", "mended")] == [5, 3, 0]


def test_a_stopped_table_is_tried_again_and_stays_as_it_was_but_for_why(story: Mapping[str, Seen]) -> None:
    why = "3 of 5 records may not pass, and the budget is 50% (amount_not_negative 3)"
    assert story["tried again"] == replace(story["most is bad"], why={FEED: why})


def test_a_person_may_accept_the_rejects(story: Mapping[str, Seen]) -> None:
    seen = story["accepted"]
    assert (seen.orders, seen.waiting, seen.why) == ({3: "1.00", 4: "1.00"}, 3, {})
    assert seen.counted == {"read": 7, "applied": 4, "quarantined": 3}


def test_a_rule_that_must_not_fail_and_one_that_raises_stop_their_tables(story: Mapping[str, Seen]) -> None:
    seen = story["both are stopped"]
    assert (seen.orders, seen.outbox) == (story["accepted"].orders, story["accepted"].outbox)
    assert seen.why == {
        FEED: "1 of 2 changes fail status_known (An order is pending.)",
        OUTBOX_FEED: "the rule status_is_a_number cannot be asked: Spark raises CAST_INVALID_INPUT",
    }


def test_a_mended_rule_lets_the_table_go_on(story: Mapping[str, Seen]) -> None:
    seen = story["mended"]
    assert (sorted(seen.orders), sorted(seen.outbox), seen.why) == ([3, 4, 5, 6], [1, 2, 3], {})
    assert seen.counted == {"read": 10, "applied": 7, "quarantined": 3}


def test_a_run_says_what_it_has_stopped_and_does_what_was_asked(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    warehouse = empty_silver()
    chosen = Settings(warehouse.location, warehouse.checkpoints)
    budgeted = with_budget(with_gate(contracts, AMOUNT), MaxRejectRatio(share=0.5, records=2))
    for source in contracts.topics.sources:
        warehouse.ensure(events_table(source))
    bad = [bare(event("c", key, 100 * key, key, "-1.00")) for key in (0, 1, 2)]
    file = write(tmp_path / "events.jsonl.gz", [*bad, outbox_event(0, 10, 1.0)])
    topics = {topic: topic for topic in (TOPIC, OUTBOX)}
    store(warehouse, "mysql", bronze_rows(warehouse.spark, file, topics=topics))
    told = Told(warehouse, budgeted, "mysql", tmp_path)
    with pytest.raises(FeedSuspendedError) as stopped:
        apply.run(warehouse.spark, chosen, budgeted, run_id="first")
    assert stopped.value.exit_code == 3
    assert str(stopped.value) == (
        "silver.mysql_orders is suspended: 3 of 3 records may not pass, and the budget is 50% (amount_not_negative 3). "
        "Nothing of this was applied; the other tables went on. Fix the rule or the contract and run silver again, or "
        "let such records go to quarantine: lakehouse silver --accept-rejects mysql_orders."
    )
    assert sorted(told.rows(OUTBOX_FEED, "total_amount")) == [1]
    (result,) = warehouse.read(RESULTS.name).where("rule = 'max_reject_ratio'").collect()
    assert (result["feed"], result["evaluated"], result["failed"], result["passed"]) == (FEED, 3, 3, False)
    notes: list[str] = []
    apply.run(warehouse.spark, chosen, budgeted, run_id="second", accepted=[FEED], say=notes.append)
    assert len(told.entries(FEED)) == 3
    assert notes == [f"silver.{FEED}: {apply.NAMELESS_RUN}"]
    told.ask("released", 1)
    apply.run(warehouse.spark, chosen, budgeted, run_id="third")
    assert sorted(told.rows(FEED, "total_amount")) == [1]
    assert told.counted() == {"read": 4, "applied": 2, "quarantined": 2}
    found = account_of(warehouse, "mysql").findings
    assert set(found) <= {*HARMLESS, "never_read"}, "of bronze these records have no batches"


def of_table(offset: int, **source: str) -> Record:
    """An order whose source block names another database, or table."""
    value = change("c", {**mysql_source(offset), **source}, mysql_image(order(offset)))
    return record(TOPIC, offset, key={"order_id": offset}, value=value, headers=RUN)


def test_reasons_are_counted_and_other_tables_named(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    budgeted = with_budget(with_gate(contracts, AMOUNT), MaxRejectRatio(share=0.5, records=2))
    told = Told(empty_silver(), with_limit(budgeted, 800), "mysql", tmp_path)
    told.tell(
        *(of_table(offset, db="ecommerce_big2") for offset in range(4)),
        *(of_table(offset, db="[b]", table="parts") for offset in (4, 5)),
        *(event("c", offset, 100 * offset, offset, "-1.00") for offset in (6, 7, 8)),
        event("c", 9, 900, 9, "-1.00", created_at="yesterday"),
        *(event("c", offset, 1000, offset, note="n" * 100 * offset) for offset in (10, 11)),
        event("c", 12, 1200, 12),
    )
    assert told.suspended() == {
        FEED: "12 of 13 records may not pass, and the budget is 50% ("
        "The source block names another table than the contract of this feed (tables, table_patterns), "
        "ecommerce_big2.orders: 4; amount_not_negative 4; "
        "The record has 1465 bytes; the limit is 800 (max_record_bytes): 2; "
        "The source block names another table than the contract of this feed (tables, table_patterns), "
        "?b?.parts: 2; created_at: the value is text that is no ISO 8601 time; the column is TIMESTAMP: 1)"
    }


def with_limit(contracts: Contracts, most_bytes: int) -> Contracts:
    """The contracts with records of at most so many bytes."""
    tables = {**contracts.silver.tables}
    tables[FEED] = tables[FEED].model_copy(update={"max_record_bytes": most_bytes})
    return contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})})


def test_a_resumed_table_takes_what_is_pending_for_it_and_nothing_between(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    """The source was moved back on its topic: one batch has records on both sides of those of an earlier one."""
    strict = with_budget(with_gate(contracts, AMOUNT), MaxRejectRatio(share=0.01, records=0))
    told = Told(empty_silver(), strict, "mysql", tmp_path)

    def pending() -> list[tuple[int, int]]:
        state = read_state(told.warehouse, "mysql")
        return [(first, last) for _place, first, last in state.pending_offsets(FEED)]

    told.tell(event("c", 1, 100, 50), event("u", 1, 110, 52))
    told.tell(event("c", 2, 90, 40, "-1.00"), event("c", 3, 200, 101), event("c", 4, 210, 103))
    assert pending() == [(40, 40), (101, 103)], "at 102 there is no record"
    told.tell(event("c", 5, 95, 45))
    assert pending() == [(40, 40), (45, 45), (101, 103)]
    assert told.resume(FEED, accepted=[FEED]) is None
    assert told.counted() == {"read": 6, "applied": 4, "superseded": 1, "quarantined": 1}
    assert pending() == []
    assert set(account_of(told.warehouse, "mysql").findings) <= {*HARMLESS, "never_read"}


def test_few_rejects_are_within_the_budget(contracts: Contracts) -> None:
    feed = with_budget(contracts, MaxRejectRatio(share=0.5, records=2)).feeds[FEED]
    rejected = {"judged": 2, "failed_rules": {"amount_not_negative": 2}, "quarantined": 2, "changes": 0, "truncates": 0}
    rejected |= {"keyed": 2, "unread_keys": 0}
    assert suspended.suspension_of(feed, [AMOUNT], [rejected]) is None
    more = {**rejected, "quarantined": 3, "changes": 3}
    assert suspended.suspension_of(feed, [AMOUNT], [more]) is None
    assert suspended.suspension_of(feed, [AMOUNT], [{**more, "quarantined": 4}]) is not None
    without = feed.model_copy(update={"max_reject_ratio": None})
    assert suspended.suspension_of(without, [AMOUNT], [{**more, "changes": 0}]) is None


def test_a_table_whose_keys_cannot_be_read_is_suspended_and_the_converter_is_named(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    told = Told(empty_silver(), contracts, "mysql", tmp_path)
    number = {"key": "\0\0\0A"}  # as IntegerConverter writes 65
    deletes = {**event("d", 65, 0, 1), **number, "value": None}
    told.tell({**event("c", 65, 100, 0), **number}, deletes, outbox_event(0, 10, 1.0))
    why = told.suspended()
    assert list(why) == [FEED]
    assert "the keys of all its 2 records cannot be read: The key is 4 bytes" in why[FEED]
    assert "IntegerConverter" in why[FEED]
    assert sorted(told.rows(OUTBOX_FEED, "total_amount")) == [1]
    assert told.entries(FEED) == {}
    assert told.resume(FEED, accepted=[FEED]) is None
    assert sorted(told.entries(FEED)) == [0, 1]
    # Beside keys that are read, those that are not wait one by one.
    told.tell({**event("c", 65, 200, 2), **number}, {**deletes, "offset": 3}, event("c", 66, 300, 4))
    assert read_state(told.warehouse, "mysql").suspended == {}
    assert (sorted(told.rows(FEED, "status")), sorted(told.entries(FEED))) == ([66], [0, 1, 2, 3])


def test_a_rule_that_is_no_sql_is_named_before_anything_is_read(spark: SparkSession, contracts: Contracts) -> None:
    with pytest.raises(ContractError) as refused:
        require_rules(spark, with_gate(contracts, AMOUNT, in_sql("statsu = 'x'"), replace_name(in_sql("status ="))))
    first, second = refused.value.problems
    assert first.key == "expectations.status_is_a_number.kwargs.unexpected_rows_query"
    assert "statsu" in first.what
    assert second.key == "expectations.other.kwargs.unexpected_rows_query"


def replace_name(rule: Expectation) -> Expectation:
    return rule.model_copy(update={"name": "other"})


def test_what_says_nothing_of_values_is_blamed_on_no_rule(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule raises, and the disk is full while it is found out which."""
    told = Told(empty_silver(), with_gate(contracts, in_sql("CAST(status AS INT) = 0")), "mysql", tmp_path)
    asked: list[int] = []

    @contextmanager
    def full(rows: DataFrame) -> Iterator[DataFrame]:
        asked.append(len(asked))
        if len(asked) > 2:  # the records by themselves could be read again, the rule could not be asked
            raise OSError("No space left on device")
        with materialized(rows) as kept:
            yield kept

    monkeypatch.setattr(batch_records, "DRIVER_RECORDS", 0)
    monkeypatch.setattr(judged, "materialized", full)
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        told.tell(outbox_event(1, 20, 2.0, key=2))
    assert len(asked) == 3
    asked += [0, 0]
    with pytest.raises(OSError, match="No space left"):
        told.tell(outbox_event(2, 30, 3.0, key=3))
    assert told.suspended() == {}


def bare(one: Record) -> Record:
    """The record as a connector sends it that does not name its run."""
    return {**one, "headers": []}


def test_coordinates_that_fall_without_the_name_of_a_run_stop_the_table(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    """But not where they repeat what was read. The way on is a snapshot of a run that has a name."""
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), "mysql", tmp_path)
    made, paid = event("c", 1, 100, 0, "1.00"), event("u", 1, 200, 1, "2.00")
    told.tell(*map(bare, (made, paid, {**made, "offset": 2}, {**paid, "offset": 3})))
    told.tell(*map(bare, ({**made, "offset": 4}, {**paid, "offset": 5})))
    assert amounts(told) == {1: "2.00"}
    told.tell(bare(event("u", 1, 50, 6, "3.00")), outbox_event(0, 10, 1.0))
    (why,) = told.suspended().values()
    assert why.startswith(f"from offset 6 of {TOPIC}, partition 0, 1 records are behind the source positions")
    assert (amounts(told), list(told.rows(OUTBOX_FEED, "total_amount"))) == ({1: "2.00"}, [1])
    assert told.resume(FEED) == why
    assert told.resume(FEED, accepted=[FEED]) is None
    assert amounts(told) == {1: "2.00"}
    told.tell(bare(event("c", 2, 300, 7)), bare(event("u", 2, 250, 8, "9.00")))
    assert told.resume(FEED, accepted=[FEED]) is None
    assert amounts(told) == {1: "2.00", 2: "1.00"}
    source = mysql_source(60, snapshot="last")
    value = change("r", source, mysql_image(order(1, total_amount="4.00")))
    told.tell(record(TOPIC, 9, key={"order_id": 1}, value=value, headers=RUN), event("u", 1, 70, 10, "5.00"))
    assert amounts(told) == {1: "5.00"}, "the snapshot has no order 2"
    assert told.counted()["read"] == 12
