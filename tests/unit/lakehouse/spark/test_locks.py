"""Which lock a warehouse has, and what is stopped before a signal frees it; without Spark."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.delta.lease import Lease
from lakehouse.delta.locks import locked, own_folder
from lakehouse.delta.tables import Warehouse
from lakehouse.process.lock import FolderLock, Lock, hold, this_process


def session(default: str = "file:///") -> Any:
    """A Spark session whose default file system is this."""
    configuration = SimpleNamespace(get={"fs.defaultFS": default}.get)
    return SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: configuration))
    )


def warehouse(location: str, spark: Any) -> Warehouse:
    return Warehouse(spark, location, "unused")


@pytest.mark.parametrize(
    ("location", "default", "folder"),
    [
        ("/data/w", "file:///", "/data/w"),
        ("/data/w", "hdfs://namenode:8020", None),
        ("file:/data/w", "hdfs://namenode:8020", "/data/w"),
        ("s3a://bucket/w", "file:///", None),
        ("main", "file:///", None),
    ],
)
def test_a_folder_is_one_where_spark_has_it_on_this_machine(location: str, default: str, folder: str | None) -> None:
    assert own_folder(warehouse(location, session(default))) == (None if folder is None else Path(folder))


@pytest.mark.parametrize("location", ["/data/w", "file:/data/w"])
def test_on_databricks_a_path_is_of_a_store(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    assert own_folder(warehouse(location, session())) is None


@pytest.mark.parametrize("location", ["/data/w", "file:/data/w"])
def test_over_spark_connect_the_disk_may_be_of_another_machine(location: str) -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    assert own_folder(warehouse(location, remote())) is None


def test_a_folder_is_locked_by_the_system_and_all_else_by_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []

    def noted(lock: Lock, **more: Any) -> AbstractContextManager[Lock]:
        used.append(lock)
        return hold(lock, **more)

    monkeypatch.setattr("lakehouse.delta.locks.hold", noted)
    holder = this_process(run_id="a", command="lakehouse run")
    with locked(warehouse(str(tmp_path), session()), holder=holder, say=print) as held:
        held.check()
    locked(warehouse("main", session()), holder=holder, say=print)
    assert [type(lock) for lock in used] == [FolderLock, Lease]
    assert not (tmp_path / "ops").exists()
