"""Fixtures of the tests without Spark and Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.connectors.stand_in import ConnectStandIn, connect_stand_in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectStandIn]:
    """A server in the place of Kafka Connect; nobody waits between two looks at it."""
    for name in ("USER", "PASSWORD", "URL"):
        monkeypatch.delenv(f"LAKEHOUSE_CONNECT_{name}", raising=False)
    with connect_stand_in() as server:
        yield server
