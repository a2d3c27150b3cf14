"""A column that no event has suspends its table: nothing is applied to it, until the contract is mended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bronze.events import events_table
from lakehouse.config import Settings
from lakehouse.contracts.column_types import STRING
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import Column
from lakehouse.errors import FeedSuspendedError
from silver import apply
from silver.gate import EVENTS_THAT_TELL
from silver.micro_batch import resume
from tests.support.bronze import bronze_rows
from tests.support.events import Record, change, compact, order, postgres_image, postgres_source, record

if TYPE_CHECKING:
    from lakehouse.contracts.models import Feed
    from lakehouse.spark.tables import Warehouse
    from silver.job import SilverJob

pytestmark = pytest.mark.spark

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
    warehouse.append("bronze.postgres_events", bronze_rows(warehouse.spark, file, topics=topics))


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


def test_a_column_that_some_events_have_had_may_be_absent_later(
    prepared: Warehouse, contracts: Contracts, tmp_path: Path
) -> None:
    own = with_column(contracts, "postgres_orders", "channel", Column(type=STRING))
    bronze(prepared, tmp_path, [*changes(0, 1, channel="web"), *changes(1, 1)])
    silver(prepared, own)
    bronze(prepared, tmp_path, changes(2, 2))
    silver(prepared, own)
    found = {row["order_id"]: row["channel"] for row in prepared.read("silver.postgres_orders").collect()}
    assert found == {0: "web", 1: None, 2: None, 3: None}


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
