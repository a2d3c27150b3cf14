"""Tables that exist: refused when they are not what the contract says; silver can be made anew from bronze."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from benchmarks.records import store
from bronze.events import events_table
from demo.__main__ import DATA, RECORDINGS
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import Column
from lakehouse.delta.tables import TableSpec, Warehouse
from lakehouse.errors import TableError, UnfinishedTableError
from silver import apply
from silver.batch.merge import silver_table
from silver.order.runs import SEGMENT_KEY
from silver.order.state import OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.recordings import per_partition, read, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPEC = TableSpec(
    name="silver.orders",
    columns="order_id BIGINT, total_amount DECIMAL(10,2), _position STRUCT<lsn: BIGINT, offset: BIGINT>",
)
PER_PARTITION = 60
PASSES = 2


def test_a_table_as_the_contract_says_passes(warehouse: Warehouse) -> None:
    warehouse.ensure(SPEC)
    version = warehouse.version(SPEC.name)
    warehouse.ensure(SPEC)
    warehouse.ensure(TableSpec(name=SPEC.name, columns=SPEC.columns.replace("order_id", "ORDER_ID")))
    assert warehouse.version(SPEC.name) == version


def begun(warehouse: Warehouse, *names: str, seconds_ago: float) -> Path:
    """The folder of a table whose first commit was begun so long ago, with these files."""
    folder = Path(warehouse.path(SPEC.name))
    (folder / "_delta_log").mkdir(parents=True)
    files = [folder / name for name in names]
    for file in files:
        file.write_bytes(b"")
    for path in (*files, folder / "_delta_log", folder):
        os.utime(path, (time.time() - seconds_ago,) * 2)
    return folder


def test_what_a_killed_run_has_begun_is_created_by_the_next(warehouse: Warehouse) -> None:
    begun(warehouse, "_delta_log/.00000000000000000000.json.1c2d.tmp", seconds_ago=61)
    warehouse.ensure(SPEC)
    assert warehouse.version(SPEC.name) == 0
    warehouse.append(SPEC.name, warehouse.read(SPEC.name))


@pytest.mark.parametrize(
    ("names", "seconds_ago", "is_locked"),
    [((), 5, True), (("part-0.snappy.parquet",), 61, True), ((), 61, False)],
    ids=["another run may be creating it", "it has data", "without the lock"],
)
def test_else_it_is_named_and_stays(
    warehouse: Warehouse, names: tuple[str, ...], seconds_ago: float, is_locked: bool
) -> None:
    folder = begun(warehouse, *names, seconds_ago=seconds_ago)
    with pytest.raises(UnfinishedTableError, match=f"silver.orders has a folder {folder}, and no commit in it"):
        warehouse.ensure(SPEC, is_locked=is_locked)
    assert sorted(path.name for path in folder.iterdir()) == ["_delta_log", *names]


def test_tables_are_made_together_and_one_that_is_refused_keeps_none_from_being_made(warehouse: Warehouse) -> None:
    warehouse.ensure(SPEC)
    refused = TableSpec(name=SPEC.name, columns="note STRING")
    others = [TableSpec(name=f"ops.table_{number}", columns=f"column_{number} STRING") for number in range(6)]
    with pytest.raises(TableError, match=r"silver\.orders"):
        warehouse.ensure_all([refused, *others])
    for spec in others:
        assert f"{spec.columns.split()[0]}" in warehouse.read(spec.name).columns
    warehouse.ensure_all([SPEC, *others])


@pytest.mark.parametrize("kind", ["ARRAY<STRING>", "BINARY", "BOOLEAN"])
def test_silver_has_statistics_of_what_it_is_searched_by(warehouse: Warehouse, contracts: Contracts, kind: str) -> None:
    feed = contracts.feeds["postgres_orders"]
    note = Column.model_validate({"type": kind})
    feed = feed.model_copy(update={"columns": {**feed.columns, "note": note}})
    warehouse.ensure(silver_table(feed))
    (row,) = warehouse.delta("silver.postgres_orders").detail().select("properties").collect()
    named = row["properties"]["delta.dataSkippingStatsColumns"].split(",")
    assert named == [*(name for name in feed.columns if name != "note"), "_topic", "_partition", "_offset"]


def test_every_column_that_is_missing_or_too_many_or_has_another_type_is_named(warehouse: Warehouse) -> None:
    warehouse.ensure(SPEC)
    changed = TableSpec(
        name=SPEC.name,
        columns="note STRING, total_amount DECIMAL(12,2), _position STRUCT<lsn: BIGINT, pos: BIGINT>",
    )
    with pytest.raises(TableError) as refused:
        warehouse.ensure(changed)
    assert refused.value.exit_code == 5
    assert refused.value.what == (
        f"The table silver.orders at {warehouse.location} is not what it should be: "
        "note should be string and is missing; total_amount should be decimal(12,2) and is decimal(10,2); "
        "_position should be struct<lsn:bigint,pos:bigint> and is struct<lsn:bigint,offset:bigint>; "
        "order_id (bigint) should not be there."
    )
    assert refused.value.hint.endswith("and run silver: it rebuilds them from bronze.")


def test_columns_are_added_in_their_place_inside_of_a_struct_too(warehouse: Warehouse) -> None:
    """A table of PostgreSQL has a version of each of its large columns."""
    before = TableSpec("ops.grown", "id BIGINT, b STRING, versions STRUCT<b:BIGINT,d:BIGINT>")
    after = TableSpec(
        "ops.grown",
        "a STRING, id BIGINT, b STRING, c STRING, versions STRUCT<a:BIGINT,b:BIGINT,c:BIGINT,d:BIGINT>, z INT",
    )
    warehouse.ensure(before)
    warehouse.spark.sql(f"INSERT INTO {warehouse.sql_name('ops.grown')} VALUES (1, 'x', named_struct('b', 2, 'd', 4))")
    warehouse.add_columns(after)
    warehouse.require_columns(after)
    assert warehouse.read("ops.grown").schema.simpleString() == (
        "struct<a:string,id:bigint,b:string,c:string,versions:struct<a:bigint,b:bigint,c:bigint,d:bigint>,z:int>"
    )
    (row,) = warehouse.read("ops.grown").collect()
    assert (row["id"], tuple(row["versions"])) == (1, (None, 2, None, 4))


def test_a_table_whose_rows_were_made_by_another_key_is_refused(warehouse: Warehouse, contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    warehouse.ensure(silver_table(feed))
    warehouse.ensure(silver_table(feed))
    with pytest.raises(TableError, match=r"its keys should be order_id, customer_id and is order_id\."):
        warehouse.ensure(silver_table(feed.model_copy(update={"keys": ("order_id", "customer_id")})))


@pytest.fixture(scope="module")
def unchanged_toast(spark: SparkSession, contracts: Contracts, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Bronze in several commits with a pass of silver after each: table feed, outbox, records that may not pass."""
    folder = tmp_path_factory.mktemp("passes")
    warehouse = Warehouse(spark, str(folder / "w"), str(folder / "w" / "_checkpoints"))
    for source in contracts.topics.sources:
        warehouse.ensure(events_table(source))
    for number in range(PASSES):
        for recording in ("pg_big_20k", "outbox_pg_envelope"):
            records = [
                record for record in read(DATA / f"{recording}.jsonl.gz") if record["topic"] in RECORDINGS[recording]
            ]
            part = per_partition(records, partial(is_read_in, number))
            file = write(folder / f"{recording}-{number}.jsonl.gz", part)
            store(warehouse, "postgres", bronze_rows(spark, file, topics=RECORDINGS[recording]))
        unreadable = Path(__file__).parent.parent / "scenarios" / "unreadable_records" / "events.jsonl"
        topic = "postgres_prod_tables.public.orders"
        rows = bronze_rows(spark, unreadable, topics={topic: topic})
        moved = rows.where(F.expr(f"int(offset / 7) = {number}")).withColumn("partition", F.col("partition") + 100)
        store(warehouse, "postgres", moved)
        silver(warehouse, contracts, run_id=str(number))
    return warehouse


