"""A disk that is full and a folder that may not be written: one sentence each, and afterwards the same batch again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.records import store
from bronze.events import events_table
from demo.__main__ import DATA, RECORDINGS
from lakehouse.batches import batches
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TableError
from lakehouse.failures import storage_errors
from silver.job import SilverJob
from tests.support.bronze import bronze_rows
from tests.support.recordings import read, write
from tests.support.silver import apply_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = ("silver.postgres_orders", "quality.quarantine", "ops.batches")
ROOM = 60_000  # bytes: enough to begin the batch, not to end it


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    topic_partition = tmp_path / "disk"
    topic_partition.mkdir()
    mounted = subprocess.run(
        [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(topic_partition)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield topic_partition
    finally:
        # Lazily: Spark may still have a file open.
        subprocess.run([shutil.which("umount") or "umount", "-l", str(topic_partition)], check=True)


def records(warehouse: Warehouse, folder: Path) -> DataFrame:
    topics = RECORDINGS["pg_big_20k"]
    some = [record for record in read(DATA / "pg_big_20k.jsonl.gz") if record["topic"] in topics][:2000]
    return bronze_rows(warehouse.spark, write(folder / "some.jsonl.gz", some), topics=topics)


def silver(warehouse: Warehouse, contracts: Contracts) -> None:
    """Silver of one source."""
    job = SilverJob("postgres", contracts, warehouse.address, "run")
    with storage_errors(job="silver: postgres", storage_paths=(warehouse.location, warehouse.checkpoints)):
        apply_stored(warehouse, job=job)


def fill(disk: Path, *, leave: int) -> Path:
    """A file that takes all the room but so many bytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(disk).free - leave))
    return filler


def rows_of(warehouse: Warehouse, table: str) -> Counter[str]:
    """Without what is the run's own: times, and the identity of its generation."""
    own = ("_applied_at", "started_at", "written_at", "first_seen", "last_seen", "generation", "writer")
    return Counter(map(str, warehouse.read(table).drop(*own).collect()))


def test_a_full_disk_is_one_sentence_and_the_batch_is_applied_when_there_is_room(
    small_disk: Path, empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    elsewhere = empty_silver()
    shutil.copytree(elsewhere.location, small_disk / "w")
    warehouse = Warehouse(elsewhere.spark, str(small_disk / "w"), str(small_disk / "w" / "_checkpoints"))
    for each in (elsewhere, warehouse):
        each.ensure(events_table("postgres"))
        store(each, "postgres", records(each, tmp_path))
    filler = fill(small_disk, leave=ROOM)
    with pytest.raises(TableError) as stopped:
        silver(warehouse, contracts)
    assert stopped.value.what.startswith("silver: postgres: a disk that this job writes to is full (free now: 0 MB at ")
    assert batches(warehouse, "silver").isEmpty(), "the batch has not ended"

    filler.unlink()
    silver(warehouse, contracts)
    silver(elsewhere, contracts)
    assert rows_of(warehouse, "silver.postgres_orders").total() > 500
    for table in TABLES:
        assert rows_of(warehouse, table) == rows_of(elsewhere, table), table


WRITES = """
import sys
from lakehouse.failures import storage_error
from lakehouse.spark.session import spark_session
from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows

spark = spark_session()
warehouse = Warehouse(spark, sys.argv[1], sys.argv[1] + "/_checkpoints")
rows = inline_rows(spark, [{"name": "row"}], "name STRING")
stream = lambda: (
    spark.readStream.format("delta").load(warehouse.path("ops.names"))
    .writeStream.foreachBatch(lambda batch, number: None)
    .option("checkpointLocation", warehouse.checkpoint("names")).trigger(availableNow=True).start().awaitTermination()
)
for write in (
    lambda: warehouse.ensure(TableSpec("ops.others", "name STRING")),
    lambda: warehouse.append("ops.names", rows),
    lambda: warehouse.delta("ops.names").delete(),
    stream,
):
    try:
        write()
        print("written")
    except Exception as error:
        print(storage_error(error, job="job", places=(warehouse.location,)))
"""


def test_a_folder_that_may_not_be_written_is_one_sentence(warehouse: Warehouse) -> None:
    command = [sys.executable, "-c", WRITES, warehouse.location]
    if os.geteuid() == 0:  # modes say nothing to root as long as it may override them
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root may write anywhere, and without setpriv it cannot be kept from it")
        command = [setpriv, "--bounding-set=-dac_override,-dac_read_search", *command]
    from lakehouse.delta.tables import TableSpec, inline_rows

    warehouse.ensure(TableSpec("ops.names", "name STRING"))
    warehouse.append("ops.names", inline_rows(warehouse.spark, [{"name": "row"}], "name STRING"))
    folders = [Path(warehouse.location), *(path for path in Path(warehouse.location).rglob("*") if path.is_dir())]
    try:
        for folder in folders:
            folder.chmod(0o555)
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout + done.stderr
    for line, topic_partition in zip(
        lines, ("/ops/others/_delta_log", "/ops/names", "/ops/names", "/_checkpoints"), strict=True
    ):
        assert line.startswith("job: the store refuses user "), lines
        assert f" at {warehouse.location}{topic_partition}" in line, lines
