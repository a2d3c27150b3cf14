"""What a batch has asked of Java is let go when it is done: with many tables Java's memory would fill with it."""

from __future__ import annotations

import gc
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.java_gateway import JavaObject

from benchmarks.load import TOPICS, Table
from benchmarks.records import bronze_rows, store
from bronze.events import events_table
from lakehouse.config import settings
from silver import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.contracts.models import Contracts

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Of the next pass, before its batch.
FEW = 100


def objects_of_java() -> int:
    return sum(isinstance(one, JavaObject) for one in gc.get_objects())


def test_a_pass_leaves_no_objects_of_java_behind(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path
) -> None:
    own = settings(warehouse=str(tmp_path), bootstrap_servers="")
    warehouse = own.address.open(spark)
    for source in contracts_of_load.topics.sources:
        warehouse.ensure(events_table(source))
    events = Table("postgresql", seed=1, keys=100).events()
    left = []
    gc.disable()  # Python would come to it some time
    try:
        for number in range(3):
            rows = bronze_rows(spark, list(islice(events, 20)), topic=TOPICS["postgresql"], first_offset=20 * number)
            store(warehouse, "postgres", rows)
            apply.run(spark, own, contracts_of_load, run_id=f"pass {number}")
            left.append(objects_of_java())
    finally:
        gc.enable()
    assert left[2] - left[1] < FEW
