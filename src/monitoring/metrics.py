"""The metrics of a `Status` for Prometheus: their names, and a registry that has them.

Names follow Prometheus' naming practice: base units (seconds, bytes), the unit last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

LEVELS = {"ok": 0, "warning": 1, "critical": 2}
OF_SOURCE, OF_STAGE, OF_TABLE = ("source",), ("source", "stage"), ("table",)
# Every metric: its labels, and what it says.
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "lakehouse_lag_records": (OF_STAGE, "Records that the stage has not taken."),
    "lakehouse_lag_seconds": (OF_STAGE, "Age of the oldest record that the stage has not taken."),
    "lakehouse_lag_bytes": (OF_STAGE, "Bytes of the source's log that the connector has not confirmed."),
    "lakehouse_records_per_second": (OF_STAGE, "Records a second over the last minutes."),
    "lakehouse_stage_level": (OF_STAGE, "0 ok, 1 warning, 2 critical; absent where it was not looked at."),
    "lakehouse_freshness_seconds": (("source", "quantile"), "From a change's commit in the source to its row in gold."),
    "lakehouse_arrival_records_per_second": (OF_SOURCE, "Records a second that come."),
    "lakehouse_drain_records_per_second": (OF_SOURCE, "Records a second that a pass takes."),
    "lakehouse_catch_up_seconds": (OF_SOURCE, "Until nothing is pending, at the present rates."),
    "lakehouse_headroom_seconds": (("source", "lost_by"), "Until records that were not read are lost."),
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
    "lakehouse_records": (("source", "outcome"), "Records by outcome, since silver was last rebuilt."),
}
