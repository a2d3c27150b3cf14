"""Brokers with security, on loopback, for tests: SASL/PLAIN with users and rights, and TLS with client certificates."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from demo.broker import Broker, Listener, restartable_broker
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection


def plain_config(bootstrap_servers: str) -> dict[str, Any]:
    """Settings of a librdkafka client of a broker without security."""
    return client_config(KafkaConnection(bootstrap_servers=bootstrap_servers))


# What JAAS and properties files stumble over. Of brokers on loopback that live as long as a test run.
ADMIN_PASSWORD = "admin \"quoted\" \\back\\slash 'single' $HOME #;= é"  # noqa: S105
READER_PASSWORD = 'r"e\\a\\"d\'er; required #1 $x %s {env} ü'  # noqa: S105
# A part of it that looks the same however it is quoted.
READER_MARK = "required #1 $x %s"
READER = "reader"
KEY_PASSWORD = 'k"e\\y pass'  # noqa: S105


@dataclass(frozen=True)
class SecuredBroker:
    """A broker that asks for a user and a password; `reader` may do nothing until something is granted."""

    broker: Broker

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT`."""
        return self.broker.bootstrap_servers

    def admin(self) -> AdminClient:
        """A client that may do everything."""
        return AdminClient(self.admin_config())

    def admin_config(self) -> dict[str, Any]:
        """Settings of such a client."""
        return {**plain_config(self.bootstrap_servers), "security.protocol": "SASL_PLAINTEXT", **_ADMIN}

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation, prefixed: bool = False) -> None:
        """Let `reader` do this with the resource of this name, or with all whose names begin so."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        bindings = [
            AclBinding(kind, name, pattern, f"User:{READER}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        admin = self.admin()  # named: its requests end with it
        for created in admin.create_acls(bindings).values():
            created.result()
        # The controller has it; the broker that judges by it learns of it a moment later.
        deadline = time.monotonic() + 30
        while not all(self._knows(admin, binding) for binding in bindings):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker has not taken what was granted for {name} in 30 s")
            time.sleep(0.05)

    @staticmethod
    def _knows(admin: AdminClient, binding: AclBinding) -> bool:
        wanted = AclBindingFilter(
            binding.restype,
            binding.name,
            binding.resource_pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission_type,
        )
        return bool(admin.describe_acls(wanted).result())


_ADMIN = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": ADMIN_PASSWORD}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@contextmanager
def secured_broker(directory: Path) -> Iterator[SecuredBroker]:
    """A running broker with SASL/PLAIN and rights: `admin` may do everything, `reader` nothing."""
    users = {"admin": ADMIN_PASSWORD, READER: READER_PASSWORD}
    known = " ".join(f"user_{name}={_jaas(password)}" for name, password in users.items())
    login = f"username=admin password={_jaas(ADMIN_PASSWORD)}"
    properties = (
        "sasl.enabled.mechanisms=PLAIN",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        f"listener.name.sasl_plaintext.plain.sasl.jaas.config={_property(f'{_MODULE} {login} {known};')}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker talks to its own controller without a login; clients cannot reach that listener's requests.
        "super.users=User:admin;User:ANONYMOUS",
    )
    with restartable_broker(directory, listener=Listener("SASL_PLAINTEXT", properties, _ADMIN)) as broker:
        yield SecuredBroker(broker)


@contextmanager
def tls_broker(directory: Path) -> Iterator[Broker]:
    """A running broker that lets in whoever shows a certificate of its authority.

    In `directory`: `ca.pem`, and `client.pem` with a certificate and a key with the password KEY_PASSWORD.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _openssl(directory, "req", "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", *_NEW_KEY)
    _certify(directory, "broker")
    _certify(directory, "client", "-v1", "PBE-SHA1-3DES", "-passout", f"pass:{KEY_PASSWORD}")
    properties = (
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={directory / 'broker.pem'}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={directory / 'ca.pem'}",
        "ssl.client.auth=required",
    )
    own = str(directory / "broker.pem")
    client = {
        "ssl.ca.location": str(directory / "ca.pem"),
        "ssl.certificate.location": own,
        "ssl.key.location": own,
    }
    with restartable_broker(directory / "broker", listener=Listener("SSL", properties, client)) as broker:
        yield broker


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _certify(directory: Path, name: str, *key_form: str) -> None:
    """Write `NAME.pem`: a new key, as PKCS#8, and a certificate for 127.0.0.1 that the authority signed."""
    request = ("req", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr", *_NEW_KEY)
    _openssl(directory, *request)
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    _openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *authority)
    _openssl(directory, "pkcs8", "-topk8", "-in", f"{name}.key", "-out", f"{name}.pk8", *(key_form or ("-nocrypt",)))
    texts = [(directory / f"{name}.{part}").read_text() for part in ("pk8", "crt")]
    (directory / f"{name}.pem").write_text("".join(texts))


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["/usr/bin/openssl", *arguments], cwd=directory, check=True, capture_output=True)


def _jaas(text: str) -> str:
    r"""The text as a quoted word of JAAS: \ and " are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _property(text: str) -> str:
    r"""The text as a value in a Java properties file: \ is doubled, and what is not ASCII is written \uXXXX."""
    return "".join(char if ord(char) < 128 else f"\\u{ord(char):04x}" for char in text.replace("\\", "\\\\"))
