"""`lakehouse status`: every stage looked at, side by side, and judged by the thresholds of the contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from connectors.rest import Worker
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.thresholds import Level
from lakehouse.errors import LakehouseError
from lakehouse.kafka.connection import KafkaConnection
from monitoring.model import Finding, Pass, Status
from monitoring.readings import warehouse
from monitoring.readings.freshness import Reads, freshness, read_times
from monitoring.readings.passes import drain_rates, last_passes, layer_rates
from monitoring.readings.running import connectors_of, running_of
from monitoring.readings.tables import Tables
from monitoring.readings.topics import topics_of
from monitoring.readings.warehouse import Behind
from monitoring.stages import Observations, headroom_of, stages_of
from monitoring.units import duration

# Passes and shares are of so long.
LOOKED_BACK = timedelta(days=1)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class View:
    """What there is to look at. None: nobody has said where it is.

    `published`: asks up to which version of gold each source of gold is on the unified topic.
    """

    contracts: Contracts
    tables: Tables | None = None
    kafka: KafkaConnection | None = None
    worker: Worker | None = None
    published: Callable[[], Mapping[str, int]] | None = None


def try_query(
    troubles: dict[str, LakehouseError], what: str, ask: Callable[[], _Answer], otherwise: _Answer
) -> _Answer:
    """What was asked for; where it does not answer `otherwise`, and the error is in `troubles`, by what it is."""
    try:
        return ask()
    except LakehouseError as error:
        troubles[what] = error
        return otherwise


def status_of(view: View, *, now: datetime | None = None) -> Status:
    """Everything that can be looked at. What does not answer is a finding, and stops nothing else."""
    at = now or datetime.now(UTC)
    troubles: dict[str, LakehouseError] = {}
    tried = partial(try_query, troubles)
    contracts, worker, kafka, published = view.contracts, view.worker, view.kafka, view.published
    given = view.tables
    is_there = given is not None and tried("tables", lambda: given.exists(warehouse.BATCHES), False)
    tables = given if is_there else None
    none: dict[warehouse.Place, int] = {}
    offsets = tried("tables", lambda: warehouse.bronze_offsets(tables), none) if tables is not None else none
    with ThreadPoolExecutor(3) as threads:
        sources = contracts.topics.sources
        of_connect = threads.submit(
            tried, "connect", lambda: running_of(worker, sources.values()) if worker else [], []
        )
        of_topics = threads.submit(
            tried, "topics", lambda: topics_of(kafka, contracts, next_offsets=offsets, now=at) if kafka else {}, {}
        )
        of_publish = threads.submit(tried, "topic", lambda: published() if published else {}, {})
        readings = TableReadings(Status(at))
        if tables is not None:
            known = tables
            readings = tried("tables", lambda: _read_tables(known, contracts, at), readings)
        running, topics, versions = of_connect.result(), of_topics.result(), of_publish.result()
    unpublished: dict[str, Behind] = {}
    if tables is not None and published and "topic" not in troubles:
        known = tables
        unpublished = tried("tables", lambda: _unpublished(known, contracts, versions), unpublished)
    seen = Observations(
        now=at,
        limits=contracts.thresholds,
        asked_connect=worker is not None,
        running={name: connectors_of(source, running, topics.get(name)) for name, source in sources.items()},
        topics=topics,
        silver=readings.silver,
        gold=readings.gold,
        topic=unpublished,
        reads=None if "tables" in troubles else readings.reads,
        rates=readings.rates,
        without_orders=sources.keys() - contracts.gold.sources.keys(),
        troubles=troubles,
    )
    status = replace(
        readings.status,
        stages=[stage for source in sources for stage in stages_of(seen, source)],
        headroom=[headroom_of(seen, source, drain=readings.drains.get(source)) for source in sources],
    )
    return replace(status, findings=sorted(_findings(status, seen), key=_worst_first))


@dataclass(frozen=True)
class TableReadings:
    """What the tables say. By source: what silver and gold have not taken; the records a second that a pass takes
    (`drains`), and each layer of the last one (`rates`). `reads`: when topics could be read.
    """

    status: Status
    silver: Mapping[str, Behind] = field(default_factory=dict)
    gold: Mapping[str, Behind] = field(default_factory=dict)
    drains: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    reads: Reads = field(default_factory=Reads)


def _read_tables(tables: Tables, contracts: Contracts, now: datetime) -> TableReadings:
    passes, by_source = last_passes(tables, since=now - LOOKED_BACK)
    lock, began = warehouse.lock(tables, now=now)
    since = passes[-1].ended_at - timedelta(seconds=sum(passes[-1].seconds.values())) if passes else now
    has_gold = contracts.gold.has_unified and tables.exists(warehouse.UNIFIED)
    reads = read_times(tables)
    status = Status(
        now,
        freshness=freshness(tables, contracts, since=since, reads=reads) if has_gold and passes else (),
        records=warehouse.records(tables),
        quarantine=warehouse.quarantine(tables, now=now) if tables.exists(warehouse.QUARANTINE) else (),
        gates=warehouse.gates(tables) if tables.exists(warehouse.RESULTS) else (),
        suspended=warehouse.suspended_tables(tables),
        tables=warehouse.table_files(tables, contracts),
        passes=passes,
        lock=lock,
        last_run_at=max(filter(None, (began, warehouse.last_written(tables))), default=None),
    )
    pending = warehouse.pending_for_silver(tables)
    silver = {source: pending.get(source, Behind()) for source in contracts.topics.sources}
    gold = warehouse.by_source(warehouse.behind_of_gold(tables, contracts), contracts) if has_gold else {}
    drains, rates = drain_rates(passes, by_source), layer_rates(passes, by_source)
    return TableReadings(status, silver, gold, drains, rates, reads)


def _unpublished(tables: Tables, contracts: Contracts, versions: Mapping[str, int]) -> dict[str, Behind]:
    """By source, the rows of gold behind the version that the topic has of it."""
    if not tables.exists(warehouse.UNIFIED):
        return {}
    commits = tables.commits(warehouse.UNIFIED, limit=warehouse.MAX_COMMITS)
    found = {name: warehouse.behind(commits, versions.get(name)) for name in contracts.gold.sources}
    return warehouse.by_source(found, contracts)


def _worst_first(finding: Finding) -> tuple[int, str]:
    return ({"critical": 0, "warning": 1, "ok": 2}[finding.level], finding.where)


def _findings(status: Status, seen: Observations) -> Iterator[Finding]:
    for stage in status.stages:
        if stage.level in {"warning", "critical"}:
            late = f"{duration(stage.lag_seconds)} late; " if stage.lag_seconds and stage.stage != "connect" else ""
            level: Level = "critical" if stage.level == "critical" else "warning"
            yield Finding(level, f"{stage.source} {stage.stage}", f"{late}{stage.what}", stage.hint)
    if "tables" in seen.troubles:
        error = seen.troubles["tables"]
        yield Finding("critical", "tables", error.what, error.hint)
    yield from _limit_findings(measured(status), seen)
    for name in status.suspended:
        yield Finding(
            "critical",
            name,
            "it is suspended: nothing new is applied",
            "lakehouse quality report says why; docs/quarantine.md, of tables by rule docs/by-rule.md, how it goes on.",
        )
    for gate in status.gates:
        if gate.blocks:
            yield Finding(
                "critical",
                gate.source,
                f"{gate.gate} gate blocks it: {', '.join(gate.failed_rules)}",
                "lakehouse quality report",
            )
    for one in status.records:
        if one.unaccounted:
            yield Finding("critical", one.source, f"{one.unaccounted:,} records have no outcome", "lakehouse verify")
    for room in status.headroom:
        never = room.catch_up_seconds is None and room.lost_in_seconds is not None
        if never or (room.lost_in_seconds is not None and (room.catch_up_seconds or 0) > room.lost_in_seconds):
            yield Finding(
                "critical",
                room.source,
                f"it will not catch up before {room.lost_by} loses records",
                "Run more often or with more cores, and raise what loses them.",
            )


# Where, the value, the limit's name, a sentence, and the next step.
Measured = tuple[str, float, str, str, str]


def measured(status: Status) -> list[Measured]:
    """What is measured against a limit."""
    found: list[Measured] = []
    last = status.passes[-1] if status.passes else None
    for age in status.freshness:
        found.append(
            (
                age.source,
                age.p99,
                "freshness_seconds",
                f"rows of gold are {duration(age.p99)} old (99 of 100)",
                _faster(last) if last is not None and 2 * _seconds(last) >= age.p99 else MORE_OFTEN,
            )
        )
    if last is not None:
        took = _seconds(last)
        found.append(("passes", took, "pass_seconds", f"the last pass took {duration(took)}", _faster(last)))
    if status.last_run_at is not None:
        ago = (status.at - status.last_run_at).total_seconds()
        found.append(
            (
                "runs",
                ago,
                "run_seconds",
                f"no run has begun for {duration(ago)}",
                "Is the schedule paused, or did the job end? lakehouse run",
            )
        )
    for one in status.quarantine:
        if one.share is not None:
            found.append(
                (
                    one.source,
                    one.share,
                    "quarantine_share",
                    f"{one.share:.2%} of the last day's records are in quarantine",
                    "lakehouse quarantine list",
                )
            )
        if one.oldest_seconds is not None:
            found.append(
                (
                    one.source,
                    one.oldest_seconds,
                    "quarantine_seconds",
                    f"the oldest open quarantine entry is {duration(one.oldest_seconds)} old",
                    "lakehouse quarantine list",
                )
            )
    for table in status.tables:
        found.append(
            (table.table, float(table.files), "table_files", f"it has {table.files:,} files", "lakehouse optimize")
        )
    for room in status.headroom:
        if room.lost_in_seconds is not None:
            found.append(
                (
                    room.source,
                    room.lost_in_seconds,
                    "headroom_seconds",
                    f"in {duration(max(room.lost_in_seconds, 0))} {room.lost_by} loses records that were not read",
                    "Run now: lakehouse run",
                )
            )
    return found


MORE_OFTEN = "Run more often, or always: lakehouse run --trigger continuous"


def _faster(one: Pass) -> str:
    """What makes a pass faster: it begins with its slowest layer."""
    layer = max(one.seconds, key=lambda name: one.seconds[name], default="")
    slowest = f"{layer} takes longest ({duration(one.seconds[layer])}): " if layer else ""
    return f"{slowest}lakehouse optimize; then more cores or a larger heap (docs/running.md)"


def _limit_findings(found: Sequence[Measured], seen: Observations) -> Iterator[Finding]:
    for where, value, name, what, hint in found:
        limits = getattr(seen.limits, name)
        level: Level = limits.level(value)
        if level != "ok":
            yield Finding(level, where, what, hint)


def _seconds(one: Pass) -> float:
    return sum(one.seconds.values())
