"""In how many partitions a batch is folded."""

from __future__ import annotations

import pytest

from silver.batch.transport import PARTITION_BYTES, PARTITION_RECORDS, fold_partitions


@pytest.mark.parametrize(
    ("records", "value_bytes", "partitions"),
    [
        (PARTITION_RECORDS, PARTITION_BYTES, 1),
        (PARTITION_RECORDS + 1, PARTITION_BYTES, 2),
        (10_000_000, None, 40),
        (1_000, 10 * PARTITION_BYTES, 10),
    ],
)
def test_no_partition_has_more_than_a_process_can_hold(records: int, value_bytes: int | None, partitions: int) -> None:
    assert fold_partitions(records, value_bytes) == partitions
