"""Batches of silver as the job makes them: every record stands in bronze before it is applied."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F

from bronze.events import events_table
from lakehouse.batches import batches
from lakehouse.contracts.models import Contracts, Expectation
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.spark.materialized import materialized
from silver.accounts.audit import read_state
from silver.accounts.completeness import record_ranges_in
from silver.accounts.ingested import unread_ranges
from silver.batch.outcome import FeedBatch
from silver.job import SilverJob
from silver.lookback.rederive import keys_of, rederive
from silver.order.history import history
from silver.order.ranges import batches_of
from silver.order.state import OUTCOMES
from silver.rejects import quarantine
from silver.rejects.decisions import Request, ask, carry_out
from silver.rejects.quarantine import QUARANTINE
from silver.source_batch import apply_batch, apply_ranges, resume
from tests.support.bronze import bronze_rows
from tests.support.events import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply(warehouse: Warehouse, contracts: Contracts, source: str, records: DataFrame) -> None:
    """Store those of the records (`bronze_rows`) that bronze does not have, and apply all of them as one batch."""
    table = events_table(source)
    warehouse.ensure(table)
    of_record = ["topic", "_topic_id", "partition", "offset"]
    stored = warehouse.read(table.name).select(*of_record)
    held = records.persist()
    warehouse.append(table.name, held.dropDuplicates(of_record).join(stored, on=of_record, how="left_anti"))
    apply_rows(warehouse, held, job=job_of(warehouse, contracts, source))
    held.unpersist()


def apply_rows(warehouse: Warehouse, records: DataFrame, *, job: SilverJob) -> None:
    """Apply bronze rows as one batch."""
    apply_batch(warehouse, records, record_ranges_in(records, job), job=job)


def apply_stored(warehouse: Warehouse, *, job: SilverJob) -> None:
    """Apply what bronze has and silver has not read, as a run does."""
    state = job.memory.now(warehouse, job.source)
    unread = unread_ranges(warehouse, {job.source: state.read_ranges})[job.source]
    for batch in batches_of(unread, state.read_ranges):
        apply_ranges(warehouse, batch, job=job)


def job_of(warehouse: Warehouse, contracts: Contracts, source: str, *, accepted: Iterable[str] = ()) -> SilverJob:
    """The job of a source, as a run of the tests."""
    return SilverJob(source, contracts, warehouse.address, "test", frozenset(accepted))


@dataclass
class Anew:
    """What came of deriving all rows of a source's tables anew.

    `outcomes`: how many events came to which, by topic and partition, of feeds with source positions. `moved`: how many
    records were found damaged that were not known to be.
    """

    outcomes: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    moved: int = 0


def derive_anew(warehouse: Warehouse, contracts: Contracts, source: str, *, of: DataFrame | None = None) -> Anew:
    """Derive the rows of a source's tables anew from bronze (silver.lookback.rederive): all, or `of` these alone."""
    job, anew = job_of(warehouse, contracts, source), Anew()
    state = read_state(warehouse, source)
    bronze = warehouse.read(f"bronze.{source}_events") if of is None else of
    for name, feed in job.feeds.items():
        topics = [row["topic"] for row in bronze.select("topic").distinct().collect() if feed.has_topic(row["topic"])]
        if feed.append_only or feed.sequence_by == "kafka_offset" or not topics:
            continue
        batch = FeedBatch(
            warehouse=warehouse,
            name="derived anew",
            feed=feed,
            rules=job.rules(name),
            rows=[],
            run="test",
            state=state,
            quarantine_state=quarantine.quarantine_state(warehouse, source),
        )
        keys = keys_of(bronze.where(F.col("topic").isin(*topics)), feed)
        none = inline_rows(warehouse.spark, [], "topic STRING, topic_id STRING, partition INT, offset BIGINT")
        with ExitStack() as stack, materialized(keys) as all_keys:
            found = rederive(batch, all_keys, history(feed, [], state), none, stack)
            anew.moved += sum(found.moved.values())
            rows = found.outcomes.groupBy("topic", "partition", "outcome").count().collect()
            anew.outcomes.update({(row["topic"], row["partition"], row["outcome"]): row["count"] for row in rows})
    return anew


def with_gate(contracts: Contracts, *rules: Expectation) -> Contracts:
    """The same contracts with these rules at gate 1 and no others."""
    gate = contracts.silver_gate.model_copy(update={"expectations": rules})
    return contracts.model_copy(update={"silver_gate": gate})


@dataclass
class Told:
    """A warehouse, and one source of it that is told records batch by batch."""

    warehouse: Warehouse
    contracts: Contracts
    source: str
    folder: Path
    batch: int = 0
    topics: set[str] = field(default_factory=set)

    def tell(self, *records: Record) -> None:
        """One batch of these records."""
        self.topics |= {record["topic"] for record in records}
        file = self.folder / f"{self.source}-{self.batch}.jsonl"
        file.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
        rows = bronze_rows(self.warehouse.spark, file, topics={topic: topic for topic in self.topics})
        apply(self.warehouse, self.contracts, self.source, rows)
        self.batch += 1

    def ask(self, state: str, offset: int | None = None, *, feed: str | None = None) -> None:
        """A person asks this of the records at an offset, or of all that are open; it is not carried out yet."""
        is_chosen = F.col("state") == "open" if offset is None else F.col("offset") == offset
        is_of_feed = F.lit(True) if feed is None else F.col("feed") == feed
        ask(self.warehouse, Request(state, "a person", "a test", uuid4().hex), chosen=is_chosen & is_of_feed)

    def decide(self, state: str, offset: int | None = None) -> Mapping[str, int]:
        """The same, carried out: how many came to which outcome."""
        self.ask(state, offset)
        return self.carry_out()

    def carry_out(self) -> Mapping[str, int]:
        """What was asked: how many came to which outcome, over all tables."""
        found = carry_out(self.warehouse, job_of(self.warehouse, self.contracts, self.source))
        sums: dict[str, int] = {}
        for counts in found.values():
            for outcome, number in counts.items():
                sums[outcome] = sums.get(outcome, 0) + number
        return sums

    def resume(self, feed: str, *, accepted: Iterable[str] = ()) -> str | None:
        """The table takes what it was stopped for; why not, when it is still stopped."""
        job = job_of(self.warehouse, self.contracts, self.source, accepted=accepted)
        return resume(self.warehouse, self.contracts.feeds[feed], job=job)

    def suspended(self) -> dict[str, str]:
        """The tables that are suspended, and why."""
        state = read_state(self.warehouse, self.source)
        return {feed: cause.why for feed, cause in state.suspended.items()}

    def rows(self, feed: str, *columns: str) -> dict[Any, Any]:
        """The live rows of a table by `order_id`: the value of a column, or of several as a tuple."""
        rows = self.warehouse.read(f"silver.{feed}").where("NOT _is_deleted").collect()
        return {
            row["order_id"]: row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns)
            for row in rows
        }

    def entries(self, feed: str) -> dict[int, Any]:
        """The table's entries of the quarantine by offset."""
        rows = self.warehouse.read(QUARANTINE.name).where(F.col("feed") == feed).collect()
        return {row["offset"]: row for row in rows}

    def counted(self) -> dict[str, int]:
        """The sums of the batch audit: what was read, and what became of it; without zeros."""
        sums = [F.sum(name).alias(name) for name in ("read", *OUTCOMES)]
        row = batches(self.warehouse, "silver").where(F.col("source") == self.source).agg(*sums).collect()[0]
        return {name: number for name, number in row.asDict().items() if number}
