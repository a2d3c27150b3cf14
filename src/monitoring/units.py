"""Numbers as people read them: durations, sizes and rates in the largest unit that there is one of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

NOTHING = "–"  # noqa: RUF001


def duration(seconds: float | None) -> str:
    """`3 min`, `2.5 h`, `2.6 years`: in the largest unit that there is one of."""
    units = {"years": 31_557_600.0, "d": 86_400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
    shown = _in_unit(seconds, units, smallest=("ms", 0.001) if seconds else ("s", 1.0))
    return "1 year" if shown == "1 years" else shown


def size(count: float | None) -> str:
    """`12 MB`: of 1,000,000 bytes each, as the thresholds have it."""
    return _in_unit(count, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}, smallest=("B", 1.0))


def number(value: float | None) -> str:
    """With thousands separators; digits behind the point only where the number is small."""
    if value is None:
        return NOTHING
    if abs(value) >= 10 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2g}" if abs(value) >= 0.01 else "< 0.01"


def rate(value: float | None) -> str:
    """Records a second."""
    return NOTHING if value is None else f"{number(value)}/s"


def moment(at: datetime) -> str:
    """A time in UTC; one without a time zone is in UTC already."""
    in_utc = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return f"{in_utc:%Y-%m-%d %H:%M:%S} UTC"


def _in_unit(value: float | None, units: Mapping[str, float], smallest: tuple[str, float]) -> str:
    if value is None:
        return NOTHING
    name, factor = next((unit for unit in units.items() if abs(value) >= unit[1]), smallest)
    return f"{number(value / factor)} {name}"
