"""`lakehouse verify`: proves from the tables that every record is accounted for, and names what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cli.opening import opened, with_made_tables
from cli.options import Chosen, with_job_options
from cli.output import answer, say
from lakehouse.contracts.models import NO_UNIFIED
from lakehouse.errors import ConservationError, LakehouseError, SettingsError, TableError
from lakehouse.failures import storage_errors
from lakehouse.spark.sizing import prepared_for, rows_in
from lakehouse.steps import Steps, wide_console

if TYPE_CHECKING:
    from cli.tables.accounts import Account
    from gold.compare import Comparison
    from gold.recomputed import TableComparison
    from lakehouse.consumed import ConsumedVersions
    from lakehouse.spark.tables import Warehouse

# What is shown, and is no error.
# Shown last, in this order.
HARMLESS = ("suspended", "skipped", "pending")
_SOURCE = typer.Option("--source", metavar="SOURCE", help="Only this source. Default: all.", show_default=False)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_job_options(verify))


def verify(chosen: Chosen, source: Annotated[str | None, _SOURCE] = None) -> None:
    """Prove that every record is accounted for, once, and that the unified topic equals gold. Changes nothing.

    Of every topic-partition: read = applied + superseded + duplicate + tombstone + ignored + quarantined. Names what is
    missing, stored or counted twice, or was never read, and exits with 8. What is pending for silver or for a suspended
    table, and what was skipped by command, is shown and is no error. That much needs no broker.

    Where a broker is given and no `--source`, the last value of every key on the unified topic is compared with gold as
    it was published; keys that differ are named, and are an error too. Every upsert topic is
    compared with its table in the same way.

    Without `--source`, gold is compared with what the silver tables state, every mart with gold, and every join with
    the whole join of the silver tables, each in the versions that it has taken. What could not be compared is an error
    too.

    Example: lakehouse verify --warehouse ./warehouse --bootstrap-servers 127.0.0.1:9092
    """
    sources = _sources(chosen, source)
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_made_tables(chosen, warehouse)
    from cli.tables.accounts import account_of

    accounts: list[Account] = []
    failures: list[LakehouseError] = []
    for name in sources:
        with (
            _going_on(failures),
            storage_errors(job=f"verify: {name}", places=(warehouse.location, warehouse.checkpoints)),
            steps.step("verify", f"comparing bronze with the batch audit of {name}") as note,
        ):
            with prepared_for(warehouse.spark, _rows(warehouse, f"bronze.{name}_events")):
                accounts.append(account_of(warehouse, name))
            note(f"{name}: {summary(accounts[-1])}")
    tables = _compared_tables(chosen, warehouse, steps, failures) if source is None else []
    comparison: Comparison | None = None
    of_upserts: list[Comparison] = []
    if source is None and (chosen.settings.bootstrap_servers or chosen.settings.kafka_config):
        with _going_on(failures):
            comparison = _compared(chosen, warehouse, steps) if chosen.contracts.gold.has_unified else None
        of_upserts = _compared_upserts(chosen, warehouse, steps, failures)
    failures += [error for account in accounts if (error := _failure(account))]
    compared = [*([] if comparison is None else [comparison]), *of_upserts]
    failures += [topic_differs(one) for one in compared if one.differing]
    failures += [topic_not_compared(one) for one in compared if one.unreadable]
    failures += [_table_differs(one) for one in tables if one.differing]
    failures += [_table_not_compared(one) for one in tables if one.is_failure]
    if chosen.as_json:
        results = {account.source: _as_json(account) for account in accounts}
        topics = {"topic": comparison and vars(comparison), "upsert_topics": [vars(one) for one in of_upserts]}
        answer(chosen.command, {"sources": results, **topics, **_of_tables(chosen, tables)}, failures)
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
def _going_on(failures: list[LakehouseError]) -> Iterator[None]:
    """Inside, a table that is missing or damaged is one of the failures, and the next comparison has its turn."""
    try:
        yield
    except TableError as error:
        failures.append(error)


def _compared(chosen: Chosen, warehouse: Warehouse, steps: Steps) -> Comparison | None:
    """The topic compared with gold; None when there is no gold yet."""
    from gold.compare import compare
    from gold.unify import UNIFIED

    topic = chosen.contracts.gold.unified_topic.topic
    with (
        storage_errors(job="verify: gold", places=(warehouse.location, warehouse.checkpoints)),
        steps.step("verify", f"laying {topic} beside gold") as note,
    ):
        if not warehouse.exists(UNIFIED):
            note(f"{UNIFIED} is not there yet")
            return None
        with prepared_for(warehouse.spark, _rows(warehouse, UNIFIED)):
            comparison = compare(warehouse, chosen.settings, chosen.contracts)
        note(f"{_number(comparison.orders, 'order')} compared, {comparison.differing:,} differ")
    return comparison


def _compared_upserts(
    chosen: Chosen, warehouse: Warehouse, steps: Steps, failures: list[LakehouseError]
) -> list[Comparison]:
    """The upsert topics whose tables are there, each compared with its table."""
    from gold.compare import compare_upsert
    from lakehouse.contracts.upsert_checks import why_not_yet

    found = []
    for name, topic in chosen.contracts.gold.upsert_topics.items():
        with (
            _going_on(failures),
            storage_errors(job=f"verify: {name}", places=(warehouse.location, warehouse.checkpoints)),
            steps.step("verify", f"comparing {topic.topic} with {topic.table}") as note,
        ):
            why_not = why_not_yet(chosen.contracts, name)
            if why_not is not None or not warehouse.exists(topic.table):
                note(why_not or f"{topic.table} is not there yet")
                continue
            with prepared_for(warehouse.spark, _rows(warehouse, topic.table)):
                found.append(compare_upsert(warehouse, chosen.settings, chosen.contracts, name))
            note(f"{_number(found[-1].orders, 'row')} compared, {found[-1].differing:,} differ")
    return found


def _compared_tables(
    chosen: Chosen, warehouse: Warehouse, steps: Steps, failures: list[LakehouseError]
) -> list[TableComparison]:
    """Every table of gold, compared with what a computation of all its rows gives."""
    from gold import build, joins, marts
    from lakehouse.batches import BATCHES
    from lakehouse.consumed import Consumed

    found: list[TableComparison] = []
    gold, contracts = chosen.contracts.gold, chosen.contracts
    if not (gold.has_unified or gold.joins) or not warehouse.exists(BATCHES.name):
        return found
    known: ConsumedVersions | None = None
    places = (warehouse.location, warehouse.checkpoints)
    with _going_on(failures), storage_errors(job="verify: gold", places=places):
        known = Consumed().now(warehouse)
    if known is None:
        return found
    silver = {name: [f"silver.{feed}" for feed in join.tables] for name, join in gold.joins.items()}
    wanted: list[tuple[str, list[str], Callable[[], TableComparison]]] = [
        (f"gold.{name}", tables, partial(joins.compare, warehouse, contracts, name, known=known))
        for name, tables in silver.items()
    ]
    if gold.has_unified:
        unified = gold.unified_tables[0]
        of_feeds = [f"silver.{feed}" for source in gold.sources.values() for feed in source.feeds]
        of_marts = [(f"gold.{name}", partial(marts.compare, warehouse, gold, name, known=known)) for name in gold.marts]
        wanted = [
            (unified, of_feeds, partial(build.compare, warehouse, contracts, known=known)),
            *((name, [unified], compare) for name, compare in of_marts),
            *wanted,
        ]
    for name, tables, compare in wanted:
        with (
            _going_on(failures),
            storage_errors(job=f"verify: {name}", places=places),
            steps.step("verify", f"comparing {name} with the tables that it is computed from") as note,
        ):
            with prepared_for(warehouse.spark, sum(_rows(warehouse, table) for table in tables)):
                found.append(compare())
            one = found[-1]
            compared = f"{_number(one.rows, 'row')} compared, {one.differing:,} differ"
            note(compared if one.why_not is None else f"not compared: {one.why_not}")
    return found


def _of_tables(chosen: Chosen, tables: Sequence[TableComparison]) -> dict[str, Any]:
    """The comparisons as JSON: those of joins, and those of the unified orders and their marts."""
    joins = {f"gold.{name}" for name in chosen.contracts.gold.joins}
    names = ("table", "rows", "differing", "why_not")
    found = {one.table: {name: getattr(one, name) for name in names} for one in tables}
    return {
        "joins": [one for table, one in found.items() if table in joins],
        "gold": [one for table, one in found.items() if table not in joins],
    }


def _table_differs(comparison: TableComparison) -> ConservationError:
    return ConservationError(
        f"{comparison.table} is not what the tables that it is computed from give, in "
        f"{_number(comparison.differing, 'key')}.",
        remedy="Run `lakehouse gold` and compare again, should a run have died. Otherwise find out who else writes to "
        "it; then `lakehouse gold --full-refresh` computes it again.",
    )


def _table_not_compared(comparison: TableComparison) -> ConservationError:
    return ConservationError(
        f"{comparison.table} could not be compared: {comparison.why_not}.",
        remedy="Run `lakehouse gold`, which brings it up to silver as it is now, and compare again.",
    )


def _rows(warehouse: Warehouse, table: str) -> int:
    """About how many rows the table has; none where there is no table."""
    return rows_in(warehouse.created_and_size(table)[1]) if warehouse.exists(table) else 0


def topic_differs(comparison: Comparison) -> ConservationError:
    """The error of a topic that is not gold, with the keys."""
    named = f": {', '.join(comparison.keys)}" if comparison.keys else ""
    more = comparison.differing - len(comparison.keys)
    also = f" and {more:,} more" if comparison.keys and more else ""
    return ConservationError(
        f"Topic {comparison.topic} is not what was published of {comparison.table}, in "
        f"{_number(comparison.differing, 'key')}{named}{also}.",
        remedy="Find out who else writes to it or deletes from it; then `lakehouse publish --republish` sends all of "
        f"{comparison.table} again.",
    )


def topic_not_compared(comparison: Comparison) -> ConservationError:
    """The error of a topic that could not be compared, with the reasons."""
    reasons = "; ".join(f"{name}: {why}" for name, why in comparison.unreadable.items())
    return ConservationError(
        f"Topic {comparison.topic} could not be compared: {reasons}.",
        remedy="Run `lakehouse publish`, which brings it up to its table as it is now, and compare again.",
    )


def topic_sentences(comparison: Comparison | None) -> list[str]:
    """What there is to say of the topic, other than that it differs."""
    if comparison is None:
        return ["The unified topic was not compared with gold. Next: pass --bootstrap-servers, and no --source"]
    is_unified = comparison.table == "gold"
    what = "Source" if is_unified else "Table"
    said = [f"{what} {name} was not compared with the topic: {why}." for name, why in comparison.unpublished.items()]
    if said:
        said.append("  Next: lakehouse publish")
    if comparison.behind:
        said.append(
            f"{_number(comparison.behind, 'commit')} of {comparison.table} are pending for publication. "
            "Next: lakehouse publish"
        )
    if comparison.orders and not comparison.differing:
        rows = _number(comparison.orders, "order" if is_unified else "row")
        said.append(f"Topic {comparison.topic} has the {rows} of {comparison.table}, and no other.")
    return said


def _show_topic(comparison: Comparison | None) -> None:
    for sentence in topic_sentences(comparison):
        wide_console().print(sentence, soft_wrap=True)


def summary(account: Account) -> str:
    """The source's numbers in one line: `1,234 read = 1,000 applied + …`."""
    from silver.order.state import COUNTED

    sums = {count: sum(place[count] for place in account.places) for count in COUNTED}
    return f"{sums.pop('read'):,} read = " + " + ".join(f"{number:,} {count}" for count, number in sums.items())


