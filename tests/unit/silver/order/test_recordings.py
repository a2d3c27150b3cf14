"""Recorded databases whose connector took a second full snapshot, and a producer that sends every record again."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lakehouse.contracts.models import Contracts, Feed
from tests.support.events import Record, micros
from tests.support.model.batches import each_alone
from tests.support.pure import PureSilver
from tests.support.recordings import read
from tests.support.second_snapshot import with_second_snapshot

RECORDINGS = Path(__file__).parents[4] / "demo" / "data"
# A partition is a third of a recording.
PARTITIONS = [int(number) for number in os.environ.get("RECORDED_PARTITIONS", "1").split(",")]
BATCHES = 4
TIMES = ("created_at", "updated_at")

CASES = [
    pytest.param("postgres_orders", "pg_big_20k", "pgbig2.public.orders", id="postgresql"),
    pytest.param("mysql_orders", "mysql_big_20k", "mybig2.ecommerce_big2.orders", id="mysql"),
]


def feed_of(contracts: Contracts, name: str, topic: str) -> Feed:
    return contracts.feeds[name].model_copy(update={"topics": (topic,), "tables": ()})


def in_batches(records: Sequence[Record], random: Random) -> list[list[Record]]:
    """Each record behind those before it in its partition."""
    batches: list[list[Record]] = [[] for _ in range(BATCHES)]
    for partition in PARTITIONS:
        own = [record for record in records if record["partition"] == partition]
        numbers = sorted(random.randrange(BATCHES) for _ in own)
        for number, record in zip(numbers, own, strict=True):
            batches[number].append(record)
    return batches


def final_rows(recording: str, records: Sequence[Record]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """The source's rows, of the keys that these records name."""
    final = json.loads(gzip.decompress((RECORDINGS / f"{recording}.final.json.gz").read_bytes()))["orders"]
    keys = {json.loads(record["key"])["order_id"] for record in records}
    rows = [dict(zip(final["columns"], row, strict=True)) for row in final["rows"]]
    return {
        (row["order_id"],): {
            **row,
            "total_amount": None if row["total_amount"] is None else Decimal(row["total_amount"]),
            **{name: None if row[name] is None else micros(row[name]) for name in TIMES},
        }
        for row in rows
        if row["order_id"] in keys
    }


@pytest.mark.parametrize(("name", "recording", "topic"), CASES)
def test_every_record_sent_twice_at_some_later_offset_ends_as_the_source(
    contracts: Contracts, name: str, recording: str, topic: str
) -> None:
    random = Random(recording)  # noqa: S311
    position_contexts = {(topic, partition) for partition in PARTITIONS}
    recorded = read(RECORDINGS / f"{recording}.jsonl.gz")
    records = with_second_snapshot([one for one in recorded if (one["topic"], one["partition"]) in position_contexts])
    again = [
        {**record, "offset": offset}
        for partition in PARTITIONS
        for offset, record in enumerate(each_alone([one for one in records if one["partition"] == partition], random))
    ]
    assert len(again) == 2 * len(records)
    silver = PureSilver(feed_of(contracts, name, topic))
    for batch in in_batches(again, random):
        silver.tell(batch)
    rows, expected = silver.rows(), final_rows(recording, records)
    assert len(expected) > 2_500 * len(PARTITIONS)
    live = {key: row for key, row in rows.items() if row is not None}
    missing = sorted(expected.keys() - live.keys())
    assert not missing, f"{len(missing)} of {len(expected)} rows are missing"
    assert {key: row for key, row in live.items() if row != expected.get(key)} == {}
