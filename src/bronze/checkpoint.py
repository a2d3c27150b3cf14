"""How far a stream of bronze has come, by its checkpoint: the files of Structured Streaming."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakehouse.kafka.offsets import Partition
from lakehouse.spark.tables import Warehouse


def committed(warehouse: Warehouse, job: str) -> dict[Partition, int]:
    """The next offset of every partition after the stream's last finished batch; empty before the first.

    Structured Streaming writes the end of batch N to `offsets/N` when it begins, and `commits/N` when it has ended.
    """
    finished = _numbers(warehouse, f"{warehouse.checkpoint(job)}/commits")
    if not finished:
        return {}
    lines = warehouse.spark.read.text(f"{warehouse.checkpoint(job)}/offsets/{max(finished)}").collect()
    return offsets_in(lines[-1]["value"])


def initial_offsets(warehouse: Warehouse, job: str) -> dict[Partition, int]:
    """Where the stream began in every partition that there was then; empty before its first start."""
    from pyspark.errors import AnalysisException

    try:
        lines = warehouse.spark.read.text(f"{warehouse.checkpoint(job)}/sources/0/0").collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return {}
        raise
    return offsets_in(lines[-1]["value"])


def offsets_in(line: str) -> dict[Partition, int]:
    """The offsets of a source of Kafka, as Structured Streaming writes them in a checkpoint."""
    ends: Mapping[str, Mapping[str, int]] = json.loads(line)
    return {
        Partition(topic, int(number)): offset for topic, offsets in ends.items() for number, offset in offsets.items()
    }


def _numbers(warehouse: Warehouse, folder: str) -> list[int]:
    from pyspark.errors import AnalysisException

    try:
        paths = warehouse.spark.read.format("binaryFile").load(folder).select("path").collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return [int(name) for name in (row["path"].rsplit("/", 1)[1] for row in paths) if name.isdigit()]
