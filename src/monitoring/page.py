"""A `Status` as one HTML document for people: it needs no network and no script, and can be mailed or archived.

The document is `page.html`, a template of Jinja, with `page.css` in it; here are its numbers and their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from monitoring.model import STAGES, LevelOrUnknown, Pass, Stage, Status
from monitoring.units import NOTHING, duration, moment, number, rate, size

# The worst first, with shapes that differ without their colours.
FAULTS: tuple[LevelOrUnknown, ...] = ("critical", "warning")
LEVELS: dict[LevelOrUnknown, str] = {
    "critical": "■ critical",
    "warning": "▲ warning",
    "ok": "● ok",
    "unknown": "○ not looked at",
}
COLOURS = 8
# A part of a bar is never thinner (percent): one record of a million is to be seen.
LEAST_WIDTH = 0.8


def page(status: Status) -> str:
    """The whole document: what is wrong and what to do about it first, then the flow, then its parts in numbers."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "moment": moment, "number": number, "rate": rate, "size": size}
    environment.filters |= {"facts": facts, "note": note, "colours": colours, "caption": caption, "numbers": numbers}
    environment.filters |= {"durations": durations, "throughput": throughput, "total_seconds": total_seconds}
    counts = {level: sum(finding.level == level for finding in status.findings) for level in FAULTS}
    in_order = sorted(status.stages, key=lambda stage: STAGES.index(stage.stage))
    return environment.get_template("page.html").render(
        status=status,
        headline=", ".join(f"{count} {level}" for level, count in counts.items() if count),
        findings=sorted(status.findings, key=lambda finding: list(LEVELS).index(finding.level)),
        flows={stage.source: [later for later in in_order if later.source == stage.source] for stage in status.stages},
        passes=sorted(status.passes, key=lambda done: done.ended_at),
        **{"faults": FAULTS, "levels": LEVELS, "nothing": NOTHING, "segments": segments, "zip": zip},
    )


def segments(parts: Mapping[str, float], whole: float) -> Iterator[tuple[str, float, float]]:
    """A stacked bar: each part with its start and its width, in percent of the `whole`, where it is 0 of their sum."""
    total = sum(parts.values())
    length = 100 * total / whole if whole else 100.0
    widths = {name: max(length * part / total, LEAST_WIDTH) for name, part in parts.items() if part > 0}
    shrunk = min(1.0, max(length, LEAST_WIDTH) / sum(widths.values())) if widths else 1.0
    start = 0.0
    for name, width in widths.items():
        yield name, start, width * shrunk
        start += width * shrunk


def colours(bars: Iterable[Iterable[str]]) -> Mapping[str, str]:
    """A colour for every name, the same in all bars of a section."""
    names = dict.fromkeys(name for bar in bars for name in bar)
    return {name: f"var(--c{index % COLOURS})" for index, name in enumerate(names)}


def caption(captions: Mapping[str, str]) -> str:
    """What a bar shows, in words."""
    return ", ".join(f"{name} {value}" for name, value in captions.items())


def numbers(parts: Mapping[str, float]) -> Mapping[str, str]:
    """The parts of a bar in words."""
    return {name: number(part) for name, part in parts.items()}


def durations(seconds: Mapping[str, float]) -> Mapping[str, str]:
    """The layers of a pass in words: which one took longest."""
    slowest = max(seconds, key=lambda layer: seconds[layer]) if len(seconds) > 1 else None
    return {layer: f"{duration(took)}{' (slowest)' * (layer == slowest)}" for layer, took in seconds.items()}


def facts(stage: Stage) -> Mapping[str, str]:
    """What was measured of a stage."""
    # The seconds of Kafka Connect are no age of a pending record.
    age = "delay" if stage.stage == "connect" else "oldest"
    pending = {"pending": number(stage.lag_records), age: duration(stage.lag_seconds), "log": size(stage.lag_bytes)}
    return {label: fact for label, fact in {**pending, "rate": rate(stage.rate)}.items() if fact != NOTHING}


def note(stage: Stage) -> str:
    """What was seen of a stage, and what to do."""
    return f"{stage.what} {stage.hint}".strip()


def total_seconds(done: Pass) -> float:
    """How long a pass took."""
    return sum(done.seconds.values())


def throughput(done: Pass) -> float:
    """The records of a pass, a second."""
    return done.records / total_seconds(done) if total_seconds(done) else 0.0
