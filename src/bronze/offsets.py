"""How far every source has read its topics, where a run begins, and what was skipped or read again on command.

The rows `step` of `ops.batches`, one for every topic-partition and change: change 0 is the first start, each
`lakehouse offsets set` is one more, and so is a partition that joins and does not begin at offset 0. A change gives the
stream a checkpoint of its own (`bronze/<source>`, then `bronze/<source>.1`, …), so nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze.checkpoint import committed, initial_offsets
from bronze.events import events_table
from lakehouse.batches import BATCHES, append, batches
from lakehouse.contracts.checks import require_distinguished
from lakehouse.contracts.topics import Source, Start, StartAtOffsets, StartAtTimestamp
from lakehouse.errors import RetentionGapError, SettingsError, TopicChangedError
from lakehouse.kafka.broker import TopicPartitions, require_topics
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition, ends, offsets_at_time, topic_ids
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    steps: Sequence[Step]
    unwritten: Sequence[Step]
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
        return {step.place: (step.to_offset, step.from_offset) for step in self.steps if step.read_again}


def offsets_of_source(
    warehouse: Warehouse,
    connection: KafkaConnection,
    source: str,
    contract: Source,
    *,
    known: TopicPartitions,
    accepted: Container[str] = (),
) -> SourceOffsets:
    """How far the source has read, by its checkpoint; without one by the table itself, and by what was last commanded.

    Raises TopicMissingError when the broker lacks a topic of the contract, ContractError when one belongs to two feeds
    that cannot be distinguished, TopicChangedError when one that was read is another one now, unless it is `accepted`:
    then it counts as never read.
    """
    require_topics(connection, contract, known=known)
    assigned = contract.assigned(known)
    require_distinguished(source, contract, assigned)
    ids = topic_ids(connection, assigned)
    all_steps, sequence = steps_of(warehouse, source)
    steps = [step for step in all_steps if step.topic not in accepted or ids.get(step.topic) == step.topic_id]
    require_same_topics(source, steps, topic_ids=ids, named=contract)
    change = max((step.change for step in all_steps), default=0)
    came: Mapping[Partition, int] = {}
    unwritten: list[Step] = []
    if steps:
        came = committed(warehouse, job_name(source, change))
    begun = came or (initial_offsets(warehouse, job_name(source, change)) if steps else {})
    # A batch of a checkpoint that is there is repeated.
    may_lack_a_batch = bool(steps) and not begun
    if steps and not came:
        # The checkpoint is lost, or no batch of it has ended yet: the table knows.
        going_on = by_the_table(steps, stored(warehouse.read(events_table(source).name)))
        came = {step.place: step.to_offset for step in going_on}
        if any(step.read_again > old.read_again for step, old in zip(going_on, steps, strict=True)):
            change, begun = change + 1, {}
            steps = unwritten = [replace(step, change=change, reason="the checkpoint was lost") for step in going_on]
    places = [Partition(topic, number) for topic in assigned for number in known[topic]]
    limits = ends(connection, places)
    new = [place for place in places if place not in {step.place for step in steps}]
    # A partition that comes later is read whole: `start` is for the first run.
    begin = "earliest" if all_steps else contract.start
    first = first_offsets(connection, begin, new, limits)
    first_steps = [
        Step(source, change, place.topic, ids[place.topic], place.number, limits[place].earliest, first[place], "start")
        for place in new
    ]
    following = {step.place: step.to_offset for step in (*steps, *first_steps)}
    following |= {place: offset for place, offset in came.items() if place in following}
    all_steps_now, unwritten = [*steps, *first_steps], [*unwritten, *first_steps]
    if cannot_join(following, begun):
        change, may_lack_a_batch = change + 1, True
        highest = stored(warehouse.read(events_table(source).name))
        all_steps_now = unwritten = [
            replace(step, change=change, reason="a partition joined whose first records are gone")
            for step in steps_from(all_steps_now, following, highest)
        ]
        following = {step.place: step.to_offset for step in all_steps_now}
    return SourceOffsets(
        source, change, ids, all_steps_now, unwritten, following, limits, sequence + 1, may_lack_a_batch
    )


def cannot_join(following: Mapping[Partition, int], begun: Mapping[Partition, int]) -> list[Partition]:
    """The partitions that a stream cannot take up: Spark reads one that joins from offset 0, and they begin later.

    `begun`: the partitions that the stream's checkpoint has; empty where there is no checkpoint yet.
    """
    return [place for place, offset in following.items() if begun and place not in begun and offset > 0]


def steps_from(
    steps: Sequence[Step], following: Mapping[Partition, int], highest: Mapping[tuple[str, str, int], int]
) -> list[Step]:
    """The steps of a new checkpoint with which every partition goes on as before: nothing is skipped or stored twice.

    `highest`: of bronze, which may have more than the last batch that has ended. Offsets that were being read again
    still are.
    """
    found = []
    for step in steps:
        going_on = following[step.place]
        after = max(going_on, highest.get((step.topic, step.topic_id, step.partition), -1) + 1)
        known = max(step.from_offset, after) if step.read_again else after
        found.append(replace(step, from_offset=known, to_offset=going_on if step.read_again else known))
    return found


def by_the_table(steps: Sequence[Step], highest: Mapping[tuple[str, str, int], int]) -> list[Step]:
    """The steps, as far as the table has come: behind its `highest` offsets, except of what is to be read again."""
    after = {step.place: highest.get((step.topic, step.topic_id, step.partition), -1) + 1 for step in steps}
    return [
        replace(step, from_offset=max(step.from_offset, after[step.place]))
        if step.read_again
        else replace(step, to_offset=max(step.to_offset, after[step.place]))
        for step in steps
    ]


@dataclass(frozen=True)
class Step:
    """Where one partition is read from after a change: it was at `from_offset`, and goes on at `to_offset`.

    Of a first start, `from_offset` is the earliest offset that the broker had. `skipped` records lie between and are
    not read; of `read_again` records those that bronze lacks are stored.
    """

    source: str
    change: int
    topic: str
    topic_id: str
    partition: int
    from_offset: int
    to_offset: int
    reason: str

    @property
    def skipped(self) -> int:
        """How many offsets are passed over."""
        return max(self.to_offset - self.from_offset, 0)

    @property
    def read_again(self) -> int:
        """How many offsets are read a second time."""
        return max(self.from_offset - self.to_offset, 0)

    @property
    def place(self) -> Partition:
        """Topic and partition."""
        return Partition(self.topic, self.partition)


def steps_of(warehouse: Warehouse, source: str) -> tuple[list[Step], int]:
    """The steps of the source's last change, none before its first run; and the highest `sequence` of its batches."""
    if not warehouse.exists(BATCHES.name):
        return [], 0
    of_source = batches(warehouse, "bronze").where(F.col("source") == source)
    # Few: a row a partition, and one more for each time that it was moved by command.
    steps = steps_in(of_source).select(*Step.__dataclass_fields__)
    highest = of_source.agg(F.coalesce(F.max("sequence"), F.lit(0)).alias("sequence"))
    rows = steps.unionByName(highest, allowMissingColumns=True).collect()
    (sequence,) = [row["sequence"] for row in rows if row["sequence"] is not None]
    found = [Step(**{name: row[name] for name in Step.__dataclass_fields__}) for row in rows if row["sequence"] is None]
    last = max((step.change for step in found), default=0)
    # One row a partition: a partition that came later has its own, under the same change.
    found = sorted((step for step in found if step.change == last), key=lambda step: (step.topic, step.partition))
    return found, sequence


