"""Is there anything to do? The state that the last whole run left, and whether it is still the same.

A run of all jobs that ended well has read what the broker had when it began, and has left no layer behind another. It
writes down a fingerprint, in `ops.batches`: which ends of the topics that were, and the last commits of the tables. As
long as the broker ends there, no table has another commit, and release and contracts are the same, a run would find
nothing, whichever of the jobs it is of: none of them begins. Where tables are files, that is seen before Java starts.
Only where gate 2 has a rule about the time, gold asks it, and publish says whom it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from bronze.events import events_table
from cli.jobs import JOBS, RunContext, RunOutcome, run_jobs
from cli.monitoring.shared import with_discovered_tables
from gold.quality.gate_rules import asks_about_the_time
from lakehouse.batches import BATCHES, FORMAT, append, release
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import AT_A_TIME, Warehouse
from lakehouse.errors import TableError
from lakehouse.failures import storage_errors
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.offsets import Partition, latest, topic_ids
from lakehouse.process.steps import Steps
from monitoring.readings.tables import Tables, tables_at
from silver.rejects.quarantine import QUARANTINE

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
    settings: Settings,
    contracts: Contracts,
    names: Sequence[str],
    *,
    known: TopicPartitions,
    tables: Tables,
    steps: Steps,
) -> Look:
    """Look at the tables, and at those topics that jobs of these names read or write. Changes nothing.

    Raises KafkaError.
    """
    with steps.step("news", "looking for what has come or changed since the last run") as note:
        looked_at = datetime.now(UTC)
        with storage_errors(job="news", storage_paths=(settings.warehouse, settings.checkpoints)):
            if tables.exists(BATCHES.name):
                contracts = with_discovered_tables(contracts, tables)
            ends = ends_of_bronze(settings, contracts, known=known) if "bronze" in names else {}
            published = published_topics(settings, contracts, known=known) if "publish" in names else {}
            is_left = is_unchanged(tables, contracts, names, ends=ends, published=published)
            found = Look(is_left, is_left and not _asked_in_any_case(names, contracts), ends, looked_at)
        note("nothing has come or changed since the last run" if found.has_nothing_new else "there is something to do")
    return found


def skip_if_unchanged(
    names: Sequence[str], work: RunContext, look: Look, *, before_each: Callable[[], None] | None
) -> RunOutcome:
    """The jobs of these names, unless there is nothing to do; how all jobs have left things, when they ended well."""
    if look.has_nothing_new:
        outcome = run_jobs(_asked_in_any_case(names, work.contracts), work, before_each=before_each)
        return RunOutcome({"nothing_new": True, **outcome.results}, outcome.failures)
    outcome = run_jobs(names, work, before_each=before_each)
    if {*names} == {*JOBS} and not outcome.failures:
        warehouse = work.warehouse
        tables = tables_at(work.settings.address, lambda: warehouse)
        with storage_errors(job="news", storage_paths=(warehouse.location, warehouse.checkpoints)):
            contracts = with_discovered_tables(work.contracts, tables)
            published = published_topics(work.settings, contracts, known=partitions(work.settings.kafka()))
            left = Fingerprint(_made_by(contracts), look.ends, published, _tables_now(tables, contracts))
            write_fingerprint(warehouse, left, run_id=work.run_id, looked_at=look.looked_at)
    return RunOutcome({"nothing_new": False, **outcome.results}, outcome.failures)


@dataclass(frozen=True)
class Fingerprint:
    """How things are when nothing is left to do.

    `made_by`: the release and the contracts. `ends`: of each `topic/partition/topic id` that bronze reads the offset
    that its next record will get. `published`: of each topic that publish writes to its id. `tables`: the last commit
    of each.
    """

    made_by: str
    ends: Mapping[str, int]
    published: Mapping[str, str]
    tables: Mapping[str, str]


def ends_of_bronze(settings: Settings, contracts: Contracts, *, known: TopicPartitions) -> dict[str, int]:
    """The `ends` of `Fingerprint`, as the broker has them now. Raises KafkaError."""
    connection = settings.kafka()
    read = sorted({topic for source in contracts.topics.sources.values() for topic in source.assigned(known)})
    ids = topic_ids(connection, read)
    ends = latest(connection, [Partition(topic, number) for topic in read for number in known[topic]])
    return {
        f"{topic_partition.topic}/{topic_partition.number}/{ids[topic_partition.topic]}": offset
        for topic_partition, offset in ends.items()
    }


def published_topics(settings: Settings, contracts: Contracts, *, known: TopicPartitions) -> dict[str, str]:
    """The `published` of `Fingerprint` now: nobody else writes to them, so only that they are the same matters."""
    topics = contracts.gold.published_topics
    written = [name for topic in topics for name in (topic.topic, topic.progress_topic) if name in known]
    return topic_ids(settings.kafka(), written)


def write_fingerprint(warehouse: Warehouse, left: Fingerprint, *, run_id: str, looked_at: datetime) -> None:
    """Write down how a run has left things that ended well, in a commit of its own, the last one.

    The ends of bronze are those of `looked_at`, before it began: what came meanwhile may not have been read.
    """
    append(warehouse, "run", [{"run": run_id, "fingerprint": asdict(left)}], started_at=looked_at)


def is_unchanged(
    tables: Tables,
    contracts: Contracts,
    names: Sequence[str],
    *,
    ends: Mapping[str, int],
    published: Mapping[str, str],
) -> bool:
    """Whether nothing has come or changed since a run has left nothing to do for jobs of these names.

    `ends`, `published`: of `Fingerprint`, now. Of topics only those count that one of the jobs reads or writes.
    """
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
            and ("bronze" not in names or dict(left["ends"]) == ends)
            and ("publish" not in names or dict(left["published"]) == published)
            and dict(left["tables"]) == _tables_now(tables, contracts, since_written=1)
        )
    except TableError:
        return False  # one of them is gone: the run says so, or creates it again


_LAST = """
    SELECT fingerprint['made_by'] AS made_by, fingerprint['ends'] AS ends, fingerprint['published'] AS published,
        fingerprint['tables'] AS tables
    FROM {ops.batches} WHERE layer = 'run' AND fingerprint IS NOT NULL ORDER BY written_at DESC LIMIT 1
"""


def _asked_in_any_case(names: Sequence[str], contracts: Contracts) -> list[str]:
    """Of these jobs those that begin though nothing has come or changed: gate 2 may have a rule about the time."""
    is_asked = contracts.gold.has_unified and asks_about_the_time(contracts.gold_gate)
    return [name for name in names if is_asked and name in ("gold", "publish")]


def _made_by(contracts: Contracts) -> str:
    return f"{release()} {FORMAT} {sha256(contracts.model_dump_json().encode()).hexdigest()}"


def _tables_now(tables: Tables, contracts: Contracts, *, since_written: int = 0) -> dict[str, str]:
    """`since_written`: how many commits of `ops.batches` do not count: that of what was written down."""
    names = [
        *(events_table(source).name for source in contracts.topics.sources),
        *(table for feed in contracts.feeds.values() for table in feed.silver_tables),
        *(*contracts.gold.unified_tables, QUARANTINE.name),
        # One that waits for a table that a rule makes is not there.
        *filter(tables.exists, (f"gold.{join}" for join in contracts.gold.joins)),
    ]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        found = list(threads.map(tables.commit, [*names, BATCHES.name]))
    commits = {name: f"{created_ms} {version}" for name, (created_ms, version) in zip(names, found, strict=False)}
    return {**commits, BATCHES.name: str(found[-1][1] - since_written)}
