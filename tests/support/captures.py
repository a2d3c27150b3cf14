"""The recordings, and contracts in which each of them, read in some way, is a case of its own.

Cases share one silver table and one MERGE a batch: a case's topics are `recorded.<recording>.<way>.<table>`, and the
case is the first column of every key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lakehouse.contracts.models import Contracts, Feed, Gate
from lakehouse.contracts.tables import Column, SilverTable, SilverTables
from lakehouse.contracts.topics import FeedTopics, Source, Topics
from tests.support.events import Record
from tests.support.recordings import read

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "demo" / "data", ROOT / "tests" / "captures")
PAGE_OF_TYPES = ROOT / "docs" / "types.md"
CASE = "recorded_case"

TEXTS: Mapping[str, Any] = {"decimal_handling_mode": "string", "time_precision_mode": "isostring"}
# The tables of a feed with these modes have names of their own.
AS_TEXT = "_as_text"
IDS = ("id", "__debezium.context.runId")
TABLES = ("orders", "orders_nopk", "orders_trunc", "orders_types")
OUTBOX_TABLES = ("outbox_orders", "outbox_customers")
KINDS = {"postgres": "postgresql", "mysql": "mysql"}


@dataclass(frozen=True)
class Capture:
    """A recording. `as_text`: with the modes TEXTS. `is_outbox`: of an outbox, whose events have no positions."""

    name: str
    source: str
    as_text: bool = False
    is_outbox: bool = False

    @property
    def kind(self) -> str:
        """The kind of its database."""
        return KINDS[self.source]

    @property
    def file(self) -> Path:
        """Its records."""
        return _file(f"{self.name}.jsonl.gz")

    @property
    def final(self) -> Path:
        """Its database's tables in the end."""
        return _file(f"{self.name}.final.json.gz")

    def table_of(self, topic: str) -> str | None:
        """The silver table of a recorded topic, without its source; None of a topic that is no table's."""
        name = topic.rpartition(".")[2]
        if self.is_outbox:
            return f"outbox_{name}"
        return f"{name}{AS_TEXT if self.as_text else ''}" if name in TABLES else None

    def records(self, way: str) -> list[Record]:
        """All records, in topics of the case.

        The ids of outbox events and of connector runs are the case's own too: an event is the same wherever it is read
        again, two recordings may be of the same outbox, and what is learnt of a run counts in all topics.
        """
        case = case_of(self.name, way)
        return [
            {
                **record,
                "topic": topic_of(self.name, way, self.table_of(record["topic"]) or _strange(record["topic"])),
                "headers": [[name, f"{case} {text}" if name in IDS else text] for name, text in record["headers"]],
            }
            for record in read(self.file)
        ]


def _file(name: str) -> Path:
    (found,) = [folder / name for folder in FOLDERS if (folder / name).exists()]
    return found


def _strange(topic: str) -> str:
    """What the topics tell that are no table's."""
    if topic.startswith("__debezium-heartbeat"):
        return "heartbeats"
    return "transactions" if topic.endswith(".transaction") else "schema_changes"


def topic_of(capture: str, way: str, table: str) -> str:
    """The topic of a case's table."""
    return f"recorded.{case_of(capture, way)}.{table}"


def case_of(capture: str, way: str) -> str:
    """The value of the column CASE."""
    return f"{capture}.{way}"


SMALL = (
    Capture("pg_default", "postgres"),
    Capture("pg_full", "postgres"),
    Capture("pg_default_restart", "postgres"),
    Capture("pg_schema-include", "postgres"),
    Capture("pg_decimal-string_time-isostring", "postgres", as_text=True),
    Capture("pg_ordering", "postgres"),
    Capture("outbox_pg_envelope", "postgres", is_outbox=True),
    Capture("outbox_pg_plain", "postgres", is_outbox=True),
    Capture("mysql", "mysql"),
    Capture("mysql_restart", "mysql"),
    Capture("mysql_schema-include", "mysql"),
    Capture("mysql_ordering", "mysql"),
    Capture("outbox_mysql_envelope", "mysql", is_outbox=True),
    Capture("outbox_mysql_expand", "mysql", is_outbox=True),
)
BIG = (Capture("pg_big_20k", "postgres"), Capture("mysql_big_20k", "mysql"))


