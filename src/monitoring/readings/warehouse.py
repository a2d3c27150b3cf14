"""What the tables say of the flow: how far bronze, silver and gold have come, passes, quarantine and gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gold.state import read_state
from lakehouse.contracts.models import Contracts
from lakehouse.process.lock import Holder, current_folder_lock, local_folder
from lakehouse.registered import RegisteredSchema
from monitoring.model import Gate, Quarantine, Records, TableFiles
from monitoring.readings.tables import Commit, Tables

BATCHES, QUARANTINE, RESULTS, LEASE, SCHEMAS, UNIFIED = (
    *("ops.batches", "quality.quarantine", "quality.results", "ops.lease", "ops.schemas", "gold.unified_orders"),
)
OUTCOMES = ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")
# Of a table's history so much is looked at: enough to be behind by, and to see what commits write.
MAX_COMMITS = 50
# The registry is asked for each.
MAX_SCHEMAS = 20

Row = dict[str, Any]
# Source, topic, partition.
Place = tuple[str, str, int]


@dataclass(frozen=True)
class Behind:
    """What a stage has not taken: records (rows of a table), and since when the oldest is there."""

    records: int = 0
    since: datetime | None = None


def bronze_offsets(tables: Tables) -> dict[Place, int]:
    """The offset that bronze reads next, of every topic-partition that it has read or was moved in."""
    rows = tables.rows("""
        SELECT source, topic, partition, next_offset FROM (
            SELECT source, topic, partition, coalesce(planned['until_offset'], step['to_offset']) AS next_offset,
                row_number() OVER (
                    PARTITION BY source, topic, partition
                    ORDER BY written_at DESC, coalesce(planned['until_offset'], step['to_offset']) DESC
                ) AS number
            FROM {ops.batches}
            WHERE layer = 'bronze' AND coalesce(planned['until_offset'], step['to_offset']) IS NOT NULL
        ) AS stated WHERE number = 1
    """)
    return {(row["source"], row["topic"], row["partition"]): row["next_offset"] for row in rows}


def pending_for_silver(tables: Tables) -> dict[str, Behind]:
    """By source, the batches of bronze that silver has not read, since it was last rebuilt."""
    rows = tables.rows(f"""
        SELECT stored.source AS source, sum(stored.records) AS records, min(stored.written_at) AS since
        FROM (
            SELECT source, topic, topic_id, partition, written_at, planned['from_offset'] AS from_offset,
                planned['records'] AS records
            FROM {{ops.batches}} WHERE layer = 'bronze' AND planned['records'] > 0
        ) AS stored
        LEFT JOIN (
            SELECT source, topic, topic_id, partition, max(last_offset) AS last_offset
            FROM ({OF_THIS_SILVER}) AS audit GROUP BY source, topic, topic_id, partition
        ) AS taken
        ON stored.source = taken.source AND stored.topic = taken.topic AND stored.partition = taken.partition
            AND coalesce(stored.topic_id, '') = coalesce(taken.topic_id, '')
            AND taken.last_offset >= stored.from_offset
        WHERE taken.source IS NULL GROUP BY stored.source
    """)
    return {row["source"]: Behind(row["records"], row["since"]) for row in rows}


# The rows of the generation that wrote last: a silver that was rebuilt is another one.
OF_THIS_SILVER = """
    SELECT * FROM (
        SELECT *, first_value(generation) OVER (PARTITION BY source ORDER BY sequence DESC) AS now
        FROM {ops.batches} WHERE layer = 'silver'
    ) AS every WHERE generation = now
"""


def records(tables: Tables) -> list[Records]:
    """What became of every source's records."""
    sums = ", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in ("read", *OUTCOMES))
    rows = tables.rows(f"SELECT source, {sums} FROM ({OF_THIS_SILVER}) AS audit GROUP BY source ORDER BY source")
    return [
        Records(
            row["source"],
            {name: row[name] for name in OUTCOMES},
            row["read"] - sum(row[name] for name in OUTCOMES),
        )
        for row in rows
    ]


