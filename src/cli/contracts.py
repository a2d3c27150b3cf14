"""`lakehouse validate` and `lakehouse init`: contracts of one's own, checked and begun. Both work without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, BootstrapServers, ContractsFolder, DryRun, KafkaConfig
from cli.output import answer
from lakehouse.config import connection
from lakehouse.contracts.files import MODELS, SCHEMAS, load_contracts, packaged_text
from lakehouse.contracts.models import NO_UNIFIED
from lakehouse.errors import SettingsError
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import PASSED, new_table, styled

if TYPE_CHECKING:
    from cli.proposal.database import DatabaseProposal


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(validate)
    app.command()(init)


def validate(contracts: ContractsFolder = None, as_json: AsJson = False) -> None:
    """Check contracts: every mistake with file, line and key. Needs neither Spark nor a broker. Exits with 2 on any.

    Example: lakehouse validate --contracts ./contracts
    """
    checked = load_contracts(contracts)
    if as_json:
        feeds = {name: {"source": feed.source, "topics": feed.topics} for name, feed in checked.feeds.items()}
        rules = {
            name: {"source": source_name, "include": rule.include, "exclude": rule.exclude, "name": rule.name}
            for source_name, source in checked.topics.sources.items()
            for name, rule in source.by_rule.items()
        }
        answer("validate", {"contracts": contracts or "packaged", "feeds": feeds, "by_rule": rules})
        return
    table = new_table("Feeds", "silver table", "source", "envelope", "topics", "key", "columns")
    for feed in checked.feeds.values():
        topics = ", ".join((*feed.topics, *(f"/{pattern}/" for pattern in feed.topic_patterns)))
        kind = f"{feed.source} ({feed.kind})"
        table.add_row(f"silver.{feed.name}", kind, feed.envelope, topics, ", ".join(feed.keys), str(len(feed.columns)))
    for source_name, source in checked.topics.sources.items():
        for rule in source.by_rule.values():
            topics = ", ".join(f"/{pattern}/" for pattern in rule.include)
            kind = f"{source_name} ({source.kind})"
            table.add_row(f"silver.{rule.name}", kind, "table", topics, "of the records", "of the events")
    console = wide_console()
    console.print(table)
    if not checked.gold.has_unified:
        console.print(NO_UNIFIED, soft_wrap=True)
    where = f" --contracts {contracts}" if contracts else ""
    console.print(styled(PASSED, f" No mistake. Next: lakehouse run{where} --dry-run"), soft_wrap=True)


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write: it must not exist, or be empty.")],
    *,
    from_topic: Annotated[
        str | None, typer.Option(help="Propose contracts from a sample of this topic's records.", show_default=False)
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            help="Propose a rule for all tables of this database (or schema of PostgreSQL), from samples of the "
            "broker's topics.",
            show_default=False,
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Begin contracts of your own: the packaged ones, or proposed from a topic or for a whole database, commented.

    No value of a record is written into a proposal, only counts, shapes and names of topics, tables and columns.

    Example: lakehouse init ./contracts --database order_dw --bootstrap-servers 127.0.0.1:9092
    """
    if from_topic and database:
        raise SettingsError("--from-topic and --database exclude each other.", hint="Give the one or the other.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} is there already, and not empty.", hint="Give a folder that does not exist.")
    texts = {name: packaged_text(name).replace("../lakehouse/contracts/schemas/", "../schemas/") for name in MODELS}
    found: DatabaseProposal | None = None
    if from_topic:
        texts = dict(_proposed(from_topic, connection(bootstrap_servers=bootstrap_servers, kafka_config=kafka_config)))
    elif database:
        found = _found(database, connection(bootstrap_servers=bootstrap_servers, kafka_config=kafka_config))
        texts = dict(found.texts)
    texts |= {
        f"schemas/{name}": (files("lakehouse.contracts") / "schemas" / name).read_text("utf-8") for name in SCHEMAS
    }
    if not dry_run:
        _write(folder, texts)
    if as_json:
        answer("init", {"folder": folder, "files": sorted(texts), "dry_run": dry_run, **_as_data(database, found)})
        return
    console = wide_console()
    if found is not None:
        from cli.proposal.texts.shown import shown

        console.print(shown(str(database), found.rows))
    console.print(f"{'Would write' if dry_run else 'Written'} to {folder}:", soft_wrap=True)
    for name in texts:
        console.print(f"  {name}")
    check = "check every comment in them" if from_topic or database else "edit them"
    console.print(f"Next: {check}, then: lakehouse validate --contracts {folder}", soft_wrap=True)


def _proposed(topic: str, kafka: KafkaConnection) -> Mapping[str, str]:
    from cli.proposal.broker import registered_schemas
    from cli.proposal.propose import propose
    from cli.proposal.sample import sample
    from lakehouse.kafka.broker import partitions
    from silver.by_rule.events import schema_ids

    with Steps(wide_console(stderr=True)).step("sample", f"reading some records of {topic}") as note:
        records = sample(kafka, topic)
        registered = registered_schemas(schema_ids(records), kafka)
        note(f"{len(records)} records of {topic}")
    heartbeats = [
        name for name in partitions(kafka) if name == f"__debezium-heartbeat.{topic.split('.', maxsplit=1)[0]}"
    ]
    return propose(topic, records, ignored_topics=heartbeats, registered=registered)


def _found(database: str, kafka: KafkaConnection) -> DatabaseProposal:
    from cli.proposal.broker import proposed_database

    with Steps(wide_console(stderr=True)).step("sample", f"looking for topics of {database}") as note:
        return proposed_database(database, kafka, note)


def _as_data(database: str | None, found: DatabaseProposal | None) -> Mapping[str, object]:
    if found is None:
        return {}
    from cli.proposal.texts.shown import as_data

    return {"database": database, "topics": as_data(found.rows)}


def _write(folder: Path, texts: dict[str, str]) -> None:
    """All files or none: a half-written folder would only be refused the next time."""
    try:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SettingsError(f"{folder} cannot be written: {error.strerror}.", hint="Give another folder.") from None
