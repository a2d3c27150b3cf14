"""Commands that look without Spark know the tables that rules have made, as they were made last."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from cli.monitoring.shared import with_discovered_tables
from tests.unit.lakehouse.contracts.test_by_rule import contracts, made, rule, source
from tests.unit.monitoring.delta import tables_in, write

DISCOVERED_TABLES = pa.schema([("name", pa.string()), ("version", pa.int32()), ("discovered", pa.string())])


def test_each_is_known_as_it_was_made_last(tmp_path: Path) -> None:
    declared = contracts(source(by_rule={"all": rule()}))
    assert with_discovered_tables(declared, tables_in(tmp_path)) == declared
    both = [
        made(version=2, keys=("id", "day"), columns={"id": {"declared": "INT"}, "day": {"declared": "DATE"}}),
        made(),
    ]
    other = made("order_dw_group", topic="order_dw.order_dw.group", table="order_dw.group")
    rows = [{"name": one.name, "version": one.version, "discovered": one.model_dump_json()} for one in (*both, other)]
    write(tmp_path, "ops.tables", DISCOVERED_TABLES, rows)
    assert with_discovered_tables(declared, tables_in(tmp_path)).discovered == {
        both[0].name: both[0],
        other.name: other,
    }