def suspended_tables(tables: Tables) -> list[str]:
    """The silver tables that gate 1 has suspended."""
    rows = tables.rows(f"""
        SELECT feed, max(CASE WHEN suspended IS NOT NULL THEN batch END) AS suspended_at,
            max(CASE WHEN resumed THEN batch END) AS resumed_at
        FROM ({OF_THIS_SILVER}) AS audit WHERE feed IS NOT NULL GROUP BY feed
    """)
    return sorted(
        f"silver.{row['feed']}"
        for row in rows
        if row["suspended_at"] is not None and (row["resumed_at"] is None or row["suspended_at"] > row["resumed_at"])
    )


def suspension_causes(tables: Tables) -> dict[str, Mapping[str, str]]:
    """By name of each suspended table its `rule` and `why`, as they were written last."""
    suspended = suspended_tables(tables) if tables.exists("ops.batches") else []
    if not suspended:
        return {}
    rows = tables.rows(
        f"SELECT feed, sequence, suspended FROM ({OF_THIS_SILVER}) AS audit"
        " WHERE suspended IS NOT NULL ORDER BY sequence"
    )
    causes = {row["feed"]: row["suspended"] for row in rows if row["suspended"]["why"] is not None}
    return {feed: cause for feed, cause in causes.items() if f"silver.{feed}" in suspended}


def quarantine(tables: Tables, *, now: datetime) -> list[Quarantine]:
    """The open entries of every source that has records."""
    entries = tables.rows("SELECT source, reasons, first_seen FROM {quality.quarantine} WHERE state = 'open'")
    shares = tables.rows(f"""
        SELECT source, sum(read) AS read, sum(quarantined) AS quarantined FROM {{ops.batches}}
        WHERE layer = 'silver' AND written_at >= {moment(now - timedelta(days=1))} GROUP BY source
    """)
    share = {row["source"]: row["quarantined"] / row["read"] for row in shares if row["read"]}
    found = []
    for source in sorted({*share, *(entry["source"] for entry in entries)}):
        own = [entry for entry in entries if entry["source"] == source]
        reasons = Counter(reason for entry in own for reason in entry["reasons"] or ())
        oldest = min((entry["first_seen"] for entry in own), default=None)
        age = None if oldest is None else (now - oldest).total_seconds()
        found.append(Quarantine(source, len(own), share.get(source), age, dict(reasons.most_common(10))))
    return found


def undecodable(tables: Tables) -> dict[str, int]:
    """By source, the open quarantine entries of records that cannot be decoded: no rule put them there."""
    entries = tables.rows("SELECT source, rules, is_damaged FROM {quality.quarantine} WHERE state = 'open'")
    return dict(Counter(one["source"] for one in entries if not one["rules"] and not one["is_damaged"]))


def kept_schemas(tables: Tables) -> dict[int, RegisteredSchema]:
    """By id, the schemas of the registry that the warehouse keeps: of the lowest ids, which are given out first."""
    rows = tables.rows(f"SELECT DISTINCT id, kind, schema FROM {{ops.schemas}} ORDER BY id LIMIT {MAX_SCHEMAS}")
    return {row["id"]: RegisteredSchema(row["kind"], row["schema"]) for row in rows}


def gates(tables: Tables) -> list[Gate]:
    """How every gate last judged each source."""
    rows = tables.rows("""
        SELECT gate, source, rule, on_failure, passed FROM (
            SELECT gate, source, rule, on_failure, passed,
                rank() OVER (PARTITION BY gate, source, feed ORDER BY evaluated_at DESC) AS number
            FROM {quality.results}
        ) AS judged WHERE number = 1 ORDER BY gate, source, rule
    """)
    found = []
    for gate, source in dict.fromkeys((row["gate"], row["source"]) for row in rows):
        failed = [row for row in rows if (row["gate"], row["source"]) == (gate, source) and not row["passed"]]
        blocks = gate != "silver" and any(row["on_failure"] == "fail" for row in failed)
        found.append(Gate(gate, source, tuple(dict.fromkeys(row["rule"] for row in failed)), blocks))
    return found


