"""Which Lock a warehouse has: that of its folder on a disk of this machine, or a lease in a table of it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.delta.lease import Lease
from lakehouse.process.lock import FolderLock, Holder, Lock, hold, local_folder
from lakehouse.process.steps import Note
from lakehouse.spark.java import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import Warehouse


def locked(
    warehouse: Warehouse, *, holder: Holder, say: Note, wait: timedelta = timedelta()
) -> AbstractContextManager[Lock]:
    """Inside the block no other run works on the warehouse: see `lakehouse.process.lock.hold`."""
    folder = own_folder(warehouse)
    lock = Lease(warehouse, holder, say=say) if folder is None else FolderLock(folder, holder)
    return hold(lock, say=say, wait=wait, stop=partial(_cancel_jobs, warehouse.spark))


def own_folder(warehouse: Warehouse) -> Path | None:
    """The folder of a warehouse whose lock is that of its folder; None where the lock is a lease."""
    is_elsewhere = "DATABRICKS_RUNTIME_VERSION" in os.environ or is_connect(warehouse.spark)
    folder = None if is_elsewhere else local_folder(warehouse.location)
    if folder is None or warehouse.location.startswith("file:"):
        return folder
    # A path without a scheme is where Spark's default file system has it.
    default = str(warehouse.spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS"))
    return folder if default.startswith("file:") else None


def _cancel_jobs(spark: SparkSession) -> None:
    """End what Spark is at work on: it would go on beside the next run, or keep the release of a lease waiting."""
    if is_connect(spark):  # it has no context
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()
