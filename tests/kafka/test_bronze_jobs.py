"""What a pass of bronze costs beside a real broker, counted in Spark's jobs: it asks for nothing that it has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bronze import ingest
from bronze.batches import OBSERVED_PARTITIONS, planned_of
from lakehouse.batches import batches
from lakehouse.contracts.topics import Source, Topics
from lakehouse.kafka.broker import partitions
from tests.support.counted import jobs_so_far
from tests.support.shop import OTHER, TOPIC, Shop, create

if TYPE_CHECKING:
    from bronze.source_state import SourceState

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# An append of records and an entry for each of two sources: each asks Delta's log once whether it is a repeated one.
JOBS_OF_A_WARM_PASS = 8
# And one query of the entries, for all sources.
JOBS_OF_A_FIRST_PASS = JOBS_OF_A_WARM_PASS + 2


def source_of(topic: str) -> Source:
    feed = topic.rsplit(".", 1)[1]
    return Source.model_validate({"kind": "postgresql", "feeds": {feed: {"topics": [topic], "envelope": "table"}}})


def test_a_pass_of_two_sources_costs_two_appends_each(shop: Shop) -> None:
    create(shop.kafka, OTHER)
    spark = shop.warehouse.spark
    topics = Topics(sources={"shop": source_of(TOPIC), "customers": source_of(OTHER)})

    def one_pass(number: int, states: dict[str, SourceState] | None) -> tuple[dict[str, int], int]:
        """The new records of each source, and Spark's jobs."""
        shop.produce(f"a-{number}", f"b-{number}")
        shop.produce(f"c-{number}", partition=1)
        shop.produce(f"d-{number}", topic=OTHER)
        known, before = partitions(shop.kafka), jobs_so_far(spark)
        new = ingest.run(spark, shop.chosen, topics, known=known, states=states)
        return new, jobs_so_far(spark) - before

    states: dict[str, SourceState] = {}
    expected = {"shop": 3, "customers": 1}
    assert one_pass(0, states)[0] == expected
    new, jobs = one_pass(1, states)
    assert new == expected
    assert jobs <= JOBS_OF_A_WARM_PASS
    # A process that starts asks what the last one has left.
    new, jobs = one_pass(2, None)
    assert new == expected
    assert jobs <= JOBS_OF_A_FIRST_PASS
    # Without news nothing is asked at all.
    known, states = partitions(shop.kafka), {}
    ingest.run(spark, shop.chosen, topics, known=known, states=states)
    begun = jobs_so_far(spark)
    assert ingest.run(spark, shop.chosen, topics, known=known, states=states) == {"shop": 0, "customers": 0}
    assert jobs_so_far(spark) == begun


@pytest.mark.slow
def test_of_more_partitions_than_an_append_counts_the_table_is_asked(shop: Shop) -> None:
    count = OBSERVED_PARTITIONS + 1
    create(shop.kafka, OTHER, count)
    for number in range(count):
        shop.produce(*[f"a-{minute}" for minute in range(number % 3 + 1)], topic=OTHER, partition=number)
    topics = Topics(sources={"shop": source_of(OTHER)})
    new = ingest.run(shop.warehouse.spark, shop.chosen, topics, known=partitions(shop.kafka))
    rows = planned_of(batches(shop.warehouse, "bronze")).orderBy("partition").collect()
    assert [row["records"] for row in rows] == [number % 3 + 1 for number in range(count)]
    assert new == {"shop": sum(row["records"] for row in rows)}
