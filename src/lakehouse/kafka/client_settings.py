"""A connection as both clients have it: settings of librdkafka, and options of Spark's Kafka source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from lakehouse.kafka.connection import KafkaConnection, Reference
from lakehouse.secrets import resolve

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class Credentials:
    """The secrets of a connection, read; nothing shows them."""

    username: SecretStr | None = None
    password: SecretStr | None = None
    key_password: SecretStr | None = None


def credentials(connection: KafkaConnection) -> Credentials:
    """Read the secrets that the connection refers to. Raises what `resolve` raises."""
    username = connection.username
    return Credentials(
        username=SecretStr(username) if isinstance(username, str) else _resolved(username),
        password=_resolved(connection.password),
        key_password=_resolved(connection.client_key_password),
    )


def librdkafka_settings(connection: KafkaConnection, secrets: Credentials) -> dict[str, Any]:
    """The connection as librdkafka has it (confluent_kafka)."""
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol,
        "sasl.mechanism": connection.sasl_mechanism,
        "sasl.username": _value(secrets.username),
        "sasl.password": _value(secrets.password),
        "ssl.ca.location": connection.ca_file,
        "ssl.certificate.location": connection.client_certificate_file,
        "ssl.key.location": connection.client_certificate_file,
        "ssl.key.password": _value(secrets.key_password),
        "socket.timeout.ms": connection.timeout_seconds * 1000,
        **{name: _text(value) for name, value in connection.properties.items()},
    }
    return {name: value for name, value in settings.items() if value is not None}


def spark_options(connection: KafkaConnection, secrets: Credentials, *, shaded: bool) -> dict[str, str]:
    """The connection as options of Spark's Kafka source: Java's settings behind `kafka.`, and Spark's own.

    `shaded`: whether the Java client's packages begin with `kafkashaded.`, as they do on Databricks.
    """
    timeout_ms = str(connection.timeout_seconds * 1000)
    java = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol,
        "sasl.mechanism": connection.sasl_mechanism,
        "sasl.jaas.config": _jaas(connection, secrets, shaded=shaded),
        "ssl.truststore.type": "PEM" if connection.ca_file else None,
        "ssl.truststore.location": connection.ca_file,
        "ssl.keystore.type": "PEM" if connection.client_certificate_file else None,
        "ssl.keystore.location": connection.client_certificate_file,
        "ssl.key.password": _value(secrets.key_password),
        "request.timeout.ms": timeout_ms,
        "default.api.timeout.ms": timeout_ms,
        **{name: _text(value) for name, value in connection.properties.items()},
    }
    return {
        **{f"kafka.{name}": value for name, value in java.items() if value is not None},
        "kafkaConsumer.pollTimeoutMs": timeout_ms,
        # We try again ourselves, and say so.
        "fetchOffset.numRetries": "1",
    }


def _jaas(connection: KafkaConnection, secrets: Credentials, *, shaded: bool) -> str | None:
    if connection.sasl_mechanism is None:
        return None
    module = ("kafkashaded." if shaded else "") + _LOGIN_MODULES[connection.sasl_mechanism]
    return f"{module} required username={_quoted(secrets.username)} password={_quoted(secrets.password)};"


def _quoted(secret: SecretStr | None) -> str:
    r"""A word of JAAS: Kafka reads it with Java's StreamTokenizer, where \ escapes and a line break ends the word."""
    text = _value(secret) or ""
    for sign, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(sign, escaped)
    return f'"{text}"'


def _resolved(reference: Reference | None) -> SecretStr | None:
    return None if reference is None else resolve(reference)


def _value(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