def steps_in(batches: DataFrame) -> DataFrame:
    """The steps in `ops.batches`: source, TOPIC_PARTITION and the fields of `step`."""
    return batches.where("step IS NOT NULL").select("source", *TOPIC_PARTITION, "step.*")


def write_down(warehouse: Warehouse, steps: Sequence[Step]) -> None:
    """Append the steps to `ops.batches`."""
    if steps:
        of_step = ("change", "from_offset", "to_offset", "skipped", "read_again", "reason")
        rows = [
            {
                **{name: getattr(step, name) for name in ("source", *TOPIC_PARTITION)},
                "step": {name: getattr(step, name) for name in of_step},
            }
            for step in steps
        ]
        append(warehouse, "bronze", rows)


def job_name(source: str, change: int) -> str:
    """The name of the stream's checkpoint after so many changes."""
    return f"bronze/{source}" if change == 0 else f"bronze/{source}.{change}"


def stored(events: DataFrame) -> dict[tuple[str, str, int], int]:
    """The highest offset in bronze of every topic, topic id and partition."""
    rows = events.groupBy("topic", "_topic_id", "partition").agg(F.max("offset").alias("offset")).collect()
    return {(row["topic"], row["_topic_id"], row["partition"]): row["offset"] for row in rows}


def require_same_topics(source: str, steps: Iterable[Step], *, topic_ids: Mapping[str, str], named: Source) -> None:
    """Raise TopicChangedError when the source has read a topic that is another one now, or is no longer its own."""
    for topic, topic_id in sorted({(step.topic, step.topic_id) for step in steps}):
        if topic not in topic_ids:
            where = "on the broker" if named.names(topic) else "in the contract"
            raise TopicChangedError(
                f"bronze: source {source} has read topic {topic}, which is not {where} any more.",
                remedy="Put it back; or give it up: "
                f"lakehouse offsets forget {source} --topic {topic}. What was read of it stays.",
            )
        if topic_ids[topic] != topic_id:
            raise TopicChangedError(
                f"bronze: topic {topic} was deleted and made again since source {source} read it "
                f"(topic id {topic_id}, now {topic_ids[topic]}). Nothing was read.",
                remedy=f"To read the new one: lakehouse offsets set {source} --topic {topic} --to earliest.",
            )


