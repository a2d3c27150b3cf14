"""The topics of a broker, looked at for a database: a few records of each, in bounded time. Imports without pyspark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from itertools import chain

from cli.proposal.database import DatabaseProposal, SchemaChanges, propose_database
from cli.proposal.looked import Looked, by_name, looked_at
from cli.proposal.sample import Unread, sample, samples
from cli.proposal.selected import may_be_of, select
from lakehouse.kafka.broker import TopicPartitions, partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.registry import registry
from lakehouse.process.steps import ProgressStep
from lakehouse.registered import RegisteredSchema
from silver.by_rule.events import schema_ids

RECORDS, SECONDS = 20, 60.0
SCHEMA_CHANGES, SCHEMA_SECONDS = 5_000, 20.0


def proposed_database(
    database: str, kafka: KafkaConnection, note: ProgressStep, *, records: int = RECORDS, seconds: float = SECONDS
) -> DatabaseProposal:
    """The contracts for a database, from at most so many `records` of each topic, read in about `seconds`.

    Raises what `propose_database` does; KafkaError and RegistryError when the broker or the registry does not answer.
    """
    known = partitions(kafka)
    looked = [one for topic in known if (one := by_name(topic)) is not None]
    to_read = {topic: known[topic] for topic in by_likelihood(database, known)}
    asked: dict[int, RegisteredSchema | None] = {}
    for some in samples(kafka, to_read, most=records, seconds=seconds):
        of_some = [found for found in some.values() if not isinstance(found, Unread)]
        _ask(schema_ids(chain(*of_some)), kafka, asked)
        for topic, found in some.items():
            if isinstance(found, Unread):
                looked.append(Looked(topic, "unread", found.why))
                continue
            read = looked_at(topic, found, _registered(kafka, asked))
            looked.append(read if may_be_of(database, read) else read.light())
        note.now(f"{len(looked)} of {len(known)} topics of the broker")
    changes = _schema_changes(kafka, select(database, looked).schema_changes, asked)
    count = sum(one.what != "unread" for one in looked)
    note(f"{count} of {len(known)} topics looked at")
    return propose_database(database, looked, schema_changes=changes, registered=_registered(kafka, asked))


def by_likelihood(database: str, topics: TopicPartitions) -> list[str]:
    """The topics that have to be read, those first whose name contains the database's."""
    to_read = [topic for topic in topics if by_name(topic) is None]
    return sorted(to_read, key=lambda topic: (database.lower() not in topic.lower(), topic))


def registered_schemas(ids: set[int], kafka: KafkaConnection) -> dict[int, RegisteredSchema] | None:
    """Those schemas of the registry that it has; None where none is named, or needed."""
    asked: dict[int, RegisteredSchema | None] = {}
    _ask(ids, kafka, asked)
    return _registered(kafka, asked) if ids else None


def _ask(ids: set[int], kafka: KafkaConnection, asked: dict[int, RegisteredSchema | None]) -> None:
    """Ask the registry for those that it was not asked for."""
    new = ids - asked.keys()
    if kafka.schema_registry is not None and new:
        with closing(registry(kafka.schema_registry)) as client:
            asked |= {number: client.schema(number) for number in new}


def _registered(
    kafka: KafkaConnection, asked: Mapping[int, RegisteredSchema | None]
) -> dict[int, RegisteredSchema] | None:
    if kafka.schema_registry is None:
        return None
    return {number: one for number, one in asked.items() if one is not None}


def _schema_changes(
    kafka: KafkaConnection, topic: str | None, asked: dict[int, RegisteredSchema | None]
) -> SchemaChanges:
    """What the topic of schema changes states, all of it where that is not too much."""
    if topic is None:
        return SchemaChanges()
    until = time.monotonic() + SCHEMA_SECONDS
    records = sample(kafka, topic, most=SCHEMA_CHANGES, seconds=SCHEMA_SECONDS)
    is_whole = len(records) < SCHEMA_CHANGES and time.monotonic() < until
    _ask(schema_ids(records), kafka, asked)
    return SchemaChanges(records, is_whole)
