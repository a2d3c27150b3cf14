"""What `lakehouse status` answers, in parts. Frozen values without any behaviour but how bad they are.

The command's table, `--json`, the metrics and the HTML report show the same `Status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lakehouse.contracts.thresholds import Level

# In the order of the flow. `topic`: the unified topic that BigQuery loads.
StageName = Literal["database", "connect", "topics", "bronze", "silver", "gold", "topic"]
STAGES: tuple[StageName, ...] = ("database", "connect", "topics", "bronze", "silver", "gold", "topic")
# `unknown`: it was not looked at, since nobody said where it is. That is no fault.
LevelOrUnknown = Level | Literal["unknown"]
EXIT_CODES: Mapping[Level, int] = {"ok": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True)
class Stage:
    """A stage of a source. None: it was not measured, or does not apply.

    `lag_seconds`: the age of the oldest record that the stage has not taken; of `connect` the time from a change's
    commit to Kafka. `rate`: records a second over the last minutes. `what`: what was seen. `hint`: the next step.
    """

    source: str
    stage: StageName
    level: LevelOrUnknown
    lag_records: int | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    rate: float | None = None
    what: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Freshness:
    """The age of a source's rows in gold, over `rows` of them: the seconds from the commit in the source to the row, or
    from when a run could first read the change, if that is later.
    """

    source: str
    p50: float
    p99: float
    rows: int


@dataclass(frozen=True)
class Headroom:
    """Whether a source is caught up with in time.

    `arrival` and `drain`: records a second that come, and that a pass takes. `catch_up_seconds`: None where more comes
    than is taken. `lost_in_seconds`: until `lost_by` loses records that were not read; None where nothing is pending.
    """

    source: str
    arrival: float | None
    drain: float | None
    catch_up_seconds: float | None
    lost_in_seconds: float | None = None
    lost_by: str = ""


@dataclass(frozen=True)
class Records:
    """What became of a source's records, by outcome, since silver was last rebuilt; `unaccounted`: of none."""

    source: str
    outcomes: Mapping[str, int]
    unaccounted: int


@dataclass(frozen=True)
class Quarantine:
    """The open entries of a source; `share` of the records of the last day; `oldest_seconds`: of the oldest entry."""

    source: str
    open: int
    share: float | None
    oldest_seconds: float | None
    by_reason: Mapping[str, int]


@dataclass(frozen=True)
class Gate:
    """How a gate last judged a source: its failed rules, and whether one of them blocks the source."""

    gate: str
    source: str
    failed_rules: tuple[str, ...]
    blocks: bool


@dataclass(frozen=True)
class TableFiles:
    """What a table is made of; `written_bytes`: by its last commits, `changed_bytes`: of the rows they changed."""

    table: str
    files: int
    bytes: int
    deletion_vectors: int
    versions: int
    written_per_changed: float | None


@dataclass(frozen=True)
class Pass:
    """A run through the layers: when it ended, the records it took, and the seconds of its parts, by layer."""

    run: str
    ended_at: datetime
    records: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """Something beyond a threshold, or a source that is blocked. `where`: a source, stage or table."""

    level: Level
    where: str
    what: str
    hint: str


@dataclass(frozen=True)
class Status:
    """All of it, at a time (UTC). `lock`: who works on the warehouse now; `last_run_at`: when a run last did."""

    at: datetime
    stages: Sequence[Stage] = ()
    freshness: Sequence[Freshness] = ()
    headroom: Sequence[Headroom] = ()
    records: Sequence[Records] = ()
    quarantine: Sequence[Quarantine] = ()
    gates: Sequence[Gate] = ()
    suspended: Sequence[str] = ()
    tables: Sequence[TableFiles] = ()
    passes: Sequence[Pass] = ()
    lock: str | None = None
    last_run_at: datetime | None = None
    findings: Sequence[Finding] = ()

    @property
    def level(self) -> Level:
        """The worst of all findings."""
        return worst(finding.level for finding in self.findings)


def worst(levels: Iterable[Level]) -> Level:
    """The worst of them; ok without any."""
    order: tuple[Level, ...] = ("ok", "warning", "critical")
    return max(levels, key=order.index, default="ok")
