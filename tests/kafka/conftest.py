"""Brokers of the tests here that the rest of the suite does not need, and a source that every test has anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse.config import settings
from lakehouse.contracts.topics import Source
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.broker import partitions
from tests.support.brokers import SecuredBroker, secured_broker
from tests.support.shop import OTHER, TOPIC, Shop, create, delete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with users and rights; every test grants `reader` what it needs, on topics of its own."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def shop(spark: SparkSession, bootstrap_servers: str, tmp_path: Path) -> Iterator[Shop]:
    """One source with one topic of two partitions."""
    chosen = settings(warehouse=str(tmp_path / "warehouse"), bootstrap_servers=bootstrap_servers)
    source = Source.model_validate(
        {"kind": "postgresql", "feeds": {"orders": {"topics": [TOPIC], "envelope": "table"}}}
    )
    kafka = chosen.kafka()
    create(kafka, TOPIC)
    yield Shop(kafka, Warehouse(spark, chosen.warehouse, chosen.checkpoints), chosen, source)
    delete(kafka, *(topic for topic in (TOPIC, OTHER) if topic in partitions(kafka)))
