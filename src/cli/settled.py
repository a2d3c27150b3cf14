"""Is there anything to do? The state that the last whole run left, and whether it is still the same.

A run of all jobs that ended well has read what the broker had when it began, and has left no layer behind another. It
writes down, in `ops.batches` (`settled`), which ends of the topics that were, and the last commits of the tables. As
long as the broker ends there, no table has another commit, and release and contracts are the same, a run would find
nothing: none of its jobs begins. Only where gate 2 has a rule about the time, gold asks it, and publish says whom it
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze.events import events_table
from cli.jobs import JOBS, RunOutcome, Work, run_jobs
from gold.gate import asks_about_the_time
from lakehouse.batches import BATCHES, append, batches, release
from lakehouse.config import Settings
from lakehouse.consumed import last_version
from lakehouse.contracts.models import Contracts
from lakehouse.errors import TableError
from lakehouse.failures import storage_errors
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.offsets import Partition, latest, topic_ids
from lakehouse.spark.tables import AT_A_TIME, Warehouse
from silver.audit import checkpoint_of
from silver.by_rule.tables import with_made_tables
from silver.quarantine import QUARANTINE

if TYPE_CHECKING:
    from lakehouse.kafka.broker import TopicPartitions


def run_unless_settled(work: Work, *, before_each: Callable[[], None] | None) -> RunOutcome:
    """All jobs, unless there is nothing to do; how they have left things, when all of them ended well."""
    warehouse = work.warehouse
    contracts = with_made_tables(warehouse, work.contracts)
    places = (warehouse.location, warehouse.checkpoints)
    with work.steps.step("news", "looking for what has come or changed since the last run") as note:
        looked_at = datetime.now(UTC)
        ends = ends_of_bronze(work.settings, contracts, known=work.known)
        with storage_errors(job="news", places=places):
            of_publish = ends_of_publish(work.settings, contracts, known=work.known)
            has_nothing_new = is_settled(warehouse, contracts, {**ends, **of_publish})
        note("nothing has come or changed since the last run" if has_nothing_new else "there is something to do")
    if has_nothing_new:
        is_asked = contracts.gold.has_unified and asks_about_the_time(contracts.gold_gate)
        outcome = run_jobs(("gold", "publish") if is_asked else (), work, before_each=before_each)
        return RunOutcome({"nothing_new": True, **outcome.results}, outcome.failures)
    outcome = run_jobs(tuple(JOBS), work, before_each=before_each)
    if not outcome.failures:
        with storage_errors(job="news", places=places):
            of_publish = ends_of_publish(work.settings, contracts, known=partitions(work.settings.kafka()))
            write_settled(warehouse, contracts, {**ends, **of_publish}, run_id=work.run_id, looked_at=looked_at)
    return RunOutcome({"nothing_new": False, **outcome.results}, outcome.failures)


@dataclass(frozen=True)
class Settled:
    """How things are when nothing is left to do.

    `made_by`: the release and the contracts. `ends`: of each `topic/partition/topic id` that bronze reads the offset
    that its next record will get; of each topic that publish writes to its id. `tables`: the last commit of each, and
    silver's checkpoints.
    """

    made_by: str
    ends: Mapping[str, int]
    tables: Mapping[str, str]


def ends_of_bronze(settings: Settings, contracts: Contracts, *, known: TopicPartitions) -> dict[str, int]:
    """Of the `ends` of `Settled` those that bronze reads, as the broker has them now. Raises KafkaError."""
    connection = settings.kafka()
    read = sorted({topic for source in contracts.topics.sources.values() for topic in source.assigned(known)})
    ids = topic_ids(connection, read)
    ends = latest(connection, [Partition(topic, number) for topic in read for number in known[topic]])
    return {f"{place.topic}/{place.number}/{ids[place.topic]}": offset for place, offset in ends.items()}


def ends_of_publish(settings: Settings, contracts: Contracts, *, known: TopicPartitions) -> dict[str, int]:
    """Those that publish writes to: nobody else does, so only that they are the same topics matters."""
    topics = contracts.gold.published_topics
    written = [name for topic in topics for name in (topic.topic, topic.progress_topic) if name in known]
    return {f"{topic}//{topic_id}": 0 for topic, topic_id in topic_ids(settings.kafka(), written).items()}


def write_settled(
    warehouse: Warehouse, contracts: Contracts, ends: Mapping[str, int], *, run_id: str, looked_at: datetime
) -> None:
    """Write down how a run has left things that ended well, in a commit of its own, the last one.

    `ends`: of bronze as they were at `looked_at`, before it began, since what came meanwhile may not have been read; of
    publish now.
    """
    tables = _tables_now(warehouse, contracts)
    settled = asdict(Settled(_made_by(contracts), ends, tables))
    append(warehouse, "run", [{"run": run_id, "settled": settled}], started_at=looked_at)


def is_settled(warehouse: Warehouse, contracts: Contracts, ends: Mapping[str, int]) -> bool:
    """Whether nothing has come or changed since a run has left nothing to do. `ends`: all of them, now."""
    rows = batches(warehouse, "run").where("settled IS NOT NULL").orderBy(F.col("written_at").desc()).limit(1)
    found = rows.select("settled.*").collect()
    if not found:
        return False
    (left,) = found
    # The tables last: that takes longest.
    if left["made_by"] != _made_by(contracts) or left["ends"] != ends:
        return False
    try:
        return bool(left["tables"] == _tables_now(warehouse, contracts, since_written=1))
    except TableError:
        return False  # one of them is gone: the run says so, or creates it again


def _made_by(contracts: Contracts) -> str:
    return f"{release()} {sha256(contracts.model_dump_json().encode()).hexdigest()}"


def _tables_now(warehouse: Warehouse, contracts: Contracts, *, since_written: int = 0) -> dict[str, str]:
    """`since_written`: how many commits of `ops.batches` do not count: that of what was written down."""
    names = [
        *(events_table(source).name for source in contracts.topics.sources),
        *(f"silver.{feed}" for feed in contracts.feeds),
        *(*contracts.gold.unified_tables, QUARANTINE.name),
        # One that waits for a table that a rule makes is not there.
        *filter(warehouse.exists, (f"gold.{join}" for join in contracts.gold.joins)),
    ]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        versions = list(threads.map(partial(last_version, warehouse), [*names, BATCHES.name]))
    commits = {one.table: f"{one.created_ms} {one.number}" for one in versions[:-1]}
    version = versions[-1].number - since_written
    checkpoints = {f"silver/{source}": checkpoint_of(warehouse, source) for source in contracts.topics.sources}
    return {**commits, **checkpoints, BATCHES.name: str(version)}
