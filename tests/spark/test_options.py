"""Options of a feed through silver: columns that say of a row where it comes from, and records that must be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import Column
from silver.apply import ensure_tables
from tests.spark.test_decisions import AMOUNT, FEED, TOPIC
from tests.support.events import Record, change, mysql_image, mysql_source, order, record
from tests.support.silver import Told, derive_anew, with_gate

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MADE_MS, READ_MS, SENT_MS = 1_767_225_600_000, 1_767_225_600_500, 1_767_225_601_000
TIMES = ("read_at", "made_at", "sent_at")
OF_RECORD: Mapping[str, tuple[str, str]] = {
    "read_at": ("TIMESTAMP", "ingestion-timestamp"),
    "made_at": ("TIMESTAMP", "source.timestamp"),
    "database": ("STRING", "source.database"),
    "within": ("STRING", "source.schema"),
    "of_table": ("STRING", "source.table"),
    "block": ("STRING", "source.properties"),
    "whole_schema": ("STRING", "schema"),
    "of_topic": ("STRING", "topic"),
    "of_partition": ("INT", "partition"),
    "at_offset": ("BIGINT", "offset"),
    "sent_at": ("TIMESTAMP", "timestamp"),
    "headers": ("STRING", "headers"),
}


def event(op: str, key: int, pos: int, offset: int, *, amount: str = "1.00", later: int = 0, again: int = 0) -> Record:
    """A change of an order, made so many seconds after the first one.

    `again`: so many seconds later it was sent once more, in another run of the connector.
    """
    source = mysql_source(pos, ts_ms=MADE_MS + later * 1000)
    image = None if op == "d" else mysql_image(order(key, total_amount=amount))
    value = change(op, source, image, ts_ms=READ_MS + (later + again) * 1000)
    headers = [("__debezium.context.runId", run_of(again)), ("of", str(offset))]
    when = SENT_MS + (later + again) * 1000
    return record(TOPIC, offset, key={"order_id": key}, value=value, headers=headers, timestamp=when)


def of_record(pos: int, offset: int, *, later: int = 0, again: int = 0) -> dict[str, Any]:
    """What the row of such a change says of it."""
    return {
        "read_at": (READ_MS + (later + again) * 1000) * 1000,
        "made_at": (MADE_MS + later * 1000) * 1000,
        "sent_at": (SENT_MS + (later + again) * 1000) * 1000,
        **{"database": "ecommerce", "within": None, "of_table": "orders", "whole_schema": None},
        **{"of_topic": TOPIC, "of_partition": 0, "at_offset": offset, "block": pos},
        "headers": {"__debezium.context.runId": run_of(again), "of": str(offset)},
    }


def run_of(again: int) -> str:
    return "run-2" if again else "run-1"


def with_columns(contracts: Contracts) -> Contracts:
    """The packaged contracts with these columns in one table."""
    table = contracts.silver.tables[FEED]
    more = {
        name: Column.model_validate({"type": kind, "metadata": metadata})
        for name, (kind, metadata) in OF_RECORD.items()
    }
    tables = {**contracts.silver.tables, FEED: table.model_copy(update={"columns": {**table.columns, **more}})}
    return contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})})


def rows(warehouse: Warehouse) -> dict[int, Any]:
    """What the live rows say of their records, times in microseconds; and whether a row is deleted."""
    times = [f"unix_micros({name}) AS {name}" for name in TIMES]
    others = [name for name in OF_RECORD if name not in TIMES]
    found = warehouse.read(f"silver.{FEED}").where("NOT _is_deleted").selectExpr("order_id", *times, *others).collect()
    return {
        row["order_id"]: {
            **{name: row[name] for name in OF_RECORD},
            "block": json.loads(row["block"])["pos"],
            "headers": json.loads(row["headers"]),
        }
        for row in found
    }


def test_a_row_says_where_its_last_change_came_from(warehouse: Warehouse, contracts: Contracts, tmp_path: Path) -> None:
    own = with_columns(contracts)
    ensure_tables(warehouse, own)
    told = Told(warehouse, own, "mysql", tmp_path)
    told.tell(event("c", 1, 100, 0), event("c", 2, 200, 1), event("c", 3, 210, 2))
    assert rows(warehouse) == {1: of_record(100, 0), 2: of_record(200, 1), 3: of_record(210, 2)}
    told.tell(event("u", 1, 300, 4, later=5), event("d", 3, 310, 6))
    expected = {1: of_record(300, 4, later=5), 2: of_record(200, 1)}
    assert rows(warehouse) == expected
    # What comes late changes nothing, nor a row that is deleted.
    told.tell(event("u", 1, 250, 3, later=4), event("u", 3, 305, 5, later=4))
    assert rows(warehouse) == expected
    # Nor does a change that is sent once more.
    told.tell(event("u", 1, 300, 7, later=5, again=4), event("c", 2, 200, 8, again=9))
    assert rows(warehouse) == expected
    assert told.counted() == {"read": 9, "applied": 5, "superseded": 2, "duplicate": 2}
    # Of one batch the last change counts.
    told.tell(event("u", 2, 410, 9, later=2, again=1), event("u", 2, 420, 10, later=1, again=1))
    expected[2] = of_record(420, 10, later=1, again=1)
    assert rows(warehouse) == expected
    anew = derive_anew(warehouse, own, "mysql")
    assert anew.moved == 0
    # Of a change that was sent twice, what Kafka says is that of one of the two.
    of_one = ("read_at", "sent_at", "at_offset", "headers")
    told_anew = {key: {**row, **{name: expected[key][name] for name in of_one}} for key, row in rows(warehouse).items()}
    assert told_anew == expected


def test_a_list_of_changes_has_one_that_is_sent_again_once(
    warehouse: Warehouse, contracts: Contracts, tmp_path: Path
) -> None:
    own = with_columns(contracts)
    table = own.silver.tables[FEED].model_copy(update={"append_only": True, "keys": ()})
    tables = {**own.silver.tables, FEED: table}
    own = with_gate(own.model_copy(update={"silver": own.silver.model_copy(update={"tables": tables})}))
    ensure_tables(warehouse, own)
    told = Told(warehouse, own, "mysql", tmp_path)
    told.tell(event("c", 1, 100, 0), event("u", 1, 200, 1))
    told.tell(event("u", 1, 200, 2, again=9))
    assert sorted(row["at_offset"] for row in warehouse.read(f"silver.{FEED}").collect()) == [0, 1]
    assert told.counted() == {"read": 3, "applied": 2, "duplicate": 1}


def strict(contracts: Contracts) -> Contracts:
    """One feed must be read."""
    mysql = contracts.topics.sources["mysql"]
    feeds = {**mysql.feeds, FEED: mysql.feeds[FEED].model_copy(update={"parse_errors": "fail"})}
    sources = {**contracts.topics.sources, "mysql": mysql.model_copy(update={"feeds": feeds})}
    topics = contracts.topics.model_copy(update={"sources": sources})
    return with_gate(contracts.model_copy(update={"topics": topics}), AMOUNT)


def test_a_record_that_cannot_be_read_suspends_its_table(
    warehouse: Warehouse, contracts: Contracts, tmp_path: Path
) -> None:
    own = strict(contracts)
    ensure_tables(warehouse, own)
    told = Told(warehouse, own, "mysql", tmp_path)

    def amounts() -> dict[int, str]:
        return {key: str(amount) for key, amount in told.rows(FEED, "total_amount").items()}

    # A record that fails a rule can be read.
    told.tell(event("c", 1, 100, 0), event("c", 2, 200, 1, amount="-1.00"))
    assert (amounts(), told.suspended()) == ({1: "1.00"}, {})
    no_json = {**event("c", 3, 300, 2), "value": "no JSON"}
    wrong_time = event("c", 4, 400, 3)
    wrong_time["value"] = wrong_time["value"].replace("2026-01-01T00:00:00Z", "soon")
    told.tell(no_json, wrong_time, event("c", 5, 500, 4))
    reason = (
        "of its records 2 cannot be read, or have a value that does not fit (parse_errors: fail; "
        "The value is not JSON of the declared shape: 1; "
        "created_at: the value is text that is no ISO 8601 time; the column is TIMESTAMP: 1)"
    )
    assert (amounts(), told.suspended(), sorted(told.entries(FEED))) == ({1: "1.00"}, {FEED: reason}, [1])
    told.tell(event("c", 6, 600, 5))
    assert amounts() == {1: "1.00"}
    assert told.resume(FEED) == reason
    assert told.resume(FEED, accepted=[FEED]) is None
    assert (amounts(), told.suspended()) == ({1: "1.00", 5: "1.00", 6: "1.00"}, {})
    assert {offset: entry["state"] for offset, entry in told.entries(FEED).items()} == dict.fromkeys((1, 2, 3), "open")
    # What a person has discarded is no reason, wherever it is read again; what is new is one.
    assert told.decide("discarded", 2) == {}
    told.decide("discarded", 3)
    told.tell(no_json, wrong_time, event("c", 7, 700, 6))
    assert (amounts()[7], told.suspended()) == ("1.00", {})
    told.tell({**event("c", 8, 800, 7), "value": "no JSON"})
    assert list(told.suspended()) == [FEED]
