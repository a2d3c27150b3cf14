"""How far a topic is published: a record on its progress topic, written in the same transaction as the rows.

So it states what readers of committed records have, whatever died when. A topic that is deleted takes nothing along:
the position names the topic by its id, and its format.
"""

from __future__ import annotations

from pydantic import AliasChoices, Field, ValidationError

from lakehouse.contracts.models import CompactedTopic
from lakehouse.contracts.parts.base import Model
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import last_record
from lakehouse.kafka.offsets import topic_ids
from lakehouse.versions import Version


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
    # Earlier releases have written it as `places`.
    sources: dict[str, SourcePosition] = Field(default_factory=dict, validation_alias=AliasChoices("sources", "places"))

    def without(self, sources: tuple[str, ...]) -> PublishPosition:
        """The publish position without these sources."""
        left = {name: source_position for name, source_position in self.sources.items() if name not in sources}
        return PublishPosition(generation=self.generation, sources=left)

    def at(self, sources: tuple[str, ...], source_position: SourcePosition) -> PublishPosition:
        """The publish position with these sources at that commit."""
        return PublishPosition(
            generation=self.generation, sources={**self.sources, **dict.fromkeys(sources, source_position)}
        )


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
    last = last_record(connection, topic)
    if last is None or last.value is None:
        return PublishPosition()
    try:
        return PublishPosition.model_validate_json(last.value)
    except ValidationError:
        raise KafkaError(
            f"Topic {topic} does not say how far the publication has come in a way that this release can read.",
            hint="Run the release that wrote it. Or delete that topic: the next run compares the published one with "
            "its table, and sends what differs.",
        ) from None


def published_version(
    source_position: SourcePosition | None, now: Version, *, shape: str, republish: bool, table: str
) -> tuple[Version | None, str | None]:
    """What the topic has of a source; where it cannot be gone on from, the reason. `table`: how sentences call it."""
    if republish:
        return None, "it was asked for"
    if source_position is None:
        return None, "nothing is known to be published of it"
    if source_position.shape != shape:
        return None, "the topic was created again, or its format or columns are others"
    before = Version(now.table, source_position.created_ms, source_position.version)
    if not before.goes_on_to(now):
        return None, f"{table} was rebuilt, or restored to an earlier version"
    return before, None
