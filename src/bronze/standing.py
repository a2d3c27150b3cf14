"""Where a source stands on its topics: by its checkpoint, else by the bronze table, and by what was last commanded."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from bronze.events import events_table
from bronze.offsets import Step, committed, first_offsets, job_name, require_same_topics, steps_of, stored
from lakehouse.contract_checks import require_told_apart
from lakehouse.contracts import Source
from lakehouse.kafka import require_topics
from lakehouse.kafka_client import KafkaConnection
from lakehouse.kafka_offsets import Ends, Partition, ends, topic_ids
from lakehouse.tables import Warehouse

# Topics of a broker, each with its partitions.
Known = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Standing:
    """Where a source stands: the `steps` of its last change, where each partition goes on, and the broker's ends.

    `unwritten` steps are not yet in `ops.batches`: those of partitions that no run has read.
    """

    source: str
    change: int
    topic_ids: Mapping[str, str]
    steps: Sequence[Step]
    unwritten: Sequence[Step]
    following: Mapping[Partition, int]
    ends: Mapping[Partition, Ends]

    @property
    def job(self) -> str:
        """The name of the stream's checkpoint."""
        return job_name(self.source, self.change)

    @property
    def read_again(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The offsets, from and to, that the last change has read a second time, by topic and partition."""
        return {step.place: (step.to_offset, step.from_offset) for step in self.steps if step.read_again}


def standing_of(
    warehouse: Warehouse,
    connection: KafkaConnection,
    source: str,
    contract: Source,
    *,
    known: Known,
    accepted: Container[str] = (),
) -> Standing:
    """Where the source stands, by its checkpoint; without one by the table itself, and by what was last commanded.

    Raises TopicMissingError when the broker lacks a topic of the contract, ContractError when one belongs to two feeds
    that cannot be told apart, TopicChangedError when one that was read
    is another one now, unless it is `accepted`: then it counts as never read.
    """
    require_topics(connection, contract, known=known)
    assigned = contract.assigned(known)
    require_told_apart(source, contract, assigned)
    ids = topic_ids(connection, assigned)
    all_steps = steps_of(warehouse, source)
    steps = [step for step in all_steps if step.topic not in accepted or ids.get(step.topic) == step.topic_id]
    require_same_topics(source, steps, topic_ids=ids, named=contract)
    change = max((step.change for step in all_steps), default=0)
    came: Mapping[Partition, int] = {}
    unwritten: list[Step] = []
    if steps:
        came = committed(warehouse, job_name(source, change))
    if steps and not came:
        # The checkpoint is lost, or no batch of it has ended yet: the table knows.
        going_on = by_the_table(steps, stored(warehouse.read(events_table(source).name)))
        came = {step.place: step.to_offset for step in going_on}
        if any(step.read_again > old.read_again for step, old in zip(going_on, steps, strict=True)):
            change += 1
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
    return Standing(source, change, ids, [*steps, *first_steps], [*unwritten, *first_steps], following, limits)


def by_the_table(steps: Sequence[Step], highest: Mapping[tuple[str, str, int], int]) -> list[Step]:
    """The steps, as far as the table has come: behind its `highest` offsets, except of what is to be read again."""
    after = {step.place: highest.get((step.topic, step.topic_id, step.partition), -1) + 1 for step in steps}
    return [
        replace(step, from_offset=max(step.from_offset, after[step.place]))
        if step.read_again
        else replace(step, to_offset=max(step.to_offset, after[step.place]))
        for step in steps
    ]
