"""Fixtures that the whole suite shares: one broker, one Spark session, both started by the first test that asks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from demo.broker import embedded_broker
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.spark.session import release_jvm_refs, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import Warehouse

LAWS = "tests/laws/"
# Those whose cases are played in one warehouse.
PLAYED = tuple(f"{LAWS}test_{name}.py" for name in ("accounts", "histories", "partial_payloads", "scenarios"))
# One process keeps thousands of different plans.
JAVA_MEMORY = {"spark.driver.memory": "4g"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The laws come first, which take longest, then files that start Spark or a broker: both processes end together."""
    heavy = {item.path for item in items if any(item.get_closest_marker(name) for name in ("spark", "kafka"))}
    items.sort(key=lambda item: (not item.nodeid.startswith(LAWS), item.path not in heavy))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A file's tests run in one process, and so do the laws that share a warehouse."""
    return _Files(config, log)


class _Files(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return LAWS if nodeid.startswith(PLAYED) else super()._split_scope(nodeid)


@pytest.fixture(scope="session")
def bootstrap_servers() -> Iterator[str]:
    """The suite's one Kafka broker."""
    with embedded_broker() as servers:
        yield servers


# A command asks for its own Java; Delta sets what it knows of a session's tables.
_SET_BY_OTHERS = re.compile(r"^spark\.driver\.|\.parquet\.fieldId\.|\.lastCommitVersionInSession$")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The suite's one Spark session. Of its Java only the first compiler, as in a command: few plans run often."""
    session = spark_session(extra=JAVA_MEMORY)
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
        release_jvm_refs()


@pytest.fixture(scope="session")
def contracts() -> Contracts:
    """The packaged contracts."""
    return load_contracts()


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """An empty warehouse."""
    from lakehouse.delta.tables import Warehouse

    return Warehouse(spark, str(tmp_path / "warehouse"), str(tmp_path / "checkpoints"))
