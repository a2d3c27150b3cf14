"""The one family of errors: what happened, where, and what to do about it.

Every message is for a person and carries no value of a row and no secret. `exit_code` is what the command line
returns, so that a scheduler can tell a mistake in a contract from a broker that is down.
"""

from __future__ import annotations


class LakehouseError(Exception):
    """A failure that has an explanation. `remedy` is one imperative sentence: the next step."""

    exit_code = 1

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")
        self.what = what
        self.remedy = remedy


class SettingsError(LakehouseError):
    """A parameter of the command is missing or cannot be used."""

    exit_code = 2


class ContractError(LakehouseError):
    """A contract (YAML) is wrong; `file`, `line` and `key` say where."""

    exit_code = 2

    def __init__(self, what: str, *, file: str, line: int, key: str, remedy: str) -> None:
        super().__init__(f"{file}:{line}: {key}: {what}", remedy=remedy)
        self.file = file
        self.line = line
        self.key = key


class GateHeldError(LakehouseError):
    """A quality gate with `on_failure: fail` holds a source back; everything else went on."""

    exit_code = 3


class KafkaError(LakehouseError):
    """The broker cannot be reached, or it refuses."""

    exit_code = 4


class TopicMissingError(KafkaError):
    """A topic that a contract names is not on the broker."""


class RetentionGapError(KafkaError):
    """Records between the last one read and the first one still kept are gone from the broker."""


class TableError(LakehouseError):
    """A table is missing, or is not what it should be."""

    exit_code = 5


class InstallationError(LakehouseError):
    """Something this machine needs is not installed: Java, a jar, a Python package."""

    exit_code = 6
