"""The records of the BigQuery-bound topic, in the format that the contract says.

Key `composite_key`; value the order, null for a deleted order; headers `change_type` and `change_sequence`. The
sequence is BigQuery's `_CHANGE_SEQUENCE_NUMBER`: 1 to 4 sections of 1 to 16 hex digits, compared section by section
(BigQuery documentation, "Stream table updates with change data capture").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold import connect_json, flat_json
from lakehouse.contracts import PublicationFormat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEYS: Mapping[PublicationFormat, Callable[[], Column]] = {
    "json": flat_json.key,
    "connect-json": connect_json.key,
}
_VALUES: Mapping[PublicationFormat, Callable[[Mapping[str, str]], Column]] = {
    "json": flat_json.value,
    "connect-json": connect_json.value,
}


def records(
    states: DataFrame, *, columns: Mapping[str, str], generation: int, record_format: PublicationFormat
) -> DataFrame:
    """`key`, `value` (NULL: deleted), `change_type`, `change_sequence`: one record a key.

    `columns` are the fields of the value with their Spark types. `generation` grows with every gold table that is made
    anew, so a sequence never goes back.
    """
    return states.select(
        _KEYS[record_format]().alias("key"),
        F.when(~F.col("is_deleted"), _VALUES[record_format](columns)).alias("value"),
        F.when(F.col("is_deleted"), "DELETE").otherwise("UPSERT").alias("change_type"),
        change_sequence(F.lit(generation), F.col("version")).alias("change_sequence"),
    )


def change_sequence(generation: Column, version: Column) -> Column:
    """`<generation>/<version>`, each as 16 hex digits."""
    sections = [F.lpad(F.hex(section.cast("bigint")), 16, "0") for section in (generation, version)]
    return F.concat_ws("/", *sections)
