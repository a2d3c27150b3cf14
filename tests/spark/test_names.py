"""A contract may name its columns and keys as the code names its own: the two never meet."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import silver
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import SilverTable
from silver.apply import ensure_tables
from tests.support.events import Record, change, compact, postgres_source, record, run_headers
from tests.support.silver import Told

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark

FEED = "postgres_orders"
LEFT_OUT = "__debezium_unavailable_value"
# What SQL of ours calls the two sides of a MERGE, a function's argument, a field.
OF_SQL = ("text", "target", "latest", "known", "found", "one", "hop", "hops", "now", "new", "cells")
CASE = "shard_of"


def own_names() -> list[str]:
    """The names that silver's code gives to columns: its aliases, and what its frames begin with."""
    told = "".join(file.read_text(encoding="utf-8") for file in Path(str(silver.__path__[0])).rglob("*.py"))
    aliases = re.findall(
        r'\.alias\("([a-z][a-z_]*)"\)|withColumn\(\s*"([a-z][a-z_]*)"|(?:F|pl)\.col\("([a-z][a-z_]*)"\)', told
    )
    return sorted({name for names in aliases for name in names if name} | set(OF_SQL))


NAMES = own_names()


def test_there_are_names_to_meet() -> None:
    assert {"key", "topic", "position", "row", "kind", "is_delete", "before", "offset"} <= set(NAMES)


def with_columns(contracts: Contracts, *, keys: tuple[str, ...], sharded: bool) -> Contracts:
    """The packaged contracts with another table in PostgreSQL's feed: the names as columns, a note, and these keys."""
    columns: dict[str, Any] = {CASE: {"type": "STRING", "from_topic": r"\.(\w+)$"}} if sharded else {}
    columns |= {"id": "INT", **dict.fromkeys(NAMES, "INT"), "note": "STRING"}
    all_keys = [*([CASE] if sharded else []), *keys]
    declared = {"sequence_by": "source_position", "columns": columns, "keys": all_keys}
    table = SilverTable.model_validate(declared)
    tables = {**contracts.silver.tables, FEED: table}
    gate = contracts.silver_gate.model_copy(update={"feeds": (), "expectations": ()})
    silver_contract = contracts.silver.model_copy(update={"tables": tables})
    return contracts.model_copy(update={"silver": silver_contract, "silver_gate": gate})


class Source(Told):
    """One table of PostgreSQL whose rows have the names as columns; every value of a row is its number."""

    keys: tuple[str, ...] = ()
    offset = 0

    def event(
        self, op: str, number: int, *, note: str | None = None, links: Any = (), image_of: int | None = None
    ) -> Record:
        self.offset += 1
        source = postgres_source(1000 + self.offset, last_commit=1000 + self.offset)
        value = number if image_of is None else image_of
        row = {**dict.fromkeys(("id", *NAMES), value), **dict.fromkeys(self.keys, number), "note": note}
        (topic,) = self.contracts.feeds[FEED].topics
        headers = run_headers("run", source=source, links=links)
        told = change(op, source, None if op == "d" else row)
        return record(topic, self.offset, key=self.key(number), value=told, headers=headers)

    def key(self, number: int) -> Mapping[str, int]:
        return dict.fromkeys(self.keys, number)

    def live(self) -> dict[int, tuple[int, str | None]]:
        """Of every live row, by its first key: the value of its columns that are no keys, and its note."""
        rows = self.warehouse.read(f"silver.{FEED}").where("NOT _is_deleted").collect()
        others = [name for name in ("id", *NAMES) if name not in self.keys]
        found = {}
        for row in rows:
            (value,) = {row[name] for name in others}
            found[row[self.keys[0]]] = (value, row["note"])
        return found


@pytest.mark.parametrize(
    ("keys", "sharded"),
    [
        pytest.param(("id",), True, id="columns, shards"),
        # A MERGE by a hundred keys takes more than a minute.
        pytest.param(tuple(NAMES), False, id="keys", marks=pytest.mark.slow),
    ],
)
def test_names_of_ours_as_columns_and_keys(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, keys: tuple[str, ...], sharded: bool
) -> None:
    declared = with_columns(contracts, keys=keys, sharded=sharded)
    warehouse = empty_silver()
    shutil.rmtree(warehouse.path(f"silver.{FEED}"))
    ensure_tables(warehouse, declared)
    source = Source(warehouse, declared, "postgres", tmp_path)
    source.keys = keys
    source.tell(
        source.event("c", 1, note="one"),
        source.event("c", 2, note="two"),
        source.event("c", 3, note="three"),
    )
    links = [("__debezium.newkey", compact(source.key(9)))], [("__debezium.oldkey", compact(source.key(3)))]
    source.tell(
        source.event("u", 1, note=LEFT_OUT, image_of=7),
        source.event("d", 2),
        source.event("d", 3, links=links[0]),
        source.event("c", 9, note=LEFT_OUT, links=links[1]),
        record(source.contracts.feeds[FEED].topics[0], 90, key=source.key(2), value=None),
    )
    assert source.live() == {1: (7, "one"), 9: (9, "three")}
    garbled = {**source.event("c", 5, note="five"), "value": "not JSON"}
    source.tell(garbled)
    assert source.decide("retried") == {"quarantined": 1}
