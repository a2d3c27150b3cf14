"""A client of a schema registry that speaks Confluent's API: Confluent's own, Apicurio, Redpanda, Karapace.

Endpoints, error codes and media types: Confluent Schema Registry API Reference,
https://docs.confluent.io/platform/current/schema-registry/develop/api.html. The login goes into a header, never into a
message. Imports without requests, pyspark and confluent_kafka.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import Field, field_validator, model_validator

from lakehouse.contracts.parts.base import Model
from lakehouse.errors import RegistryError, RegistryGoneError, SettingsError
from lakehouse.http import basic_login, failure, json_object, new_session, send
from lakehouse.kafka.retry import RetryPolicy, retried
from lakehouse.registered import AVRO, RegisteredSchema
from lakehouse.secrets import REFERENCE_FORMS, SecretReference, Text, masked, resolve

if TYPE_CHECKING:
    from requests import Session

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
_NOT_THERE = {SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND}
# What the registry says of a schema can be long: of every field, and of every version.
MAX_SAID = 500
# Fields of SchemaRegistry that may be secrets.
SECRETS = ("username", "password", "token")
_T = TypeVar("_T")


class SchemaRegistry(Model):
    """The schema registry, and how to be let in. Holds references to secrets, never a secret."""

    # The address that the API's paths begin at: of Apicurio it ends in /apis/ccompat/v7.
    url: Text
    username: Text | SecretReference | None = None
    password: SecretReference | None = None
    # Of a bearer, instead of a user.
    token: SecretReference | None = None
    # Certificates of those who may vouch for the registry, PEM. Default: those that `requests` trusts.
    ca_file: Text | None = None
    # This client's certificate with its chain, and its key without a password, in one PEM file.
    client_certificate_file: Text | None = None
    # How long the registry may be silent before it counts as gone.
    timeout_seconds: int = Field(default=10, ge=1, le=300)

    @field_validator("url")
    @classmethod
    def _without_login(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ValueError("is no address, http(s)://HOST:PORT[/PATH]") from None
        if "@" in parts.netloc:
            raise ValueError(
                f"carries a user or a password: remove them, and give username and password, by reference "
                f"({REFERENCE_FORMS})"
            )
        if not usable or re.search(r"[\s?#@]", url):
            raise ValueError("is no address, http(s)://HOST:PORT[/PATH]")
        return url

    @model_validator(mode="after")
    def _fits_together(self) -> SchemaRegistry:
        if (self.username is None) != (self.password is None):
            absent = "password" if self.password is None else "username"
            raise ValueError(f"a login needs {absent} too")
        if self.token is not None and self.username is not None:
            raise ValueError("token has no use beside username and password: give one login")
        tls = {"ca_file": self.ca_file, "client_certificate_file": self.client_certificate_file}
        given = ", ".join(name for name, value in tls.items() if value is not None)
        if given and urlsplit(self.url).scheme != "https":
            raise ValueError(f"http has no use for {given}: with TLS, url begins with https://")
        return self

    def __str__(self) -> str:
        """The client, as the registry knows it, for messages."""
        if self.username is not None:
            return f"the user {self.username}" if isinstance(self.username, str) else f"the user in {self.username}"
        if self.token is not None:
            return f"the client with the token in {self.token}"
        if self.client_certificate_file is not None:
            return f"the client with the certificate {self.client_certificate_file}"
        return "this client, which has no login"


def registry(connection: SchemaRegistry, *, retry_policy: RetryPolicy | None = None) -> Registry:
    """A client of the registry, with the secrets that the connection refers to. It has not asked anything yet.

    Proxies are those of the environment (HTTPS_PROXY, NO_PROXY); a login is the connection's, never one of ~/.netrc.
    Raises what `resolve` raises, and SettingsError for a token that no header can carry.
    """
    login, secrets = _login(connection)
    session = new_session(login)
    session.headers["Accept"] = f"{MEDIA_TYPE}, application/json"
    return Registry(connection, session, retry_policy, secrets)


def changed_schemas(connection: SchemaRegistry, kept: Mapping[int, RegisteredSchema]) -> list[int]:
    """The ids under which the registry has another schema than was `kept`. One without any schema is asked too.

    Raises what `registry` and `Registry.schema` raise, at once.
    """
    with closing(registry(connection)) as client:
        current = {number: client.schema(number) for number in kept or [1]}
    return sorted(number for number, schema in current.items() if schema and kept.get(number, schema) != schema)


class Registry:
    """See `registry`, which makes it. `close` ends its connections.

    Every question to a registry that does not answer (no connection, silence, HTTP 429 and 5xx) is asked again as the
    retry policy says; then RegistryGoneError is raised. RegistryError, at once, when it refuses or is no registry.
    """

    def __init__(
        self,
        connection: SchemaRegistry,
        session: Session,
        retry_policy: RetryPolicy | None,
        hidden: Collection[str],
    ) -> None:
        self._connection = connection
        self._session = session
        self._retry_policy = retry_policy
        # What no message shows, whoever says it.
        self._hidden = hidden

    def schema(self, number: int) -> RegisteredSchema | None:
        """The schema of this id; None when the registry itself says that it has none.

        One that refers to other schemas has a kind of its own, such as `AVRO with references`: its text alone does not
        say what a record has. "GET /schemas/ids/{int: id}" of the API reference; a schema without `schemaType` is Avro.

        Raises RegistryError, and RegistryGoneError when it does not answer.
        """
        path = f"/schemas/ids/{number}"
        answer = self._ask("GET", path, right="read schemas by their ids", absent={SCHEMA_NOT_FOUND})
        if answer is None:
            return None
        text = self._part(answer, "schema", str, path)
        kind = self._part({"schemaType": answer.get("schemaType") or AVRO}, "schemaType", str, path)
        return RegisteredSchema(f"{kind} with references" if answer.get("references") else kind, text)

    def identifier(self, subject: str, schema: str) -> int:
        """The id of an Avro schema under the subject; one that is not there yet is registered.

        It is registered only when the subject's compatibility allows it, in comparison with the latest version; as the
        first version of a subject it always is. "POST /subjects/(string: subject)",
        "POST /compatibility/subjects/(string: subject)/versions/(versionId: version)" and
        "POST /subjects/(string: subject)/versions" of the API reference.

        Raises RegistryError, with what the registry says, for a schema that is not compatible or is none; and
        RegistryGoneError when it does not answer.
        """
        right = f"read and write the subject {subject}"
        there = self._known(subject, schema, right=right)
        if there is not None:
            return there
        name, body = quote(subject, safe=""), {"schema": schema}
        path = f"/compatibility/subjects/{name}/versions/latest?verbose=true"
        verdict = self._ask("POST", path, right=right, body=body, absent=_NOT_THERE)
        if verdict is not None and not self._part(verdict, "is_compatible", bool, path):
            messages = verdict.get("messages")
            reasons = "; ".join(map(str, messages)) if isinstance(messages, list) else ""
            raise RegistryError(
                f"The schema registry at {self._connection.url} finds the new schema of {subject} not compatible with "
                f"the latest version there: {self._shown(reasons)}",
                hint=f"Keep to what the subject's compatibility allows, or change that for {subject} in the registry "
                "(PUT /config/SUBJECT). Then run the job again: it resumes where it stopped.",
            )
        path = f"/subjects/{name}/versions"
        return self._part(self._ask("POST", path, right=right, body=body) or {}, "id", int, path)

    def known_identifier(self, subject: str, schema: str) -> int | None:
        """The id of an Avro schema under the subject; None where it is not registered. Changes nothing.

        "POST /subjects/(string: subject)" of the API reference. Raises RegistryError, and RegistryGoneError when it
        does not answer.
        """
        return self._known(subject, schema, right=f"read the subject {subject}")

    def _known(self, subject: str, schema: str, *, right: str) -> int | None:
        path = f"/subjects/{quote(subject, safe='')}"
        there = self._ask("POST", path, right=right, body={"schema": schema}, absent=_NOT_THERE)
        return None if there is None else self._part(there, "id", int, path)

    def close(self) -> None:
        """End its connections."""
        self._session.close()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        right: str,
        body: Mapping[str, str] | None = None,
        absent: Collection[int] = (),
    ) -> dict[str, Any] | None:
        """The answer; None for an error code in `absent`. `right`: what the client needs to be allowed."""
        return retried(lambda: self._once(method, path, right=right, body=body, absent=absent), self._retry_policy)

    def _once(
        self, method: str, path: str, *, right: str, body: Mapping[str, str] | None, absent: Collection[int]
    ) -> dict[str, Any] | None:
        connection = self._connection
        try:
            response = send(
                self._session,
                method,
                connection.url.rstrip("/") + path,
                timeout=connection.timeout_seconds,
                body=body,
                media_type=MEDIA_TYPE,
                ca_file=connection.ca_file,
                certificate_file=connection.client_certificate_file,
            )
        except OSError as error:
            raise self._not_asked(error) from None
        status = response.status_code
        if status == 429 or status >= 500:
            raise self._gone(f"HTTP {status}")
        if status in {401, 403}:
            raise self._not_let_in(status, right)
        answer = json_object(response)
        if 200 <= status < 300:
            if answer is None:
                raise self._no_registry(path)
            return answer
        code = (answer or {}).get("error_code")
        code = code if isinstance(code, int) else None
        if status == 404 and code in absent:
            return None
        raise self._refused(status, code, str((answer or {}).get("message") or ""), path)

    def _part(self, answer: Mapping[str, Any], name: str, kind: type[_T], path: str) -> _T:
        """A part of the answer. Raises RegistryError when it is not there, or is something else."""
        value = answer.get(name)
        if type(value) is not kind:
            raise self._no_registry(path)
        return value

    def _not_asked(self, error: OSError) -> RegistryError:
        """What it means that no answer came."""
        url = self._connection.url
        kind, reason = failure(error, timeout=self._connection.timeout_seconds)
        if kind == "gone":
            return self._gone(reason)
        if kind == "tls":
            return RegistryError(
                f"No TLS connection to the schema registry at {url} as {self._connection}: {reason}.",
                hint="Check ca_file and client_certificate_file of schema_registry, the names in the registry's "
                "certificate, and that the registry speaks TLS there.",
            )
        return RegistryError(
            f"The schema registry at {url} cannot be asked ({reason}).",
            hint="Check url, ca_file and client_certificate_file of schema_registry, and what the environment says "
            "of proxies and certificates (HTTPS_PROXY, REQUESTS_CA_BUNDLE).",
        )

    def _gone(self, why: str) -> RegistryGoneError:
        return RegistryGoneError(
            f"The schema registry at {self._connection.url} does not answer ({why}).",
            servers=self._connection.url,
            hint="Check url of schema_registry, and that the registry is up and reachable from here. Then run the "
            "job again: it resumes where it stopped.",
        )

    def _not_let_in(self, status: int, right: str) -> RegistryError:
        connection = self._connection
        if status == 403:
            return RegistryError(
                f"At the schema registry {connection.url}, {connection} has no right to {right} (HTTP 403).",
                hint="Grant it there: docs/kafka.md lists the rights that each job needs.",
            )
        how = f" with the password in {connection.password}" if connection.password is not None else ""
        return RegistryError(
            f"The schema registry at {connection.url} does not let in {connection}{how} (HTTP 401).",
            hint="Check username and password, or token, of schema_registry, and that the registry knows them.",
        )

    def _no_registry(self, path: str) -> RegistryError:
        return RegistryError(
            f"{self._connection.url} answers {path} with something that is not a schema registry's.",
            hint="Check url of schema_registry: a path may be missing, as /apis/ccompat/v7 of Apicurio.",
        )

    def _refused(self, status: int, code: int | None, message: str, path: str) -> RegistryError:
        """What a refusal means: a 404 without a code of the API's own is some other server's."""
        if (status == 404 and code not in _NOT_THERE) or status < 400:
            return RegistryError(
                f"There is no schema registry's API at {self._connection.url}: it answers {path} with HTTP {status}.",
                hint="Check url of schema_registry: a path may be missing, as /apis/ccompat/v7 of Apicurio. "
                "Redirects are not followed.",
            )
        named = f"HTTP {status}" if code is None else f"HTTP {status}, error code {code}"
        return RegistryError(
            f"The schema registry at {self._connection.url} refuses {path} ({named}): {self._shown(message)}",
            hint="Fix what it names; the registry's log has the rest.",
        )

    def _shown(self, text: str) -> str:
        """What the registry says, as a sentence: without our secrets, and not longer than MAX_SAID."""
        text = masked(text, self._hidden).strip() or "it gives no reason"
        text = text if len(text) <= MAX_SAID else f"{text[: MAX_SAID - 1]}…"
        return text if text.endswith((".", "…", "!", "?")) else f"{text}."


def _login(connection: SchemaRegistry) -> tuple[str | None, tuple[str, ...]]:
    """The header that lets this client in, and what no message may show."""
    if connection.token is not None:
        token = resolve(connection.token).get_secret_value()
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise SettingsError(
                f"The token of the schema registry, {connection.token}, has signs that a header cannot carry.",
                hint="Put the token alone there, without blanks and line breaks.",
            )
        return f"Bearer {token}", (token,)
    if connection.username is None or connection.password is None:
        return None, ()
    password = resolve(connection.password).get_secret_value()
    username, hidden = connection.username, [password]
    if not isinstance(username, str):
        username = resolve(username).get_secret_value()
        hidden.append(username)
    login = basic_login(username, password)
    return login, (login.removeprefix("Basic "), *hidden)
