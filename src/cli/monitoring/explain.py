"""`lakehouse explain`: one order, from its events to the topic, and what was decided of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from cli.monitoring.shared import view_of
from cli.options import CommandContext
from cli.output import answer
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table
from monitoring.explain import Explanation, as_json, explain
from monitoring.readings.unified_topic import MAX_RECORDS, PublishedRecords, published_of


def run(chosen: CommandContext, composite_key: str, *, whole: bool) -> None:
    """Show what is known of the order; `whole`: by all events of bronze."""
    view = view_of(chosen, None)
    assert view.tables is not None  # noqa: S101 every command has a warehouse
    found = explain(view.tables, view.contracts, composite_key, whole=whole)
    sent = None
    if view.kafka is not None:
        sent = published_of(view.kafka, view.contracts, found.composite_key, since=found.changed_at)
    if chosen.as_json:
        published = None if sent is None else [one._asdict() for one in sent.records]
        is_whole = None if sent is None else sent.is_whole
        answer("explain", {**as_json(found), "published": published, "published_is_whole": is_whole})
        return
    console = wide_console()
    _show_events(found, console)
    _show_since(found, console)
    for feed, row in found.silver.items():
        _show_row(f"silver.{feed} now", row, console)
        _show_versions(feed, found.versions.get(feed, ()), console)
    _show_row("gold.unified_orders", found.gold, console)
    _show_published(sent, found, console)


def _show_events(found: Explanation, console: Console) -> None:
    if not found.events:
        console.print(f"Bronze has no event of {found.composite_key}. Next: lakehouse status")
        return
    columns = ("topic", "part.", "offset", "op", "position", "outcome", "why")
    table = new_table(f"Events of {found.composite_key}", *columns, lines=False)
    for one in found.events:
        position = "" if one.position is None else "/".join(map(str, one.position))
        at = (one.topic, str(one.partition), str(one.offset), one.op or one.kind)
        table.add_row(*at, position, one.outcome, one.why)
    console.print(table)


def _show_since(found: Explanation, console: Console) -> None:
    if found.since is not None:
        since = f"{found.since:%Y-%m-%d %H:%M:%S} UTC"
        console.print(f"Events before {since} were not looked at. Next: pass --all", soft_wrap=True)


def _show_row(name: str, row: Mapping[str, str | None] | None, console: Console) -> None:
    line = "no row" if row is None else ", ".join(f"{column}={value}" for column, value in row.items())
    console.print(f"{name}: {line}", soft_wrap=True)


def _show_versions(feed: str, versions: Sequence[Mapping[str, str | None]], console: Console) -> None:
    for one in versions:
        at = f"version {one['_commit_version']} ({one['_commit_timestamp']})"
        by = f"{one.get('_topic')}/{one.get('_partition')}/{one.get('_offset')}"
        console.print(f"  silver.{feed} {at}: {one['_change_type']} by {by}", soft_wrap=True)


def _show_published(sent: PublishedRecords | None, found: Explanation, console: Console) -> None:
    if sent is None:
        console.print("The unified topic was not read. Next: pass --bootstrap-servers")
        return
    for one in sent.records:
        what = "deleted" if one.value is None else one.value
        at = f"{one.topic}/{one.partition}/{one.offset} {one.change_sequence or ''}"
        console.print(f"published {at}: {what}", soft_wrap=True)
    among = "" if sent.is_whole else f" among its last {MAX_RECORDS:,} records"
    if not sent.is_whole and found.changed_at is not None:
        among = f" since its row was changed, at {found.changed_at:%Y-%m-%d %H:%M:%S} UTC"
    if not sent.records:
        console.print(f"The unified topic has no record of it{among}. Next: lakehouse publish")