def sentences(account: Account) -> list[str]:
    """Every finding as a sentence, with the next step after those of a kind."""
    again = _made_again(account)
    said = []
    harmful = sorted(account.findings.keys() - {*HARMLESS})
    for kind in (*harmful, *(one for one in HARMLESS if one in account.findings)):
        found = account.findings[kind]
        if kind == "pending":
            said.append(f"{_number(found.records, 'record')} of bronze are pending for silver. Next: lakehouse silver")
            continue
        for one in found.shown:
            said.append(f"{_where(one, again)}: {_SENTENCES[kind].format(**_words(one, account.source))}.")
        if found.number > len(found.shown):
            said.append(f"… and {found.number - len(found.shown):,} more: {_number(found.records, 'record')} in all.")
        if kind in _NEXT:
            said.append(f"  Next: {_NEXT[kind].format(**_words(found.shown[0], account.source))}")
    return said


def _sources(chosen: Chosen, source: str | None) -> Sequence[str]:
    known = list(chosen.contracts.topics.sources)
    if source is None:
        return known
    if source not in known:
        raise SettingsError(f"There is no source {source!r}.", remedy=f"Sources are: {', '.join(known)}.")
    return [source]


def _failure(account: Account) -> ConservationError | None:
    wrong = [
        f"{_SAYS[kind]} ({_number(found.records, 'record')})"
        for kind, found in account.findings.items()
        if kind not in HARMLESS
    ]
    if not wrong:
        return None
    return ConservationError(
        f"Source {account.source}: not every record is accounted for: {', '.join(wrong)}.",
        remedy="Each is named with its offsets and the next step: docs/verify.md says more.",
    )


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

    again = _made_again(account)
    # Without lines: ten columns of numbers, and a topic's name stays in one piece.
    table = Table(
        title=f"Source {account.source}", title_justify="left", title_style="bold", header_style="dim", box=None
    )
    table.add_column("topic", overflow="fold")
    for column in ("partition", *COUNTED, "pending"):
        table.add_column(column, justify="right", overflow="fold")
    for place in account.places:
        numbers = [f"{place[column]:,}" for column in (*COUNTED, "pending")]
        table.add_row(_topic(place, again), str(place["partition"]), *numbers)
    return table


