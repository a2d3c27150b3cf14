"""How far every source has read its topics: where a run goes on, and where a first one begins."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bronze.checkpoint import committed, initial_offsets, last_begun
from bronze.events import events_table
from bronze.source_state import OffsetMove, SourceState, by_the_table, job_name, read_states, steps_from, stored
from lakehouse.contracts.checks.references import require_distinguished
from lakehouse.contracts.topics import Source, Start, StartAtOffsets, StartAtTimestamp
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import RetentionGapError, SettingsError, TopicChangedError
from lakehouse.kafka.broker import Admin, TopicPartitions, require_topics
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition, ends, offsets_at_time, topic_ids

LOST = "the checkpoint was lost"


@dataclass(frozen=True)
class SourceOffsets:
    """How far a source has read: the `steps` of its last change, where each partition goes on, and the broker's ends.

    `unwritten` steps are not yet in `ops.batches`: those of partitions that no run has read. `sequence`: above that of
    all batches of the source so far. `may_lack_a_batch`: whether one of an earlier checkpoint may be in bronze, and not
    be written down.
    """

    source: str
    change: int
    topic_ids: Mapping[str, str]
    steps: Sequence[OffsetMove]
    unwritten: Sequence[OffsetMove]
    following: Mapping[Partition, int]
    ends: Mapping[Partition, Ends]
    sequence: int = 0
    may_lack_a_batch: bool = False

    @property
    def job(self) -> str:
        """The name of the stream's checkpoint."""
        return job_name(self.source, self.change)

    @property
    def read_again(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The offsets, from and to, that the last change has read a second time, by topic and partition."""
        return {step.topic_partition: (step.to_offset, step.from_offset) for step in self.steps if step.read_again}


def offsets_of_source(
    warehouse: Warehouse,
    connection: KafkaConnection,
    source: str,
    contract: Source,
    *,
    known: TopicPartitions,
    accepted: Container[str] = (),
    state: SourceState | None = None,
) -> SourceOffsets:
    """How far the source has read, by its checkpoint; without one by the table itself, and by what was last commanded.

    `state`: what `ops.batches` says of the source; None: it is read.

    Raises TopicMissingError when the broker lacks a topic of the contract, ContractError when one belongs to two feeds
    that cannot be distinguished, TopicChangedError when one that was read is another one now, unless it is `accepted`:
    then it counts as never read.
    """
    require_topics(connection, contract, known=known)
    assigned = contract.assigned(known)
    require_distinguished(source, contract, assigned)
    state = read_states(warehouse, [source])[source] if state is None else state
    all_steps = state.steps
    with closing(Admin(connection)) as admin:
        ids = topic_ids(connection, assigned, kept=admin)
        topic_partitions = [Partition(topic, number) for topic in assigned for number in known[topic]]
        limits = ends(connection, topic_partitions, kept=admin)
    steps = [step for step in all_steps if step.topic not in accepted or ids.get(step.topic) == step.topic_id]
    require_same_topics(source, steps, topic_ids=ids, named=contract)
    change = max((step.change for step in all_steps), default=0)
    came: Mapping[Partition, int] = {}
    unwritten: list[OffsetMove] = []
    if steps:
        came = committed(warehouse, job_name(source, change))
    begun = came or (initial_offsets(warehouse, job_name(source, change)) if steps else {})
    # A batch of a checkpoint that is there is repeated.
    may_lack_a_batch = bool(steps) and not begun
    is_another = bool(came) and not is_own_checkpoint(warehouse, job_name(source, change), state=state, came=came)
    if is_another:
        # As one that is lost; and it stays where it is, so the stream gets a new one.
        came, begun, may_lack_a_batch = {}, {}, True
    if steps and not came:
        # The checkpoint is lost, or no batch of it has ended yet: the table knows.
        resumed = by_the_table(steps, stored(warehouse.read(events_table(source).name)))
        came = {step.topic_partition: step.to_offset for step in resumed}
        reads_again = any(step.read_again > old.read_again for step, old in zip(resumed, steps, strict=True))
        if reads_again or is_another:
            change, begun = change + 1, {}
            reason = "the checkpoint was that of another stream, or an older one" if is_another else LOST
            steps = unwritten = [replace(step, change=change, reason=reason) for step in resumed]
    new = [
        topic_partition
        for topic_partition in topic_partitions
        if topic_partition not in {step.topic_partition for step in steps}
    ]
    # A partition that comes later is read whole: `start` is for the first run.
    begin = "earliest" if all_steps else contract.start
    first = first_offsets(connection, begin, new, limits)
    first_steps = [
        OffsetMove(
            source,
            change,
            topic_partition.topic,
            ids[topic_partition.topic],
            topic_partition.number,
            limits[topic_partition].earliest,
            first[topic_partition],
            "start",
        )
        for topic_partition in new
    ]
    following = {step.topic_partition: step.to_offset for step in (*steps, *first_steps)}
    following |= {topic_partition: offset for topic_partition, offset in came.items() if topic_partition in following}
    all_steps_now, unwritten = [*steps, *first_steps], [*unwritten, *first_steps]
    if cannot_join(following, begun):
        change, may_lack_a_batch = change + 1, True
        highest = stored(warehouse.read(events_table(source).name))
        all_steps_now = unwritten = [
            replace(step, change=change, reason="a partition joined whose first records are gone")
            for step in steps_from(all_steps_now, following, highest)
        ]
        following = {step.topic_partition: step.to_offset for step in all_steps_now}
    return SourceOffsets(
        source, change, ids, all_steps_now, unwritten, following, limits, state.last.sequence + 1, may_lack_a_batch
    )


def is_own_checkpoint(warehouse: Warehouse, job: str, *, state: SourceState, came: Mapping[Partition, int]) -> bool:
    """Whether the checkpoint is where the source's last batch has left it.

    `came`: how far it says that it has come. One that was copied from another stream, or put back from a backup, would
    go on with offsets that are not those of the table: with an earlier offset Delta takes new records for those of a
    batch that it has, with a later one nobody reads what is in between.
    """
    known = {step.topic_partition for step in state.steps}
    is_of_source = came.keys() <= known
    last = state.last
    if not last.checkpoint:  # nothing of it was written down under a checkpoint
        return is_of_source
    is_same = warehouse.checkpoint_id(job) == last.checkpoint
    return is_of_source and is_same and last_begun(warehouse, job) >= last.number


def cannot_join(following: Mapping[Partition, int], begun: Mapping[Partition, int]) -> list[Partition]:
    """The partitions that a stream cannot take up: Spark reads one that joins from offset 0, and they begin later.

    `begun`: the partitions that the stream's checkpoint has; empty where there is no checkpoint yet.
    """
    return [
        topic_partition
        for topic_partition, offset in following.items()
        if begun and topic_partition not in begun and offset > 0
    ]


def require_same_topics(
    source: str, steps: Iterable[OffsetMove], *, topic_ids: Mapping[str, str], named: Source
) -> None:
    """Raise TopicChangedError when the source has read a topic that is another one now, or is no longer its own."""
    read = sorted({(step.topic, step.topic_id) for step in steps})
    for topic, _topic_id in read:
        if topic not in topic_ids:
            where = "on the broker" if named.names(topic) else "in the contract"
            raise TopicChangedError(
                f"bronze: source {source} has read topic {topic}, which is not {where} any more.",
                hint="Put it back; or give it up: "
                f"lakehouse offsets forget {source} --topic {topic}. What was read of it stays.",
            )
    changed = [(topic, topic_id) for topic, topic_id in read if topic_ids[topic] != topic_id]
    if len(changed) == 1:
        ((topic, topic_id),) = changed
        raise TopicChangedError(
            f"bronze: topic {topic} was deleted and made again since source {source} read it "
            f"(topic id {topic_id}, now {topic_ids[topic]}). Nothing was read.",
            hint=f"To read the new one: lakehouse offsets set {source} --topic {topic} --to earliest.",
        )
    if changed:
        # One command for all: while another one has changed, moving a single topic is refused as well.
        raise TopicChangedError(
            f"bronze: topics were deleted and made again since source {source} read them: "
            f"{', '.join(topic for topic, _topic_id in changed)}. Nothing was read.",
            hint=f"To read the new ones: lakehouse offsets set {source} --to earliest. It reads its other topics "
            "again too, and stores of them only what bronze lacks.",
        )


def require_no_gap(source: str, following: Mapping[Partition, int], ends: Mapping[Partition, Ends]) -> None:
    """Raise RetentionGapError when records that were never read are gone from the broker, naming each range."""
    gaps = [
        f"{read.topic} partition {read.number}: offsets {offset} to {ends[read].earliest - 1}"
        for read, offset in sorted(following.items())
        if offset < ends[read].earliest
    ]
    if gaps:
        raise RetentionGapError(
            f"bronze: source {source}: records that were never read are gone from the broker: {'; '.join(gaps)}.",
            hint="Nothing was skipped. To go on without them, and have that written down: "
            f"lakehouse offsets set {source} --to earliest --only-gaps.",
        )


def first_offsets(
    connection: KafkaConnection, start: Start, topic_partitions: Iterable[Partition], ends: Mapping[Partition, Ends]
) -> dict[Partition, int]:
    """Where the very first run begins, by the contract's `start`."""
    topic_partitions = list(topic_partitions)
    if isinstance(start, StartAtOffsets):
        given = {
            Partition(topic, number): offset
            for topic, numbers in start.offsets.items()
            for number, offset in numbers.items()
        }
        return {
            topic_partition: within(
                given.get(topic_partition, ends[topic_partition].earliest), ends[topic_partition], topic_partition
            )
            for topic_partition in topic_partitions
        }
    if isinstance(start, StartAtTimestamp):
        return at_time(connection, start.timestamp, topic_partitions, ends)
    return {
        topic_partition: ends[topic_partition].earliest if start == "earliest" else ends[topic_partition].latest
        for topic_partition in topic_partitions
    }


def at_time(
    connection: KafkaConnection, moment: datetime, topic_partitions: Sequence[Partition], ends: Mapping[Partition, Ends]
) -> dict[Partition, int]:
    """The first record of every partition that is not older than the moment; the end where all are older.

    Without a zone the moment is UTC.
    """
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    found = offsets_at_time(connection, topic_partitions, timestamp_ms=int(aware.timestamp() * 1000))
    return {
        topic_partition: ends[topic_partition].latest
        if found[topic_partition] is None
        else (found[topic_partition] or 0)
        for topic_partition in topic_partitions
    }


def within(offset: int, ends: Ends, topic_partition: Partition) -> int:
    """The offset. Raises SettingsError when the partition has no such offset."""
    if not ends.earliest <= offset <= ends.latest:
        raise SettingsError(
            f"Topic {topic_partition.topic}, partition {topic_partition.number} has no offset {offset}.",
            hint=f"It has {ends.earliest} to {ends.latest} (the end).",
        )
    return offset
