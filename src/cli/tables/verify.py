"""`lakehouse verify`: proves from the tables that every record is accounted for, and names what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cli.opening import opened, with_discovered_tables
from cli.options import CommandContext, with_job_options
from cli.output import answer, say
from cli.tables.verify_messages import (
    HARMLESS,
    count_of,
    failure_of,
    history_differs,
    recreated_topics,
    sentences,
    summary,
    table_differs,
    table_not_compared,
    topic_differs,
    topic_name,
    topic_not_compared,
    topic_sentences,
)
from lakehouse.contracts.models import NO_UNIFIED
from lakehouse.errors import LakehouseError, SettingsError, TableError
from lakehouse.failures import storage_errors
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import new_table
from lakehouse.spark.sizing import rows_in, tuned_for

if TYPE_CHECKING:
    from cli.tables.accounts import Account
    from gold.derived.recomputed import TableComparison
    from gold.state import GoldState
    from gold.topics.compare import Comparison
    from lakehouse.contracts.models import Feed
    from lakehouse.delta.tables import Warehouse

_SOURCE = typer.Option("--source", metavar="SOURCE", help="Only this source. Default: all.", show_default=False)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_job_options(verify))


def verify(chosen: CommandContext, source: Annotated[str | None, _SOURCE] = None) -> None:
    """Prove that every record is accounted for, once, and that the unified topic equals gold. Changes nothing.

    Of every topic-partition: read = applied + superseded + duplicate + tombstone + ignored + quarantined. Names what is
    missing, stored or counted twice, or was never read, and exits with 8. What is pending for silver or for a suspended
    table, and what was skipped by command, is shown and is no error. That much needs no broker.

    Where a broker is given and no `--source`, the last value of every key on the unified topic is compared with gold as
    it was published; keys that differ are named, and are an error too. Every upsert topic is
    compared with its table in the same way.

    Without `--source`, gold is compared with what the silver tables state, every mart with gold, and every join with
    the whole join of the silver tables, each in the versions that it has taken. What could not be compared is an error
    too. Of every table that keeps the history of its rows, the last versions are compared with its rows.

    Example: lakehouse verify --warehouse ./warehouse --bootstrap-servers 127.0.0.1:9092
    """
    sources = _sources(chosen, source)
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_discovered_tables(chosen, warehouse)
    from cli.tables.accounts import account_of

    accounts: list[Account] = []
    failures: list[LakehouseError] = []
    for name in sources:
        with (
            _collect_errors(failures),
            storage_errors(job=f"verify: {name}", storage_paths=(warehouse.location, warehouse.checkpoints)),
            steps.step("verify", f"comparing bronze with the batch audit of {name}") as note,
        ):
            with tuned_for(warehouse.spark, _rows(warehouse, f"bronze.{name}_events")):
                accounts.append(account_of(warehouse, name))
            note(f"{name}: {summary(accounts[-1])}")
    tables = _compared_tables(chosen, warehouse, steps, failures) if source is None else []
    comparison: Comparison | None = None
    of_upserts: list[Comparison] = []
    if source is None and (chosen.settings.bootstrap_servers or chosen.settings.kafka_config):
        with _collect_errors(failures):
            comparison = _compared(chosen, warehouse, steps) if chosen.contracts.gold.has_unified else None
        of_upserts = _compared_upserts(chosen, warehouse, steps, failures)
    failures += [error for account in accounts if (error := failure_of(account))]
    compared = [*([] if comparison is None else [comparison]), *of_upserts]
    failures += [topic_differs(one) for one in compared if one.differing]
    failures += [topic_not_compared(one) for one in compared if one.unreadable]
    histories = {
        feed.history_table: _compared_history(warehouse, feed, steps, failures)
        for feed in chosen.contracts.feeds.values()
        if feed.has_history and feed.source in sources
    }
    failures += [table_differs(one) for one in tables if one.differing]
    failures += [table_not_compared(one) for one in tables if one.is_failure]
    if chosen.as_json:
        results = {account.source: _as_json(account) for account in accounts}
        topics = {"topic": comparison and vars(comparison), "upsert_topics": [vars(one) for one in of_upserts]}
        answer(
            chosen.command,
            {"sources": results, **topics, **_comparisons(chosen, tables), "histories": histories},
            failures,
        )
    else:
        _show(accounts)
        if chosen.contracts.gold.has_unified:
            _show_topic(comparison)
        else:
            wide_console().print(NO_UNIFIED, soft_wrap=True)
        for one in of_upserts:
            _show_topic(one)
    for failure in failures:
        say(failure)
    if failures:
        raise typer.Exit(failures[0].exit_code)


@contextmanager
def _collect_errors(failures: list[LakehouseError]) -> Iterator[None]:
    """Inside, a table that is missing or damaged is one of the failures, and the next comparison has its turn."""
    try:
        yield
    except TableError as error:
        failures.append(error)


def _compared(chosen: CommandContext, warehouse: Warehouse, steps: Steps) -> Comparison | None:
    """The topic compared with gold; None when there is no gold yet."""
    from gold.topics.compare import compare
    from gold.unify import UNIFIED

    topic = chosen.contracts.gold.unified_topic.topic
    with (
        storage_errors(job="verify: gold", storage_paths=(warehouse.location, warehouse.checkpoints)),
        steps.step("verify", f"comparing {topic} with gold") as note,
    ):
        if not warehouse.exists(UNIFIED):
            note(f"{UNIFIED} is not there yet")
            return None
        with tuned_for(warehouse.spark, _rows(warehouse, UNIFIED)):
            comparison = compare(warehouse, chosen.settings, chosen.contracts)
        note(f"{count_of(comparison.orders, 'order')} compared, {comparison.differing:,} differ")
    return comparison


def _compared_upserts(
    chosen: CommandContext, warehouse: Warehouse, steps: Steps, failures: list[LakehouseError]
) -> list[Comparison]:
    """The upsert topics whose tables are there, each compared with its table."""
    from gold.topics.compare import compare_upsert
    from lakehouse.contracts.checks.upsert_checks import why_not_yet

    found = []
    for name, topic in chosen.contracts.gold.upsert_topics.items():
        with (
            _collect_errors(failures),
            storage_errors(job=f"verify: {name}", storage_paths=(warehouse.location, warehouse.checkpoints)),
            steps.step("verify", f"comparing {topic.topic} with {topic.table}") as note,
        ):
            why_not = why_not_yet(chosen.contracts, name)
            if why_not is not None or not warehouse.exists(topic.table):
                note(why_not or f"{topic.table} is not there yet")
                continue
            with tuned_for(warehouse.spark, _rows(warehouse, topic.table)):
                found.append(compare_upsert(warehouse, chosen.settings, chosen.contracts, name))
            note(f"{count_of(found[-1].orders, 'row')} compared, {found[-1].differing:,} differ")
    return found


def _compared_tables(
    chosen: CommandContext, warehouse: Warehouse, steps: Steps, failures: list[LakehouseError]
) -> list[TableComparison]:
    """Every table of gold, compared with what a computation of all its rows gives."""
    from gold import build
    from gold.derived import joins, marts
    from gold.state_store import StateStore
    from lakehouse.batches import BATCHES

    found: list[TableComparison] = []
    gold, contracts = chosen.contracts.gold, chosen.contracts
    if not (gold.has_unified or gold.joins) or not warehouse.exists(BATCHES.name):
        return found
    state: GoldState | None = None
    storage_paths = (warehouse.location, warehouse.checkpoints)
    with _collect_errors(failures), storage_errors(job="verify: gold", storage_paths=storage_paths):
        state = StateStore().read(warehouse)
    if state is None:
        return found
    silver = {name: [f"silver.{feed}" for feed in join.tables] for name, join in gold.joins.items()}
    wanted: list[tuple[str, list[str], Callable[[], TableComparison]]] = [
        (f"gold.{name}", tables, partial(joins.compare, warehouse, contracts, name, state=state))
        for name, tables in silver.items()
    ]
    if gold.has_unified:
        unified = gold.unified_tables[0]
        of_feeds = [f"silver.{feed}" for source in gold.sources.values() for feed in source.feeds]
        of_marts = [(f"gold.{name}", partial(marts.compare, warehouse, gold, name, state=state)) for name in gold.marts]
        wanted = [
            (unified, of_feeds, partial(build.compare, warehouse, contracts, state=state)),
            *((name, [unified], compare) for name, compare in of_marts),
            *wanted,
        ]
    for name, tables, compare in wanted:
        with (
            _collect_errors(failures),
            storage_errors(job=f"verify: {name}", storage_paths=storage_paths),
            steps.step("verify", f"comparing {name} with the tables that it is computed from") as note,
        ):
            with tuned_for(warehouse.spark, sum(_rows(warehouse, table) for table in tables)):
                found.append(compare())
            one = found[-1]
            compared = f"{count_of(one.rows, 'row')} compared, {one.differing:,} differ"
            note(compared if one.why_not is None else f"not compared: {one.why_not}")
    return found


def _compared_history(
    warehouse: Warehouse, feed: Feed, steps: Steps, failures: list[LakehouseError]
) -> dict[str, int] | None:
    """How many rows of silver were compared with the last versions of their history, and how many keys differ."""
    from silver.row_history.compare import compare

    name, table = feed.history_table, f"silver.{feed.name}"
    with (
        _collect_errors(failures),
        storage_errors(job=f"verify: {name}", storage_paths=(warehouse.location, warehouse.checkpoints)),
        steps.step("verify", f"comparing the last versions of {name} with {table}") as note,
    ):
        with tuned_for(warehouse.spark, _rows(warehouse, table) + _rows(warehouse, name)):
            rows, differing = compare(warehouse, feed)
        note(f"{count_of(rows, 'row')} compared, {differing:,} differ")
        if differing:
            failures.append(history_differs(name, table, differing))
        return {"rows": rows, "differing": differing}
    return None


def _comparisons(chosen: CommandContext, tables: Sequence[TableComparison]) -> dict[str, Any]:
    """The comparisons as JSON: those of joins, and those of the unified orders and their marts."""
    joins = {f"gold.{name}" for name in chosen.contracts.gold.joins}
    names = ("table", "rows", "differing", "why_not")
    found = {one.table: {name: getattr(one, name) for name in names} for one in tables}
    return {
        "joins": [one for table, one in found.items() if table in joins],
        "gold": [one for table, one in found.items() if table not in joins],
    }


def _rows(warehouse: Warehouse, table: str) -> int:
    """About how many rows the table has; none where there is no table."""
    return rows_in(warehouse.created_and_size(table)[1]) if warehouse.exists(table) else 0


def _show_topic(comparison: Comparison | None) -> None:
    for sentence in topic_sentences(comparison):
        wide_console().print(sentence, soft_wrap=True)


def _sources(chosen: CommandContext, source: str | None) -> Sequence[str]:
    known = list(chosen.contracts.topics.sources)
    if source is None:
        return known
    if source not in known:
        raise SettingsError(f"There is no source {source!r}.", hint=f"Sources are: {', '.join(known)}.")
    return [source]


def _show(accounts: Sequence[Account]) -> None:
    console = wide_console()
    for account in accounts:
        console.print(_table(account))
        for sentence in sentences(account):
            console.print(sentence, soft_wrap=True)
        if all(kind in HARMLESS for kind in account.findings):
            done = f"Source {account.source}: every record that was read is accounted for, once."
            console.print(done, soft_wrap=True)


def _table(account: Account) -> Table:
    from silver.order.state import COUNTED

    again = recreated_topics(account)
    # Without lines: ten columns of numbers, and a topic's name stays in one piece.
    columns = ("partition", *COUNTED, "pending")
    table = new_table(f"Source {account.source}", "topic", *columns, numbers=columns, lines=False)
    for counted in account.topic_partitions:
        numbers = [f"{counted[column]:,}" for column in (*COUNTED, "pending")]
        table.add_row(topic_name(counted, again), str(counted["partition"]), *numbers)
    return table


def _as_json(account: Account) -> dict[str, Any]:
    findings = {kind: vars(found) for kind, found in account.findings.items()}
    return {"partitions": account.topic_partitions, "findings": findings, "sentences": sentences(account)}