def _as_json(account: Account) -> dict[str, Any]:
    findings = {kind: vars(found) for kind, found in account.findings.items()}
    return {"partitions": account.places, "findings": findings, "sentences": sentences(account)}


def _made_again(account: Account) -> set[str]:
    """The topics that were deleted and created again: their ids distinguish them."""
    ids = {(place["topic"], place["topic_id"]) for place in account.places}
    topics = [topic for topic, _id in ids]
    return {topic for topic in topics if topics.count(topic) > 1}


def _topic(place: Mapping[str, Any], again: set[str]) -> str:
    return f"{place['topic']} (id {place['topic_id']})" if place["topic"] in again else str(place["topic"])


def _where(found: Mapping[str, Any], again: set[str]) -> str:
    return f"topic {_topic(found, again)}, partition {found['partition']}"


def _words(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What the sentences of a finding are made of."""
    first, last, records = found.get("first"), found.get("last"), found["records"]
    span = f"offset {first}" if first == last else f"offsets {first} to {last}"
    is_part = first is not None and last is not None and records != last - first + 1
    return {
        **found,
        "source": source,
        "span": span if first is not None else "records of earlier batches",
        "offsets": f"{records:,} of the {span}" if is_part else span,
        "is_": "is" if records == 1 else "are",
        "was": "was" if records == 1 else "were",
        "them": "it" if records == 1 else "them",
    }


def _number(records: int, what: str) -> str:
    return f"{records:,} {what}{'' if records == 1 else 's'}"


# Of every kind of finding that is an error: its name in the error's one line.
_SAYS = {
    "missing": "missing from bronze",
    "stored_twice": "stored twice",
    "never_read": "never read",
    "not_counted": "passed over by silver",
    "counted_twice": "counted twice",
    "unbalanced": "in rows of the batch audit that do not add up",
    "read_otherwise": "in rows of the batch audit that read another number than there is",
}
_SENTENCES = {
    "missing": "{offsets} {was} read, and {is_} not in bronze.{source}_events any more",
    "stored_twice": "{offsets} {is_} in bronze.{source}_events more than once",
    "never_read": "{offsets} {was} never read: between two batches of bronze, and not skipped by command",
    "skipped": "{offsets} {was} skipped by command (ops.batches says why)",
    "suspended": "{offsets} {was} not applied: gate 1 has suspended the table (`suspended` in ops.batches says why)",
    "not_counted": "{offsets} {is_} in bronze, and silver has passed over {them}",
    "counted_twice": "{offsets} {was} counted by more than one batch of silver",
    "unbalanced": "batch {batch} of silver, {span}, read {said:,} records and accounts for {found:,}",
    "read_otherwise": "batch {batch} of silver, {span}, read {said:,} records where there are {found:,}",
}
_ANEW = "rebuild silver from bronze (docs/verify.md)."
_AGAIN = (
    "while the topic has {them}: lakehouse offsets set {source} --topic {topic} --partition {partition} --to {first}"
)
_NEXT = {
    "suspended": "docs/quarantine.md says how a table goes on.",
    "missing": f"{_AGAIN}, then lakehouse bronze; then {_ANEW}",
    "stored_twice": "DESCRIBE HISTORY of bronze.{source}_events says what wrote {them}; silver is as it should be.",
    "never_read": f"{_AGAIN}, then lakehouse run.",
    "not_counted": _ANEW,
    "counted_twice": _ANEW,
    "unbalanced": _ANEW,
    "read_otherwise": _ANEW,
}
