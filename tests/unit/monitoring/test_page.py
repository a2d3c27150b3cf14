"""The HTML report: every number of a `Status` is in it, and nothing is in it that a browser would fetch or run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser

import pytest

from monitoring.model import (
    STAGES,
    Finding,
    Freshness,
    Gate,
    Headroom,
    LevelOrUnknown,
    Pass,
    Quarantine,
    Records,
    Stage,
    StageName,
    Status,
    TableFiles,
)
from monitoring.page import page
from monitoring.units import duration, number, rate, size

AT = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)
# Elements without an end.
VOID = {"meta", "br", "hr", "img", "input", "link"}


def stages_of(source: str, **levels: LevelOrUnknown) -> Sequence[Stage]:
    """A flow, from its end to its start: the page orders it."""

    def stage(name: StageName, at: int) -> Stage:
        level = levels.get(name, "ok")
        if level == "unknown":
            return Stage(source, name, level, what="Nobody said where it is.")
        return Stage(
            *(source, name, level),
            lag_records=1_200 * at + 17,
            lag_seconds=0.4 if name == "connect" else 41.0 * at,
            lag_bytes=48_000_000 if name == "database" else None,
            rate=350.5 - at,
            what=f"{name} of {source} was seen.",
            hint="Run `lakehouse run` again." if level != "ok" else "",
        )

    return [stage(name, at) for at, name in reversed(list(enumerate(STAGES)))]


def example() -> Status:
    """A status with all parts, and with names of the length that real ones have."""
    return Status(
        at=AT,
        stages=[
            *stages_of("postgres", silver="warning", gold="critical"),
            *stages_of("mysql", database="unknown", connect="unknown"),
            *stages_of("mariadb"),
        ],
        freshness=[
            Freshness("postgres", p50=95.0, p99=5_400.0, rows=120_431),
            Freshness("mysql", p50=4.2, p99=181.0, rows=98_112),
        ],
        headroom=[
            Headroom("postgres", 1_450.0, 1_320.0, None, 93_600.0, "retention of postgres_prod_tables.public.orders"),
            Headroom("mysql", 350.0, 2_900.0, 540.0, None),
        ],
        records=[
            Records("postgres", {"applied": 4_812_003, "superseded": 91_344, "ignored": 812, "quarantined": 57}, 0),
            Records("mysql", {"applied": 2_000_111, "superseded": 40_001, "duplicate": 9_876}, 3),
        ],
        quarantine=[
            Quarantine(
                *("postgres", 57, 0.0012, 273_600.0),
                {"amount_not_negative": 41, "The value of total_amount does not fit DECIMAL(18,2)": 15, "no key": 1},
            )
        ],
        gates=[
            Gate("gate 1", "postgres", ("amount_not_negative", "status_is_known"), blocks=False),
            Gate("gate 2", "mysql", ("rows_do_not_vanish",), blocks=True),
            Gate("gate 2 before publication", "postgres", (), blocks=False),
        ],
        suspended=["silver.mariadb_orders"],
        tables=[
            TableFiles("bronze.postgres_events", 1_204, 88_400_000_000, 0, 5_120, 1.0),
            TableFiles("silver.postgres_orders", 312, 12_300_000_000, 96, 2_044, 8.7),
            TableFiles("gold.unified_orders", 188, 940_000, 12, 77, None),
        ],
        passes=[
            Pass(
                f"3f9c{at:02}",
                AT - timedelta(minutes=5 * at),
                records=40_000 + 7_000 * at,
                seconds={"bronze": 6.5, "silver": 21.0 + 4 * (at % 3), "gold": 9.0, "publish": 3.2},
            )
            for at in range(8)
        ],
        lock="silver on worker-3 since 12:29",
        findings=[
            Finding("warning", "silver of postgres", "A record is 41 min old.", "Run silver with more memory."),
            Finding("critical", "gold of postgres", "Gold is 1.5 h behind.", "Run `lakehouse gold`."),
            Finding("critical", "mysql", "Gate 2 blocks the source.", "Look at `lakehouse quality --failed`."),
        ],
    )


class Parsed(HTMLParser):
    """A document's text, its attributes and its headings; raises AssertionError where an element is not closed."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.texts.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def text_of(status: Status) -> str:
    return Parsed(page(status)).text


