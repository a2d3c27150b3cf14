"""How far a stream of bronze has come, by its checkpoint: the files of Structured Streaming.

`offsets/N` has the end of batch N, written when the batch begins; `commits/N` is there when it has ended;
`sources/0/0` has where the first batch began. In the first two the last line is of the topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakehouse.delta.files import file_names, read_text
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TableError
from lakehouse.kafka.offsets import Partition


def committed(warehouse: Warehouse, job: str) -> dict[Partition, int]:
    """The next offset of every partition after the stream's last finished batch; empty before the first."""
    names = file_names(warehouse.spark, f"{warehouse.checkpoint(job)}/commits")
    finished = [int(name) for name in names if name.isdigit()]
    return end_of(warehouse, job, max(finished)) if finished else {}


def last_begun(warehouse: Warehouse, job: str) -> int:
    """The number of the stream's last batch that has begun; -1 before the first."""
    names = file_names(warehouse.spark, f"{warehouse.checkpoint(job)}/offsets")
    return max((int(name) for name in names if name.isdigit()), default=-1)


def initial_offsets(warehouse: Warehouse, job: str) -> dict[Partition, int]:
    """Where the stream began in every partition that there was then; empty before its first start."""
    text = read_text(warehouse.spark, f"{warehouse.checkpoint(job)}/sources/0/0")
    return {} if text is None else _offsets(text)


def end_of(warehouse: Warehouse, job: str, batch: int) -> dict[Partition, int]:
    """The next offset of every partition after the batch, which has begun. Raises TableError when its file is gone."""
    path = f"{warehouse.checkpoint(job)}/offsets/{batch}"
    text = read_text(warehouse.spark, path)
    if text is None:
        raise TableError(
            f"bronze: the checkpoint {warehouse.checkpoint(job)} has no file {path} any more.",
            hint="Restore it from a backup; or move the checkpoint's folder away: the next run goes on by what the "
            "table has.",
        )
    return _offsets(text)


def _offsets(text: str) -> dict[Partition, int]:
    """The offsets of a source of Kafka, as Structured Streaming writes them: in the last line."""
    ends: Mapping[str, Mapping[str, int]] = json.loads(text.strip().splitlines()[-1])
    return {
        Partition(topic, int(number)): offset for topic, offsets in ends.items() for number, offset in offsets.items()
    }
