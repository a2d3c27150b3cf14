"""`lakehouse quarantine`: what it shows of records, and that it asks before it decides."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.main import main
from lakehouse.contracts.models import Contracts
from tests.spark.test_decisions import FEED, TOPIC, event
from tests.support.silver import Told

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contracts in which an order's note is sensitive, and its amount may be as low as -1."""
    folder = tmp_path_factory.mktemp("own") / "contracts"
    main(["init", str(folder)])
    tables = folder / "silver" / "tables.yaml"
    tables.write_text(tables.read_text().replace("note: STRING", "note: { type: STRING, sensitive: true }"))
    gate = folder / "silver" / "gate.yaml"
    gate.write_text(gate.read_text().replace("min_value: 0 }", "min_value: -1 }"))
    return folder


@pytest.fixture(scope="module")
def told(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Three orders with negative amounts, by the packaged contracts."""
    told = Told(empty_silver(), contracts, "mysql", tmp_path_factory.mktemp("told"))
    told.tell(
        event("c", 1, 100, 0, "-1.00", note="a secret of order 1"),
        event("c", 2, 200, 1, "-2.00", note="a secret of order 2"),
        event("c", 3, 300, 2, "-1.00", note="a secret of order 3"),
    )
    return told


@pytest.fixture
def run(told: Told, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `lakehouse quarantine …`; what it says on standard output."""

    def command(*words: str) -> str:
        capsys.readouterr()
        main(["quarantine", *words, "--warehouse", told.warehouse.location, "--contracts", str(folder)])
        return capsys.readouterr().out

    return command


def as_json(said: str) -> Any:
    return json.loads(said)


def exit_code(run: Callable[..., str], words: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_list_names_every_record_with_its_reasons(run: Callable[..., str]) -> None:
    told = as_json(run("list", "--json"))
    assert told["number"] == 3
    assert [(entry["record"], entry["key"], entry["state"]) for entry in told["entries"]] == [
        (f"{TOPIC}/0/{offset}", json.dumps({"order_id": offset + 1}, separators=(",", ":")), "open")
        for offset in range(3)
    ]
    assert {tuple(entry["reasons"]) for entry in told["entries"]} == {
        ("total_amount: An order's amount is zero or more.",)
    }
    assert as_json(run("list", "--json", "--rule", "status_known"))["number"] == 0
    assert as_json(run("list", "--json", "--reason", "zero or more", "--feed", FEED))["number"] == 3
    said = run("list", "--limit", "2")
    assert "… and 1 more" in said
    assert "secret" not in said


@pytest.fixture
def far_from_utc() -> Iterator[None]:
    """This process's local time is 14 hours ahead of UTC; Spark's Java keeps its own."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_times_are_utc_wherever_the_machine_stands(run: Callable[..., str]) -> None:
    (listed, *_others) = as_json(run("list", "--json"))["entries"]
    (shown,) = as_json(run("show", listed["record"], "--json"))["entries"]
    for told in (listed, shown):
        for name in ("first_seen", "last_seen"):
            age = datetime.now(UTC) - datetime.fromisoformat(told[name]).replace(tzinfo=UTC)
            assert timedelta() <= age < timedelta(hours=1)
        assert told["finished_at"] is None


def test_show_masks_what_is_sensitive(run: Callable[..., str]) -> None:
    said = run("show", f"{TOPIC}/0/1")
    assert "secret" not in said
    assert '"note": "•••"' in said
    assert '"customer_id"' in said
    (entry,) = as_json(run("show", f"{TOPIC}/0/1", "--json"))["entries"]
    assert json.loads(entry["value"])["after"]["note"] == "•••"
    assert json.loads(entry["value"])["after"]["order_id"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ["show", "no record"],
        ["show", f"{TOPIC}/0/99"],
        ["retry"],
        ["retry", "--all"],
        ["discard", "--all"],
        ["list", "--feed", "nothing"],
        ["list", "--state", "lost"],
    ],
    ids=" ".join,
)
def test_what_is_not_said_clearly_is_refused(told: Told, run: Callable[..., str], words: Sequence[str]) -> None:
    """Of retrying all, nobody can be asked here; a discard needs a reason."""
    assert exit_code(run, words) == 2
    assert {entry["state"] for entry in told.entries(FEED).values()} == {"open"}


def test_a_decision_says_what_comes_of_it_and_is_carried_out(told: Told, run: Callable[..., str]) -> None:
    plan = as_json(run("retry", "--all", "--dry-run", "--json"))
    assert plan["plan"] == {FEED: {"records": 3, "pass": 2, "fail": 1}}
    assert plan["came_to"] == {}
    assert {entry["state"] for entry in told.entries(FEED).values()} == {"open"}
    done = as_json(run("retry", "--all", "--yes", "--why", "too strict", "--json"))
    assert done["came_to"] == {FEED: {"applied": 2, "quarantined": 1}}
    entries = told.entries(FEED)
    assert [entries[offset]["state"] for offset in range(3)] == ["retried", "open", "retried"]
    assert (entries[0]["state_why"], bool(entries[0]["state_by"])) == ("too strict", True)
    assert sorted(told.rows(FEED, "note")) == [1, 3]
    assert "Came to: 1 applied. Next: lakehouse gold" in run("release", f"{TOPIC}/0/1", "--yes", "--why", "confirmed")
    assert sorted(told.rows(FEED, "note")) == [1, 2, 3]
    assert "No matching record" in run("discard", f"{TOPIC}/0/1", "--yes", "--why", "too late")
