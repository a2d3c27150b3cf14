"""`lakehouse quality`: how the rules of the gates came out, what goes to quarantine, and the Data Docs of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.opening import opened, with_discovered_tables
from cli.options import CommandContext, require_table, with_job_options
from cli.output import answer, say
from lakehouse.contracts.models import NO_UNIFIED
from lakehouse.errors import ConservationError, GateHeldError, LakehouseError
from lakehouse.failures import storage_errors
from lakehouse.process.steps import wide_console

if TYPE_CHECKING:
    from gold.quality.audit import CountedOtherwise
    from lakehouse.delta.tables import Warehouse
    from lakehouse.quality.counting import Counts
    from lakehouse.quality.results import RuleOutcome

app = typer.Typer(
    name="quality", help="How good the data is: the rules of the gates, quarantine.", no_args_is_help=True
)

LAST = "last"
Run = Annotated[str, typer.Option(metavar="RUN", help="A run's id, or `last`: the last one that judged anything.")]
FeedName = Annotated[
    str | None, typer.Option("--feed", help="Only this silver table. Default: all, and gold.", show_default=False)
]
DataDocs = Annotated[
    Path | None,
    typer.Option(
        "--data-docs",
        envvar="LAKEHOUSE_DATA_DOCS",
        help="The folder to write the Data Docs to. Default: WAREHOUSE/_data_docs where that is a local folder.",
        show_default=False,
    ),
]


@app.command()
@with_job_options
def report(chosen: CommandContext, run: Run = LAST, feed: FeedName = None, data_docs: DataDocs = None) -> None:
    """Show how every rule came out in a run, what goes to quarantine, and write the Data Docs. Needs no broker.

    Keys of rows that fail are named, and nothing else of a row; nothing of a column that is marked `sensitive`.

    Example: lakehouse quality report --warehouse ./warehouse
    """
    if feed is not None:
        require_table(chosen, feed)
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_discovered_tables(chosen, warehouse)
    from lakehouse.quality.data_docs import default_folder, rules_by_suite, write_data_docs
    from lakehouse.quality.results import RuleOutcome, outcomes_of

    with (
        storage_errors(job="quality report", storage_paths=(warehouse.location, warehouse.checkpoints)),
        steps.step("quality", "reading the results") as note,
    ):
        outcomes, judged = list[RuleOutcome](), None
        if run != LAST or rules_by_suite(chosen.contracts):
            outcomes = outcomes_of(warehouse, chosen.contracts, run=None if run == LAST else run, feed=feed)
            judged = outcomes[0].result.run
        pending = quarantined(warehouse, feed=feed)
        note(f"{len(outcomes)} results of run {judged}" if judged else "the gates have no rules")
    folder = data_docs or default_folder(warehouse)
    index = None
    if folder is not None:
        with steps.step("data docs", "writing them from the contracts and the stored results") as note:
            index = write_data_docs(warehouse, chosen.contracts, folder)
            note(str(index))
    if chosen.as_json:
        results = [as_json(outcome) for outcome in outcomes]
        answer(
            chosen.command,
            {"run": judged, "results": results, "quarantine": pending, "data_docs": index},
        )
        return
    _show(outcomes, pending, index)


@app.command()
@with_job_options
def audit(chosen: CommandContext) -> None:
    """Judge whole silver tables by every rule of gate 2, and compare what gold has counted from run to run.

    Between two runs gold asks rules about what has changed, and carries on what was counted before. This asks Great
    Expectations about all rows, as gold has taken them last. The results are stored, and block nothing. Exits with 8
    when gold has counted otherwise, and with 3 when a rule with `on_failure: fail` is not met.

    Example: lakehouse quality audit --warehouse ./warehouse
    """
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_discovered_tables(chosen, warehouse)
    from cli.tables.results import gate_results
    from gold.quality.audit import Audit
    from gold.quality.audit import audit as audited
    from gold.quality.gate import blocked_by

    with (
        storage_errors(job="quality audit", storage_paths=(warehouse.location, warehouse.checkpoints)),
        steps.step("quality", "judging whole silver tables") as note,
    ):
        if chosen.contracts.gold.has_unified:
            done = audited(warehouse, chosen.contracts, run_id=chosen.run_id)
            note(f"{len(done.results)} rules judged, {len(done.differing)} counted otherwise")
        else:
            done = Audit((), ())
            note(f"{NO_UNIFIED} Gate 2 has no table to judge.")
    failures: list[LakehouseError] = [_counted_otherwise(one) for one in done.differing]
    blocked = blocked_by(done.results)
    if blocked:
        what = f"Gate 2 would block {', '.join(blocked)}: a rule about the whole table is not met."
        failures.append(GateHeldError(what, hint="See the failed rules: lakehouse quality report."))
    if chosen.as_json:
        results = [{**asdict(one), "table": one.table, "share": one.share} for one in done.results]
        answer(chosen.command, {"results": results, "differing": [asdict(one) for one in done.differing]}, failures)
    else:
        for table in gate_results(done.results):
            wide_console().print(table)
    for failure in failures:
        say(failure)
    if failures:
        raise typer.Exit(failures[0].exit_code)


def _counted_otherwise(one: CountedOtherwise) -> ConservationError:
    def counted(counts: Counts) -> str:
        return f"{counts.failed:,} of {counts.rows:,}"

    return ConservationError(
        f"{one.table}: rule {one.rule!r}: gold has counted {counted(one.carried)} rows that fail, the table has "
        f"{counted(one.found)}.",
        hint="Count again: lakehouse gold --full-refresh. Who else has written to the table? "
        "DESCRIBE HISTORY names every commit.",
    )


def as_json(outcome: RuleOutcome) -> dict[str, Any]:
    """A result as it is stored."""
    result = outcome.result
    more = {"table": result.table, "share": result.share, "evaluated_at": outcome.evaluated_at.isoformat()}
    return {**asdict(result), **more}


def quarantined(warehouse: Warehouse, *, feed: str | None) -> Sequence[Mapping[str, Any]]:
    """How many records of each feed are in `quality.quarantine`, by their state."""
    from pyspark.sql import functions as F

    if not warehouse.exists("quality.quarantine"):
        return []
    by = ("feed", "state")
    counts = (
        warehouse.read("quality.quarantine").where(F.lit(feed is None) | (F.col("feed") == F.lit(feed))).groupBy(*by)
    )
    return [row.asDict() for row in counts.agg(F.count(F.lit(1)).alias("records")).orderBy(*by).collect()]


def _show(outcomes: Sequence[RuleOutcome], pending: Sequence[Mapping[str, Any]], index: Path | None) -> None:
    from cli.tables.results import gate_results, records_by_feed

    console = wide_console()
    for table in gate_results([outcome.result for outcome in outcomes]):
        console.print(table)
        console.print()
    console.print(records_by_feed(pending))
    if index is None:
        line = "No Data Docs were written: the warehouse is no local folder. Pass --data-docs FOLDER."
    else:
        line = f"Data Docs: {index}"
    console.print(f"\n{line}", soft_wrap=True)