def lock(tables: Tables, *, now: datetime) -> tuple[str | None, datetime | None]:
    """Who works on the warehouse, in words; and when a run last began. Raises TableError."""
    folder = local_folder(tables.location)
    own = None if folder is None else current_folder_lock(folder)
    if own is None:
        holder, is_held = _lease(tables, now=now)
    else:
        holder, is_held = own.holder, own.is_held
    if holder is None:
        return ("a run that has just begun" if is_held else None), None
    return (f"{holder} since {holder.started_at:%H:%M:%S}" if is_held else None), holder.started_at


def _lease(tables: Tables, *, now: datetime) -> tuple[Holder | None, bool]:
    """Who has the lease or had it last, and whether it is in force."""
    if not tables.exists(LEASE):
        return None, False
    columns = ("run_id", "command", "host", "user", "pid", "started_at")
    rows = tables.rows(f"SELECT {', '.join(columns)}, token, expires_at FROM {{ops.lease}}")
    if not rows:
        return None, False
    (row,) = rows
    holder = Holder(**{column: row[column] for column in columns})
    return holder, row["token"] is not None and row["expires_at"] > now


def last_written(tables: Tables) -> datetime | None:
    """When any layer last wrote down a batch."""
    (row,) = tables.rows("SELECT max(written_at) AS at FROM {ops.batches}")
    at: datetime | None = row["at"]
    return at


def behind_of_gold(tables: Tables, contracts: Contracts) -> dict[str, Behind]:
    """By source of gold, the rows of its silver tables that changed behind the versions that gold has."""
    rows = tables.rows("""
        SELECT state FROM {ops.batches} WHERE layer = 'gold' AND state IS NOT NULL ORDER BY sequence DESC LIMIT 1
    """)
    consumed = {name: one for row in rows for name, one in read_state(row["state"]).orders.versions.items()}
    found = {}
    for source, of_gold in contracts.gold.sources.items():
        parts = []
        for name in (f"silver.{feed}" for feed in of_gold.feeds):
            if tables.exists(name):
                version = consumed.get(name)
                is_same = version is not None and version.created_ms == tables.facts(name).created_ms
                after = version.number if version is not None and is_same else None
                parts.append(behind(tables.commits(name, limit=MAX_COMMITS), after))
        found[source] = _sum(parts)
    return found


def by_source(of_gold: Mapping[str, Behind], contracts: Contracts) -> dict[str, Behind]:
    """What is stated by source of gold, by source of the topics that its feeds are from."""
    parts: dict[str, list[Behind]] = {}
    for name, one in of_gold.items():
        for source in dict.fromkeys(contracts.feeds[feed].source for feed in contracts.gold.sources[name].feeds):
            parts.setdefault(source, []).append(one)
    return {source: _sum(of_source) for source, of_source in parts.items()}


def behind(commits: Iterable[Commit], version: int | None) -> Behind:
    """What the commits behind a version have changed; behind none: all of them."""
    new = [one for one in commits if one.changes_rows and (version is None or one.version > version)]
    return Behind(sum(one.rows for one in new), min((one.at for one in new), default=None))


def _sum(parts: Sequence[Behind]) -> Behind:
    since = [one.since for one in parts if one.since is not None]
    return Behind(sum(one.records for one in parts), min(since, default=None))


def table_files(tables: Tables, contracts: Contracts) -> list[TableFiles]:
    """What the tables of every layer are made of."""
    names = [
        *(f"bronze.{source}_events" for source in contracts.topics.sources),
        *(table for feed in contracts.feeds.values() for table in feed.silver_tables),
        *(*contracts.gold.unified_tables, *(f"gold.{join}" for join in contracts.gold.joins), BATCHES, QUARANTINE),
    ]
    found = []
    for name in filter(tables.exists, names):
        facts = tables.facts(name)
        commits = [one for one in tables.commits(name, limit=MAX_COMMITS) if one.changes_rows]
        rows, written = sum(one.rows for one in commits), sum(one.written_bytes for one in commits)
        changed = rows * facts.bytes / facts.rows if facts.rows else 0
        ratio = written / changed if changed else None
        found.append(TableFiles(name, facts.files, facts.bytes, facts.deletion_vectors, facts.version, ratio))
    return found


def moment(at: datetime) -> str:
    """SQL of a time (UTC)."""
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}'"
