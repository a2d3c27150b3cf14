"""How far the publication has come: a record on the progress topic, written in the same transaction as the orders.

So it says what readers of committed records have, whatever died when. A topic that is deleted takes nothing along: the
marker names the topic by its id, and what the records look like.
"""

from __future__ import annotations

from hashlib import sha256

from pydantic import Field, ValidationError

from gold.columns import unified
from lakehouse.contracts import Contracts, Model
from lakehouse.errors import KafkaError
from lakehouse.kafka import partitions
from lakehouse.kafka_client import KafkaConnection
from lakehouse.kafka_log import committed_records
from lakehouse.kafka_offsets import topic_ids


class Place(Model):
    """A source's place: the topic has it as it is in commit `version` of the gold table made at `created_ms`."""

    created_ms: int
    version: int
    shape: str
    """Which topic, and what its records look like: see `shape_of`."""


class Marker(Model):
    """The generation of the newest records, and the place of each source; none while it is published in parts."""

    generation: int = 0
    places: dict[str, Place] = Field(default_factory=dict)

    def without(self, sources: tuple[str, ...]) -> Marker:
        """The marker without a place of these sources."""
        left = {name: place for name, place in self.places.items() if name not in sources}
        return Marker(generation=self.generation, places=left)

    def at(self, sources: tuple[str, ...], place: Place) -> Marker:
        """The marker with these sources in that place."""
        return Marker(generation=self.generation, places={**self.places, **dict.fromkeys(sources, place)})


def shape_of(contracts: Contracts, *, topic_id: str) -> str:
    """The topic's id, the format and the columns: other records are published whole."""
    publication = contracts.gold.publication
    columns = sha256(str(list(unified(contracts.gold).items())).encode()).hexdigest()[:16]
    return f"{topic_id} {publication.format} {columns}"


def standing(connection: KafkaConnection, contracts: Contracts) -> tuple[Marker, str]:
    """The marker, and the shape of records for the topic as it is now; both empty where there is no topic."""
    publication = contracts.gold.publication
    known, marker, topic_id = partitions(connection), Marker(), ""
    if publication.topic in known:
        topic_id = topic_ids(connection, [publication.topic])[publication.topic]
    if publication.progress_topic in known:
        marker = read_marker(connection, publication.progress_topic)
    return marker, shape_of(contracts, topic_id=topic_id)


def read_marker(connection: KafkaConnection, topic: str) -> Marker:
    """The last marker on the progress topic; an empty one where there is none.

    Raises KafkaError when it cannot be read: another release wrote it.
    """
    last = None
    for record in committed_records(connection, topic):
        last = record.value
    if last is None:
        return Marker()
    try:
        return Marker.model_validate_json(last)
    except ValidationError:
        raise KafkaError(
            f"Topic {topic} does not say how far the publication has come in a way that this release can read.",
            remedy="Run the release that wrote it. Or delete that topic: the next run compares the published one with "
            "gold, and sends what differs.",
        ) from None
