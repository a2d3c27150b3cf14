"""How bad what was seen of each stage is. Pure: readings and limits in, stages out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lakehouse.contracts.thresholds import Level, Limits, Thresholds
from lakehouse.errors import LakehouseError
from lakehouse.kafka.offsets import Partition
from monitoring.model import Headroom, Stage, StageName, worst
from monitoring.readings.databases import Slot
from monitoring.readings.freshness import Reads
from monitoring.readings.running import Running, heartbeats_of
from monitoring.readings.tables import EPOCH
from monitoring.readings.topics import SourceTopics, connector_seconds
from monitoring.readings.warehouse import Behind
from monitoring.units import duration

NO_ORDERS = "no unified orders are made of it"


@dataclass(frozen=True)
class Observations:
    """What was seen, by source. `asked_connect`: whether somebody said where it is. `troubles`: what did not answer.

    `silver`, `gold`, `topic`: what each has not taken; without a source where the tables do not say it. `rates`: by
    source and layer, the records a second of its last pass. `without_orders`: the sources that no unified orders are
    made of. `reads`: when topics could be read; None where the tables do not say it.
    """

    now: datetime
    limits: Thresholds
    asked_connect: bool = False
    running: Mapping[str, Sequence[Running]] = field(default_factory=dict)
    topics: Mapping[str, SourceTopics] = field(default_factory=dict)
    silver: Mapping[str, Behind] = field(default_factory=dict)
    gold: Mapping[str, Behind] = field(default_factory=dict)
    topic: Mapping[str, Behind] = field(default_factory=dict)
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    reads: Reads | None = None
    without_orders: Collection[str] = ()
    troubles: Mapping[str, LakehouseError] = field(default_factory=dict)


def stages_of(seen: Observations, source: str) -> list[Stage]:
    """The stages of a source, in the order of the flow."""
    return [
        database_stage(seen, source),
        connect_stage(seen, source),
        topics_stage(seen, source),
        bronze_stage(seen, source),
        table_stage(seen, source, "silver", seen.silver),
        _gold_stage(seen, source),
        _topic_stage(seen, source),
    ]


def _gold_stage(seen: Observations, source: str) -> Stage:
    """How far the unified orders are behind silver."""
    if source in seen.without_orders:
        return _unknown(source, "gold", NO_ORDERS)
    return table_stage(seen, source, "gold", seen.gold)


def _topic_stage(seen: Observations, source: str) -> Stage:
    """How far the unified topic is behind gold."""
    if source in seen.without_orders:
        return _unknown(source, "topic", NO_ORDERS)
    error = seen.troubles.get("topic")
    if error is not None and "topics" not in seen.troubles:
        return Stage(source, "topic", "critical", what=error.what, hint=error.hint)
    return table_stage(seen, source, "topic", seen.topic)


def database_stage(seen: Observations, source: str) -> Stage:
    """Whether the database keeps what the connectors of the source have not read."""
    asked = [one.database for one in seen.running[source] if one.database is not None]
    if not asked:
        return _unknown(source, "database", "not looked at: no connector of it is known (--connect-url)")
    levels: list[tuple[Level, str, str]] = []
    for one in asked:
        if one.unasked:
            continue
        if one.trouble:
            levels.append(("critical", one.trouble, "Check that the server is up and reachable from here."))
        if one.slot is not None:
            levels += _of_slot(one.slot, seen.limits.wal_bytes)
        if one.binlog is not None and not one.binlog.has_file:
            what = f"{one.connector}: its binlog file {one.binlog.file} is purged"
            levels.append(("critical", what, "lakehouse doctor"))
    if all(one.unasked for one in asked):
        return _unknown(source, "database", asked[0].unasked)
    level = worst(one[0] for one in levels)
    slots = [f"slot {one.slot.name} is active" for one in asked if one.slot is not None]
    binlogs = [f"binlog {one.binlog.files[-1]}" for one in asked if one.binlog is not None and one.binlog.files]
    well = ("ok", "; ".join(dict.fromkeys([*slots, *binlogs])), "")
    _level, what, hint = next((one for one in levels if one[0] == level != "ok"), well)
    lag = sum(one.slot.lag_bytes if one.slot else one.binlog.behind_bytes if one.binlog else 0 for one in asked)
    return Stage(source, "database", level, lag_bytes=lag, what=what, hint=hint)


def _of_slot(slot: Slot, limits: Limits) -> list[tuple[Level, str, str]]:
    if not slot.exists or slot.wal_status == "lost":
        return [
            ("critical", f"slot {slot.name} {'has lost WAL' if slot.exists else 'does not exist'}", "lakehouse doctor")
        ]
    found: list[tuple[Level, str, str]] = []
    if not slot.active:
        found.append(("warning", f"slot {slot.name} is not active", "lakehouse connect status"))
    level = limits.level(slot.lag_bytes)
    return [*found, (level, f"slot {slot.name} keeps {slot.lag_bytes:,} bytes of WAL", "lakehouse connect status")]


def connect_stage(seen: Observations, source: str) -> Stage:
    """Whether the connectors of the source run, and how far behind the source they are."""
    if not seen.asked_connect:
        return _unknown(source, "connect", "not looked at: pass --connect-url")
    level, seconds, what, hint = _of_connect(seen, source)
    return Stage(source, "connect", level, lag_seconds=seconds, what=what, hint=hint)


StageState = tuple[Level, float | None, str, str]


def _of_connect(seen: Observations, source: str) -> StageState:
    running = seen.running[source]
    if (error := seen.troubles.get("connect")) is not None:
        return "critical", None, error.what, error.hint
    if not running:
        return "critical", None, "no connector writes to its topics", "lakehouse connect deploy --dry-run"
    for one in running:
        name = one.connector.name
        if one.state.has_failed:
            hint = f"lakehouse doctor; then lakehouse connect restart {name}"
            return "critical", None, f"{name} has failed: {one.state.first_line}", hint
        if not one.runs:
            hint = f"lakehouse connect resume {name}"
            return "critical", None, f"{name} is {one.state.state or 'unassigned'}", hint
    names = ", ".join(one.connector.name for one in running)
    topics = seen.topics.get(source)
    return ("ok", None, f"running: {names}", "") if topics is None else _of_records(seen, topics, running)


def _of_records(seen: Observations, topics: SourceTopics, running: Sequence[Running]) -> StageState:
    """By the newest records: a connector that runs can be hours behind, or send nothing at all."""
    now_ms = int(seen.now.timestamp() * 1000)
    # A topic of heartbeats may be left of a connector that is gone.
    own = {heartbeats_of(one.connector) for one in running}
    beats = [sent.timestamp_ms for topic_partition, sent in topics.last.items() if topic_partition.topic in own]
    if beats:
        # Each connector has a topic of its own: the one that is silent counts.
        silent = max((now_ms - min(beats)) / 1000, 0.0)
        level = seen.limits.heartbeat_seconds.level(silent)
        if level != "ok":
            what = f"runs, and has sent no heartbeat for {duration(silent)}"
            return level, silent, what, "Look into the worker's log; lakehouse doctor asks the database."
    delay = connector_seconds(topics.last.values(), now_ms=now_ms)
    level = seen.limits.connector_seconds.level(delay)
    if level == "ok":
        return level, delay, f"running: {', '.join(one.connector.name for one in running)}", ""
    return level, delay, f"runs {duration(delay)} behind the source", "lakehouse doctor: is a snapshot running?"


def topics_stage(seen: Observations, source: str) -> Stage:
    """Whether the topics are there, and still have every record that was not read."""
    topics, error = seen.topics.get(source), seen.troubles.get("topics")
    if error is not None:
        return Stage(source, "topics", "critical", what=error.what, hint=error.hint)
    if topics is None:
        return _unknown(source, "topics", "not looked at: pass --bootstrap-servers or --kafka-config")
    if topics.absent:
        what, hint = f"absent: {', '.join(topics.absent)}", "lakehouse connect status: who should write it?"
        return Stage(source, "topics", "critical", rate=topics.rate, what=what, hint=hint)
    if topics.lost:
        lost = topics.lost[0]
        what = f"records of {lost.topic}, partition {lost.number}, were removed before they were read"
        hint = "lakehouse bronze says which offsets; docs/verify.md says how to repair."
        return Stage(source, "topics", "critical", rate=topics.rate, what=what, hint=hint)
    return Stage(source, "topics", "ok", rate=topics.rate, what=f"{len(topics.ends)} partitions")


def bronze_stage(seen: Observations, source: str) -> Stage:
    """How far bronze is behind the topics. What no run has begun to read is not late: it has no age."""
    topics = seen.topics.get(source)
    if topics is None:
        return _unknown(source, "bronze", "not known without the broker")
    unread = topics.unread_records
    if unread and seen.reads is not None and source not in seen.reads.began:
        what = f"{unread:,} pending; no run has read this source yet"
        return Stage(source, "bronze", "warning", unread, what=what, hint="lakehouse run")
    oldest = min((_since(seen, source, topic_partition, topics) for topic_partition in topics.unread), default=seen.now)
    return _lagging(seen, source, "bronze", unread, max((seen.now - oldest).total_seconds(), 0.0))


def _since(seen: Observations, source: str, topic_partition: Partition, topics: SourceTopics) -> datetime:
    """Since when the first unread record of a partition can be read: by its timestamp, which is its producer's, or by
    the last run that found the partition without it.
    """
    sent = EPOCH + timedelta(milliseconds=topics.unread[topic_partition].timestamp_ms)
    if seen.reads is None or topic_partition not in topics.unread_from:
        return sent
    known = seen.reads.not_before(
        source, topic_partition.topic, topic_partition.number, topics.unread_from[topic_partition]
    )
    return sent if known is None else max(sent, known)


def table_stage(seen: Observations, source: str, stage: StageName, behind: Mapping[str, Behind]) -> Stage:
    """How far silver, gold or the unified topic is behind the layer before it."""
    one = behind.get(source)
    if one is None:
        why = "without the broker and gold" if stage == "topic" else "before the first run"
        return _unknown(source, stage, f"not known {why}")
    seconds = 0.0 if one.since is None else max((seen.now - one.since).total_seconds(), 0.0)
    return _lagging(seen, source, stage, one.records, seconds)


def _unknown(source: str, stage: StageName, what: str) -> Stage:
    return Stage(source, stage, "unknown", what=what)


def _lagging(seen: Observations, source: str, stage: StageName, records: int, seconds: float) -> Stage:
    level: Level = seen.limits.lag_seconds.level(seconds) if records else "ok"
    what = f"{records:,} pending" if records else "caught up"
    command = {"topic": "publish"}.get(stage, stage)
    hint = "" if level == "ok" else f"Does a run work? If none does: lakehouse {command}"
    rate = seen.rates.get((source, stage))
    return Stage(source, stage, level, records, seconds if records else 0.0, rate=rate, what=what, hint=hint)


def headroom_of(seen: Observations, source: str, *, drain: float | None) -> Headroom:
    """Whether the source is caught up with in time, and what loses records first where it is not."""
    topics = seen.topics.get(source)
    now = seen.now.timestamp()
    pending = seen.silver.get(source, Behind()).records + (topics.unread_records if topics else 0)
    arrival = topics.rate if topics else None
    catch_up: float | None = 0.0
    if pending:
        gain = (drain or 0.0) - (arrival or 0.0)
        catch_up = pending / gain if gain > 0 else None
    lost: list[tuple[float, str]] = []
    if topics and (left := topics.lost_in_seconds(now_ms=int(now * 1000))) is not None:
        lost.append((left, "Kafka's retention"))
    for database in (one.database for one in seen.running.get(source, ()) if one.database is not None):
        slot, binlog = database.slot, database.binlog
        if slot is not None and not slot.active and (left := slot.lost_in_seconds) is not None:
            lost.append((left, f"the limit of slot {slot.name}"))
        if binlog is not None and binlog.files and (left := binlog.lost_in_seconds(now=now)) is not None:
            lost.append((left, "the binlog's expiry"))
    seconds, by = min(lost, default=(None, ""))
    return Headroom(source, arrival, drain, catch_up, seconds, by)