def test_the_headline_has_the_level_the_time_and_who_works() -> None:
    text = text_of(example())
    assert "Lakehouse: ■ critical" in text
    assert "2 critical, 1 warning · 2026-03-01 12:30:05 UTC" in text
    assert "silver on worker-3 since 12:29" in text


def test_a_time_is_shown_in_utc() -> None:
    elsewhere = datetime(2026, 3, 1, 14, 30, 5, tzinfo=timezone(timedelta(hours=2)))
    for at in (elsewhere, AT.replace(tzinfo=None)):
        assert "2026-03-01 12:30:05 UTC" in text_of(Status(at))


def test_the_worst_finding_is_first_and_says_what_to_do() -> None:
    text = text_of(example())
    order = [text.index(one) for one in ("gold of postgres", "Gate 2 blocks the source.", "silver of postgres")]
    assert order == sorted(order)
    assert "What to do: Run `lakehouse gold`." in text


def test_the_flow_has_every_stage_in_order() -> None:
    text = text_of(Status(AT, stages=stages_of("postgres", silver="warning", topic="unknown")))
    boxes = [text.index(f"{name} {shown}") for name, shown in zip(STAGES, flow_levels(), strict=True)]
    assert boxes == sorted(boxes)
    assert "database ● ok pending 17 oldest 0 s log 48 MB rate 350/s" in text
    assert "connect ● ok pending 1,217 delay 400 ms rate 350/s" in text
    assert "silver ▲ warning pending 4,817 oldest 2.7 min rate 346/s" in text
    assert "silver : silver of postgres was seen. Run `lakehouse run` again." in text


def flow_levels() -> Sequence[str]:
    return [*["● ok"] * 4, "▲ warning", "● ok", "○ not looked at"]


def test_what_was_not_measured_has_no_number() -> None:
    text = text_of(Status(AT, stages=[Stage("mysql", "bronze", "unknown")]))
    assert text.endswith("Flow mysql bronze ○ not looked at")


@pytest.mark.parametrize(
    "part",
    [
        "postgres 1.6 min 1.5 h 120,431",
        "mysql 4.2 s 3 min 98,112",
        "postgres 1,450/s 1,320/s never at these rates 1.1 d retention of postgres_prod_tables.public.orders",
        "mysql 350/s 2,900/s 9 min – –",  # noqa: RUF001
        "postgres 4,904,216 records",
        "■ applied 4,812,003 ■ superseded 91,344 ■ ignored 812 ■ quarantined 57 ● ok unaccounted 0",
        "■ critical unaccounted 3",
        "57 open, 0.12 % of the last day's records, the oldest for 3.2 d",
        "amount_not_negative 41",
        "gate 1 ▲ warning passes amount_not_negative, status_is_known",
        "mysql gate 2 ■ critical blocks the source rows_do_not_vanish",
        "gate 2 before publication ● ok passes none",
        "Suspended tables silver.mariadb_orders",
        "at most 2,065/s, last 1,008/s",
        "40,000 records in 40 s: 1,008/s 2026-03-01 12:30:05 UTC · 3f9c00",
        "■ bronze 6.5 s ■ silver 21 s (slowest) ■ gold 9 s ■ publish 3.2 s",
        "bronze.postgres_events 1,204 88 GB 0 5,120 1",
        "silver.postgres_orders 312 12 GB 96 2,044 8.7",
        "gold.unified_orders 188 940 kB 12 77 –",  # noqa: RUF001
    ],
)
def test_every_part_has_its_numbers(part: str) -> None:
    assert part in text_of(example())


def test_a_bar_is_as_long_as_its_parts_and_shows_the_smallest() -> None:
    shown = page(Status(AT, records=[Records("mysql", {"applied": 999_999, "quarantined": 1, "ignored": 0}, 0)]))
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', shown)]
    assert len(widths) == 2
    assert min(widths) > 0.5
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_a_pass_is_as_long_as_it_is_of_the_longest() -> None:
    passes = [Pass("a", AT, 0, {"silver": 10.0}), Pass("b", AT + timedelta(minutes=1), 0, {"silver": 40.0})]
    widths = re.findall(r'<rect [^>]*width="([\d.]+)"', page(Status(AT, passes=passes)))
    assert [float(width) for width in widths] == [100.0, 25.0]


