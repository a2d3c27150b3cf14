"""How this environment's Kafka is reached: one YAML file, checked when it is read, for both clients.

The clients are librdkafka (admin, publishing) and the Java client inside Spark (reading); they name settings
differently. Names and rules: https://kafka.apache.org/documentation/#security and librdkafka's CONFIGURATION.md.
Imports without pyspark and confluent_kafka.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from lakehouse.contracts.files import Document, place_and_reason
from lakehouse.contracts.parts.base import Model
from lakehouse.errors import SettingsError
from lakehouse.kafka.registry import SECRETS as REGISTRY_SECRETS
from lakehouse.kafka.registry import SchemaRegistry
from lakehouse.secrets import REFERENCE_FORMS, FromDatabricks, FromEnvironment, FromFile, SecretReference, Text

Reference = FromEnvironment | FromFile | FromDatabricks

# Settings that both clients know by the same name and that hold no secret.
PROPERTIES = (
    *("client.dns.lookup", "client.id", "client.rack", "connections.max.idle.ms", "fetch.max.bytes"),
    *("max.partition.fetch.bytes", "metadata.max.age.ms", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
    *("retry.backoff.ms", "socket.connection.setup.timeout.ms", "ssl.cipher.suites"),
)
_SECRET_LIKE = ("password", "secret", "token", "jaas", "key")
_SECRETS = ("username", "password", "client_key_password")

_PBES2 = bytes.fromhex("06092a864886f70d01050d")  # its object identifier, 1.2.840.113549.1.5.13, in DER


class KafkaConnection(Model):
    """The brokers, and how to be let in. Holds references to secrets, never a secret."""

    bootstrap_servers: Text
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: Text | SecretReference | None = None
    password: SecretReference | None = None
    # Certificates of those who may vouch for the broker, PEM. Default: whom the machine trusts.
    ca_file: Text | None = None
    # This client's certificate with its chain, and its key, in one PEM file.
    client_certificate_file: Text | None = None
    client_key_password: SecretReference | None = None
    # How long a broker may be silent before it counts as gone.
    timeout_seconds: int = Field(default=30, ge=2, le=300)
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)
    # Where the schemas of records are that carry only a schema's id. None: there is no registry.
    schema_registry: SchemaRegistry | None = None

    @field_validator("properties")
    @classmethod
    def _harmless(cls, properties: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        known = ", ".join(_SECRETS)
        for name in properties:
            if name in PROPERTIES:
                continue
            if any(part in name.lower() for part in _SECRET_LIKE):
                raise ValueError(f"{name!r} looks like a secret: use a reference ({REFERENCE_FORMS}) in one of {known}")
            raise ValueError(f"{name!r} is not for both clients; those that are: {', '.join(PROPERTIES)}")
        return properties

    @model_validator(mode="after")
    def _fits_together(self) -> KafkaConnection:
        protocol = self.security_protocol
        login = {"sasl_mechanism": self.sasl_mechanism, "username": self.username, "password": self.password}
        given, absent = _names(login, given=True), _names(login, given=False)
        if protocol.startswith("SASL") and absent:
            raise ValueError(f"{protocol} needs {absent} too")
        if not protocol.startswith("SASL") and given:
            raise ValueError(f"{protocol} has no use for {given}: with a login it is SASL_SSL or SASL_PLAINTEXT")
        tls = {
            "ca_file": self.ca_file,
            "client_certificate_file": self.client_certificate_file,
            "client_key_password": self.client_key_password,
        }
        if not protocol.endswith("SSL") and _names(tls, given=True):
            raise ValueError(f"{protocol} has no use for {_names(tls, given=True)}: with TLS it is SSL or SASL_SSL")
        if self.client_key_password is not None and self.client_certificate_file is None:
            raise ValueError("client_key_password is of no use without client_certificate_file")
        return self

    def __str__(self) -> str:
        """The client, as the broker knows it, for messages."""
        if self.username is not None:
            return f"the user {self.username}" if isinstance(self.username, str) else f"the user in {self.username}"
        if self.client_certificate_file is not None:
            return f"the client with the certificate {self.client_certificate_file}"
        return "this client, which has no user"


def load_connection(
    file: Path, *, bootstrap_servers: str | None = None, secret_scope: str | None = None
) -> KafkaConnection:
    """The connection in a YAML file; `bootstrap_servers`, when given, instead of its own.

    `secret_scope`: of the workspace's secrets that the file names without one.

    Raises SettingsError, with file, line and key and without any value, for everything that does not fit, and for PEM
    files that are not there or that one of the clients could not read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{file} cannot be read: {why}.", hint="Give another --kafka-config.") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line, _why = place_and_reason(error, text)  # the reason can quote the file
        raise SettingsError(
            f"{file}:{line}: not valid YAML.", hint="Fix the syntax; text with signs needs quotes."
        ) from None
    if not isinstance(raw, dict):
        raise SettingsError(f"{file}: not a map of settings.", hint=f"It may have: {', '.join(_fields())}.")
    if bootstrap_servers:
        raw = {**raw, "bootstrap_servers": bootstrap_servers}
    if secret_scope:
        raw = {key: _in_scope(value, secret_scope) for key, value in raw.items()}
    try:
        connection = KafkaConnection.model_validate(raw)
    except ValidationError as error:
        document = Document(str(file), root, None, ())
        problems = (_problem(problem["type"], problem["loc"], problem["msg"]) for problem in error.errors())
        sentences = dict.fromkeys(str(document.problem(path, what)) for path, what in problems)
        raise SettingsError("\n".join(sentences), hint="Fix it and run the command again.") from None
    _check_pem_files(connection, file)
    return connection


