"""`lakehouse doctor`: a checklist of the whole flow, each check with what was seen, what should be, and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial

import typer

from cli.monitoring.commands import PROBE_PASSWORD
from cli.monitoring.shared import view_of
from cli.options import CommandContext
from cli.output import answer, ask
from connectors.checking.findings import Finding
from connectors.checking.together import kept_topics, topic_findings
from connectors.connectors import Connector
from lakehouse.contracts.models import NO_UNIFIED
from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.registry import changed_schemas
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import FAILED, PASSED, new_table, styled
from monitoring.doctor import Diagnostics, Result, results_of
from monitoring.known_issues import TROUBLES
from monitoring.probe import Probe, ends_of_unified, insert_probe, wait_for
from monitoring.readings import warehouse
from monitoring.readings.databases import UnaskedError
from monitoring.readings.running import Running, running_of
from monitoring.readings.topics import SourceTopics, topics_of
from monitoring.readings.unified_topic import sources_on
from monitoring.status import View, try_query


@dataclass(frozen=True)
class Probing:
    """How to probe: as which user of the databases, for how long to wait, and whether to ask first."""

    user: str | None
    seconds: int
    yes: bool


def run(chosen: CommandContext, connect_url: str | None, *, probing: Probing | None) -> None:
    """Show what every check saw. Ends with 1 when something is wrong."""
    if probing is not None and not chosen.contracts.gold.has_unified:
        raise SettingsError(NO_UNIFIED, hint="Leave out --probe: it waits for an order in the unified topic.")
    view = view_of(chosen, connect_url)
    steps = chosen.steps()
    with steps.step("doctor", "looking at databases, connectors, topics and tables") as note:
        scene = scene_of(view)
        results = results_of(scene)
        note(f"{len(results)} checks")
    if probing is not None:
        results += _probed(view, scene, steps, probing)
    wrong = [one for one in results if not one.ok]
    if chosen.as_json:
        checks = [{**asdict(one), **_expected_and_hint(one)} for one in results]
        unasked = scene.unasked_databases
        answer("doctor", {"checks": checks, "unasked": unasked, "ok": not wrong, "exit_code": int(bool(wrong))})
    else:
        _show(results, view, scene.unasked_databases)
    if wrong:
        raise typer.Exit(1)


def scene_of(view: View) -> Diagnostics:
    """Everything that the checks look at. What does not answer is in `troubles`, and stops nothing else."""
    troubles: dict[str, LakehouseError] = {}
    tried = partial(try_query, troubles)
    now, kafka, worker, contracts = datetime.now(UTC), view.kafka, view.worker, view.contracts
    nobody: list[Running] | None = None
    sources = contracts.topics.sources.values()
    running = tried("connect", lambda: running_of(worker, sources), nobody) if worker is not None else None
    tables = view.tables if view.tables is not None and view.tables.exists(warehouse.BATCHES) else None
    offsets = warehouse.bronze_offsets(tables) if tables is not None else {}
    topics: dict[str, SourceTopics] = {}
    on_unified: dict[str, bool | None] | None = None
    findings = None
    if kafka is not None:
        topics = tried("topics", lambda: topics_of(kafka, contracts, next_offsets=offsets, now=now), topics)
        if "topics" not in troubles:
            on_unified = tried("unified", lambda: sources_on(kafka, contracts), dict[str, bool | None]())
            if running is not None:
                findings = tried("topics", lambda: _on_topics(kafka, running), None)
    registry = None if kafka is None else kafka.schema_registry
    changed: list[int] = []
    if registry is not None:
        kept = warehouse.kept_schemas(tables) if tables is not None and tables.exists(warehouse.SCHEMAS) else {}
        changed = tried("registry", partial(changed_schemas, registry, kept), changed)
    undecodable: dict[str, int] = {}
    if tables is not None and tables.exists(warehouse.QUARANTINE):
        undecodable = {**dict.fromkeys(contracts.topics.sources, 0), **warehouse.undecodable(tables)}
    return Diagnostics(
        contracts=contracts,
        now_ms=int(now.timestamp() * 1000),
        running=running,
        topics=topics,
        topic_findings=findings,
        on_unified=on_unified,
        undecodable=undecodable,
        registry=None if registry is None else registry.url,
        changed_schemas=changed,
        troubles=troubles,
    )


def _on_topics(kafka: KafkaConnection, running: Sequence[Running]) -> tuple[Finding, ...] | None:
    connectors = [one.connector for one in running]
    return topic_findings(connectors, kept_topics(kafka, connectors), broker=kafka.bootstrap_servers)


def _probed(view: View, scene: Diagnostics, steps: Steps, probing: Probing) -> list[Result]:
    kafka = view.kafka
    outboxes = [one for one in scene.connectors if one.routes_outbox]
    if kafka is None or not outboxes:
        raise SettingsError(
            "There is no outbox to probe, or no broker to wait at.",
            hint="Pass --connect-url with a connector of an outbox, and --bootstrap-servers.",
        )
    names = ", ".join(one.name for one in outboxes)
    wide_console(stderr=True).print(
        f"An order, cancelled and of 0.00, will be written to the outbox of each: {names}. It stays there.",
        soft_wrap=True,
    )
    if not probing.yes:
        ask()
    seconds = probing.seconds
    login = None if probing.user is None else (probing.user, os.environ.get(PROBE_PASSWORD, ""))
    with steps.step("probe", f"waiting up to {seconds} s; a run must be at work") as note:
        since = ends_of_unified(kafka, view.contracts)
        probes = [_inserted(one, view, login) for one in outboxes]
        came = wait_for(kafka, [one for one in probes if not isinstance(one, Result)], since=since, seconds=seconds)
        note(f"{len(came)} of {len(outboxes)} came")
    return [
        one
        if isinstance(one, Result)
        else Result(
            "probe",
            one.connector,
            one.connector in came,
            f"order {one.order_id} came after {came[one.connector]:.0f} s"
            if one.connector in came
            else f"order {one.order_id} did not come within {seconds} s",
        )
        for one in probes
    ]


def _inserted(connector: Connector, view: View, login: tuple[str, str] | None) -> Result | Probe:
    try:
        return insert_probe(connector, view.contracts.topics.sources.values(), login=login, aggregate="orders")
    except UnaskedError as why:
        return Result("probe", connector.name, False, str(why))
    except Exception as error:  # each driver has errors of its own, whose texts may quote what was sent
        return Result("probe", connector.name, False, f"its outbox refused the order ({type(error).__name__})")


def _expected_and_hint(one: Result) -> dict[str, str]:
    trouble = TROUBLES[one.check]
    return {"expected": trouble.expected, "hint": "" if one.ok else trouble.hint}


def _show(results: list[Result], view: View, unasked: Mapping[str, str]) -> None:
    console = wide_console()
    table = new_table("", "", "check", "where", "seen", lines=False)
    for one in results:
        table.add_row(styled(PASSED if one.ok else FAILED), one.check, one.where, one.seen)
    console.print(table)
    for name in dict.fromkeys(one.check for one in results if not one.ok):
        trouble = TROUBLES[name]
        text = styled(FAILED, " ", (name, "bold"), f": {trouble.expected} {trouble.hint}")
        console.print(text, soft_wrap=True)
    for name, why in unasked.items():
        console.print(f"{name}: its database was not looked at. {why}", soft_wrap=True)
    if view.worker is None:
        console.print("Kafka Connect and the databases were not looked at: pass --connect-url")
    if view.kafka is None:
        console.print("The broker was not looked at: pass --bootstrap-servers or --kafka-config")
    if all(one.ok for one in results):
        console.print(styled(PASSED, " All checks passed. Next: lakehouse status"))
