"""Changes of recent keys read recent files only: the others are taken away here, and nothing misses them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pytest
from pyspark.sql import functions as F

from benchmarks.load import TOPICS, Event, Table
from benchmarks.records import bronze_rows
from gold.change_feed.changes import ChangedKeys
from gold.change_feed.keys import Keys, rows_of
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import UPSERTED, TableSpec, Warehouse, inline_rows
from lakehouse.delta.versions import current
from lakehouse.quality.masking import has_sensitive_key
from silver.apply import ensure_tables
from silver.batch.outcome import FeedBatch
from silver.job import SilverJob
from tests.support.silver import apply_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FEED, SOURCE = "silver.postgres_orders", "postgres"
SPEC = TableSpec("silver.numbered", "order_id BIGINT, said STRING", properties=UPSERTED)


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(tmp_path), str(tmp_path / "_checkpoints"))


def take_away(rows: DataFrame) -> int:
    """Remove the files that these rows are in; how many."""
    paths = [row["path"] for row in rows.select(F.col("_metadata.file_path").alias("path")).distinct().collect()]
    for path in paths:
        Path(unquote(urlparse(path).path)).unlink()
    return len(paths)


def test_a_batch_of_recent_keys_reads_no_file_of_older_ones(warehouse: Warehouse, contracts_of_load: Contracts) -> None:
    ensure_tables(warehouse, contracts_of_load)
    job, orders = (
        SilverJob(SOURCE, contracts_of_load, warehouse.address, "recent"),
        Table("postgresql", seed=5, keys=600),
    )

    def arrive(events: list[Event], number: int, first: int) -> None:
        rows = bronze_rows(warehouse.spark, events, topic=TOPICS["postgresql"], first_offset=first)
        apply_rows(warehouse, rows, job=job)

    inserts = list(islice(orders.events(), 600))
    arrive(inserts[:300], 0, 0)
    arrive(inserts[300:], 1, 300)
    assert take_away(warehouse.read(FEED).where("order_id <= 300")) == 1
    arrive([orders.update(key) for key in (410, 440)], 2, 600)
    found = warehouse.read(FEED).where("order_id BETWEEN 301 AND 600").select("order_id", "status").collect()
    assert {row["order_id"]: row["status"] for row in found} == {
        key: row["status"] for key, row in orders.rows.items() if key > 300
    }
    (audit,) = warehouse.read("ops.batches").where("batch = 2 AND first_offset IS NOT NULL").collect()
    assert (audit["read"], audit["applied"]) == (2, 2)


def ranges(feed: Feed, *told: Mapping[str, tuple[int, int]], read: int) -> Mapping[str, tuple[int, int]]:
    """What a batch makes of the ends that its stretches tell, by key."""
    rows: list[Any] = [
        {
            "read": read / len(told),
            "key_ranges": {key: {"lowest": low, "highest": high} for key, (low, high) in one.items()},
        }
        for one in told
    ]
    given: dict[str, Any] = {
        "name": "a batch",
        "rules": (),
        "run": "run",
        "state": None,
        "quarantine_state": None,
        "warehouse": None,
    }
    return FeedBatch(feed=feed, rows=rows, **given).key_ranges


def test_keys_are_looked_for_between_their_ends_where_they_are_close_together(contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    assert ranges(feed, {"order_id": (50, 60)}, {"order_id": (10, 55)}, read=10) == {"order_id": (10, 60)}
    assert ranges(feed, {"order_id": (1, 200)}, read=10) == {"order_id": (1, 200)}
    assert ranges(feed, {"order_id": (1, 201)}, read=10) == {}
    assert ranges(feed, {"shop": (1, 2), "order_id": (1, 900)}, read=10) == {}, "all of them, or none"
    assert ranges(feed, {}, read=10) == {}


def test_ends_of_a_sensitive_key_are_not_told(contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    hidden = feed.columns["order_id"].model_copy(update={"sensitive": True})
    feed = feed.model_copy(update={"columns": {**feed.columns, "order_id": hidden}})
    assert has_sensitive_key(feed)
    assert ranges(feed, {"order_id": (10, 20)}, read=10) == {}


def test_changed_keys_that_are_numbers_are_looked_for_between_their_ends(warehouse: Warehouse) -> None:
    warehouse.ensure(SPEC)
    for first in (0, 100):
        rows = [{"order_id": first + n, "said": "before"} for n in range(10)]
        warehouse.append(SPEC.name, inline_rows(warehouse.spark, rows, SPEC.columns))
    before = current(warehouse, SPEC.name)
    warehouse.delta(SPEC.name).update("order_id IN (103, 105)", {"said": "'after'"})
    now = current(warehouse, SPEC.name)
    with ExitStack() as stack:
        changed = ChangedKeys(warehouse, key="order_id", stack=stack)
        keys = changed.since(before, now)
        assert keys is not None
        assert (keys.count, keys.key_range) == (2, (103, 105))
        assert take_away(warehouse.read(SPEC.name).where("order_id < 50")) == 1
        assert {(row["order_id"], row["said"]) for row in changed.rows(now, keys).collect()} == {
            (103, "after"),
            (105, "after"),
        }
        assert changed.rows(now, keys) is changed.rows(now, keys), "read once"


def test_a_key_without_a_value_is_one_too(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.ensure(SPEC)
    before = current(warehouse, SPEC.name)
    rows: list[dict[str, object]] = [{"order_id": 1, "said": "one"}, {"order_id": None, "said": "none"}]
    warehouse.append(SPEC.name, inline_rows(spark, rows, SPEC.columns))
    with ExitStack() as stack:
        changed = ChangedKeys(warehouse, key="order_id", stack=stack)
        now = current(warehouse, SPEC.name)
        keys = changed.since(before, now)
        assert keys is not None
        assert (keys.count, keys.key_range) == (2, None)
        assert {row["said"] for row in changed.rows(now, keys).collect()} == {"one", "none"}


def test_keys_of_text_have_no_ends(spark: SparkSession) -> None:
    rows = inline_rows(spark, [{"id": "a"}, {"id": "b"}, {"id": "c"}], "id STRING")
    keys = Keys(inline_rows(spark, [{"id": "b"}], "id STRING"), 1)
    assert [row["id"] for row in rows_of(rows, keys).collect()] == ["b"]
