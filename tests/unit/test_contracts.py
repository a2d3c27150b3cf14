"""Contracts: the packaged ones hold, and a mistake is said with file, line and key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from lakehouse.contracts import (
    Contracts,
    DecimalType,
    Gate,
    GoldTables,
    Model,
    SilverTables,
    Topics,
    check_references,
    load,
    load_packaged,
)
from lakehouse.errors import ContractError

SOURCES = Path(__file__).parent.parent.parent / "src"
MODELS: dict[str, type[Model]] = {
    "bronze/topics.yaml": Topics,
    "silver/tables.yaml": SilverTables,
    "silver/gate.yaml": Gate,
    "gold/tables.yaml": GoldTables,
    "gold/gate.yaml": Gate,
}


def test_the_packaged_contracts_fit_together() -> None:
    contracts = load_packaged()
    assert set(contracts.silver.feeds) == {
        *("postgres_orders", "mysql_orders"),
        *("postgres_outbox_orders", "mysql_outbox_orders"),
    }
    assert contracts.silver.feeds["mysql_orders"].columns["total_amount"].type == DecimalType(precision=10, scale=2)
    assert contracts.gold.sources["postgres"].feeds == ("postgres_orders", "postgres_outbox_orders")


def test_a_contract_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_packaged().gold.publication.partitions = 7


@pytest.mark.parametrize(
    ("file", "right", "wrong", "line_of", "key", "sentence"),
    [
        ("silver/tables.yaml", "keys: [order_id]", "keys: [oder_id]", None, "feeds.postgres_orders", "'order_id'?"),
        ("silver/tables.yaml", "DECIMAL(10,2)", "DECIMAL(50,2)", "DECIMAL(50,2)", "columns.total_amount", "38"),
        ("silver/tables.yaml", "BIGINT", "BIGNT", "BIGNT", "columns.order_id", "'BIGINT'"),
        ("silver/tables.yaml", "envelope: outbox", "envelope: outbx", "outbx", ".envelope", "'table' or 'outbox'"),
        ("silver/tables.yaml", "  mysql_orders:", "  My-Orders:", "My-Orders", "feeds.", "match pattern"),
        ("bronze/topics.yaml", "kind: mysql", "knd: mysql", "knd", "sources.mysql", "not known here"),
        ("gold/tables.yaml", "prefix: MY", "prefix: PG", None, "", "same prefix"),
        ("silver/gate.yaml", "on_failure: warn", "on_failure: ignore", "ignore", ".on_failure", "'warn'"),
        ("silver/gate.yaml", "name: note_short", "name: status_known", None, "", "two expectations"),
    ],
)
def test_a_mistake_is_said_with_file_line_and_key(
    tmp_path: Path, file: str, right: str, wrong: str, line_of: str | None, key: str, sentence: str
) -> None:
    text = (SOURCES / file).read_text().replace(right, wrong, 1)
    copy = tmp_path / file
    copy.parent.mkdir()
    copy.write_text(text)
    with pytest.raises(ContractError) as refused:
        load(MODELS[file], copy)
    error = refused.value
    assert error.file == file
    assert key in error.key
    assert sentence in str(error)
    assert str(error).startswith(f"{file}:{error.line}: ")
    if line_of is not None:
        assert line_of in text.splitlines()[error.line - 1]


def test_broken_yaml_is_said_with_its_line(tmp_path: Path) -> None:
    copy = tmp_path / "topics.yaml"
    copy.write_text("sources:\n  postgres: [\n  kind: x\n")
    with pytest.raises(ContractError, match=r"topics\.yaml:4: .*not valid YAML"):
        load(Topics, copy)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: _with_feed(c, source="postgre"), "no source 'postgre'; did you mean 'postgres'?"),
        (lambda c: _with_feed(c, topics=("postgres_prod.public.order",)), "no topic 'postgres_prod.public.order'"),
        (lambda c: _with_feed(c, topics=("outbox.event.postgres.orders",)), "belongs to"),
        (lambda c: _with_gate_feed(c, "postgres_order"), "no feed 'postgres_order'; did you mean 'postgres_orders'?"),
    ],
)
def test_contracts_that_do_not_fit_together_are_refused(
    change: Callable[[Contracts], Contracts], sentence: str
) -> None:
    with pytest.raises(ContractError) as refused:
        check_references(change(load_packaged()))
    assert sentence in str(refused.value)


def test_a_rule_for_one_feed_is_not_asked_of_the_others() -> None:
    gate = load_packaged().silver_gate
    assert "amount_present" in {rule.name for rule in gate.rules("mysql_outbox_orders")}
    assert "amount_present" not in {rule.name for rule in gate.rules("mysql_orders")}
    assert gate.rules("unknown") == ()


def test_contracts_errors_and_the_command_load_without_spark() -> None:
    """They are wanted where no Spark is: `lakehouse --help`, checks of contracts, the bundle's tests."""
    code = (
        "import sys; import cli.main, lakehouse.contracts, lakehouse.errors, lakehouse.config, lakehouse.jars;"
        "lakehouse.contracts.load_packaged();"
        "sys.exit(','.join(m for m in ('pyspark', 'great_expectations', 'delta') if m in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _with_feed(contracts: Contracts, **changes: object) -> Contracts:
    feeds = dict(contracts.silver.feeds)
    feeds["postgres_orders"] = feeds["postgres_orders"].model_copy(update=changes)
    return contracts.model_copy(update={"silver": SilverTables(feeds=feeds)})


def _with_gate_feed(contracts: Contracts, feed: str) -> Contracts:
    gate = contracts.silver_gate.model_copy(update={"feeds": (feed,)})
    return contracts.model_copy(update={"silver_gate": gate})
