"""The metrics of a `Status` for Prometheus: their names, as a text file, and over HTTP.

Names follow Prometheus' naming practice: base units (seconds, bytes), the unit last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.errors import SettingsError
from monitoring.model import Status

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

# A scrape that comes so soon after another gets the same answer: several may ask, and each answer costs a second.
KEPT_SECONDS = 10.0
LEVELS = {"ok": 0, "warning": 1, "critical": 2}
OF_SOURCE, OF_STAGE, OF_TABLE = ("source",), ("source", "stage"), ("table",)
# Every metric: its labels, and what it says.
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "lakehouse_lag_records": (OF_STAGE, "Records that the stage has not taken."),
    "lakehouse_lag_seconds": (OF_STAGE, "Age of the oldest record that the stage has not taken."),
    "lakehouse_lag_bytes": (OF_STAGE, "Bytes of the source's log that the connector has not confirmed."),
    "lakehouse_records_per_second": (OF_STAGE, "Records a second over the last minutes."),
    "lakehouse_stage_level": (OF_STAGE, "0 ok, 1 warning, 2 critical; absent where it was not looked at."),
    "lakehouse_freshness_seconds": (
        ("source", "quantile"),
        "From a change's commit, or when it could first be read, to its row in gold.",
    ),
    "lakehouse_arrival_records_per_second": (OF_SOURCE, "Records a second that come."),
    "lakehouse_drain_records_per_second": (OF_SOURCE, "Records a second that a pass takes."),
    "lakehouse_catch_up_seconds": (OF_SOURCE, "Until nothing is pending, at the present rates."),
    "lakehouse_headroom_seconds": (("source", "lost_by"), "Until records that were not read are lost."),
    "lakehouse_records": (("source", "outcome"), "Records by outcome: a decision about one moves it to another."),
    "lakehouse_unaccounted_records": (OF_SOURCE, "Records that were read and have no outcome; always 0."),
    "lakehouse_quarantine_open_records": (OF_SOURCE, "Open entries of the quarantine."),
    "lakehouse_quarantine_share": (OF_SOURCE, "Share of the last day's records that went to quarantine."),
    "lakehouse_quarantine_oldest_seconds": (OF_SOURCE, "Age of the oldest open entry of the quarantine."),
    "lakehouse_gate_failed_rules": (("source", "gate"), "Rules that were not met when the gate last judged."),
    "lakehouse_gate_blocks": (("source", "gate"), "1 where the gate holds the source back."),
    "lakehouse_suspended_tables": ((), "Silver tables that gate 1 has suspended."),
    "lakehouse_table_files": (OF_TABLE, "Files of the table."),
    "lakehouse_table_bytes": (OF_TABLE, "Bytes of the table."),
    "lakehouse_table_deletion_vectors": (OF_TABLE, "Files of the table that have a deletion vector."),
    "lakehouse_written_bytes_per_changed_byte": (OF_TABLE, "Bytes that its last commits wrote per byte they changed."),
    "lakehouse_pass_seconds": (("part",), "Seconds of the last pass: by layer, and `all`."),
    "lakehouse_pass_records": ((), "Records of the last pass."),
    "lakehouse_last_pass_timestamp_seconds": ((), "When the last pass ended."),
}
COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "lakehouse_read_records": (OF_SOURCE, "Records that silver has read, since it was last rebuilt."),
}

# A metric's name, the values of its labels, and its value.
Sample = tuple[str, tuple[str, ...], float | None]


def samples(status: Status) -> Iterator[Sample]:
    """Every metric of the status. Those without a value are left out by whoever shows them."""
    for stage in status.stages:
        at = (stage.source, stage.stage)
        yield "lakehouse_lag_records", at, stage.lag_records
        yield "lakehouse_lag_seconds", at, stage.lag_seconds
        yield "lakehouse_lag_bytes", at, stage.lag_bytes
        yield "lakehouse_records_per_second", at, stage.rate
        yield "lakehouse_stage_level", at, LEVELS.get(stage.level)
    for age in status.freshness:
        yield "lakehouse_freshness_seconds", (age.source, "0.5"), age.p50
        yield "lakehouse_freshness_seconds", (age.source, "0.99"), age.p99
    for room in status.headroom:
        yield "lakehouse_arrival_records_per_second", (room.source,), room.arrival
        yield "lakehouse_drain_records_per_second", (room.source,), room.drain
        yield "lakehouse_catch_up_seconds", (room.source,), room.catch_up_seconds
        yield "lakehouse_headroom_seconds", (room.source, room.lost_by), room.lost_in_seconds
    for one in status.records:
        yield "lakehouse_unaccounted_records", (one.source,), one.unaccounted
        yield "lakehouse_read_records", (one.source,), sum(one.outcomes.values()) + one.unaccounted
        for outcome, count in one.outcomes.items():
            yield "lakehouse_records", (one.source, outcome), count
    for entries in status.quarantine:
        yield "lakehouse_quarantine_open_records", (entries.source,), entries.open
        yield "lakehouse_quarantine_share", (entries.source,), entries.share
        yield "lakehouse_quarantine_oldest_seconds", (entries.source,), entries.oldest_seconds
    for gate in status.gates:
        yield "lakehouse_gate_failed_rules", (gate.source, gate.gate), len(gate.failed_rules)
        yield "lakehouse_gate_blocks", (gate.source, gate.gate), float(gate.blocks)
    yield "lakehouse_suspended_tables", (), len(status.suspended)
    for table in status.tables:
        yield "lakehouse_table_files", (table.table,), table.files
        yield "lakehouse_table_bytes", (table.table,), table.bytes
        yield "lakehouse_table_deletion_vectors", (table.table,), table.deletion_vectors
        yield "lakehouse_written_bytes_per_changed_byte", (table.table,), table.written_per_changed
    if status.passes:
        last = status.passes[-1]
        for part, seconds in {**last.seconds, "all": sum(last.seconds.values())}.items():
            yield "lakehouse_pass_seconds", (part,), seconds
        yield "lakehouse_pass_records", (), last.records
        yield "lakehouse_last_pass_timestamp_seconds", (), last.ended_at.timestamp()


def families(status: Status) -> list[Metric]:
    """The metrics as Prometheus' client has them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found: dict[str, Metric] = {}
    for name, (labels, help_text) in GAUGES.items():
        found[name] = GaugeMetricFamily(name, help_text, labels=labels)
    for name, (labels, help_text) in COUNTERS.items():
        found[name] = CounterMetricFamily(name, help_text, labels=labels)
    for name, values, value in samples(status):
        if value is not None:
            family = found[name]
            assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)  # noqa: S101 they were made above
            family.add_metric(values, value)
    return [family for family in found.values() if family.samples]