def with_tables(packaged: Contracts, sources: Mapping[str, Source], tables: Mapping[str, SilverTable]) -> Contracts:
    """The packaged contracts with these sources and silver tables in place of theirs, and no rule that rejects."""
    rule = {
        "name": "order_id_present",
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "order_id"},
        "on_failure": "warn",
        "description": "An order has a number.",
    }
    return packaged.model_copy(
        update={
            "topics": Topics(sources=dict(sources)),
            "silver": SilverTables(tables=dict(tables)),
            "silver_gate": Gate.model_validate({"feeds": list(tables), "expectations": [rule]}),
        }
    )


def contracts_of_captures(packaged: Contracts, *, only: Collection[str] | None = None) -> Contracts:
    """Contracts for all recordings: a feed for each table, and another for the same table in the modes TEXTS.

    `only`: the tables that have a feed. No rule rejects anything.
    """
    feeds: dict[str, dict[str, FeedTopics]] = {source: {} for source in KINDS}
    tables: dict[str, SilverTable] = {}
    for source, kind in KINDS.items():
        columns = _columns(packaged, kind)
        for table in TABLES:
            modes = [("", {}), (AS_TEXT, TEXTS)] if source == "postgres" else [("", {})]
            for suffix, given in modes:
                name = _feed(source, f"{table}{suffix}")
                if only is not None and f"{table}{suffix}" not in only:
                    continue
                feeds[source][name] = _topics(f"{table}{suffix}", envelope="table", **given)
                tables[name] = _table(table, columns[table])
        for table in OUTBOX_TABLES:
            name = _feed(source, table)
            feeds[source][name] = _topics(table, envelope="outbox")
            outbox = packaged.silver.tables[f"{source}_outbox_orders"].columns
            tables[name] = _table(table, outbox, sequence_by="kafka_offset", payload="full")
    sources = {name: Source.model_validate({"kind": KINDS[name], "feeds": told}) for name, told in feeds.items()}
    return with_tables(packaged, sources, tables)


def _topics(table: str, **given: Any) -> FeedTopics:
    return FeedTopics.model_validate({"topic_patterns": (rf"recorded\..*\.{table}",), **given})


def _table(table: str, columns: Mapping[str, Column], **given: Any) -> SilverTable:
    case = Column.model_validate({"type": "STRING", "from_topic": r"recorded\.(.+)\.\w+"})
    identity = {"append_only": True} if table == "orders_nopk" else {"keys": (CASE, "order_id")}
    told = {"columns": {CASE: case, **columns}, "sequence_by": "source_position", **identity, **given}
    return SilverTable.model_validate(told)


def _columns(packaged: Contracts, kind: str) -> Mapping[str, Mapping[str, Column]]:
    orders = packaged.silver.tables["postgres_orders"].columns
    short = {name: orders[name] for name in ("order_id", "status", "total_amount")}
    # The column was added while the recordings were made; some of them are without it.
    channel = Column.model_validate({"type": "STRING", "optional": True})
    return {
        "orders": {**orders, "channel": channel},
        "orders_nopk": short,
        "orders_trunc": short,
        "orders_types": columns_of_page(kind),
    }


def columns_of_page(kind: str) -> dict[str, Column]:
    """The columns of the table of all types as docs/types.md has them."""
    block = re.search(rf"^```yaml {kind}\n(.*?)^```$", PAGE_OF_TYPES.read_text(encoding="utf-8"), re.DOTALL | re.M)
    assert block is not None
    return {name: Column.model_validate(told) for name, told in yaml.safe_load(block[1]).items()}


def changes_of(capture: Capture, table: str) -> list[tuple[Record, Mapping[str, Any]]]:
    """The records of a table that have an operation, each with its envelope, in the order of offsets."""
    found = []
    for record in read(capture.file):
        if capture.table_of(record["topic"]) == table and record["value"] is not None:
            value = json.loads(record["value"])
            found.append((record, value.get("payload", value)))
    return sorted(found, key=lambda one: (one[0]["partition"], one[0]["offset"]))


def feed_of(contracts: Contracts, capture: Capture, table: str) -> Feed:
    """The feed of a capture's table."""
    return contracts.feeds[_feed(capture.source, table)]


def _feed(source: str, table: str) -> str:
    return f"recorded_{source}_{table}"
