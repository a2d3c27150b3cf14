"""Moving a source on its topics by command: forward past records, or back to read some again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from bronze.events import events_table
from bronze.offsets import SourceOffsets, at_time, offsets_of_source, within
from bronze.source_state import OffsetMove, stored, write_down
from lakehouse.batches import BATCHES
from lakehouse.contracts.topics import Source
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import SettingsError
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition


@dataclass(frozen=True)
class Move:
    """What is asked for. `to`: earliest, latest, a time (ISO 8601), or an offset.

    `topic` and `partition` narrow it down; `only_gaps` to the partitions whose next record is gone from the broker.
    """

    to: str
    topic: str | None = None
    partition: int | None = None
    only_gaps: bool = False
    reason: str = ""


def planned(
    warehouse: Warehouse,
    connection: KafkaConnection,
    source: str,
    contract: Source,
    *,
    known: TopicPartitions,
    move: Move,
) -> list[OffsetMove]:
    """The steps that the move would make: one for every partition of the source, moved or not. Changes nothing.

    Raises SettingsError when the move means no partition, or an offset that a partition does not have.
    """
    accepted = known if move.topic is None else (move.topic,)
    source_offsets = offsets_of_source(warehouse, connection, source, contract, known=known, accepted=accepted)
    meant = _meant(source, source_offsets, move)
    targets = _targets(connection, source_offsets, meant, move)
    highest = stored(warehouse.read(events_table(source).name)) if warehouse.exists(events_table(source).name) else {}
    return [
        replace(
            step,
            change=source_offsets.change + 1,
            to_offset=targets.get(step.topic_partition, step.from_offset),
            reason=move.reason,
        )
        for step in _steps_from_here(source_offsets, highest)
    ]


def forgotten(
    warehouse: Warehouse,
    connection: KafkaConnection,
    source: str,
    contract: Source,
    *,
    known: TopicPartitions,
    topic: str,
) -> list[OffsetMove]:
    """The steps after which the source has never read the topic; its records stay in bronze. Changes nothing.

    Raises SettingsError when the contract still names the topic, and the broker has it.
    """
    if contract.names(topic) and topic in known:
        raise SettingsError(
            f"The contract gives topic {topic} to source {source}, and the broker has it.",
            hint="Take it out of bronze/topics.yaml first.",
        )
    source_offsets = offsets_of_source(warehouse, connection, source, contract, known=known, accepted=(topic,))
    highest = stored(warehouse.read(events_table(source).name)) if warehouse.exists(events_table(source).name) else {}
    reason = f"topic {topic} was given up"
    return [
        replace(step, change=source_offsets.change + 1, to_offset=step.from_offset, reason=reason)
        for step in _steps_from_here(source_offsets, highest)
    ]


def carry_out(warehouse: Warehouse, steps: list[OffsetMove]) -> None:
    """Write the steps down: the next run of bronze begins there, under a checkpoint of its own."""
    warehouse.ensure(BATCHES)
    write_down(warehouse, steps)


def _steps_from_here(source_offsets: SourceOffsets, highest: Mapping[tuple[str, str, int], int]) -> list[OffsetMove]:
    """Every partition with its next offset. What bronze has of a batch that has not ended counts as read."""
    reread = source_offsets.read_again
    return [
        replace(
            step,
            from_offset=source_offsets.following[step.topic_partition]
            if step.topic_partition in reread
            else max(
                source_offsets.following[step.topic_partition],
                highest.get((step.topic, step.topic_id, step.partition), -1) + 1,
            ),
        )
        for step in source_offsets.steps
    ]


def _meant(source: str, source_offsets: SourceOffsets, move: Move) -> list[Partition]:
    meant = [
        topic_partition
        for topic_partition, offset in source_offsets.following.items()
        if move.topic in {None, topic_partition.topic}
        and move.partition in {None, topic_partition.number}
        and (not move.only_gaps or offset < source_offsets.ends[topic_partition].earliest)
    ]
    if not meant:
        topics = ", ".join(sorted({topic_partition.topic for topic_partition in source_offsets.following}))
        what = "has a gap" if move.only_gaps else f"is topic {move.topic} partition {move.partition}"
        raise SettingsError(f"No partition of source {source} {what}.", hint=f"Its topics are: {topics}.")
    return meant


def _targets(
    connection: KafkaConnection, source_offsets: SourceOffsets, meant: list[Partition], move: Move
) -> dict[Partition, int]:
    if move.to == "earliest":
        return {topic_partition: source_offsets.ends[topic_partition].earliest for topic_partition in meant}
    if move.to == "latest":
        return {topic_partition: source_offsets.ends[topic_partition].latest for topic_partition in meant}
    if move.to.isdigit():
        if len(meant) > 1:
            raise SettingsError(
                f"An offset is of one partition, and this means {len(meant)}.", hint="Give --topic and --partition."
            )
        return {
            topic_partition: within(int(move.to), source_offsets.ends[topic_partition], topic_partition)
            for topic_partition in meant
        }
    try:
        moment = datetime.fromisoformat(move.to)
    except ValueError:
        raise SettingsError(
            f"{move.to!r} is no place on a topic.",
            hint="Give earliest, latest, a time as 2026-01-31T12:00:00, or an offset.",
        ) from None
    return at_time(connection, moment, meant, source_offsets.ends)
