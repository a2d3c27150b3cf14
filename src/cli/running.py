"""A command that runs jobs: what it looks at first, one pass or many, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING
from uuid import uuid4

import typer

from cli.continuous import TURN_SECONDS, Broker, run_forever
from cli.monitoring.metrics import Metrics
from cli.opening import acquire_lock, opened
from cli.options import NOTHING_ACCEPTED, Accepted, CommandContext, PassOptions, Trigger
from cli.output import answer, say
from lakehouse.errors import GateHeldError, SettingsError
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.process.steps import Steps

if TYPE_CHECKING:
    from cli.unchanged import Look
    from lakehouse.delta.tables import Warehouse
    from lakehouse.process.lock import Lock

EVERY_JOB = ("bronze", "silver", "gold", "publish")


def _look_for_news(
    chosen: CommandContext,
    names: Sequence[str],
    known: TopicPartitions,
    steps: Steps,
    with_spark: Callable[[], Warehouse],
) -> Look:
    """Whether there is anything to do for these jobs: seen without Spark, where tables are files."""
    from cli.unchanged import look_for_news
    from monitoring.readings.tables import tables_at

    tables = tables_at(chosen.settings.address, with_spark)
    return look_for_news(chosen.settings, chosen.contracts, names, known=known, tables=tables, steps=steps)


def run_command(
    chosen: CommandContext,
    names: Sequence[str],
    passes: PassOptions,
    metrics: Metrics,
    *,
    given: Accepted = NOTHING_ACCEPTED,
    full_refresh: bool = False,
    republish: bool = False,
) -> None:
    """Run the jobs in a Spark session of their own, and end with the exit code of the first failure."""
    dry_run, trigger = passes.dry_run, passes.trigger
    for is_asked, what in ((dry_run, "dry run"), (full_refresh, "full refresh"), (republish, "republication")):
        if is_asked and trigger is Trigger.continuous:
            raise SettingsError(f"A {what} has one pass.", hint="Leave --trigger continuous out.")
    # The broker first: that it does not answer is known before Spark has started.
    broker = Broker(chosen.settings, chosen.contracts.topics, names)
    known = broker.known()
    steps = chosen.steps()
    with_spark = cache(partial(opened, chosen, steps, is_lasting=trigger is Trigger.continuous))
    # What a person asks for is done, whether there is news or not.
    looks = not (dry_run or given or full_refresh or republish)
    look: Look | None = None
    if looks and trigger is Trigger.available_now:
        look = _look_for_news(chosen, names, known, steps, with_spark)
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
        passes=passes,
        given=given,
        looks=looks,
        look=look,
        full_refresh=full_refresh,
        republish=republish,
    )


def _run_passes(
    chosen: CommandContext,
    names: Sequence[str],
    *,
    metrics: Metrics,
    steps: Steps,
    warehouse: Warehouse,
    broker: Broker,
    known: TopicPartitions,
    passes: PassOptions,
    given: Accepted,
    looks: bool,
    look: Look | None,
    full_refresh: bool,
    republish: bool,
) -> None:
    """Run the jobs once, or again and again, each time as a run of its own.

    `look`: the one that has found something to do, of one pass. Of many each that does not come with news `looks`.
    """
    from bronze.source_state import SourceState
    from cli.jobs import RunContext, run_jobs
    from cli.unchanged import skip_if_unchanged
    from gold.state_store import StateStore
    from silver.accounts.audit import StateCache

    dry_run, trigger = passes.dry_run, passes.trigger
    turn: Lock | None = None
    source_states: dict[str, SourceState] = {}
    state_caches: dict[str, StateCache] = {}
    gold_state = StateStore()
    is_first = True
    known_failures: frozenset[str] = frozenset()

    def one_pass(known: TopicPartitions, lock: Lock | None, *, is_news: bool = False) -> None:
        """All jobs once, as a run of its own, with the warehouse locked. `is_news`: there are new records."""
        nonlocal turn, source_states, state_caches, gold_state, is_first, known_failures
        if lock is not turn:  # between two turns others may have written
            turn, source_states, state_caches, gold_state = lock, {}, {}, StateStore()
        steps.run_id = run_id = next(run_ids)
        work = RunContext(
            warehouse.spark,
            chosen.settings,
            chosen.contracts,
            steps,
            known,
            run_id,
            given.rejects,
            given.resumed if is_first else frozenset(),
            given.missing if is_first else frozenset(),
            full_refresh=full_refresh,
            republish=republish,
            source_states=source_states,
            state_caches=state_caches,
            gold_state=gold_state,
        )
        is_first = False
        before_each = lock.check if lock else None
        found = look
        if looks and trigger is Trigger.continuous and not is_news:
            found = _look_for_news(chosen, names, known, steps, lambda: warehouse)
        if found is not None:
            outcome = skip_if_unchanged(names, work, found, before_each=before_each)
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
            with acquire_lock(chosen, warehouse, steps) as lock:
                one_pass(known, lock)
        else:
            run_forever(
                one_pass,
                turn=partial(acquire_lock, chosen, warehouse, steps),
                # Jobs that are processes of their own come in turn.
                turn_seconds=TURN_SECONDS if names == EVERY_JOB else 0.0,
                broker=broker,
                retry_policy=RetryPolicy(chosen.command, steps.say),
            )
