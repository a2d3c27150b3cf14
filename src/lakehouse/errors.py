"""The one family of errors: what happened, where, and what to do about it.

Every message is for a person and carries no value of a row and no secret. `exit_code` is what the command line
returns, so that a scheduler can distinguish a mistake in a contract from a broker that is down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class LakehouseError(Exception):
    """A failure that has an explanation. `hint` is one imperative sentence: the next step."""

    exit_code = 1

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(f"{what} {hint}")
        self.what = what
        self.hint = hint


class JavaGoneError(LakehouseError):
    """The Java that Spark runs in has ended under the command: out of memory, or killed."""


class SettingsError(LakehouseError):
    """A parameter of the command is missing or cannot be used."""

    exit_code = 2


@dataclass(frozen=True)
class ContractProblem:
    """One mistake in a contract (YAML): where it is, and what is wrong. `line` None: found when the file was closed."""

    file: str
    line: int | None
    key: str
    what: str

    def __str__(self) -> str:
        location = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{location}: {self.key}: {self.what}{'' if self.what.endswith(('.', '?')) else '.'}"


class ContractError(LakehouseError):
    """One or more contracts are wrong: `problems` has every mistake that was found."""

    exit_code = 2

    def __init__(self, problems: Sequence[ContractProblem]) -> None:
        sentences = [str(problem) for problem in problems]
        hint = f"Fix {'it' if len(problems) == 1 else f'these {len(problems)}'}, then: lakehouse validate."
        super().__init__("\n".join(sentences), hint=hint)
        self.args = ("\n".join([*sentences, hint]),)
        self.problems = tuple(problems)


class GateHeldError(LakehouseError):
    """A quality gate with `on_failure: fail` blocks a source; everything else went on."""

    exit_code = 3


class FeedSuspendedError(GateHeldError):
    """Gate 1 has suspended silver tables; their records since then are pending, not applied."""


class KafkaError(LakehouseError):
    """The broker cannot be reached, or it refuses."""

    exit_code = 4


class BrokerUnavailableError(KafkaError):
    """The broker at `servers` does not answer: it may be back soon, and to try again is of use."""

    def __init__(self, what: str, *, servers: str, hint: str) -> None:
        super().__init__(what, hint=hint)
        self.servers = servers


class TopicMissingError(KafkaError):
    """A topic that a contract names is not on the broker."""


class TopicChangedError(KafkaError):
    """A topic that was read before is another one now, or not there any more."""


class RetentionGapError(KafkaError):
    """Records between the last one read and the first one still kept are gone from the broker."""


class RegistryError(KafkaError):
    """The schema registry refuses, or what answers is none."""


class RegistryGoneError(RegistryError):
    """The schema registry at `servers` does not answer: it may be back soon, and to try again is of use."""

    def __init__(self, what: str, *, servers: str, hint: str) -> None:
        super().__init__(what, hint=hint)
        self.servers = servers


class ConnectError(LakehouseError):
    """Kafka Connect refuses, or one of its connectors has failed."""

    exit_code = 4


class ConnectUnavailableError(ConnectError):
    """Kafka Connect does not answer: it may be back soon, and to try again is of use."""


class ConnectorMissingError(ConnectError):
    """Kafka Connect has no connector of that name."""


class TableError(LakehouseError):
    """A table is missing, or is not what it should be."""

    exit_code = 5


class MissingRecordsError(TableError):
    """A bronze table has not as many records as were stored in it."""


class UnfinishedTableError(TableError):
    """A table's creation has begun and has not ended: by another run just now, or by one that was killed."""


class InstallationError(LakehouseError):
    """Something this machine needs is not installed: Java, a jar, a Python package."""

    exit_code = 6


class WarehouseBusyError(TableError):
    """Another run works on the warehouse: this one may not begin, or may not go on."""

    exit_code = 7


class ConservationError(LakehouseError):
    """The tables do not account for every record: some are missing, stored twice, or counted wrongly."""

    exit_code = 8
