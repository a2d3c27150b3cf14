"""Which suspended tables a run tries again, and that one that fails stops no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.errors import LakehouseError, RegistryGoneError
from silver import apply
from silver.order.state import SuspensionCause
from tests.support.feeds import feed

TABLES = ("one", "three", "two")


def job(*, tried_under: str = "now", without: str = "") -> Any:
    """A source with suspended tables, tried last under this contract. `without`: one that is not declared any more."""
    state = SimpleNamespace(suspended={name: SuspensionCause("budget", "too many", tried_under) for name in TABLES})
    return SimpleNamespace(
        source="shop",
        memory=SimpleNamespace(now=lambda *_given, **_more: state),
        counted=[],
        undiscovered={},
        feeds={name: feed(name=name) for name in TABLES if name != without},
        contract=lambda _feed: "now",
    )


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were tried again; the second one fails."""
    names: list[str] = []

    def resume(_warehouse: Any, one: Any, *, job: Any) -> None:
        names.append(one.name)
        if one.name == "three":
            raise job.failure

    monkeypatch.setattr(apply, "resume", resume)
    return names


def resumed(of: Any, *asked: str) -> list[LakehouseError]:
    warehouse: Any = SimpleNamespace()
    return apply._resume_tables(warehouse, of, asked, storage_paths=("a place", "another"))


def test_a_table_stays_suspended_until_its_contract_changes_or_a_command_asks_for_it(tried: list[str]) -> None:
    assert (resumed(job()), tried) == ([], [])
    assert (resumed(job(), "one", "unknown"), tried) == ([], ["one"])
    assert (resumed(job(tried_under="before", without="three")), tried[1:]) == ([], ["one", "two"])


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ValueError("a value of a row"), LakehouseError),
        (RegistryGoneError("no answer", servers="there", hint="start it"), RegistryGoneError),
    ],
)
def test_one_that_fails_stops_no_other(tried: list[str], failure: Exception, kind: type[LakehouseError]) -> None:
    suspended = job(tried_under="before")
    suspended.failure = failure
    (found,) = resumed(suspended)
    assert tried == ["one", "three", "two"]
    assert type(found) is kind
    assert "a value of a row" not in str(found)
