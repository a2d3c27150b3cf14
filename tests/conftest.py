"""Fixtures of the tests that need tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from lakehouse.contracts.models import Contracts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import Warehouse


@pytest.fixture(scope="session")
def empty_silver(
    spark: SparkSession, contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Warehouse]:
    """Makes a warehouse with every table that silver writes, empty: a copy, since creating tables takes seconds."""
    from lakehouse.delta.tables import Warehouse
    from silver.apply import ensure_tables

    original = tmp_path_factory.mktemp("empty")
    ensure_tables(Warehouse(spark, str(original), str(original / "_checkpoints")), contracts)

    def copy() -> Warehouse:
        location = tmp_path_factory.mktemp("silver") / "warehouse"
        shutil.copytree(original, location, ignore=shutil.ignore_patterns("*.crc"))
        for commit in location.glob("*/*/_delta_log/00000000000000000000.json"):
            _give_an_id_of_its_own(commit)
        return Warehouse(spark, str(location), str(location / "_checkpoints"))

    return copy


def _give_an_id_of_its_own(commit: Path) -> None:
    """What Delta remembers by a table's id, such as how many small files it has, is not what it remembers of a copy.

    The checksums beside the commits have the id too; Delta does without them.
    """
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["id"] = str(uuid4())
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")


@pytest.fixture(scope="session")
def contracts_of_load(contracts: Contracts) -> Contracts:
    """The packaged contracts, with decimals of both tables in the form of the benchmarks' load."""
    sources = dict(contracts.topics.sources)
    for name, source in sources.items():
        feed = source.feeds[f"{name}_orders"].model_copy(update={"decimal_handling_mode": "string"})
        sources[name] = source.model_copy(update={"feeds": {**source.feeds, f"{name}_orders": feed}})
    return contracts.model_copy(update={"topics": contracts.topics.model_copy(update={"sources": sources})})
