"""What the jobs ask a broker before they start: is it there, does it let us in, and does it have the topics?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from lakehouse.contracts.checks.mistakes import did_you_mean
from lakehouse.contracts.topics import Source
from lakehouse.errors import BrokerUnavailableError, KafkaError, TopicMissingError
from lakehouse.kafka.client_settings import credentials, librdkafka_settings
from lakehouse.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 10.0
# A refusal comes long before the timeout, and ends the wait.
FIRST_LOOK_SECONDS = 2.0
# Spark's readers name their consumer groups so: rights can be granted for all that begin with it.
GROUP_PREFIX = "orders-lakehouse"
# Topics of a broker, each with its partitions.
TopicPartitions = Mapping[str, tuple[int, ...]]


def client_config(connection: KafkaConnection) -> dict[str, Any]:
    """Settings that every librdkafka client here has: its own log lines would only repeat our errors.

    They hold the secrets: hand them to a client and nothing else.
    """
    return {
        **librdkafka_settings(connection, credentials(connection)),
        "log_level": 0,
        "error_cb": lambda _error: None,
    }


class Admin:
    """An admin client that is kept for many questions: each has threads and connections of its own, until `close`.

    `troubles`: what it has heard of its connections since the last question that was answered.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        from confluent_kafka.admin import AdminClient

        self.troubles: list[ClientError] = []
        config: dict[str, Any] = {**client_config(connection), "error_cb": self.troubles.append}
        self.client = AdminClient(config)

    def close(self) -> None:
        """End it: it can be asked nothing more."""
        with self.client:  # the one way that it has
            pass


def partitions(connection: KafkaConnection, *, kept: Admin | None = None) -> TopicPartitions:
    """Every topic that this client may see, with its partitions. Asks by the client that is `kept`, else by its own.

    Raises KafkaError when the broker does not let this client in or its certificates do not fit, BrokerUnavailableError
    when it does not answer in 10 s.
    """
    from confluent_kafka import KafkaException

    if kept is None:
        with closing(Admin(connection)) as own:
            return partitions(connection, kept=own)
    for seconds in (FIRST_LOOK_SECONDS, TIMEOUT_SECONDS - FIRST_LOOK_SECONDS):
        try:
            topics = kept.client.list_topics(timeout=seconds).topics
        except KafkaException:
            kept.client.poll(0)  # hands over what went wrong
            for trouble in kept.troubles:
                raise_if_refused(connection, trouble)
        else:
            kept.client.poll(0)
            kept.troubles.clear()  # it is over, and explains no later failure
            return {name: tuple(sorted(topic.partitions)) for name, topic in topics.items()}
    raise BrokerUnavailableError(
        f"No Kafka broker answers at {connection.bootstrap_servers} (waited {TIMEOUT_SECONDS:.0f} s).",
        servers=connection.bootstrap_servers,
        hint="Check --bootstrap-servers, that the broker is up and reachable from here, and that it speaks "
        f"{connection.security_protocol} there (security_protocol of --kafka-config).",
    )


