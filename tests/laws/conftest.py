"""What all laws share: one warehouse in which every case of the tests that were chosen is played once.

Whichever file asks first plays the cases of all of them: these files run in one process (conftest.py of the root).
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from tests.support.laws.contracts import contracts_of_laws
from tests.support.laws.histories import SEED, Histories, read_histories
from tests.support.laws.partial import PartialPayloads, read_partial_payloads
from tests.support.laws.played import Played, play
from tests.support.laws.scenarios import SCENARIOS, Scenarios, read_scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fixtures whose cases are played where a chosen test asks for them.
CASES = ("histories", "partial_payloads", "scenarios")


@pytest.fixture(scope="session")
def seed() -> int:
    """Other histories and batches: LAWS_SEED=random. The same again: the number that a failed test printed."""
    given = os.environ.get("LAWS_SEED") or SEED
    return secrets.randbits(32) if given == "random" else int(given)


@pytest.fixture(scope="session")
def histories(seed: int) -> Histories:
    return read_histories(seed)


@pytest.fixture(scope="session")
def partial_payloads() -> PartialPayloads:
    return read_partial_payloads()


@pytest.fixture(scope="session")
def scenarios(request: pytest.FixtureRequest) -> Scenarios:
    """Those of the tests that were chosen (`pytest tests/laws -k truncate`)."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = {given["scenario"] for given in parameters if "scenario" in given}
    return read_scenarios(sorted(chosen) or SCENARIOS)


@pytest.fixture(scope="session")
def played(
    spark: SparkSession, contracts: Contracts, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Played:
    """All cases of the chosen tests, played."""
    folder = tmp_path_factory.mktemp("laws")
    warehouse = Warehouse(spark, str(folder / "warehouse"), str(folder / "warehouse" / "_checkpoints"))
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    cases = [request.getfixturevalue(name).cases for name in CASES if name in asked]
    return play(warehouse, contracts_of_laws(contracts), cases, folder=folder)
