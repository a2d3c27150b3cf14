"""A command that runs jobs: what it looks at first, one pass or many, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING
from uuid import uuid4

import typer

from cli.continuous import TURN_SECONDS, Broker, go_on
from cli.monitoring.metrics import Metrics
from cli.opening import at_work, opened
from cli.options import NOTHING_ACCEPTED, Accepted, Chosen, Trigger
from cli.output import answer, say
from lakehouse.errors import GateHeldError, SettingsError
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.steps import Steps

if TYPE_CHECKING:
    from cli.settled import Look
    from lakehouse.spark.lease import Lease
    from lakehouse.spark.tables import Warehouse

EVERY_JOB = ("bronze", "silver", "gold", "publish")


def _look_for_news(chosen: Chosen, known: TopicPartitions, steps: Steps, with_spark: Callable[[], Warehouse]) -> Look:
    """Whether there is anything to do: seen without Spark, where tables are files."""
    from cli.settled import look_for_news
    from monitoring.readings.tables import tables_at

    tables = tables_at(chosen.settings.address, with_spark)
    return look_for_news(chosen.settings, chosen.contracts, known=known, tables=tables, steps=steps)


def run_command(
    chosen: Chosen,
    names: Sequence[str],
    metrics: Metrics,
    *,
    dry_run: bool,
    given: Accepted = NOTHING_ACCEPTED,
    full_refresh: bool = False,
    republish: bool = False,
    trigger: Trigger = Trigger.available_now,
) -> None:
    """Run the jobs in a Spark session of their own, and end with the exit code of the first failure."""
    for is_asked, what in ((dry_run, "dry run"), (full_refresh, "full refresh"), (republish, "republication")):
        if is_asked and trigger is Trigger.continuous:
            raise SettingsError(f"A {what} has one pass.", remedy="Leave --trigger continuous out.")
    # The broker first: that it does not answer is known before Spark has started.
    broker = Broker(chosen.settings, chosen.contracts.topics, names)
    known = broker.known()
    steps = chosen.steps()
    with_spark = cache(partial(opened, chosen, steps, is_lasting=trigger is Trigger.continuous))
    look: Look | None = None
    if names == EVERY_JOB and trigger is Trigger.available_now and not (dry_run or given):
        look = _look_for_news(chosen, known, steps, with_spark)
        if look.ends_a_run:
            metrics.write(chosen, with_spark, say=steps.say)
            if chosen.as_json:
                answer(chosen.command, {"nothing_new": True}, [], run=chosen.run_id, dry_run=False)
            return
    _run_passes(
        chosen,
        names,
        metrics=metrics,
        steps=steps,
        warehouse=with_spark(),
        broker=broker,
        known=known,
        dry_run=dry_run,
        given=given,
        look=look,
        full_refresh=full_refresh,
        republish=republish,
        trigger=trigger,
    )


def _run_passes(
    chosen: Chosen,
    names: Sequence[str],
    *,
    metrics: Metrics,
    steps: Steps,
    warehouse: Warehouse,
    broker: Broker,
    known: TopicPartitions,
    dry_run: bool,
    given: Accepted,
    look: Look | None,
    full_refresh: bool,
    republish: bool,
    trigger: Trigger,
) -> None:
    """Run the jobs once, or again and again, each time as a run of its own."""
    from cli.jobs import Work, run_jobs
    from cli.settled import run_unless_settled
    from lakehouse.consumed import Consumed
    from silver.audit import Memory

    turn: Lease | None = None
    memories: dict[str, Memory] = {}
    consumed = Consumed()
    is_first = True
    known_failures: frozenset[str] = frozenset()

    def one_pass(known: TopicPartitions, lease: Lease | None) -> None:
        """All jobs once, as a run of its own, with the warehouse locked."""
        nonlocal turn, memories, consumed, is_first, known_failures
        if lease is not turn:  # between two turns others may have written
            turn, memories, consumed = lease, {}, Consumed()
        steps.run_id = run_id = next(run_ids)
        work = Work(
            warehouse.spark,
            chosen.settings,
            chosen.contracts,
            steps,
            known,
            run_id,
            given.rejects,
            given.columns,
            given.resumed if is_first else frozenset(),
            given.missing if is_first else frozenset(),
            full_refresh=full_refresh,
            republish=republish,
            memories=memories,
            consumed=consumed,
        )
        is_first = False
        before_each = lease.check if lease else None
        if look is not None:
            outcome = run_unless_settled(work, look, before_each=before_each)
        else:
            outcome = run_jobs(names, work, dry_run=dry_run, before_each=before_each)
        for failure in outcome.failures:
            if str(failure) not in known_failures:  # what stays suspended or blocked is said once
                say(failure, steps)
        known_failures = frozenset(map(str, outcome.failures))
        if not dry_run:
            metrics.write(chosen, lambda: warehouse, say=steps.say)
        if chosen.as_json:
            answer(chosen.command, outcome.results, outcome.failures, run=run_id, dry_run=dry_run)
        # A gate holds its own: everything else went on, and goes on.
        is_ending = trigger is not Trigger.continuous
        ending = [one for one in outcome.failures if is_ending or not isinstance(one, GateHeldError)]
        if ending:
            raise typer.Exit(ending[0].exit_code)

    run_ids = chain([chosen.run_id], iter(lambda: uuid4().hex, None))
    with metrics.served(chosen, lambda: warehouse):
        if dry_run:
            one_pass(known, None)
        elif trigger is Trigger.available_now:
            with at_work(chosen, warehouse, steps) as lease:
                one_pass(known, lease)
        else:
            go_on(
                one_pass,
                turn=partial(at_work, chosen, warehouse, steps),
                # Jobs that are processes of their own come in turn.
                turn_seconds=TURN_SECONDS if names == EVERY_JOB else 0.0,
                broker=broker,
                retry_policy=RetryPolicy(chosen.command, steps.say),
            )
