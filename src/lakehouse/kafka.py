"""What the jobs ask a broker before they start: is it there, and does it have the topics?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.errors import KafkaError, TopicMissingError

TIMEOUT_SECONDS = 10.0


def client_config(bootstrap_servers: str) -> dict[str, Any]:
    """Settings that every librdkafka client here has: its own log lines would only repeat our errors."""
    return {"bootstrap.servers": bootstrap_servers, "log_level": 0, "error_cb": lambda _error: None}


def partitions(bootstrap_servers: str) -> Mapping[str, tuple[int, ...]]:
    """Every topic of the broker with its partitions. Raises KafkaError when the broker does not answer in 10 s."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        metadata = AdminClient(client_config(bootstrap_servers)).list_topics(timeout=TIMEOUT_SECONDS)
    except KafkaException:
        raise KafkaError(
            f"No Kafka broker answers at {bootstrap_servers} (waited {TIMEOUT_SECONDS:.0f} s).",
            remedy="Check --bootstrap-servers and that the broker is up and reachable from here.",
        ) from None
    return {name: tuple(sorted(topic.partitions)) for name, topic in metadata.topics.items()}


def require_topics(bootstrap_servers: str, topics: Iterable[str], *, known: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TopicMissingError, naming every topic of `topics` that is not among the `known` ones of the broker."""
    missing = sorted(set(topics) - set(known))
    if missing:
        one = len(missing) == 1
        raise TopicMissingError(
            f"{'Topic' if one else 'Topics'} {', '.join(missing)} {'is' if one else 'are'} not on {bootstrap_servers}.",
            remedy="Start the connector that publishes there, create the topic, or take it out of bronze/topics.yaml.",
        )


def ensure_compacted_topic(bootstrap_servers: str, topic: str, *, partitions: int, replication_factor: int) -> bool:
    """Create the topic with `cleanup.policy=compact` unless it is there; whether it was created.

    Raises KafkaError when the broker refuses.
    """
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    new = NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=replication_factor,
        config={"cleanup.policy": "compact"},
    )
    admin = AdminClient(client_config(bootstrap_servers))  # named: its requests end with it
    try:
        admin.create_topics([new], request_timeout=TIMEOUT_SECONDS)[topic].result()
    except KafkaException as error:
        if error.args[0].code() == ClientError.TOPIC_ALREADY_EXISTS:
            return False
        raise KafkaError(
            f"The broker at {bootstrap_servers} did not create topic {topic}: {error.args[0].str()}.",
            remedy="Create it by hand (compacted), or give this client the right to create it.",
        ) from None
    return True