def is_read_in(number: int, at: int) -> bool:
    """Whether the pass reads the record that is so many-th in its partition."""
    return at * PASSES // PER_PARTITION == number


def silver(warehouse: Warehouse, contracts: Contracts, *, run_id: str) -> None:
    apply.run(warehouse.spark, Settings(warehouse.location, warehouse.checkpoints), contracts, run_id=run_id)


def rows_of(warehouse: Warehouse, table: str, *dropped: str) -> Counter[str]:
    """The rows as text, each as often as it is there."""
    return Counter(str(row) for row in warehouse.read(table).drop(*dropped).collect())


@pytest.mark.slow
def test_silver_is_made_anew_from_bronze(unchanged_toast: Warehouse, contracts: Contracts, tmp_path: Path) -> None:
    """A person deletes every silver table of a source, nothing else, and runs silver."""
    feeds = sorted(contracts.of_source("postgres"))
    shutil.copytree(unchanged_toast.location, tmp_path / "w")
    for feed in feeds:
        shutil.rmtree(tmp_path / "w" / "silver" / feed)
    anew = Warehouse(unchanged_toast.spark, str(tmp_path / "w"), str(tmp_path / "w" / "_checkpoints"))
    silver(anew, contracts, run_id="anew")
    for feed in feeds:
        before = rows_of(unchanged_toast, f"silver.{feed}", "_applied_at")
        assert before.total() > 20
        assert rows_of(anew, f"silver.{feed}", "_applied_at") == before
    own = ("last_seen", "generation")
    before = rows_of(unchanged_toast, "quality.quarantine", *own)
    assert before.total() > 5
    assert rows_of(anew, "quality.quarantine", *own) == before
    before = rows_of(unchanged_toast, "ops.outbox_events")
    assert before.total() > 20
    assert rows_of(anew, "ops.outbox_events") == before
    runs = [stretches_of(warehouse) for warehouse in (unchanged_toast, anew)]
    assert runs[0] == runs[1]
    assert sums(anew, "anew") == sums(unchanged_toast, "0", "1"), "the batch audit has the records of both passes"
    assert sums(anew, "0", "1") == sums(unchanged_toast, "0", "1")


