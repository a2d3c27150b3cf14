"""Secrets: never a value in a file of ours, only a reference to where it is kept, and none in a text that is shown.

Imports without pyspark.

{env: NAME}                                  the environment variable NAME
{file: PATH}                                 the text of a file, without its last line break
{databricks_secret: {scope: S, key: K}}      a secret of the workspace
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr, StringConstraints

from lakehouse.contracts.parts.base import Model
from lakehouse.errors import InstallationError, SettingsError

MASK = "•••"

_NAMED = re.compile(
    r"""(?P<name>[\w.-]*(?:password|passwd|pwd|passphrase|secret|token|credential)[\w.-]*["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;&})\]]+)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?P<scheme>\w+://)[^\s/@:]+:[^\s/@]+@")
_AUTHORIZATION = re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._-]{8,}")

REFERENCE_FORMS = "{env: NAME}, {file: PATH} or {databricks_secret: {scope: SCOPE, key: KEY}}"

Text = Annotated[str, StringConstraints(min_length=1)]


class FromEnvironment(Model):
    """The value of an environment variable."""

    env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

    def __str__(self) -> str:
        return f"the variable {self.env}"


class FromFile(Model):
    """The text of a file, without its last line break."""

    file: Text

    def __str__(self) -> str:
        return f"the file {self.file}"


class DatabricksSecretName(Model):
    """Where a Databricks workspace keeps a secret."""

    scope: Text
    key: Text


class FromDatabricks(Model):
    """A secret of the Databricks workspace that the job runs in."""

    databricks_secret: DatabricksSecretName

    def __str__(self) -> str:
        return f"the secret {self.databricks_secret.key} of the scope {self.databricks_secret.scope}"


def _only_references(value: object) -> object:
    """Refuses everything else before pydantic looks at it: its own messages would show a value."""
    references = {"env": FromEnvironment, "file": FromFile, "databricks_secret": FromDatabricks}
    if isinstance(value, tuple(references.values())):
        return value
    if isinstance(value, dict) and len(value) == 1 and value.keys() <= references.keys():
        return value
    raise ValueError(f"a secret is given by reference, never by value: {REFERENCE_FORMS}")


SecretReference = Annotated[FromEnvironment | FromFile | FromDatabricks, BeforeValidator(_only_references)]


def resolve(reference: FromEnvironment | FromFile | FromDatabricks) -> SecretStr:
    """The secret itself, wrapped so that no repr, log line or message shows it.

    Raises SettingsError, which names the reference, when there is nothing or only empty text; InstallationError for a
    secret of a workspace where nothing can read those.
    """
    match reference:
        case FromEnvironment():
            text = _from_environment(reference)
        case FromFile():
            text = _from_file(reference)
        case FromDatabricks():
            text = _from_databricks(reference)
    if not text:
        raise SettingsError(f"A secret is empty: {reference}.", hint="Put the secret there, or name another place.")
    return SecretStr(text)


def _from_environment(reference: FromEnvironment) -> str:
    value = os.environ.get(reference.env)
    if value is None:
        raise SettingsError(
            f"A secret is missing: {reference} is not set.", hint=f"Set {reference.env} where the job runs."
        )
    return value


def _from_file(reference: FromFile) -> str:
    try:
        text = Path(reference.file).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"A secret cannot be read: {reference} ({why}).", hint="Put it there, readable for the user of the job."
        ) from None
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def _from_databricks(reference: FromDatabricks) -> str:
    name = reference.databricks_secret
    utilities = _databricks_utilities()
    try:
        return str(utilities.secrets.get(scope=name.scope, key=name.key))
    except Exception:  # whatever the runtime raises, its text is not ours to show
        raise SettingsError(
            f"A secret cannot be read: {reference}.",
            hint="Check the names with `databricks secrets list-secrets SCOPE`, and that the job's user may read it.",
        ) from None


def _databricks_utilities() -> Any:
    try:
        from databricks.sdk.runtime import dbutils
    except ImportError:
        pass
    else:
        return dbutils
    try:
        from pyspark.dbutils import DBUtils  # type: ignore[import-not-found]
        from pyspark.sql import SparkSession
    except ImportError:
        raise InstallationError(
            "Secrets of a Databricks workspace can be read on Databricks only.",
            hint="Elsewhere use {env: NAME} or {file: PATH}.",
        ) from None
    return DBUtils(SparkSession.builder.getOrCreate())


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, without what follows a name such as `password=`, and without logins in URLs."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _NAMED.sub(lambda found: f"{found['name']}{MASK}", text)
    text = _IN_URL.sub(lambda found: f"{found['scheme']}{MASK}@", text)
    return _AUTHORIZATION.sub(lambda found: f"{found[1]} {MASK}", text)
