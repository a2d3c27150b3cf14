"""The facts of a batch, as silver counts them (COUNTS), of one run in one topic-partition."""

from __future__ import annotations

from typing import Any


def counted(first: int, last: int, *, run: str = "run-1", feed: str | None = "orders", **more: Any) -> dict[str, Any]:
    """The facts of a run segment of one topic-partition."""
    return {
        **{"feed": feed, "topic": "orders", "topic_id": "id", "partition": 0, "run_id": run, "snapshot_at": None},
        **{"first_offset": first, "last_offset": last, "read": last - first + 1, "ignored": 0, "quarantined": 0},
        **{"lowest": [first], "highest": [last], "has_end": False, "first_ms": first, "read_from_ms": first},
        **{"read_to_ms": last, "source_names": [], "highest_timestamp_ms": last, "last_key": last},
        **{"last_is_delete": last % 2 == 0, "with_unchanged_toast": 1, "judged": 1, "absent_columns": {"note": 1}},
        **{"failed_rules": {"amount": 1}, **more},
    }
