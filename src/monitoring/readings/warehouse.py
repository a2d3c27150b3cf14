"""What the tables say of the flow: how far bronze, silver and gold have come, passes, quarantine and gates."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from lakehouse.contracts.models import Contracts
from lakehouse.registered import RegisteredSchema
from monitoring.model import Freshness, Gate, Pass, Quarantine, Records, TableFiles
from monitoring.readings.tables import Commit, Tables

BATCHES, QUARANTINE, RESULTS, LEASE, SCHEMAS, UNIFIED = (
    *("ops.batches", "quality.quarantine", "quality.results", "ops.lease", "ops.schemas", "gold.unified_orders"),
)
OUTCOMES = ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")
# Of a table's history so much is looked at: enough to be behind by, and to see what commits write.
MOST_COMMITS = 50
LAST_PASSES = 20
# Rows of gold whose age is looked at.
MOST_AGES = 100_000
# The last runs that read all there was: what is older is of no use for what they brought.
MOST_LOOKS = 20
# The registry is asked for each.
MOST_SCHEMAS = 20

Row = dict[str, Any]
# Source, topic, partition.
Place = tuple[str, str, int]


@dataclass(frozen=True)
class Behind:
    """What a stage has not taken: records (rows of a table), and since when the oldest is there."""

    records: int = 0
    since: datetime | None = None


@dataclass(frozen=True)
class Reads:
    """What is known of when records could be read: a record's timestamp is its producer's, and may be of last year.

    `began`: by source, when a run first looked at its topics. `looks`: by topic and partition, where it ended when a
    run looked at it that read all of it: the offsets in order, each with the last time that it ended there or before.
    """

    began: Mapping[str, datetime] = field(default_factory=dict)
    looks: Mapping[tuple[str, int], tuple[Sequence[int], Sequence[datetime]]] = field(default_factory=dict)

    def not_before(self, source: str, topic: str, partition: int, offset: int) -> datetime | None:
        """A time before which no run could have read this record; None where nothing is known."""
        ends, times = self.looks.get((topic, partition), ((), ()))
        at = bisect_right(ends, offset)
        known = [self.began[source]] if source in self.began else []
        return max([*known, *times[at - 1 : at]], default=None)


def reads(tables: Tables) -> Reads:
    """When sources were first read, and where topics ended when the last runs read all of them."""
    began = tables.rows("""
        SELECT source, min(coalesce(started_at, written_at)) AS began FROM {ops.batches}
        WHERE layer = 'bronze' AND source IS NOT NULL GROUP BY source
    """)
    looks = tables.rows(f"""
        SELECT started_at, settled['ends'] AS ends FROM {{ops.batches}}
        WHERE layer = 'run' AND started_at IS NOT NULL AND settled IS NOT NULL
        ORDER BY started_at DESC LIMIT {MOST_LOOKS}
    """)
    found: dict[tuple[str, int], list[tuple[int, datetime]]] = {}
    for look in looks:
        for place, end in dict(look["ends"] or ()).items():
            topic, partition, _topic_id = place.split("/", 2)  # an id may have a slash, and no topic's name has one
            if partition:  # the topics that are written to have none
                found.setdefault((topic, int(partition)), []).append((end, look["started_at"]))
    return Reads({row["source"]: row["began"] for row in began}, {place: _rising(own) for place, own in found.items()})


def _rising(ends: Sequence[tuple[int, datetime]]) -> tuple[Sequence[int], Sequence[datetime]]:
    """The offsets in order; of each the latest time of those up to it."""
    ordered = sorted(ends)
    return [end for end, _at in ordered], list(accumulate((at for _end, at in ordered), max))


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


def passes(tables: Tables, *, since: datetime) -> tuple[list[Pass], dict[str, dict[str, int]]]:
    """The last passes, the oldest first; and by their name, of every source the records that silver took."""
    rows = tables.rows(f"""
        SELECT layer, run, source, started_at, written_at, sum(coalesce(read, 0)) AS records
        FROM {{ops.batches}}
        WHERE started_at IS NOT NULL AND written_at >= {moment(since)}
        GROUP BY layer, run, source, started_at, written_at ORDER BY written_at
    """)
    grouped = list(_grouped(rows))[-LAST_PASSES:]
    by_source = {_name(of_pass): _records_by_source(of_pass) for of_pass in grouped}
    return [_pass(of_pass) for of_pass in grouped], by_source


def _grouped(rows: Iterable[Row]) -> Iterable[list[Row]]:
    """Batches as passes: after gold has written, whatever an earlier layer writes begins the next one."""
    order = ("bronze", "silver", "gold")
    current: list[Row] = []
    for row in rows:
        if row["layer"] not in order:
            continue
        if current and order.index(row["layer"]) < max(order.index(one["layer"]) for one in current):
            yield current
            current = []
        current.append(row)
    if current:
        yield current


def _name(of_pass: Sequence[Row]) -> str:
    return str(next((row["run"] for row in of_pass if row["run"]), of_pass[-1]["written_at"].isoformat()))


def _records_by_source(of_pass: Sequence[Row]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in of_pass:
        if row["layer"] == "silver":
            found[row["source"]] += row["records"]
    return dict(found)


def _pass(of_pass: Sequence[Row]) -> Pass:
    seconds = {}
    for layer in ("bronze", "silver", "gold"):
        own = [row for row in of_pass if row["layer"] == layer]
        if own:
            took = max(row["written_at"] for row in own) - min(row["started_at"] for row in own)
            seconds[layer] = took.total_seconds()
    taken = sum(row["records"] for row in of_pass if row["layer"] == "silver")
    return Pass(_name(of_pass), of_pass[-1]["written_at"], taken, seconds)


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
    rows = tables.rows(f"SELECT DISTINCT id, kind, schema FROM {{ops.schemas}} ORDER BY id LIMIT {MOST_SCHEMAS}")
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
    """Who works on the warehouse, in words; and when a run last began."""
    if not tables.exists(LEASE):
        return None, None
    rows = tables.rows("SELECT token, command, run_id, host, started_at, expires_at FROM {ops.lease}")
    if not rows:
        return None, None
    (row,) = rows
    is_held = row["token"] is not None and row["expires_at"] > now
    said = f"`{row['command']}` (run {row['run_id'][:8]} on {row['host']}) since {row['started_at']:%H:%M:%S}"
    return (said if is_held else None), row["started_at"]


def last_written(tables: Tables) -> datetime | None:
    """When any layer last wrote down a batch."""
    (row,) = tables.rows("SELECT max(written_at) AS at FROM {ops.batches}")
    at: datetime | None = row["at"]
    return at


def behind_of_gold(tables: Tables, contracts: Contracts) -> dict[str, Behind]:
    """By source of gold, the rows of its silver tables that changed behind the versions that gold has taken."""
    rows = tables.rows("""
        SELECT name, created_ms, version FROM (
            SELECT taken['table'] AS name, taken['table_created_ms'] AS created_ms, taken['version'] AS version,
                row_number() OVER (PARTITION BY taken['table'] ORDER BY sequence DESC, written_at DESC) AS number
            FROM {ops.batches} WHERE layer = 'gold' AND taken['consumer'] LIKE 'gold.unified_orders %'
        ) AS stated WHERE number = 1
    """)
    taken = {(row["name"], row["created_ms"]): row["version"] for row in rows}
    found = {}
    for source, of_gold in contracts.gold.sources.items():
        parts = []
        for name in (f"silver.{feed}" for feed in of_gold.feeds):
            if tables.exists(name):
                version = taken.get((name, tables.facts(name).created_ms))
                parts.append(behind(tables.commits(name, limit=MOST_COMMITS), version))
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


def freshness(tables: Tables, contracts: Contracts, *, since: datetime, reads: Reads) -> list[Freshness]:
    """The ages of the rows of gold that were changed since then, by source.

    A row's age begins with the commit of its change in the source, or when it could first be read if that is later.
    """
    found = []
    key = contracts.gold.key
    for source, of_gold in contracts.gold.sources.items():
        ages: list[float] = []
        for name in (f"silver.{feed}" for feed in of_gold.feeds):
            if not tables.exists(name):
                continue
            rows = tables.rows(f"""
                SELECT ordered.processed_at AS processed_at, kept._source_ts AS source_ts, kept._topic AS at_topic,
                    kept._partition AS at_partition, kept._offset AS at_offset
                FROM {{gold.unified_orders}} AS ordered JOIN {{{name}}} AS kept ON ordered.{key} = kept.{key}
                WHERE ordered.source_database = '{of_gold.name}' AND ordered.processed_at >= {moment(since)}
                    AND kept._applied_at >= {moment(since - timedelta(hours=1))}
                    AND kept._applied_at <= ordered.processed_at AND kept._source_ts IS NOT NULL
                LIMIT {MOST_AGES}
            """)
            of_topics = contracts.feeds[name.removeprefix("silver.")].source
            ages += [(row["processed_at"] - _since(row, of_topics, reads)).total_seconds() for row in rows]
        if ages:
            ages.sort()
            found.append(Freshness(source, _quantile(ages, 0.5), _quantile(ages, 0.99), len(ages)))
    return found


def _since(row: Row, source: str, reads: Reads) -> datetime:
    """When the age of a row begins."""
    committed: datetime = row["source_ts"]
    if row["at_offset"] is None:
        return committed
    readable = reads.not_before(source, row["at_topic"], row["at_partition"], row["at_offset"])
    return committed if readable is None else max(committed, readable)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return max(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 0.0)


def table_files(tables: Tables, contracts: Contracts) -> list[TableFiles]:
    """What the tables of every layer are made of."""
    names = [
        *(f"bronze.{source}_events" for source in contracts.topics.sources),
        *(f"silver.{feed}" for feed in contracts.feeds),
        *(*contracts.gold.unified_tables, *(f"gold.{join}" for join in contracts.gold.joins), BATCHES, QUARANTINE),
    ]
    found = []
    for name in filter(tables.exists, names):
        facts = tables.facts(name)
        commits = [one for one in tables.commits(name, limit=MOST_COMMITS) if one.changes_rows]
        rows, written = sum(one.rows for one in commits), sum(one.written_bytes for one in commits)
        changed = rows * facts.bytes / facts.rows if facts.rows else 0
        ratio = written / changed if changed else None
        found.append(TableFiles(name, facts.files, facts.bytes, facts.deletion_vectors, facts.version, ratio))
    return found


def rates(passes_: Sequence[Pass], by_source: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """By source, how many records a second the pass took that had most of them: what the layers can drain."""
    found: dict[str, tuple[int, float]] = {}
    for one in passes_:
        seconds = sum(one.seconds.values())
        for source, count in by_source.get(one.run, {}).items():
            if seconds and count > found.get(source, (0, 0.0))[0]:
                found[source] = (count, count / seconds)
    return {source: rate for source, (_count, rate) in found.items()}


def layer_rates(passes_: Sequence[Pass], by_source: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], float]:
    """By source and layer, how many records a second the layer took in the last pass that had any of the source."""
    found: dict[tuple[str, str], float] = {}
    for one in passes_:
        for source, count in by_source.get(one.run, {}).items():
            if count:
                found |= {(source, layer): count / seconds for layer, seconds in one.seconds.items() if seconds}
    return found


def moment(at: datetime) -> str:
    """SQL of a time (UTC)."""
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}'"
