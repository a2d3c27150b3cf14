"""Fixtures that the whole suite shares: one broker, one Spark session, both started by the first test that asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.broker import embedded_broker
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.spark.session import MANY_PLANS, let_java_forget, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.spark.tables import Warehouse


@pytest.fixture(scope="session")
def bootstrap_servers() -> Iterator[str]:
    """The suite's one Kafka broker."""
    with embedded_broker() as servers:
        yield servers


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The suite's one Spark session."""
    session = spark_session(extra=MANY_PLANS)
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _tables_are_forgotten() -> Iterator[None]:
    """Delta remembers every table for an hour, with the expressions that read it: hundreds of them fill the memory."""
    yield
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        let_java_forget()


@pytest.fixture(scope="session")
def contracts() -> Contracts:
    """The packaged contracts."""
    return load_contracts()


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """An empty warehouse."""
    from lakehouse.spark.tables import Warehouse

    return Warehouse(spark, str(tmp_path / "warehouse"), str(tmp_path / "checkpoints"))
