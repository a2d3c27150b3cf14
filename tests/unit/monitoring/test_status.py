"""What is measured against the limits: in numbers as people read them, each with a next step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lakehouse.contracts.files import load_contracts
from monitoring.model import Freshness, Headroom, Pass, Quarantine, Stage, Status, TableFiles
from monitoring.page import page
from monitoring.stages import Observations
from monitoring.status import MORE_OFTEN, View, _findings, measured, status_of
from tests.unit.monitoring.delta import GOLD, NOON, SILVER, at, tables_in, write, write_batches
from tests.unit.monitoring.test_warehouse import YEARS, audit, began, of_gold, planned

CONTRACTS = load_contracts()
SLOW = Pass("one", NOON, 10, {"bronze": 60.0, "silver": 2_400.0, "gold": 40.0})
QUICK = Pass("one", NOON, 10, {"bronze": 6.0, "silver": 24.0, "gold": 4.0})


def everything_is_late(last: Pass) -> Status:
    return Status(
        NOON,
        stages=[Stage("mysql", "bronze", "critical", 3, YEARS, what="3 pending", hint="lakehouse bronze")],
        freshness=[Freshness("mysql", 10.0, YEARS, 3)],
        quarantine=[Quarantine("mysql", 1, 0.5, YEARS, {})],
        passes=[last],
        last_run_at=NOON - timedelta(seconds=YEARS),
        headroom=[Headroom("mysql", 1.0, 2.0, 3.0, 5_400.0, "Kafka's retention")],
        tables=[TableFiles("gold.unified_orders", 20_000, 1, 0, 1, None)],
    )


def test_numbers_are_those_that_people_read() -> None:
    found = {where: what for where, _value, _limit, what, _hint in measured(everything_is_late(SLOW))}
    assert found["passes"] == "the last pass took 42 min"
    assert found["runs"] == "no run has begun for 2.6 years"
    sentences = [one.what for one in _findings(everything_is_late(SLOW), Observations(NOON, CONTRACTS.thresholds))]
    assert "rows of gold are 2.6 years old (99 of 100)" in sentences
    assert "the oldest open quarantine entry is 2.6 years old" in sentences
    assert "in 1.5 h Kafka's retention loses records that were not read" in sentences
    assert "2.6 years late; 3 pending" in sentences
    assert not [one for one in sentences if "81,255,014" in one or " s " in one]


def test_advice_is_a_next_step_and_not_the_page_that_gives_it() -> None:
    status = everything_is_late(SLOW)
    findings = list(_findings(status, Observations(NOON, CONTRACTS.thresholds)))
    assert len(findings) >= 8
    for one in findings:
        assert one.hint
        assert "lakehouse report" not in one.hint
        assert "which part is slow" not in one.hint


@pytest.mark.parametrize(
    ("last", "age", "hint"),
    [
        (SLOW, 3_600.0, "silver takes longest (40 min): lakehouse optimize"),
        (QUICK, 3_600.0, MORE_OFTEN),
        (QUICK, 60.0, "silver takes longest (24 s): lakehouse optimize"),
        (None, 3_600.0, MORE_OFTEN),
        (Pass("none", NOON, 0, {}), 3_600.0, MORE_OFTEN),
    ],
)
def test_late_rows_come_of_slow_passes_or_of_few(last: Pass | None, age: float, hint: str) -> None:
    status = Status(NOON, freshness=[Freshness("mysql", age, age, 1)], passes=[] if last is None else [last])
    (found,) = [one for one in measured(status) if one[2] == "freshness_seconds"]
    assert found[4].startswith(hint)


def test_a_recording_of_years_ago_that_was_just_read_is_well(tmp_path: Path) -> None:
    place = {"_topic": "mysql_prod_tables.ecommerce.orders", "_partition": 0}
    ago = NOON - timedelta(seconds=YEARS)
    rows = [{"order_id": n, "_source_ts": ago, "_applied_at": at(-0.5), **place, "_offset": n} for n in range(9)]
    write(tmp_path, "silver.mysql_orders", SILVER, rows)
    of_rows = [{"order_id": n, "source_database": "mysql", "processed_at": NOON} for n in range(9)]
    write(tmp_path, "gold.unified_orders", GOLD, of_rows)
    write_batches(tmp_path, began(planned(0, 9, -1), -1.2), began(audit(0, 8, -0.5), -0.9, run="one"), of_gold(0.01))
    seen = status_of(View(CONTRACTS, tables_in(tmp_path)), now=at(1))
    assert [one.p99 for one in seen.freshness] == [72.0]
    assert (seen.level, list(seen.findings)) == ("ok", [])
    assert "critical" not in page(seen).split("</style>")[1]
