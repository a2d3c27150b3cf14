"""How far a topic is published: a record on its progress topic, written in the same transaction as the rows.

So it states what readers of committed records have, whatever died when. A topic that is deleted takes nothing along:
the position names the topic by its id, and its format.
"""

from __future__ import annotations

from pydantic import Field, ValidationError

from lakehouse.consumed import Version
from lakehouse.contracts.base import Model
from lakehouse.contracts.models import CompactedTopic
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from lakehouse.kafka.offsets import topic_ids


class SourcePosition(Model):
    """A source's position: the topic has it as it is in commit `version` of the table made at `created_ms`."""

    created_ms: int
    version: int
    shape: str
    """Which topic, by its id, and what its records look like."""


class PublishPosition(Model):
    """The generation of the newest records, and the position of each source; none while it is published in parts.

    Of the unified topic a source is one of gold's; of an upsert topic there is one, the table, by its name.
    """

    generation: int = 0
    places: dict[str, SourcePosition] = Field(default_factory=dict)

    def without(self, sources: tuple[str, ...]) -> PublishPosition:
        """The publish position without these sources."""
        left = {name: place for name, place in self.places.items() if name not in sources}
        return PublishPosition(generation=self.generation, places=left)

    def at(self, sources: tuple[str, ...], place: SourcePosition) -> PublishPosition:
        """The publish position with these sources at that commit."""
        return PublishPosition(generation=self.generation, places={**self.places, **dict.fromkeys(sources, place)})


def position_and_id(connection: KafkaConnection, topic: CompactedTopic) -> tuple[PublishPosition, str]:
    """The publish position, and the id of the topic as it is now; both empty where there is no topic."""
    known, position, topic_id = partitions(connection), PublishPosition(), ""
    if topic.topic in known:
        topic_id = topic_ids(connection, [topic.topic])[topic.topic]
    if topic.progress_topic in known:
        position = read_publish_position(connection, topic.progress_topic)
    return position, topic_id


def read_publish_position(connection: KafkaConnection, topic: str) -> PublishPosition:
    """The last publish position on the progress topic; an empty one where there is none.

    Raises KafkaError when it cannot be read: another release wrote it.
    """
    last = None
    for record in committed_records(connection, topic):
        last = record.value
    if last is None:
        return PublishPosition()
    try:
        return PublishPosition.model_validate_json(last)
    except ValidationError:
        raise KafkaError(
            f"Topic {topic} does not say how far the publication has come in a way that this release can read.",
            remedy="Run the release that wrote it. Or delete that topic: the next run compares the published one with "
            "its table, and sends what differs.",
        ) from None


def published_version(
    place: SourcePosition | None, now: Version, *, shape: str, republish: bool, table: str
) -> tuple[Version | None, str | None]:
    """What the topic has of a source; where it cannot be gone on from, the reason. `table`: how sentences call it."""
    if republish:
        return None, "it was asked for"
    if place is None:
        return None, "nothing is known to be published of it"
    if place.shape != shape:
        return None, "the topic was created again, or its format or columns are others"
    before = Version(now.table, place.created_ms, place.version)
    if not before.goes_on_to(now):
        return None, f"{table} was rebuilt, or restored to an earlier version"
    return before, None
