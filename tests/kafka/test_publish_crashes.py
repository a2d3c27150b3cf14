"""A process that dies while it publishes: readers of committed records have every version of gold, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse.contracts.models import Contracts
from tests.support.dying import MOMENTS
from tests.support.published import PublishedShop, published_shop, sequences

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
# A process of its own for each: the others are for `make test-whole`.
SLOW = ("before gold is recorded", "in the middle", "before the marker")
MARKED = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.whole) for name in MOMENTS]
# What a committed transaction of the process that dies has left for readers.
LEFT = {"after the commit": 7, "between parts": 3}


@pytest.fixture(scope="module")
def shop(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str
) -> Iterator[PublishedShop]:
    """One warehouse and one topic, on which one process after the other dies. Any of them may be the first."""
    with published_shop(empty_silver(), contracts, bootstrap_servers) as published:
        # What every second one deletes was there.
        published.write("mysql_orders", {"order_id": 2, "status": "before all"})
        published.run("before all")
        published.publish()
        yield published


@pytest.mark.parametrize("moment", MARKED)
def test_readers_have_every_version_once(shop: PublishedShop, moment: str) -> None:
    number = list(MOMENTS).index(moment)
    rows = [{"order_id": order, "status": moment} for order in range(number, number + 5)]
    shop.write("postgres_orders", *rows)
    shop.write("mysql_orders", {"order_id": 1, "status": moment}, {"order_id": 2, "_is_deleted": number % 2 == 1})
    if MOMENTS[moment].job == "publish":
        shop.run(moment)
    before = len(shop.records())
    died = subprocess.run(
        [sys.executable, "-m", "tests.support.dying", moment, shop.warehouse.location, shop.servers, shop.topic],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    assert len(shop.records()) == before + LEFT.get(moment, 0)

    shop.run(f"after dying {moment}")
    shop.publish()
    found = shop.records()
    assert len(found) == before + 7
    assert max(Counter((record.key, record.headers["change_sequence"]) for record in found).values()) == 1
    for of_key in sequences(found).values():
        assert of_key == sorted(of_key)
    assert shop.differences() == []
    assert shop.publish().sent == 0
