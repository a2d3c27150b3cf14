"""`lakehouse offsets`: how far a source has read its topics, and moving it by command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from cli.opening import acquire_lock, opened
from cli.options import CommandContext, DryRun, with_job_options
from cli.output import Yes, answer, ask
from lakehouse.contracts.topics import Source
from lakehouse.errors import SettingsError
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table

if TYPE_CHECKING:
    from bronze.offsets import SourceOffsets
    from bronze.source_state import OffsetMove
    from lakehouse.delta.tables import Warehouse
    from lakehouse.kafka.broker import TopicPartitions

app = typer.Typer(name="offsets", help="Where a source stands on its topics, and moving it.", no_args_is_help=True)

SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="A source of bronze/topics.yaml.")]
Topic = Annotated[str | None, typer.Option(help="Only this topic. Default: all of the source.", show_default=False)]


@app.command()
@with_job_options
def show(chosen: CommandContext, source: SourceName) -> None:
    """Show how far a source has read: of every partition the next offset, and what is pending. Changes nothing.

    Example: lakehouse offsets show postgres --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    from bronze.offsets import offsets_of_source

    contract = _source(chosen, source)
    steps = chosen.steps()
    known = partitions(chosen.settings.kafka())
    warehouse = opened(chosen, steps)
    with steps.step("offsets", f"looking where {source} stands"):
        source_offsets = offsets_of_source(warehouse, chosen.settings.kafka(), source, contract, known=known)
    rows = [
        {
            "topic": topic_partition.topic,
            "partition": topic_partition.number,
            "earliest": source_offsets.ends[topic_partition].earliest,
            "next": offset,
            "latest": source_offsets.ends[topic_partition].latest,
            "pending": max(source_offsets.ends[topic_partition].latest - offset, 0),
            "gone": max(source_offsets.ends[topic_partition].earliest - offset, 0),
        }
        for topic_partition, offset in sorted(source_offsets.following.items())
    ]
    if chosen.as_json:
        answer(chosen.command, {"source": source, "changes": source_offsets.change, "partitions": rows})
        return
    table = new_table(f"Source {source}", *rows[0], numbers=rows[0].keys() - {"topic"})
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    console = wide_console()
    console.print(table)
    console.print(_next_step(source, source_offsets), soft_wrap=True)


@app.command(name="set")
@with_job_options
def set_offsets(
    chosen: CommandContext,
    *,
    source: SourceName,
    to: Annotated[str, typer.Option(help="earliest, latest, a time (2026-01-31T12:00:00, UTC), or an offset.")],
    topic: Topic = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.", show_default=False)] = None,
    only_gaps: Annotated[bool, typer.Option(help="Only partitions whose next record is gone from the broker.")] = False,
    reason: Annotated[str, typer.Option(help="Why; it is written down.")] = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move a source forward or back on its topics. Says what is skipped or read again, and asks.

    Nothing is deleted: skipped ranges are written to ops.batches, and what is read again is stored only where bronze
    lacks it.

    Example: lakehouse offsets set postgres --to earliest --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    from bronze.move import Move, planned

    move = Move(to=to, topic=topic, partition=partition, only_gaps=only_gaps, reason=reason)

    def plan(warehouse: Warehouse, contract: Source, known: TopicPartitions) -> list[OffsetMove]:
        return planned(warehouse, chosen.settings.kafka(), source, contract, known=known, move=move)

    _change(chosen, source, plan, yes=yes, dry_run=dry_run)


@app.command()
@with_job_options
def forget(
    chosen: CommandContext,
    source: SourceName,
    topic: Annotated[str, typer.Option(help="The topic that the contract no longer names.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give up a topic that is gone, or that the contract no longer names. What was read of it stays in bronze.

    Example: lakehouse offsets forget postgres --topic old --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    from bronze.move import forgotten

    def plan(warehouse: Warehouse, contract: Source, known: TopicPartitions) -> list[OffsetMove]:
        return forgotten(warehouse, chosen.settings.kafka(), source, contract, known=known, topic=topic)

    _change(chosen, source, plan, yes=yes, dry_run=dry_run)


def _change(
    chosen: CommandContext,
    source: str,
    plan: Callable[[Warehouse, Source, TopicPartitions], list[OffsetMove]],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Show the plan, ask, and carry it out."""
    from bronze.move import carry_out

    contract = _source(chosen, source)
    progress = chosen.steps()
    known = partitions(chosen.settings.kafka())
    warehouse = opened(chosen, progress)
    with progress.step("offsets", f"looking where {source} stands"):
        steps = plan(warehouse, contract, known)
    console = wide_console(stderr=chosen.as_json)
    numbers = ("partition", "from", "to")
    table = new_table(f"Source {source}", "topic", *numbers, "what happens", numbers=numbers)
    for step in steps:
        table.add_row(step.topic, str(step.partition), str(step.from_offset), str(step.to_offset), _says(step))
    console.print(table)
    if not dry_run:
        if not yes:
            ask()
        with progress.step("offsets", f"moving {source}"), acquire_lock(chosen, warehouse, progress):
            if plan(warehouse, contract, known) != steps:
                raise SettingsError("The source has moved meanwhile; nothing was changed.", hint="Look again.")
            carry_out(warehouse, steps)
    if chosen.as_json:
        rows = [{**vars(step), "skipped": step.skipped, "read_again": step.read_again} for step in steps]
        answer(chosen.command, {"source": source, "dry_run": dry_run, "steps": rows})
        return
    done = "Nothing was changed (dry run)." if dry_run else "Written down in ops.batches. Next: lakehouse bronze"
    console.print(done)


def _says(step: OffsetMove) -> str:
    if step.skipped:
        return f"skips {step.skipped:,} offsets: their records are not read"
    if step.read_again:
        return f"reads {step.read_again:,} offsets again: stored where bronze lacks them"
    return "goes on where it stands"


def _source(chosen: CommandContext, name: str) -> Source:
    sources = chosen.contracts.topics.sources
    if name not in sources:
        raise SettingsError(f"There is no source {name!r}.", hint=f"Sources are: {', '.join(sources)}.")
    return sources[name]


def _next_step(source: str, source_offsets: SourceOffsets) -> str:
    gone = any(
        offset < source_offsets.ends[topic_partition].earliest
        for topic_partition, offset in source_offsets.following.items()
    )
    if gone:
        return f"Records are gone. Next: lakehouse offsets set {source} --to earliest --only-gaps"
    return f"Next: lakehouse bronze to read what is pending, lakehouse offsets set {source} --to … to move."
