"""Is there anything to do? The state that the last whole run left, and whether it is still the same.

A run of all jobs that ended well has read what the broker had when it began, and has left no layer behind another. It
writes down, in `ops.batches` (`settled`), which ends of the topics that were, and the last commits of the tables. As
long as the broker ends there, no table has another commit, and release and contracts are the same, a run would find
nothing: none of its jobs begins. Where tables are files, that is seen before Java starts. Only where gate 2 has a rule
about the time, gold asks it, and publish says whom it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from bronze.events import events_table
from cli.jobs import JOBS, RunOutcome, Work, run_jobs
from cli.monitoring.shared import with_made_tables
from gold.gate import asks_about_the_time
from lakehouse.batches import BATCHES, FORMAT, append, release
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.errors import TableError
from lakehouse.failures import storage_errors
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.offsets import Partition, latest, topic_ids
from lakehouse.spark.tables import AT_A_TIME, Warehouse
from lakehouse.steps import Steps
from monitoring.readings.tables import Tables, tables_at
from silver.quarantine import QUARANTINE

if TYPE_CHECKING:
    from lakehouse.kafka.broker import TopicPartitions


@dataclass(frozen=True)
class Look:
    """What a run found before it began: whether nothing has come or changed since one has left nothing to do.

    `ends_a_run`: nor is there a rule about the time to ask. `ends`: of the topics that bronze reads, at `looked_at`.
    """

    has_nothing_new: bool
    ends_a_run: bool
    ends: Mapping[str, int]
    looked_at: datetime


def look_for_news(
    settings: Settings, contracts: Contracts, *, known: TopicPartitions, tables: Tables, steps: Steps
) -> Look:
    """Look at the broker and at the tables. Changes nothing. Raises KafkaError."""
    with steps.step("news", "looking for what has come or changed since the last run") as note:
        looked_at = datetime.now(UTC)
        with storage_errors(job="news", places=(settings.warehouse, settings.checkpoints)):
            if tables.exists(BATCHES.name):
                contracts = with_made_tables(contracts, tables)
            ends = ends_of_bronze(settings, contracts, known=known)
            of_publish = ends_of_publish(settings, contracts, known=known)
            is_left = is_settled(tables, contracts, {**ends, **of_publish})
            found = Look(is_left, is_left and not _is_asked_in_any_case(contracts), ends, looked_at)
        note("nothing has come or changed since the last run" if found.has_nothing_new else "there is something to do")
    return found


def run_unless_settled(work: Work, look: Look, *, before_each: Callable[[], None] | None) -> RunOutcome:
    """All jobs, unless there is nothing to do; how they have left things, when all of them ended well."""
    if look.has_nothing_new:
        names = ("gold", "publish") if _is_asked_in_any_case(work.contracts) else ()
        outcome = run_jobs(names, work, before_each=before_each)
        return RunOutcome({"nothing_new": True, **outcome.results}, outcome.failures)
    outcome = run_jobs(tuple(JOBS), work, before_each=before_each)
    if not outcome.failures:
        warehouse = work.warehouse
        tables = tables_at(work.settings.address, lambda: warehouse)
        with storage_errors(job="news", places=(warehouse.location, warehouse.checkpoints)):
            contracts = with_made_tables(work.contracts, tables)
            of_publish = ends_of_publish(work.settings, contracts, known=partitions(work.settings.kafka()))
            settled = Settled(_made_by(contracts), {**look.ends, **of_publish}, _tables_now(tables, contracts))
            write_settled(warehouse, settled, run_id=work.run_id, looked_at=look.looked_at)
    return RunOutcome({"nothing_new": False, **outcome.results}, outcome.failures)


@dataclass(frozen=True)
class Settled:
    """How things are when nothing is left to do.

    `made_by`: the release and the contracts. `ends`: of each `topic/partition/topic id` that bronze reads the offset
    that its next record will get; of each topic that publish writes to its id. `tables`: the last commit of each.
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


def write_settled(warehouse: Warehouse, settled: Settled, *, run_id: str, looked_at: datetime) -> None:
    """Write down how a run has left things that ended well, in a commit of its own, the last one.

    The ends of bronze are those of `looked_at`, before it began: what came meanwhile may not have been read.
    """
    append(warehouse, "run", [{"run": run_id, "settled": asdict(settled)}], started_at=looked_at)


def is_settled(tables: Tables, contracts: Contracts, ends: Mapping[str, int]) -> bool:
    """Whether nothing has come or changed since a run has left nothing to do. `ends`: all of them, now."""
    if not tables.exists(BATCHES.name):
        return False
    try:
        found = tables.rows(_LAST)
        if not found:
            return False
        (left,) = found
        # The tables last: that takes longest.
        return (
            left["made_by"] == _made_by(contracts)
            and dict(left["ends"]) == ends
            and dict(left["tables"]) == _tables_now(tables, contracts, since_written=1)
        )
    except TableError:
        return False  # one of them is gone: the run says so, or creates it again


_LAST = """
    SELECT settled['made_by'] AS made_by, settled['ends'] AS ends, settled['tables'] AS tables FROM {ops.batches}
    WHERE layer = 'run' AND settled IS NOT NULL ORDER BY written_at DESC LIMIT 1
"""


def _is_asked_in_any_case(contracts: Contracts) -> bool:
    """Whether gate 2 has a rule that may come out otherwise later, though nothing has come or changed."""
    return contracts.gold.has_unified and asks_about_the_time(contracts.gold_gate)


def _made_by(contracts: Contracts) -> str:
    return f"{release()} {FORMAT} {sha256(contracts.model_dump_json().encode()).hexdigest()}"


def _tables_now(tables: Tables, contracts: Contracts, *, since_written: int = 0) -> dict[str, str]:
    """`since_written`: how many commits of `ops.batches` do not count: that of what was written down."""
    names = [
        *(events_table(source).name for source in contracts.topics.sources),
        *(f"silver.{feed}" for feed in contracts.feeds),
        *(*contracts.gold.unified_tables, QUARANTINE.name),
        # One that waits for a table that a rule makes is not there.
        *filter(tables.exists, (f"gold.{join}" for join in contracts.gold.joins)),
    ]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        found = list(threads.map(tables.commit, [*names, BATCHES.name]))
    commits = {name: f"{created_ms} {version}" for name, (created_ms, version) in zip(names, found, strict=False)}
    return {**commits, BATCHES.name: str(found[-1][1] - since_written)}