def require_no_gap(source: str, following: Mapping[Partition, int], ends: Mapping[Partition, Ends]) -> None:
    """Raise RetentionGapError when records that were never read are gone from the broker, naming each range."""
    gaps = [
        f"{place.topic} partition {place.number}: offsets {offset} to {ends[place].earliest - 1}"
        for place, offset in sorted(following.items())
        if offset < ends[place].earliest
    ]
    if gaps:
        raise RetentionGapError(
            f"bronze: source {source}: records that were never read are gone from the broker: {'; '.join(gaps)}.",
            remedy="Nothing was skipped. To go on without them, and have that written down: "
            f"lakehouse offsets set {source} --to earliest --only-gaps.",
        )


def first_offsets(
    connection: KafkaConnection, start: Start, places: Iterable[Partition], ends: Mapping[Partition, Ends]
) -> dict[Partition, int]:
    """Where the very first run begins, by the contract's `start`."""
    places = list(places)
    if isinstance(start, StartAtOffsets):
        given = {
            Partition(topic, number): offset
            for topic, numbers in start.offsets.items()
            for number, offset in numbers.items()
        }
        return {place: within(given.get(place, ends[place].earliest), ends[place], place) for place in places}
    if isinstance(start, StartAtTimestamp):
        return at_time(connection, start.timestamp, places, ends)
    return {place: ends[place].earliest if start == "earliest" else ends[place].latest for place in places}


def at_time(
    connection: KafkaConnection, moment: datetime, places: Sequence[Partition], ends: Mapping[Partition, Ends]
) -> dict[Partition, int]:
    """The first record of every partition that is not older than the moment; the end where all are older.

    Without a zone the moment is UTC.
    """
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    found = offsets_at_time(connection, places, timestamp_ms=int(aware.timestamp() * 1000))
    return {place: ends[place].latest if found[place] is None else (found[place] or 0) for place in places}


def within(offset: int, ends: Ends, place: Partition) -> int:
    """The offset. Raises SettingsError when the partition has no such offset."""
    if not ends.earliest <= offset <= ends.latest:
        raise SettingsError(
            f"Topic {place.topic}, partition {place.number} has no offset {offset}.",
            remedy=f"It has {ends.earliest} to {ends.latest} (the end).",
        )
    return offset