def require_topics(connection: KafkaConnection, source: Source, *, known: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TopicMissingError, naming all that the source's feeds name and the broker lacks, with what it has alike.

    A topic that this client may not see is not among the `known` ones either: then KafkaError says so.
    """
    missing = sorted(set(source.topic_names) - set(known))
    patterns = {pattern for feed in source.feeds.values() for pattern in feed.topic_patterns}
    idle = [
        f"a topic that matches {pattern!r}"
        for pattern in sorted(patterns)
        if not any(re.fullmatch(pattern, topic) for topic in known)
    ]
    if missing:
        require_visible(connection, missing)
    if missing or idle:
        named = [f"topic {topic}{did_you_mean(topic, known, form=' ({})', otherwise='')}" for topic in missing]
        absent = "; ".join([*named, *idle])
        raise TopicMissingError(
            f"The broker at {connection.bootstrap_servers} does not have: {absent}.",
            hint="Start the connector that publishes there, create the topic, or fix bronze/topics.yaml.",
        )


def require_visible(connection: KafkaConnection, topics: Iterable[str]) -> None:
    """Raise KafkaError, naming every topic that the broker does not let this client see."""
    from confluent_kafka import KafkaError as ClientError

    found = _describe(connection, topics)
    hidden = [topic for topic, error in found.items() if error == ClientError.TOPIC_AUTHORIZATION_FAILED]
    if hidden:
        raise may_not_read(connection, ", ".join(hidden))


def ensure_compacted_topic(
    connection: KafkaConnection,
    topic: str,
    *,
    partitions: int,
    replication_factor: int,
    max_message_bytes: int | None = None,
) -> None:
    """Create the topic with `cleanup.policy=compact` unless it is there; one that is there must be just so.

    One that is there needs no right to create topics. `max_message_bytes`: its `max.message.bytes`, of one that is
    there the least; None leaves it to the broker. Raises KafkaError when it has another policy, another number of
    partitions or a lower limit, or when the broker refuses; BrokerUnavailableError when it does not answer.
    """
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    found = _describe(connection, [topic])[topic]
    if found is None:
        _require_compacted(connection, topic, partitions=partitions, max_message_bytes=max_message_bytes)
        return
    if found == ClientError.TOPIC_AUTHORIZATION_FAILED:
        raise may_not_write(connection, topic)
    new = NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=replication_factor,
        config={
            "cleanup.policy": "compact",
            **({} if max_message_bytes is None else {"max.message.bytes": str(max_message_bytes)}),
        },
    )
    admin = _admin(connection)  # named: its requests end with it
    try:
        admin.create_topics([new], request_timeout=TIMEOUT_SECONDS)[topic].result()
    except KafkaException as error:
        refusal = error.args[0]
        if refusal.code() == ClientError.TOPIC_ALREADY_EXISTS:
            return
        hint = f"Create it by hand (compacted), or grant {connection} Create on it."
        raise not_granted(connection, refusal, f"did not create topic {topic}", hint=hint) from None


def _require_compacted(
    connection: KafkaConnection, topic: str, *, partitions: int, max_message_bytes: int | None
) -> None:
    """Raise KafkaError unless the topic keeps the last record of every key, spreads keys as we count on, and has room.

    Room: for messages of `max_message_bytes`.
    """
    from confluent_kafka import TopicCollection

    admin = _admin(connection)
    topics = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
    described = _said_of(connection, topic, topics[topic])
    configured = topic_settings(connection, [topic])[topic]
    policy = configured["cleanup.policy"]
    if policy != "compact":
        raise KafkaError(
            f"Topic {topic} has cleanup.policy={policy}: it would forget orders, and keep what is out of date.",
            hint="Set it to compact, or delete the topic: the next run creates it, and publishes every order.",
        )
    if len(described.partitions) != partitions:
        raise KafkaError(
            f"Topic {topic} has {len(described.partitions)} partitions, and the contract says {partitions}: "
            "a key's records would lie in several of them, without an order.",
            hint="Was it created so? Then write that into gold/tables.yaml. Were partitions added later? Then delete "
            "the topic: the next run creates it, and publishes every order.",
        )
    limit = int(configured["max.message.bytes"])
    if max_message_bytes is not None and limit < max_message_bytes:
        raise KafkaError(
            f"Topic {topic} has max.message.bytes={limit}, and the contract says {max_message_bytes} "
            "(publication.max_message_bytes in gold/tables.yaml): it would refuse a large order.",
            hint=f"Raise it: kafka-configs.sh --bootstrap-server {connection.bootstrap_servers} --alter "
            f"--entity-type topics --entity-name {topic} --add-config max.message.bytes={max_message_bytes}. Where the "
            "broker allows less, lower the contract's, and max_record_bytes in silver/tables.yaml with it.",
        )


def cleanup_policies(connection: KafkaConnection, topics: Iterable[str]) -> dict[str, str]:
    """The cleanup.policy of each of the topics. Raises KafkaError when the broker does not say."""
    return {topic: config["cleanup.policy"] for topic, config in topic_settings(connection, topics).items()}


def topic_settings(connection: KafkaConnection, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of each of the topics. Raises KafkaError when the broker does not say."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin = _admin(connection)  # named: its requests end with it
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=TIMEOUT_SECONDS)
    return {
        resource.name: {name: str(one.value) for name, one in _said_of(connection, resource.name, future).items()}
        for resource, future in futures.items()
    }


def _said_of(connection: KafkaConnection, topic: str, future: Future[Any]) -> Any:
    """What the broker says of a topic. Raises KafkaError when it does not."""
    from confluent_kafka import KafkaException

    try:
        return future.result()
    except KafkaException as error:
        hint = f"Grant {connection} Describe and DescribeConfigs on it."
        raise not_granted(connection, error.args[0], f"does not say how topic {topic} is kept", hint=hint) from None


def may_not_read(connection: KafkaConnection, topics: str) -> KafkaError:
    """The error of a client without the rights that bronze needs."""
    return KafkaError(
        f"At {connection.bootstrap_servers}, {connection} has no right to read {topics}.",
        hint="Grant Describe and Read on each topic.",
    )


def may_not_join(connection: KafkaConnection, group: str) -> KafkaError:
    """The error of a client whose broker wants a right on consumer groups, too."""
    return KafkaError(
        f"At {connection.bootstrap_servers}, {connection} has no right to read as consumer group {group}.",
        hint=f"Grant Read on the consumer groups that begin with {GROUP_PREFIX}.",
    )


def may_not_write(connection: KafkaConnection, topic: str) -> KafkaError:
    """The error of a client without the rights that publishing needs."""
    return KafkaError(
        f"At {connection.bootstrap_servers}, {connection} has no right to write to {topic}.",
        hint=f"Grant Describe, DescribeConfigs, Read and Write on topic {topic}; and Create, if it is not there.",
    )


def not_let_in(connection: KafkaConnection) -> KafkaError:
    """The error of a client that the broker does not believe."""
    how = f" with the password in {connection.password}" if connection.password is not None else ""
    return KafkaError(
        f"The broker at {connection.bootstrap_servers} does not let in {connection}{how}: not authenticated.",
        hint=f"Check both, and that the broker knows this user by {connection.sasl_mechanism or 'its certificate'}.",
    )


def no_tls(connection: KafkaConnection) -> KafkaError:
    """The error of a TLS connection that does not come about."""
    return KafkaError(
        f"No TLS connection to {connection.bootstrap_servers} as {connection}: one side does not trust the other.",
        hint="Check ca_file, client_certificate_file and the names in the broker's certificate, and that the broker "
        f"speaks {connection.security_protocol} there.",
    )


def raise_if_refused(connection: KafkaConnection, error: ClientError) -> None:
    """Raise KafkaError when the error means that this client is not let in: to try again is of no use."""
    from confluent_kafka import KafkaError as ClientError

    if error.code() in {ClientError._AUTHENTICATION, ClientError.SASL_AUTHENTICATION_FAILED}:
        raise not_let_in(connection)
    # The broker's own refusal of a certificate comes as a loss of the connection (TLS 1.3): only its text says so.
    if error.code() == ClientError._SSL or "SSL alert" in error.str():
        raise no_tls(connection)


def raise_if_gone(connection: KafkaConnection, error: ClientError) -> None:
    """Raise BrokerUnavailableError when the error means that no broker answers: it may be back soon."""
    from confluent_kafka import KafkaError as ClientError

    gone = {ClientError._TRANSPORT, ClientError._TIMED_OUT, ClientError._ALL_BROKERS_DOWN, ClientError._RESOLVE}
    if error.code() in gone:
        raise stopped_answering(connection, "Kafka")


def not_granted(connection: KafkaConnection, error: ClientError, what: str, *, hint: str) -> KafkaError:
    """The error of a request that the broker did not grant: `what` it did not do.

    For a client that is not let in, or whose broker is gone, raises the error of that instead.
    """
    raise_if_refused(connection, error)
    raise_if_gone(connection, error)
    return KafkaError(f"The broker at {connection.bootstrap_servers} {what}: {error.str()}.", hint=hint)


def stopped_answering(connection: KafkaConnection, job: str) -> BrokerUnavailableError:
    """The error of a job whose broker is gone in the middle of it."""
    return BrokerUnavailableError(
        f"{job}: the broker at {connection.bootstrap_servers} stopped answering.",
        servers=connection.bootstrap_servers,
        hint="Run the job again when it is back: it resumes where it stopped.",
    )


def _describe(connection: KafkaConnection, topics: Iterable[str]) -> dict[str, int | None]:
    """Of each topic the broker's error code, None for one that this client sees. Asks for each by name.

    A list of all topics leaves out what this client may not see; and unlike other questions for one topic, this one
    never creates it.
    """
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException, TopicCollection

    admin = _admin(connection)
    found: dict[str, int | None] = {}
    described = admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS)
    for topic, future in described.items():
        try:
            future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code not in {ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.UNKNOWN_TOPIC_OR_PART}:
                what = f"does not describe {topic}"
                raise not_granted(connection, error.args[0], what, hint="Check the broker's log.") from None
            found[topic] = code
        else:
            found[topic] = None
    return found


def _admin(connection: KafkaConnection) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_config(connection))
