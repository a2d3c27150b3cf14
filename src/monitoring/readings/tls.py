"""TLS to a connector's database as the connector does it: by its mode, with the certificates that it names.

Those are files of Kafka Connect's worker: for PostgreSQL PEM or DER (`database.sslrootcert`), for MySQL and MariaDB a
truststore (`database.ssl.truststore`, JKS or PKCS12), which Java's keytool reads. Where they are not here, or the
worker trusts others by its own settings, a connection that fails says nothing of the database (`Tls.doubts`).
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from connectors.connectors import Connector
from lakehouse.errors import InstallationError
from lakehouse.spark.jars import java

_PLAIN = {"disable", "disabled"}
# TLS where the server has it, without a look at its certificate: what the drivers do by themselves.
_EITHER = {"allow", "prefer", "preferred"}
_UNVERIFIED = {"require", "required", "trust"}
_OF_ANY_HOST = {"verify-ca", "verify_ca"}
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEYTOOL_SECONDS = 20
_STORE_PASSWORD = "TRUSTSTORE_PASSWORD"  # noqa: S105 the name of a variable


class UnreadableError(Exception):
    """What a connector names cannot be read here: in a sentence."""


@dataclass(frozen=True)
class Tls:
    """How to connect. `context` None: as the driver does, without a look at the certificate; not at all if `is_plain`.

    `doubt`: why a connection that fails may be well from the worker; empty where nothing speaks for that. The same of
    one that fails for its certificate: `doubt_of_certificate`.
    """

    context: ssl.SSLContext | None = None
    is_plain: bool = False
    doubt: str = ""
    doubt_of_certificate: str = ""

    def doubts(self, error: BaseException) -> str:
        """Why this failure says nothing of the database; empty where it does."""
        is_of_certificate = any(isinstance(one, ssl.SSLCertVerificationError) for one in _causes(error))
        return self.doubt or (self.doubt_of_certificate if is_of_certificate else "")


def tls_of(connector: Connector) -> Tls:
    """The TLS of a connector. Raises UnreadableError where it verifies by certificates that cannot be read here."""
    is_postgresql = connector.database == "postgresql"
    mode_option, mode = ("database.sslmode", "prefer") if is_postgresql else ("database.ssl.mode", "preferred")
    mode = connector.get(mode_option, mode).lower()
    if mode in _PLAIN:
        return Tls(is_plain=True)
    doubt = _own_certificate(connector)
    if mode in _EITHER:
        return Tls(doubt=doubt)
    if mode in _UNVERIFIED:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return Tls(context, doubt=doubt)
    option = "database.sslrootcert" if is_postgresql else "database.ssl.truststore"
    named = connector.get(option)
    authorities = _authorities(connector, option, named) if named else None
    try:
        if named and not authorities:  # without any, `ssl` would take those of this system
            raise ValueError
        context = ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise UnreadableError(f"{named} ({option}) has no certificates that can be read here: not asked.") from None
    context.check_hostname = mode not in _OF_ANY_HOST
    # As Java: a certificate that is trusted itself needs no authority, and old ones lack what RFC 5280 asks for.
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    others = f"Its certificate is not trusted here, and {option} names none: not known what the worker trusts."
    return Tls(context, doubt=doubt, doubt_of_certificate="" if named else others)


def _own_certificate(connector: Connector) -> str:
    """Of a connector that logs in with a certificate: that this is not done here."""
    option = "database.sslcert" if connector.database == "postgresql" else "database.ssl.keystore"
    named = connector.get(option)
    return f"The worker has a certificate for it ({option}), which is not used here: not asked." if named else ""


def _authorities(connector: Connector, option: str, named: str) -> str | bytes:
    """The certificates of a file, as `ssl` takes them: PEM as text, DER as bytes."""
    if "${" in named:
        raise UnreadableError(f"{option} is a reference that only the worker can follow: not asked.")
    # Absolute, so that no name of a file is an option of keytool.
    file = Path(named).absolute()
    if not file.is_file():
        raise UnreadableError(f"{named} ({option}) is a file of the worker that is not here: not asked.")
    if option == "database.ssl.truststore":
        return _of_store(connector, file, option)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{named} ({option}) cannot be read here ({error.strerror}): not asked.") from None
    if b"-----BEGIN" not in content:
        return content
    return "\n".join(_CERTIFICATE.findall(content.decode("ascii", errors="replace")))


def _of_store(connector: Connector, file: Path, option: str) -> str:
    """The certificates of a truststore, as PEM."""
    password = connector.get(f"{option}.password")
    if "${" in password:
        raise UnreadableError(f"{option}.password is a reference that only the worker can follow: not asked.")
    try:
        keytool = java().with_name("keytool")
        done = subprocess.run(
            [keytool, "-list", "-rfc", "-keystore", file, *(("-storepass:env", _STORE_PASSWORD) if password else ())],
            env={**os.environ, _STORE_PASSWORD: password},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_KEYTOOL_SECONDS,
        )
    except (InstallationError, OSError, subprocess.TimeoutExpired) as error:
        why = f"Java's keytool is needed, {type(error).__name__}"
        raise UnreadableError(f"{file} ({option}) cannot be read here ({why}): not asked.") from None
    return "\n".join(_CERTIFICATE.findall(done.stdout.decode("ascii", errors="replace")))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised for: drivers wrap what `ssl` raises."""
    while error is not None:
        yield error
        yield from (one for one in error.args if isinstance(one, BaseException))
        error = error.__cause__ or error.__context__
