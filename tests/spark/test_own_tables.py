"""Tables of one's own, by contracts alone: the folder of docs/own-tables.md on real recordings, up to gold."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from cli.main import main
from demo.__main__ import DATA, RECORDINGS
from demo.check import as_text, differences, final_rows
from demo.playground import MORE
from gold import build
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from silver.apply import ensure_tables
from tests.support.bronze import bronze_rows
from tests.support.guide import writing_contracts
from tests.support.recordings import read
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OF_SOURCE = {
    "erp": "pg_default",
    "webshop": "mysql",
    "app": "outbox_mysql_expand",
    "postgres": "outbox_pg_envelope",
    "mysql": "outbox_mysql_envelope",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Contracts:
    """The contracts that the page writes: the packaged ones, and three tables more."""
    folder = tmp_path_factory.mktemp("guide")
    main(["init", str(folder / "own")])
    subprocess.run(["/bin/bash", "-euc", writing_contracts()], cwd=folder, check=True)
    return load_contracts(folder / "own")


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, own: Contracts, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Every source's recording applied in two batches, and gold built."""
    location = str(tmp_path_factory.mktemp("own") / "warehouse")
    warehouse = Warehouse(spark, location, f"{location}/_checkpoints")
    ensure_tables(warehouse, own)
    for source, recording in OF_SOURCE.items():
        topics = {**RECORDINGS, **MORE}[recording]
        records = bronze_rows(spark, DATA / f"{recording}.jsonl.gz", topics=topics)
        for part in (records.where("offset % 2 = 0"), records.where("offset % 2 = 1")):
            apply(warehouse, own, source, part)
    outcome = build.run(spark, settings(warehouse=location), own, run_id="test")
    assert outcome.blocked_sources == ()
    return warehouse


def test_the_contracts_of_the_page_add_three_tables(own: Contracts) -> None:
    added = {
        name: (feed.kind, feed.envelope) for name, feed in own.feeds.items() if feed.source not in {"postgres", "mysql"}
    }
    assert added == {
        "erp_orders": ("postgresql", "table"),
        "webshop_orders": ("mysql", "table"),
        "app_orders": ("mysql", "outbox"),
    }


@pytest.mark.parametrize(
    ("table", "recording", "renamed", "not_in_the_events"),
    [
        ("erp_orders", "pg_default", {}, {"channel"}),
        ("webshop_orders", "mysql", {"state": "status"}, set()),
    ],
)
def test_a_table_of_ones_own_is_its_source(
    warehouse: Warehouse,
    own: Contracts,
    table: str,
    recording: str,
    renamed: Mapping[str, str],
    not_in_the_events: set[str],
) -> None:
    columns = [column for column in own.feeds[table].columns if column not in not_in_the_events]
    rows = as_text(warehouse.read(f"silver.{table}").where("NOT _is_deleted"), columns, key="order_id")
    final = final_rows(DATA / f"{recording}.final.json.gz", "orders", key="order_id")
    expected = {key: {column: row[renamed.get(column, column)] for column in columns} for key, row in final.items()}
    waiting = keys_in_quarantine(warehouse, table)
    # Of the ERP, negative amounts, and a large value that was left out; the page names it alone in gate 1.
    assert bool(waiting) == (table == "erp_orders")
    assert len(waiting) < len(expected) / 2
    for key in waiting:
        rows, expected = dict(rows), dict(expected)
        rows.pop(key, None)
        expected.pop(key, None)
    assert differences(rows, expected, of=table, against="its source") == []


def test_a_column_that_came_later_is_null_where_the_events_lack_it(warehouse: Warehouse) -> None:
    channels = warehouse.read("silver.erp_orders").groupBy("channel").count().collect()
    assert {row["channel"] for row in channels} > {None, "web"}


def test_an_expanded_outbox_is_the_last_event_of_every_order(warehouse: Warehouse) -> None:
    expected: dict[int, dict[str, Any]] = {}
    for record in read(DATA / "outbox_mysql_expand.jsonl.gz"):
        if record["topic"] in MORE["outbox_mysql_expand"]:
            value = json.loads(record["value"])
            payload = json.loads(value) if isinstance(value, str) else value
            order_id = payload.get("order_id", int(json.loads(record["key"])))
            expected[order_id] = {"order_id": order_id, "status": payload.get("status")}
    rows = as_text(warehouse.read("silver.app_orders"), ["order_id", "status"], key="order_id")
    waiting = keys_in_quarantine(warehouse, "app_orders")
    assert {key: row for key, row in rows.items() if key not in waiting} == {
        key: row for key, row in expected.items() if key not in waiting
    }
    assert len(expected) - len(waiting) > 40


def test_the_sources_join_gold_under_their_prefixes(warehouse: Warehouse, own: Contracts) -> None:
    gold = warehouse.read("gold.unified_orders")
    prefixes = gold.groupBy("source_database", F.split("composite_key", "-")[0].alias("prefix")).count().collect()
    found = {row["source_database"]: (row["prefix"], row["count"]) for row in prefixes}
    prefix_of = {"erp": "ERP", "webshop": "WEB", "app": "APP", "postgresql": "PG", "mysql": "MY"}
    assert {source: prefix for source, (prefix, _count) in found.items()} == prefix_of
    for source in ("erp", "webshop", "app"):
        assert found[source][1] == warehouse.read(f"silver.{source}_orders").where("NOT _is_deleted").count()
    # A column that a feed does not have is NULL, one under another name is not guessed.
    assert gold.where("source_database = 'webshop' AND (status IS NOT NULL OR customer_id IS NOT NULL)").count() == 0


def keys_in_quarantine(warehouse: Warehouse, feed: str) -> set[int]:
    rows = warehouse.read("quality.quarantine").where(F.col("feed") == feed).select("key").collect()
    keys = [json.loads(bytes(row["key"])) for row in rows if row["key"] is not None]
    return {key["order_id"] if isinstance(key, dict) else int(key) for key in keys}