class CachedCollector:
    """Metrics that are looked at when they are asked for; at most once in KEPT_SECONDS."""

    def __init__(self, ask: Callable[[], Status]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._kept: list[Metric] = []
        self._asked_at: float | None = None

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now, or were a moment ago."""
        with self._lock:
            if self._asked_at is None or time.monotonic() - self._asked_at >= KEPT_SECONDS:
                self._kept = families(self._ask())
                self._asked_at = time.monotonic()
            return self._kept


def registry_of(ask: Callable[[], Status]) -> CollectorRegistry:
    """A registry with these metrics alone."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(CachedCollector(ask))
    return registry


def write_metrics(ask: Callable[[], Status], path: Path) -> None:
    """Replace the file by the metrics as they are now: node_exporter's textfile collector reads it.

    Raises SettingsError where the file cannot be written.
    """
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(str(path), registry_of(ask))
    except OSError as error:
        hint = "Give another --metrics-file."
        raise SettingsError(f"The metrics cannot be written to {path}: {error.strerror}.", hint=hint) from None


def serve_metrics(ask: Callable[[], Status], *, host: str, port: int) -> Callable[[], None]:
    """Answer Prometheus at http://host:port/metrics until the returned function is called.

    Raises SettingsError where nothing can listen there.
    """
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=host, registry=registry_of(ask))
    except OSError as error:
        raise SettingsError(
            f"Nothing can listen at {host}:{port} ({error.strerror}).", hint="Give another --metrics-port."
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
