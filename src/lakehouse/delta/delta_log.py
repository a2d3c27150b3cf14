"""What Delta's log says of a table, without a job: its last commit, and what commits have written.

Delta's Java is not at hand for tables in a catalog, over Spark Connect and on Databricks: there it is queried.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TableError
from lakehouse.spark.java import has_java

# Of a MERGE, a write, small files joined.
_BYTES_OF_DATA = ("numTargetBytesAdded", "numOutputBytes", "numAddedBytes")


def last_snapshot(warehouse: Warehouse, table: str) -> Any | None:
    """The table as Delta's Java has it, up to date; None where that is not at hand.

    Raises TableError when there is no such table.
    """
    if not _is_at_hand(warehouse):
        return None
    jvm: Any = warehouse.spark._jvm
    nothing = jvm.scala.Option.empty()
    snapshot = _log(warehouse, table).update(False, nothing, nothing)
    if int(snapshot.version()) < 0:
        what = f"There is no table {table} at {warehouse.location}."
        raise TableError(what, hint="Run the job of the layer that writes it first.")
    return snapshot


def written_bytes(warehouse: Warehouse, table: str, *, after: int, to: int) -> int:
    """How many bytes of data the table's commits behind `after` have written, up to `to`, the last one."""
    if _is_at_hand(warehouse):
        log = _log(warehouse, table)
        infos = [_commit_info(warehouse, log, number) for number in range(after + 1, to + 1)]
        metrics = [info.get("operationMetrics", {}) for info in infos]
    else:
        commits = warehouse.delta(table).history(to - after).select("operationMetrics").collect()
        metrics = [commit["operationMetrics"] for commit in commits]
    return sum(int(of_commit.get(name) or 0) for of_commit in metrics for name in _BYTES_OF_DATA)


def _is_at_hand(warehouse: Warehouse) -> bool:
    return not warehouse.in_catalog and has_java(warehouse.spark)


def _log(warehouse: Warehouse, table: str) -> Any:
    jvm: Any = warehouse.spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(warehouse.spark._jsparkSession, warehouse.path(table))


def _commit_info(warehouse: Warehouse, log: Any, number: int) -> Mapping[str, Any]:
    """What a commit says of itself."""
    jvm: Any = warehouse.spark._jvm
    file = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), number)
    actions = map(json.loads, log.store().read(file, log.newDeltaHadoopConf()).mkString("\n").split("\n"))
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
