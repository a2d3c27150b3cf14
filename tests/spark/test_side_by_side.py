"""Sources side by side: each in a session of its own, and one that fails ends no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakehouse.errors import TableError
from lakehouse.spark.side_by_side import in_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SETTING = "spark.sql.shuffle.partitions"


def test_a_source_has_the_settings_of_the_session_and_changes_its_own(spark: SparkSession) -> None:
    before, found = spark.conf.get(SETTING), dict[str, tuple[str | None, str | None, int]]()

    def work(own: SparkSession, source: str) -> None:
        known = own.conf.get(SETTING)
        own.conf.set(SETTING, "7")
        if source == "gone":
            raise TableError("gone", hint="look")
        described = own.sparkContext.getLocalProperty("spark.job.description")
        found[source] = known, described, own.range(3).count()

    ended = in_threads(spark, ["one", "gone", "two"], work, layer="silver")
    assert found == {source: (before, f"silver {source}", 3) for source in ("one", "two")}
    assert {source: error.what for source, error in ended.failed.items()} == {"gone": "gone"}
    assert spark.conf.get(SETTING) == before
