"""Batches of silver as the job makes them: every record stands in bronze before it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.events import events_table
from lakehouse.contracts import Contracts
from silver.apply import Job, apply_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.tables import Warehouse


def apply(warehouse: Warehouse, contracts: Contracts, source: str, records: DataFrame, batch: int) -> None:
    """Store those of the records (`bronze_rows`) that bronze does not have, and apply all of them as one batch."""
    table = events_table(source)
    warehouse.ensure(table)
    of_record = ["topic", "_topic_id", "partition", "offset"]
    stored = warehouse.read(table.name).select(*of_record)
    warehouse.append(table.name, records.dropDuplicates(of_record).join(stored, on=of_record, how="left_anti"))
    job = Job(source, contracts, warehouse.location, warehouse.checkpoints, run="test")
    apply_batch(records, batch, job=job)
