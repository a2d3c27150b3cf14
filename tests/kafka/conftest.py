"""Brokers of the tests here that the rest of the suite does not need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers import SecuredBroker, secured_broker


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with users and rights; every test grants `reader` what it needs, on topics of its own."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker
