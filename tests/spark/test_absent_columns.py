"""A column that events have no field for: none ever had, or earlier ones did. Silver says so, and writes no NULL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.records import store
from bronze.events import events_table
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.parts.column_types import STRING
from lakehouse.contracts.tables import Column
from lakehouse.errors import FeedSuspendedError
from silver import apply
from silver.apply import ensure_tables
from silver.gate import EVENTS_THAT_TELL
from silver.source_batch import resume
from tests.support.bronze import bronze_rows
from tests.support.events import Record, change, compact, order, postgres_image, postgres_source, record
from tests.support.silver import Told

if TYPE_CHECKING:
    from lakehouse.contracts.models import Feed
    from lakehouse.delta.tables import Warehouse
    from silver.job import SilverJob

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLE, OUTBOX = "postgres_prod_tables.public.orders", "outbox.event.postgres.orders"
RUN = [("__debezium.context.runId", "run")]


def with_column(contracts: Contracts, feed: str, name: str, column: Column) -> Contracts:
    table = contracts.silver.tables[feed]
    tables = {**contracts.silver.tables, feed: table.model_copy(update={"columns": {**table.columns, name: column}})}
    return contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})})


def changes(first: int, count: int, **columns: Any) -> list[Record]:
    """Inserts as the table topic tells them; `columns` are fields beside those of the order."""
    images: Sequence[Mapping[str, Any]] = [{**postgres_image(order(first + n)), **columns} for n in range(count)]
    return [
        record(
            TABLE,
            image["order_id"],
            key={"order_id": image["order_id"]},
            value=change("c", postgres_source(100 + image["order_id"], last_commit=100), image),
            headers=RUN,
        )
        for image in images
    ]


def events(first: int, count: int) -> list[Record]:
    """Outbox events without a note."""
    return [
        record(
            OUTBOX,
            number,
            key=str(number),
            value=compact({"payload": json.dumps({"order_id": number, "status": "paid", "amount": 1}), "timestamp": 0}),
            headers=[("id", f"event-{number}"), ("eventType", "OrderChanged"), *RUN],
        )
        for number in range(first, first + count)
    ]


def bronze(warehouse: Warehouse, folder: Path, records: Sequence[Record]) -> None:
    file = folder / f"{records[0]['topic']}-{records[0]['offset']}.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    topics = {one["topic"]: one["topic"] for one in records}
    store(warehouse, "postgres", bronze_rows(warehouse.spark, file, topics=topics))


def silver(warehouse: Warehouse, contracts: Contracts, **more: Any) -> None:
    apply.run(warehouse.spark, Settings(warehouse.location, warehouse.checkpoints), contracts, run_id="test", **more)


@pytest.fixture
def prepared(warehouse: Warehouse) -> Warehouse:
    for source in ("postgres", "mysql"):
        warehouse.ensure(events_table(source))
    return warehouse


def test_a_misspelt_column_suspends_its_table_alone_and_a_mended_contract_goes_on(
    prepared: Warehouse, contracts: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze(prepared, tmp_path, changes(0, 3, channel="web"))
    bronze(prepared, tmp_path, events(0, 2))
    misspelt = with_column(contracts, "postgres_orders", "channel", Column(type=STRING, fields=("chanel",)))
    with pytest.raises(FeedSuspendedError) as refused:
        silver(prepared, misspelt)
    assert str(refused.value).startswith(
        "silver.postgres_orders is suspended: in not one of 3 events is there a field chanel (silver/tables.yaml: "
        "tables.postgres_orders.columns.channel, did you mean 'channel'?). They have: channel,"
    )
    assert "lakehouse silver --resume postgres_orders" in str(refused.value)
    assert "--accept-rejects" not in str(refused.value)
    assert prepared.read("silver.postgres_orders").count() == 0
    assert prepared.read("silver.postgres_outbox_orders").count() == 2, "the others go on"
    # It stays so, and costs nothing, until the contract changes or a command asks for it.
    tried: list[str] = []

    def noted(warehouse: Warehouse, feed: Feed, *, job: SilverJob) -> str | None:
        tried.append(feed.name)
        return resume(warehouse, feed, job=job)

    monkeypatch.setattr(apply, "resume", noted)
    bronze(prepared, tmp_path, [*changes(3, 1, channel="web"), *events(2, 1)])
    for more in ({}, {"accepted": ["postgres_orders"]}, {}, {}, {"resumed": ["postgres_orders"]}):
        with pytest.raises(FeedSuspendedError):
            silver(prepared, misspelt, **more)
    assert tried == ["postgres_orders"] * 3, "accepted, without that, and on command"
    assert prepared.read("silver.postgres_outbox_orders").count() == 3
    silver(prepared, with_column(contracts, "postgres_orders", "channel", Column(type=STRING)))
    assert {row["channel"] for row in prepared.read("silver.postgres_orders").collect()} == {"web"}
    assert prepared.read("silver.postgres_orders").count() == 4


def update(offset: int, number: int, lsn: int, *, partition: int = 0, **columns: Any) -> Record:
    """An update of an order by one run; `columns`: fields beside those of the order."""
    image = {**postgres_image(order(number)), **columns}
    source = postgres_source(lsn, last_commit=lsn)
    return record(
        TABLE, offset, key={"order_id": number}, value=change("u", source, image), partition=partition, headers=RUN
    )


FEED = "postgres_orders"
GONE = "channel: the record has no field for this column, and earlier records of its table had one."


@pytest.fixture
def empty_silver_with_channel(warehouse: Warehouse, contracts: Contracts, tmp_path: Path) -> Told:
    own = with_column(contracts, FEED, "channel", Column(type=STRING))
    ensure_tables(warehouse, own)
    return Told(warehouse, own, "postgres", tmp_path)


def test_a_field_that_is_gone_suspends_its_table_until_the_contract_says_what_it_is(
    empty_silver_with_channel: Told, contracts: Contracts
) -> None:
    told = empty_silver_with_channel
    told.tell(update(0, 1, 100), update(1, 1, 110, channel="web"), update(2, 2, 120, channel="app"))
    assert told.rows(FEED, "channel") == {1: "web", 2: "app"}
    told.tell(update(3, 1, 130, Channel="fax"), update(4, 3, 140, via="fax", Channel="fax"))
    why = "the field channel is in none of 2 changes, and earlier ones had it; new: Channel, via (renamed?)"
    assert told.suspended() == {FEED: why}
    assert told.resume(FEED) == why
    assert told.rows(FEED, "channel") == {1: "web", 2: "app"}
    told.contracts = with_column(contracts, FEED, "channel", Column(type=STRING, fields=("channel", "Channel")))
    assert told.resume(FEED) is None
    assert told.rows(FEED, "channel") == {1: "fax", 2: "app", 3: "fax"}
    # Dropped for good, and the contract says so.
    told.tell(update(5, 2, 150))
    assert told.resume(FEED) == (
        "the field channel or Channel is in none of 1 changes, and earlier ones had it; none is new (dropped, or left "
        "out while it is unchanged?)"
    )
    told.contracts = with_column(contracts, FEED, "channel", Column(type=STRING, optional=True))
    assert told.resume(FEED) is None
    assert told.rows(FEED, "channel") == {1: "fax", 2: None, 3: "fax"}
    assert told.entries(FEED) == {}


def test_a_record_without_a_field_that_others_have_waits_in_quarantine(
    empty_silver_with_channel: Told, contracts: Contracts
) -> None:
    told = empty_silver_with_channel
    told.tell(
        update(0, 1, 100),
        update(1, 1, 200, channel="web"),
        # Far ahead of what comes: damaged, so its key is derived again from all its records.
        update(2, 1, 900, channel="far"),
        update(3, 1, 210, channel="app"),
        update(4, 1, 220),
        update(5, 2, 230, channel="app"),
    )
    assert told.rows(FEED, "channel") == {1: "app", 2: "app"}
    assert told.entries(FEED)[4]["reasons"] == [GONE]
    # A partition that lags: a row from before ADD COLUMN has none, a later one of its run waits.
    told.tell(
        update(0, 3, 150, partition=1), update(1, 4, 240, partition=1), update(2, 5, 250, partition=1, channel="web")
    )
    assert told.rows(FEED, "channel") == {1: "app", 2: "app", 3: None, 5: "web"}
    assert sorted(told.entries(FEED)) == [1, 2, 4]
    # By the same contract it still may not pass, released or not.
    assert told.decide("retried", 4) == {"quarantined": 1}
    assert told.decide("released", 4) == {"quarantined": 1}
    assert told.rows(FEED, "channel")[1] == "app"
    told.contracts = with_column(contracts, FEED, "channel", Column(type=STRING, optional=True))
    assert told.decide("retried", 4) == {"applied": 1}
    assert told.rows(FEED, "channel")[1] is None


def test_a_column_that_is_declared_late_and_misspelt_is_no_column_of_its_table(
    empty_silver_with_channel: Told,
) -> None:
    told = empty_silver_with_channel
    told.contracts = with_column(told.contracts, FEED, "channel", Column(type=STRING, optional=True))
    told.tell(update(0, 1, 100))
    told.contracts = with_column(told.contracts, FEED, "channel", Column(type=STRING, fields=("chanel",)))
    told.tell(update(1, 1, 110, channel="web"))
    assert told.suspended()[FEED].startswith("in not one of 2 events is there a field chanel")


def test_an_optional_column_may_be_absent_from_all(prepared: Warehouse, contracts: Contracts, tmp_path: Path) -> None:
    bronze(prepared, tmp_path, changes(0, 2))
    silver(prepared, with_column(contracts, "postgres_orders", "channel", Column(type=STRING, optional=True)))
    assert prepared.read("silver.postgres_orders").where("channel IS NULL").count() == 2


def test_payloads_of_an_outbox_may_leave_out_what_is_null_for_a_while(
    prepared: Warehouse, contracts: Contracts, tmp_path: Path
) -> None:
    own = with_column(contracts, "postgres_outbox_orders", "channel", Column(type=STRING))
    bronze(prepared, tmp_path, events(0, EVENTS_THAT_TELL - 1))
    silver(prepared, own)
    assert prepared.read("silver.postgres_outbox_orders").count() == EVENTS_THAT_TELL - 1
    bronze(prepared, tmp_path, events(EVENTS_THAT_TELL - 1, 1))
    with pytest.raises(FeedSuspendedError) as refused:
        silver(prepared, own)
    # Of the packaged columns, too, some are in none of these events.
    for name in ("channel", "note", "customer_id", "product_id", "created_at"):
        assert f"tables.postgres_outbox_orders.columns.{name}" in str(refused.value)
    assert f"in not one of {EVENTS_THAT_TELL} events" in str(refused.value)
    assert prepared.read("silver.postgres_outbox_orders").count() == EVENTS_THAT_TELL - 1
