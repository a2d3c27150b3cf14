"""`lakehouse status`: is it running, is it late, is it right; one line a source and stage, and what to do."""

from __future__ import annotations

import time
from dataclasses import asdict

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from cli.monitoring.shared import view_of
from cli.options import CommandContext
from cli.output import answer
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import PASSED, new_table, styled
from monitoring.model import EXIT_CODES, Status
from monitoring.status import status_of
from monitoring.units import duration, number, rate, size

COLORS = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "dim"}


def run(chosen: CommandContext, connect_url: str | None, *, watch: float | None) -> None:
    """Show the status, once or again and again. Ends with its exit code."""
    if watch is None:
        seen = status_of(view_of(chosen, connect_url))
        show(seen, as_json=chosen.as_json)
        if seen.level != "ok":
            raise typer.Exit(EXIT_CODES[seen.level])
        return
    if chosen.as_json:
        while True:
            show(status_of(view_of(chosen, connect_url)), as_json=True)
            time.sleep(watch)
    with Live(rendered(status_of(view_of(chosen, connect_url))), console=wide_console(), auto_refresh=False) as live:
        while True:
            time.sleep(watch)
            live.update(rendered(status_of(view_of(chosen, connect_url))), refresh=True)


def show(seen: Status, *, as_json: bool) -> None:
    """Print the status, as tables or as one JSON object."""
    if as_json:
        results = {"level": seen.level, **asdict(seen)}
        answer("status", {**results, "ok": seen.level == "ok", "exit_code": EXIT_CODES[seen.level]})
    else:
        wide_console().print(rendered(seen))


def rendered(seen: Status) -> RenderableType:
    """The status for a terminal."""
    parts: list[RenderableType] = [_stages(seen)]
    parts += _lines(seen)
    for finding in seen.findings:
        lines = f" {finding.where}: {finding.what.removesuffix('.')}"
        following = f". Next: {finding.hint}" if finding.hint else ""
        parts.append(styled((finding.level, COLORS[finding.level]), lines, following))
    if not seen.findings:
        parts.append(styled(PASSED, " Everything that was looked at is as it should be."))
    return Group(*parts)


def _stages(seen: Status) -> Table:
    numbers = ("lag", "late", "per second")
    title = f"Status at {seen.at:%Y-%m-%d %H:%M:%S} UTC"
    table = new_table(title, "source", "stage", "level", *numbers, "seen", numbers=numbers, lines=False)
    for stage in seen.stages:
        lag = size(stage.lag_bytes) if stage.lag_bytes is not None else number(stage.lag_records)
        table.add_row(
            stage.source,
            stage.stage,
            styled((stage.level, COLORS[stage.level])),
            lag,
            duration(stage.lag_seconds),
            rate(stage.rate),
            stage.what,
        )
    return table


def _lines(seen: Status) -> list[str]:
    lines = [
        f"{one.source}: commit to gold {duration(one.p50)} (median), {duration(one.p99)} (99 %), {one.rows:,} rows"
        for one in seen.freshness
    ]
    for room in seen.headroom:
        caught_up = "never" if room.catch_up_seconds is None else duration(room.catch_up_seconds)
        lost = f"; {room.lost_by} loses unread records in {duration(room.lost_in_seconds)}" if room.lost_by else ""
        lines.append(
            f"{room.source}: {rate(room.arrival)} come, {rate(room.drain)} are taken; caught up in {caught_up}{lost}"
        )
    lines += [
        f"{one.source}: {one.open:,} open quarantine entries, the oldest of {duration(one.oldest_seconds)} ago"
        for one in seen.quarantine
        if one.open
    ]
    if seen.passes:
        last = seen.passes[-1]
        parts = ", ".join(f"{layer} {seconds:.1f} s" for layer, seconds in last.seconds.items())
        lines.append(f"last pass: {last.records:,} records, {parts}, ended {last.ended_at:%H:%M:%S}")
    if seen.lock:
        lines.append(f"at work: {seen.lock}")
    return lines
