"""Bronze reads again what was erased, from a topic that still has it: it is stored as it was erased."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import functions as F

from bronze.erase import APPEND_ONLY, erase
from bronze.events import events_table
from lakehouse.erasure.names import ERASED_HEADER, HEADERS
from lakehouse.erasure.table import ERASED, write
from tests.support.shop import TOPIC, Shop

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EVENTS = events_table("shop").name


def rows(shop: Shop) -> list[tuple[int, str | None, list[str]]]:
    """Of each row of bronze its offset, its value, and the names of its headers."""
    stored = shop.warehouse.read(EVENTS).where("partition = 0").orderBy("offset").collect()
    return [
        (row["offset"], row["value"] and bytes(row["value"]).decode(), [one["key"] for one in row["headers"] or ()])
        for row in stored
    ]


def test_a_table_that_is_lost_and_read_again_has_no_erased_record(shop: Shop) -> None:
    shop.produce("value-0", "value-1", "value-2")
    shop.produce("value-3", partition=1)
    shop.run()
    assert erase(shop.warehouse, "shop") == 0
    shop.warehouse.ensure(ERASED)
    header = F.from_json(F.lit(f'[{{"key": "{ERASED_HEADER}", "value": "e30="}}]'), HEADERS).alias("headers")
    own = shop.warehouse.read(EVENTS).where("partition = 0 AND offset = 1")
    topic_id = F.coalesce("_topic_id", F.lit("")).alias("topic_id")
    record = own.select("topic", topic_id, "partition", "offset", header, F.lit("record").alias("kind"))
    # Written down twice, as by two commands: it is one record.
    for _time in range(2):
        write(shop.warehouse, record.withColumn("source", F.lit("shop")))
    erased = [(0, "value-0", []), (1, None, [ERASED_HEADER]), (2, "value-2", [])]
    assert [erase(shop.warehouse, "shop"), erase(shop.warehouse, "shop")] == [1, 0]
    assert rows(shop) == erased
    assert shop.warehouse.properties(EVENTS)[APPEND_ONLY] == "true"
    shop.produce("value-4")
    shop.run()
    assert rows(shop) == [*erased, (3, "value-4", [])]

    for folder in (shop.warehouse.path(EVENTS), shop.warehouse.path("ops.batches"), shop.warehouse.checkpoints):
        shutil.rmtree(folder)
    shop.run()
    assert rows(shop) == [*erased, (3, "value-4", [])]
    shop.move("earliest")
    shop.run()
    assert rows(shop) == [*erased, (3, "value-4", [])]
    assert shop.warehouse.read(EVENTS).where(F.col("topic") == TOPIC).count() == 5