def test_a_pass_that_did_nothing_is_shown() -> None:
    assert "0 records in 0 s: 0/s" in text_of(Status(AT, passes=[Pass("a", AT, 0, {})]))


def test_text_is_escaped() -> None:
    bad = "<script>alert('x')</script>\"&"
    stages = [Stage(bad, "gold", "critical", what=bad, hint=bad)]
    shown = page(
        Status(
            AT,
            stages=stages,
            freshness=[Freshness(bad, 1, 2, 3)],
            headroom=[Headroom(bad, 1, 2, None, 4, bad)],
            records=[Records(bad, {bad: 1}, 0)],
            quarantine=[Quarantine(bad, 1, None, None, {bad: 1})],
            gates=[Gate(bad, bad, (bad,), blocks=True)],
            suspended=[bad],
            tables=[TableFiles(bad, 1, 2, 3, 4, 5)],
            passes=[Pass(bad, AT, 1, {bad: 1.0})],
            lock=bad,
            findings=[Finding("warning", bad, bad, bad)],
        )
    )
    assert "<script" not in shown
    parsed = Parsed(shown)
    assert "script" not in parsed.seen
    assert parsed.text.count(bad) >= 20


def test_nothing_is_fetched_and_nothing_runs() -> None:
    shown = page(example())
    parsed = Parsed(shown)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"} & set(parsed.seen)
    names = {name for name, _ in parsed.attributes}
    assert not {"src", "srcset", "href", "xlink:href", "data", "action", "background", "poster"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"https?://|@import|url\(|javascript:", shown)


@pytest.mark.parametrize("level", ["ok", "warning", "critical"])
def test_a_level_is_a_word_and_not_a_colour_alone(level: LevelOrUnknown) -> None:
    parsed = Parsed(page(Status(AT, stages=[Stage("mysql", "bronze", level)])))
    assert f"bronze {flow_word(level)}" in parsed.text


def flow_word(level: LevelOrUnknown) -> str:
    return {"ok": "● ok", "warning": "▲ warning", "critical": "■ critical", "unknown": "○ not looked at"}[level]


def test_every_picture_says_what_it_shows() -> None:
    parsed = Parsed(page(example()))
    said = [value for name, value in parsed.attributes if name == "aria-label"]
    assert len(said) == parsed.seen.count("svg") > 0
    assert "applied 4,812,003, superseded 91,344, ignored 812, quarantined 57" in said


def test_a_status_without_parts_is_a_page() -> None:
    shown = page(Status(AT))
    assert shown.startswith('<!DOCTYPE html>\n<html lang="en">')
    parsed = Parsed(shown)
    assert parsed.headings == []
    assert "Lakehouse: ● ok Nothing is beyond a threshold · 2026-03-01 12:30:05 UTC" in parsed.text
    assert {"title", "h1", "main"} <= set(parsed.seen)


def test_a_part_that_is_empty_is_absent() -> None:
    every = Parsed(page(example())).headings
    assert every == [
        *("Findings", "Flow", "Freshness", "Headroom", "Records by outcome", "Quarantine"),
        *("Gates", "Suspended tables", "Last passes", "Tables"),
    ]
    without = Parsed(page(replace(example(), passes=(), gates=()))).headings
    assert set(every) - set(without) == {"Gates", "Last passes"}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((None, "–"), (0, "0 s"), (0.35, "350 ms"), (1, "1 s"), (59, "59 s"), (90, "1.5 min")),  # noqa: RUF001
        *((180, "3 min"), (9000, "2.5 h"), (86_400, "1 d"), (1_000_000, "12 d"), (-3, "-3 s")),
        *((31_557_600, "1 year"), (81_255_014, "2.6 years"), (31_557_599, "365 d"), (31_557_600 * 12, "12 years")),
    ],
)
def test_a_duration(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (12_000_000, "12 MB"), (7e9, "7 GB"), (3.4e15, "3,400 TB")],
)
def test_a_size(count: float, shown: str) -> None:
    assert size(count) == shown


def test_a_number_and_a_rate() -> None:
    assert [number(value) for value in (0, 1_234_567, 12.4, 3.25, 3.0, 0.126, 0.001)] == [
        *("0", "1,234,567", "12", "3.2", "3", "0.13", "< 0.01")
    ]
    assert rate(1_200.4) == "1,200/s"
