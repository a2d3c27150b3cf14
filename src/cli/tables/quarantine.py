"""`lakehouse quarantine`: the records that may not pass; looking at them, and deciding about them."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cli.opening import at_work, opened, with_made_tables
from cli.options import Chosen, DryRun, Options, declared_as, parameters, with_job_options
from cli.output import Yes, answer, ask
from lakehouse.contracts.models import Feed
from lakehouse.errors import SettingsError
from lakehouse.quality.masking import MASK, has_sensitive_key, shown_key, shown_value
from lakehouse.steps import Steps, wide_console

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from lakehouse.spark.tables import Warehouse

app = typer.Typer(
    name="quarantine", help="Records that may not pass: looking at them, deciding about them.", no_args_is_help=True
)

MOST = 50
_OF_FILTER: Options = {
    "entries": (
        Annotated[
            list[str] | None,
            typer.Argument(metavar="[TOPIC/PARTITION/OFFSET]...", help="These records.", show_default=False),
        ],
        None,
    ),
    "feed": (Annotated[str | None, typer.Option(help="Only of this silver table.", show_default=False)], None),
    "rule": (Annotated[str | None, typer.Option(help="Only those that fail this rule.", show_default=False)], None),
    "reason": (
        Annotated[str | None, typer.Option(help="Only those with a reason that contains this.", show_default=False)],
        None,
    ),
    "state": (
        Annotated[str | None, typer.Option(help="open, retried, released, discarded, or all.", show_default="open")],
        None,
    ),
}
All = Annotated[bool, typer.Option("--all", help="Every entry that is open.")]
Why = Annotated[str, typer.Option("--why", help="Why; it is written down.")]


@dataclass(frozen=True)
class Filter:
    """Which entries are meant; nothing given means all that are open."""

    entries: Sequence[str] | None = None
    feed: str | None = None
    rule: str | None = None
    reason: str | None = None
    state: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing narrows it."""
        return not (self.entries or self.feed or self.rule or self.reason or self.state)


