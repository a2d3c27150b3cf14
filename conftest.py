"""Fixtures that the whole suite shares: one broker, one Spark session, both started by the first test that asks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from demo.broker import embedded_broker
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.spark.session import MANY_PLANS, let_java_forget, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.spark.tables import Warehouse

LAWS = "tests/laws/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The laws come first, which one process runs, then files that start Spark or a broker: both end together."""
    heavy = {item.path for item in items if any(item.get_closest_marker(name) for name in ("spark", "kafka"))}
    items.sort(key=lambda item: (not item.nodeid.startswith(LAWS), item.path not in heavy))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A file's tests run in one process, and so do all laws: they share a warehouse."""
    return _Files(config, log)


class _Files(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return LAWS if nodeid.startswith(LAWS) else super()._split_scope(nodeid)


@pytest.fixture(scope="session")
def bootstrap_servers() -> Iterator[str]:
    """The suite's one Kafka broker."""
    with embedded_broker() as servers:
        yield servers


@pytest.fixture(scope="session", autouse=True)
def _long_running_java() -> Iterator[None]:
    """A command that starts Spark's Java in this process starts it for all later tests, so with both compilers."""
    with patch("lakehouse.spark.session._QUICK_COMPILER", "-XX:+TieredCompilation"):
        yield


# A command asks for its own Java; Delta sets what it knows of a session's tables.
_SET_BY_OTHERS = re.compile(r"^spark\.driver\.|\.parquet\.fieldId\.|\.lastCommitVersionInSession$")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The suite's one Spark session."""
    session = spark_session(is_lasting=True, extra=MANY_PLANS)
    settings = session.conf.getAll
    yield session
    changed = {name for name, _value in session.conf.getAll.items() ^ settings.items()}
    session.stop()
    # What is set in a session plans the queries of all later tests.
    assert {name for name in changed if not _SET_BY_OTHERS.search(name)} == set()


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