def _in_scope(value: object, scope: str) -> object:
    """References to secrets of the workspace with a scope, those that have none; everything else as it is."""
    match value:
        case {"databricks_secret": {"key": _} as named} if "scope" not in named:
            return {"databricks_secret": {**named, "scope": scope}}
        case dict():  # the schema registry
            return {key: _in_scope(part, scope) for key, part in value.items()}
    return value


def _names(values: Mapping[str, object | None], *, given: bool) -> str:
    return ", ".join(name for name, value in values.items() if (value is not None) == given)


def _fields() -> list[str]:
    return list(KafkaConnection.model_fields)


def _problem(kind: str, location: tuple[int | str, ...], message: str) -> tuple[tuple[str, ...], str]:
    """The key at the top of the file, or in its map `schema_registry`, and what is wrong with it.

    What is below one may be a secret.
    """
    keys = tuple(map(str, location))
    if keys[:1] == ("schema_registry",):
        return keys[:2], _problem_of_registry(kind, keys[1:2], message)
    key = keys[0] if keys else ""
    if key in _SECRETS:
        return keys[:1], _by_reference(key)
    if kind == "extra_forbidden":
        return keys[:1], f"this key is not known here. Known are: {', '.join(_fields())}."
    if kind == "missing" and key == "bootstrap_servers":
        return keys[:1], "no Kafka broker was given, neither here nor by --bootstrap-servers."
    return keys[:1], _sentence(message)


def _problem_of_registry(kind: str, keys: tuple[str, ...], message: str) -> str:
    key, fields = "".join(keys), ", ".join(SchemaRegistry.model_fields)
    if key in REGISTRY_SECRETS:
        return _by_reference(key)
    if kind == "extra_forbidden":
        return f"this key is not known here. Known are: {fields}."
    if kind == "missing":
        return "no address of the schema registry was given."
    if kind == "model_type":
        return f"is a map. It may have: {fields}."
    return _sentence(message)


def _by_reference(key: str) -> str:
    forms = f"by reference: {REFERENCE_FORMS}"
    return f"is given as plain text or {forms}." if key == "username" else f"is given {forms}."


def _sentence(message: str) -> str:
    return f"{message.removeprefix('Value error, ')}."


def _check_pem_files(connection: KafkaConnection, file: Path) -> None:
    """Both clients must be able to read them: Java takes a key in the form of PKCS#8 only."""
    if connection.ca_file is not None:
        _require(connection.ca_file, "-----BEGIN CERTIFICATE-----", "a certificate", where=f"{file}: ca_file")
    path = connection.client_certificate_file
    if path is not None:
        where = f"{file}: client_certificate_file"
        _require(path, "-----BEGIN CERTIFICATE-----", "a certificate", where=where)
        if connection.client_key_password is None:
            _require(path, "-----BEGIN PRIVATE KEY-----", "a PKCS#8 key without a password", where=where)
        else:
            _require(path, "-----BEGIN ENCRYPTED PRIVATE KEY-----", "a PKCS#8 key with a password", where=where)
            _require_older_encryption(path, where=where)
    if connection.schema_registry is not None:
        _check_pem_files_of_registry(connection.schema_registry, f"{file}: schema_registry")


def _check_pem_files_of_registry(registry: SchemaRegistry, where: str) -> None:
    """OpenSSL reads them, keys of every form; for one with a password it would ask at the terminal."""
    if registry.ca_file is not None:
        _require(registry.ca_file, "-----BEGIN CERTIFICATE-----", "a certificate", where=f"{where}.ca_file")
    path = registry.client_certificate_file
    if path is not None:
        where = f"{where}.client_certificate_file"
        _require(path, "-----BEGIN CERTIFICATE-----", "a certificate", where=where)
        _require(path, "PRIVATE KEY-----", "a key", where=where)
        text = Path(path).read_text(encoding="ascii", errors="replace")
        if re.search(r"BEGIN ENCRYPTED PRIVATE KEY|^Proc-Type: 4,ENCRYPTED", text, re.MULTILINE):
            raise SettingsError(
                f"{where}: the key in {path} has a password.",
                hint="Write it without: openssl pkcs8 -topk8 -nocrypt -in KEY; in a file that only the job's user "
                "may read.",
            )


def _require_older_encryption(path: str, *, where: str) -> None:
    """Kafka's Java client on Java 17 cannot open a key encrypted by PBES2 (RFC 8018), today's default of openssl."""
    text = Path(path).read_text(encoding="ascii", errors="replace")
    key = re.search(r"BEGIN ENCRYPTED PRIVATE KEY-----([\sA-Za-z0-9+/=]*)-----END", text)
    if key is not None and _PBES2 in b64decode(key[1]):
        raise SettingsError(
            f"{where}: the key in {path} is encrypted by PBES2, which Kafka's Java client cannot open.",
            hint="Write it again: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in KEY; or without a password, in a file "
            "that only the job's user may read.",
        )


def _require(path: str, line: str, what: str, *, where: str) -> None:
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise SettingsError(f"{where}: {path} cannot be read: {error.strerror}.", hint="Put it there.") from None
    if line not in text:
        raise SettingsError(
            f"{where}: {path} does not hold {what} ({line}).",
            hint="It is one PEM file with all of it; `openssl pkcs8 -topk8` makes a PKCS#8 key of another.",
        )
