"""Of all cases: every record that was read has one outcome, and the audit has every record that was read."""

from __future__ import annotations

from collections import Counter

import pytest

from silver.order.state import OUTCOMES
from tests.support.laws.played import Played

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("source", ["postgres", "mysql"])
@pytest.mark.usefixtures("histories", "partial_payloads", "scenarios")
def test_every_record_read_has_one_outcome(played: Played, seed: int, source: str) -> None:
    read: Counter[tuple[str, int, int]] = Counter()
    for entry in played.audit(source):
        assert entry["read"] == sum(entry[outcome] for outcome in OUTCOMES), f"LAWS_SEED={seed}: {entry}"
        read[entry["topic"], entry["partition"], entry["batch"]] += entry["read"]
    assert read == Counter(
        (record["topic"], record["partition"], number)
        for number, records in enumerate(played.batches[source])
        for record in records
    ), f"LAWS_SEED={seed}"