def stretches_of(warehouse: Warehouse) -> list[str]:
    """What is known of every connector run, whatever the batches were."""
    told = (
        warehouse.read("ops.batches")
        .where("segment IS NOT NULL")
        .select(*SEGMENT_KEY, "segment.*")
        .groupBy(*SEGMENT_KEY)
    )
    rows = told.agg(
        F.min("first_offset"), F.max("last_offset"), F.bool_or("has_end"), F.min("lowest"), F.max("highest")
    )
    return sorted(map(str, rows.collect()))


def sums(warehouse: Warehouse, *runs: str) -> list[Any]:
    kinds = ("read", *OUTCOMES)
    audit = warehouse.read("ops.batches").where(F.col("source").eqNullSafe("postgres") & F.col("run").isin(*runs))
    totals = audit.groupBy("topic", "partition").agg(*[F.sum(kind).alias(kind) for kind in kinds])
    return sorted(str(row) for row in totals.collect())


def test_streams_may_create_a_table_at_the_same_time(warehouse: Warehouse) -> None:
    spec = TableSpec(name="ops.at_once", columns="number INT")
    ensure = inheritable_thread_target(warehouse.spark)(warehouse.ensure)
    with ThreadPoolExecutor(6) as threads:
        for ended in [threads.submit(ensure, spec) for _ in range(6)]:
            ended.result()
    assert warehouse.version(spec.name) == 0