def with_filter(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command of `body(chosen, narrowed, **own)`: the options of a Filter, but those `without`, before its own."""
    options = {name: option for name, option in _OF_FILTER.items() if name not in without}

    def decorated(body: Callable[..., None]) -> Callable[..., None]:
        first, _narrowed, *own = inspect.signature(body, eval_str=True).parameters.values()

        def command(chosen: Chosen, **given: Any) -> None:
            body(chosen, Filter(**{name: given.pop(name) for name in options}), **given)

        return declared_as(command, body, [first, *parameters(options), *own])

    return decorated


@dataclass(frozen=True)
class Decision:
    """What a person wants entries to be: `state` (retried, released, discarded), and why."""

    state: str
    narrowed: Filter
    why: str


@app.command(name="list")
@with_job_options
@with_filter(without={"entries"})
def list_entries(
    chosen: Chosen,
    narrowed: Filter,
    *,
    limit: Annotated[int, typer.Option(min=1, help="So many entries, those seen last.")] = MOST,
) -> None:
    """List what is pending, and why. Changes nothing.

    Example: lakehouse quarantine list --feed postgres_orders --warehouse ./warehouse
    """
    warehouse = opened(chosen, chosen.steps())
    chosen = with_made_tables(chosen, warehouse)
    entries = _entries(warehouse, chosen, narrowed)
    from pyspark.sql import functions as F

    number = entries.count()
    last = entries.orderBy(F.col("last_seen").desc(), "topic", "partition", "offset").limit(limit)
    rows = _with_times_as_text(last).collect()
    told = [_told(row, chosen.contracts.feeds) for row in rows]
    if chosen.as_json:
        answer(chosen.command, {"number": number, "entries": told})
        return
    table = _table(f"In quarantine: {number:,}", "record", "table", "key", "state", "reasons", "last seen (UTC)")
    for entry in told:
        reasons = "\n".join(entry["reasons"])
        table.add_row(entry["record"], entry["feed"], entry["key"] or "", entry["state"], reasons, entry["last_seen"])
    console = wide_console()
    console.print(table)
    if number > len(rows):
        console.print(f"… and {number - len(rows):,} more: --limit, --feed, --rule, --reason.")
    console.print("Next: lakehouse quarantine show RECORD; retry, release or discard.")


@app.command()
@with_job_options
def show(
    chosen: Chosen, entry: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="The record.")]
) -> None:
    """Show one record: why it is pending, what was decided, and what it says. Values of sensitive columns are masked.

    Example: lakehouse quarantine show postgres_prod_tables.public.orders/0/17 --warehouse ./warehouse
    """
    _place(entry)
    warehouse = opened(chosen, chosen.steps())
    chosen = with_made_tables(chosen, warehouse)
    entries = _entries(warehouse, chosen, Filter((entry,), state="all"))
    rows = _with_times_as_text(entries.orderBy("first_seen")).collect()
    if not rows:
        raise SettingsError(f"{entry} is not in quarantine.", remedy="See `lakehouse quarantine list --state all`.")
    feeds = chosen.contracts.feeds
    told = [{**_told(row, feeds), **_content(row, feeds[row["feed"]])} for row in rows]
    if chosen.as_json:
        answer(chosen.command, {"entries": told})
        return
    console = wide_console()
    for one in told:
        table = _table(one["record"], "", "")
        table.show_header = False
        for name, value in one.items():
            if value not in (None, "", []):
                table.add_row(name, "\n".join(value) if isinstance(value, list) else str(value))
        console.print(table)
    console.print(f"Next: lakehouse quarantine retry|release|discard {entry}")


@app.command()
@with_job_options
@with_filter()
def retry(
    chosen: Chosen,
    narrowed: Filter,
    *,
    every: All = False,
    why: Why = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Judge records again by the rules of today; what passes goes silver's normal way, to its position in history.

    Says first how many would pass, and asks. What may still not pass is open again, with its new reasons.

    Example: lakehouse quarantine retry --rule amount_not_negative --why "it was too strict" --warehouse ./warehouse
    """
    _decide(chosen, Decision("retried", narrowed, why), every=every, yes=yes, dry_run=dry_run)


@app.command()
@with_job_options
@with_filter()
def release(
    chosen: Chosen,
    narrowed: Filter,
    *,
    every: All = False,
    why: Annotated[str, typer.Option("--why", help="Why they may pass; it is written down.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Apply records although they fail rules, now and whenever silver is rebuilt.

    Only rules are skipped: a record with a conversion error, or an unreadable one, stays.

    Example: lakehouse quarantine release orders/0/17 --why "the shop confirmed it" --warehouse ./warehouse
    """
    _decide(chosen, Decision("released", narrowed, why), every=every, yes=yes, dry_run=dry_run)


@app.command()
@with_job_options
@with_filter(without={"state"})
def discard(
    chosen: Chosen,
    narrowed: Filter,
    *,
    every: All = False,
    why: Annotated[str, typer.Option("--why", help="Why they may never pass; it is written down.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Keep records out of silver for good, whatever the rules will be. They stay in quarantine and in bronze.

    Example: lakehouse quarantine discard --reason "no ISO 8601 time" --why "a test of the shop" --warehouse ./warehouse
    """
    _decide(chosen, Decision("discarded", narrowed, why), every=every, yes=yes, dry_run=dry_run)


def _decide(chosen: Chosen, decision: Decision, *, every: bool, yes: bool, dry_run: bool) -> None:
    """Say what would come of it, ask, write the request down, and carry it out."""
    if decision.narrowed.is_empty and not every:
        raise SettingsError(
            "It is not said which records.", remedy="Name them, narrow them (--feed, --rule, --reason), or pass --all."
        )
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_made_tables(chosen, warehouse)
    with steps.step("look", "judging them by the rules of today") as note:
        plan = _planned(chosen, warehouse, decision)
        records = sum(counts["records"] for counts in plan.values())
        note(f"{records:,} records")
    console = wide_console(stderr=chosen.as_json)
    console.print(_plan(decision.state, plan))
    came_to: dict[str, Counter[str]] = {}
    if records and not dry_run:
        if not yes:
            ask()
        came_to = _carry_out(chosen, warehouse, steps, decision)
    if chosen.as_json:
        answer(chosen.command, {"plan": plan, "came_to": came_to}, dry_run=dry_run)
        return
    said = _said(decision.state, records, came_to, dry_run=dry_run)
    console.print(said, soft_wrap=True)


def _planned(chosen: Chosen, warehouse: Warehouse, decision: Decision) -> dict[str, Counter[str]]:
    """Of every table, how many `records` are meant, and how many of them would `pass` or `fail`."""
    from silver.decisions import judged_again, may_become
    from silver.schemas import schemas

    meant = _entries(warehouse, chosen, decision.narrowed).where(may_become(decision.state))
    known = {row["feed"]: row["count"] for row in meant.groupBy("feed").count().collect()}
    again: Mapping[str, Counter[str]] = {}
    if decision.state != "discarded":
        of_registry = schemas(warehouse, chosen.settings.schema_registry())
        again = judged_again(warehouse, chosen.contracts, meant, decision.state, known=of_registry)
    return {feed: Counter({"records": number, **again.get(feed, {})}) for feed, number in known.items()}


def _carry_out(chosen: Chosen, warehouse: Warehouse, steps: Steps, decision: Decision) -> dict[str, Counter[str]]:
    from lakehouse.spark.lease import this_process
    from silver.decisions import Request, carry_out
    from silver.decisions import ask as write_down
    from silver.job import SilverJob
    from silver.schemas import schemas

    by = this_process(run_id=chosen.run_id, command=chosen.command).user
    request = Request(decision.state, by, decision.why, chosen.run_id)
    came_to: dict[str, Counter[str]] = {}
    with at_work(chosen, warehouse, steps), steps.step(chosen.command.split(" ")[-1], "carrying it out") as note:
        write_down(warehouse, request, chosen=_condition(chosen, decision.narrowed))
        of_registry = schemas(warehouse, chosen.settings.schema_registry())
        for source in chosen.contracts.topics.sources if decision.state != "discarded" else ():
            job = SilverJob(source, chosen.contracts, warehouse.address, chosen.run_id, schemas=of_registry)
            came_to |= carry_out(warehouse, job)
        note(_outcomes(came_to) or "written down")
    return came_to


def _entries(warehouse: Warehouse, chosen: Chosen, narrowed: Filter) -> DataFrame:
    """The entries that are meant."""
    from silver.quarantine import QUARANTINE, STATES

    feeds = chosen.contracts.feeds
    if narrowed.feed is not None and narrowed.feed not in feeds:
        raise SettingsError(
            f"There is no silver table {narrowed.feed}.", remedy=f"There are: {', '.join(sorted(feeds))}."
        )
    if narrowed.state not in {None, "all", *STATES}:
        raise SettingsError(
            f"There is no state {narrowed.state!r}.", remedy=f"States are: {', '.join(STATES)}, or all."
        )
    return warehouse.read(QUARANTINE.name).where(_condition(chosen, narrowed))


def _condition(chosen: Chosen, narrowed: Filter) -> Column:
    """The filter as a condition on entries of the contract's tables. Named entries are meant whatever their state."""
    from pyspark.sql import functions as F

    meant = F.col("feed").isin(*chosen.contracts.feeds)
    if narrowed.entries:
        places = [_place(entry) for entry in narrowed.entries]
        is_one = F.lit(False)
        for topic, partition, offset in places:
            is_one |= (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") == offset)
        meant &= is_one
    state = narrowed.state or (None if narrowed.entries else "open")
    if state not in {None, "all"}:
        meant &= F.col("state") == state
    if narrowed.feed is not None:
        meant &= F.col("feed") == narrowed.feed
    if narrowed.rule is not None:
        meant &= F.array_contains("rules", narrowed.rule)
    if narrowed.reason is not None:
        meant &= F.exists("reasons", lambda reason: F.contains(reason, F.lit(narrowed.reason)))
    return meant


def _place(entry: str) -> tuple[str, int, int]:
    found = re.fullmatch(r"(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<offset>\d+)", entry)
    if found is None:
        raise SettingsError(
            f"{entry!r} is no record.", remedy="Name it as TOPIC/PARTITION/OFFSET, as `lakehouse quarantine list` does."
        )
    return found["topic"], int(found["partition"]), int(found["offset"])


def _told(row: Row, feeds: Mapping[str, Feed]) -> dict[str, Any]:
    """What is said of an entry, without what the record says."""
    feed = feeds[row["feed"]]
    return {
        "record": f"{row['topic']}/{row['partition']}/{row['offset']}",
        "feed": row["feed"],
        "key": MASK if has_sensitive_key(feed) else row["row_key"],
        "state": row["state"],
        "reasons": list(row["reasons"]),
        "rules": list(row["rules"]),
        "contract": row["contract"],
        **{name: row[name] for name in _TIMES},
        "state_by": row["state_by"],
        "state_why": row["state_why"],
    }


_TIMES = ("first_seen", "last_seen", "state_at", "finished_at")


def _with_times_as_text(entries: DataFrame) -> DataFrame:
    """The same entries, their times written by Spark, whose session is in UTC: Python would take the machine's zone."""
    from pyspark.sql import functions as F

    return entries.withColumns({name: F.date_format(name, "yyyy-MM-dd HH:mm:ss") for name in _TIMES})


def _content(row: Row, feed: Feed) -> dict[str, Any]:
    """What the record says, as far as it may be shown."""
    headers = [header["key"] for header in row["headers"] or ()]
    return {"headers": headers, "kafka key": shown_key(row["key"], feed), "value": shown_value(row["value"], feed)}


def _plan(state: str, plan: Mapping[str, Counter[str]]) -> Table:
    judged = () if state == "discarded" else ("would pass", "would stay")
    table = _table(f"To be {state}", "table", "records", *judged)
    for feed, counts in sorted(plan.items()):
        numbers = [counts["records"], *([counts["pass"], counts["fail"]] if judged else [])]
        table.add_row(feed, *[f"{number:,}" for number in numbers])
    return table


def _outcomes(came_to: Mapping[str, Counter[str]]) -> str:
    sums: Counter[str] = sum(came_to.values(), Counter())
    return ", ".join(f"{number:,} {outcome}" for outcome, number in sums.items())


def _said(state: str, records: int, came_to: Mapping[str, Counter[str]], *, dry_run: bool) -> str:
    if not records:
        return "No matching record is eligible for this action: see lakehouse quarantine list --state all."
    if dry_run:
        return "Nothing was changed (dry run)."
    if state == "discarded":
        return "They stay out of silver for good; `quarantine retry` of the very records takes it back."
    if not came_to:
        return "Written down; silver has not read them yet, and will carry it out. Next: lakehouse silver"
    return f"Came to: {_outcomes(came_to)}. Next: lakehouse gold"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns:
        is_number = column in {"records", "would pass", "would stay"}
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table
