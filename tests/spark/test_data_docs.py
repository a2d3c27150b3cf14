"""The report and the Data Docs: everything that was stored is in them, and nothing of a sensitive column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.main import main
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.quality.data_docs import build_site, default_folder
from lakehouse.quality.results import PUBLICATION, ROWS, TABLES, Result, RuleOutcome, shown
from tests.support.gold import Shop

HIDDEN = "4711"
AT = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)


def result(gate: str, rule: str, feed: str | None = "mysql_orders", **given: object) -> Result:
    told = {"evaluated": 8, "failed": 1, "passed": False, "sample_keys": (HIDDEN,), "description": f"About {rule}."}
    stored = {"run": "a1", "source": "mysql", "on_failure": "fail", **told, **given}
    return Result(gate=gate, rule=rule, feed=feed, **stored)  # type: ignore[arg-type]


RESULTS = [
    result(ROWS, "amount_not_negative", sample_keys=()),
    result(TABLES, "key_unique", feed="postgres_orders", source="postgres"),
    result(TABLES, "rows_kept", observed=HIDDEN, evaluated=1, sample_keys=()),
    result(TABLES, "key_present", evaluated=0, failed=0, sample_keys=(), message="It could not be evaluated."),
    result(TABLES, "no_longer_declared", observed=HIDDEN, sample_keys=("<script>alert(1)</script>",)),
    result(PUBLICATION, "orders_conserved", feed=None, passed=True, failed=0, sample_keys=()),
]


def pages(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}


def test_every_rule_and_every_result_has_its_place(contracts: Contracts, tmp_path: Path) -> None:
    index = build_site(contracts, [RuleOutcome(one, AT) for one in RESULTS], tmp_path / "docs")
    assert index == tmp_path / "docs" / "index.html"
    found = pages(tmp_path / "docs")
    for gate in ("gate 1", "gate 2"):
        assert f"expectations/{gate} · silver/mysql_orders.html" in found
    of_gold = found["expectations/gate 2 before publication · gold/unified_orders.html"]
    for rule in contracts.gold_gate.publication:
        assert f"{rule.name} (fail): {rule.description}" in of_gold
    results = "".join(text for path, text in found.items() if path.startswith("validations/"))
    for one in RESULTS:
        assert f"{one.rule} ({one.on_failure}): {one.description}" in results
    assert f"About key_unique. Failed by {HIDDEN}" in results
    assert "1 unexpected values found. 12.5% of 8 total rows." in results
    assert "It could not be evaluated." in results
    for path in found:
        if path.startswith("validations/"):
            assert path.rsplit("/", 3)[1] == "a1" or "/a1/" in path
    # Every page links to pages that are there.
    for path, text in found.items():
        for link in re.findall(r'href="([^"#]+)"', text):
            assert (tmp_path / "docs" / path).parent.joinpath(link.replace("%20", " ").replace("%C2%B7", "·")).exists()


def test_pages_need_no_network_and_no_value_is_html(contracts: Contracts, tmp_path: Path) -> None:
    build_site(contracts, [RuleOutcome(one, AT) for one in RESULTS], tmp_path)
    for text in pages(tmp_path).values():
        assert "http" not in text
        assert "<script" not in text


def test_a_second_site_leaves_nothing_of_the_first(contracts: Contracts, tmp_path: Path) -> None:
    build_site(contracts, [RuleOutcome(one, AT) for one in RESULTS], tmp_path)
    build_site(contracts, [RuleOutcome(RESULTS[0], AT)], tmp_path)
    (left,) = [path for path in pages(tmp_path) if path.startswith("validations/")]
    assert left.startswith("validations/gate 1 · silver/mysql_orders/a1/")


def test_what_is_sensitive_by_now_is_not_shown_whenever_it_was_stored(tmp_path: Path) -> None:
    main(["init", str(tmp_path / "own")])
    file = tmp_path / "own" / "silver" / "tables.yaml"
    file.write_text(file.read_text().replace("order_id: BIGINT", "order_id: { type: BIGINT, sensitive: true }"))
    contracts = load_contracts(tmp_path / "own")
    of_key = [one for one in RESULTS if one.rule != "rows_kept"]  # that one is about no column
    masked = [shown(one, contracts) for one in of_key]
    assert HIDDEN in str(of_key)
    assert HIDDEN not in str(masked)
    build_site(contracts, [RuleOutcome(one, AT) for one in masked], tmp_path / "docs")
    assert not [path for path, text in pages(tmp_path / "docs").items() if HIDDEN in text]


@pytest.mark.parametrize(
    ("location", "folder"),
    [("/data/warehouse", Path("/data/warehouse/_data_docs")), ("s3://bucket/warehouse", None), ("prod", None)],
)
def test_data_docs_lie_in_a_warehouse_that_is_a_folder(location: str, folder: Path | None) -> None:
    assert default_folder(Warehouse(None, location, "/checkpoints")) == folder  # type: ignore[arg-type]


@pytest.mark.spark
def test_the_report_says_what_held_a_source(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    warehouse = empty_silver()
    shop = Shop(warehouse, settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints), contracts)
    shop.write("postgres_orders", {"order_id": 1})
    shop.write("mysql_orders", {"order_id": int(HIDDEN), "total_amount": "-1.00"})
    shop.run("a1")
    here = ["--warehouse", warehouse.location]
    main(["quality", "report", *here])
    said = capsys.readouterr().out
    for words in ("gate 2 · silver.mysql_orders", "amount_plausible", "holds", f"keys: {HIDDEN}", "100.00%"):
        assert words in said
    assert f"Data Docs: {warehouse.location}/_data_docs/index.html" in said
    assert HIDDEN in "".join(pages(Path(warehouse.location) / "_data_docs").values())

    main(["init", str(tmp_path / "own")])
    file = tmp_path / "own" / "silver" / "tables.yaml"
    hidden = file.read_text().replace("order_id: BIGINT", "order_id: { type: BIGINT, sensitive: true }")
    file.write_text(hidden)
    capsys.readouterr()
    own = ["--contracts", str(tmp_path / "own"), "--data-docs", str(tmp_path / "docs")]
    main(["quality", "report", *here, *own, "--json", "--feed", "mysql_orders", "--run", "a1"])
    out = capsys.readouterr().out
    answer = json.loads(out)
    assert (answer["ok"], answer["run"], answer["data_docs"]) == (True, "a1", str(tmp_path / "docs" / "index.html"))
    assert {row["table"] for row in answer["results"]} == {"silver.mysql_orders"}
    (held,) = [row for row in answer["results"] if not row["passed"]]
    assert (held["rule"], held["share"], held["sample_keys"]) == ("amount_plausible", 1.0, [])
    assert HIDDEN not in out
    assert not [path for path, text in pages(tmp_path / "docs").items() if HIDDEN in text]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [(["--run", "nope"], 5, "no results of run nope"), (["--feed", "nope"], 2, "There is no silver table nope")],
)
@pytest.mark.spark
def test_what_there_is_no_report_of_is_said(
    empty_silver: Callable[[], Warehouse], capsys: pytest.CaptureFixture[str], more: list[str], code: int, words: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["quality", "report", "--warehouse", empty_silver().location, *more])
    assert end.value.code == code
    assert words in capsys.readouterr().err
