"""A session is prepared for few rows, around many rows for many, and left as it is where somebody has set it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakehouse.spark.sizing import FEW_ROWS, LARGE_ROWS, many_rows, tuned_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def settings(spark: SparkSession) -> dict[str, str | None]:
    return {key: spark.conf.get(key) for key in FEW_ROWS}


def test_a_session_begins_prepared_for_few_rows_and_goes_back_to_it(spark: SparkSession) -> None:
    assert settings(spark) == FEW_ROWS
    with tuned_for(spark, LARGE_ROWS - 1):
        assert settings(spark) == FEW_ROWS
    with pytest.raises(ZeroDivisionError), tuned_for(spark, LARGE_ROWS):
        assert settings(spark) == many_rows()
        raise ZeroDivisionError
    assert settings(spark) == FEW_ROWS


def test_a_setting_that_somebody_has_made_stays(spark: SparkSession) -> None:
    key = "spark.sql.shuffle.partitions"
    spark.conf.set(key, "7")
    try:
        with tuned_for(spark, LARGE_ROWS):
            assert settings(spark) == {**many_rows(), key: "7"}
        assert spark.conf.get(key) == "7"
    finally:
        spark.conf.set(key, FEW_ROWS[key])


def test_on_databricks_spark_is_left_as_it_is(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    with tuned_for(spark, LARGE_ROWS):
        assert settings(spark) == FEW_ROWS
