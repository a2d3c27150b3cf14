"""What a check of connectors found: where it is, what breaks, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ConfigDict

from lakehouse.contracts.parts.base import Model
from lakehouse.errors import LakehouseError


class Part(Model):
    """A frozen model whose validator is built at its first use: `lakehouse --help` needs none of them."""

    model_config = ConfigDict(defer_build=True)


class Finding(Part):
    """One thing that breaks, or will break, a deployment. Holds no secret."""

    check: str
    """The short name of the check, the same in every release."""
    file: str
    """The file, or the address of the cluster that runs the connector."""
    line: int | None = None
    connector: str
    key: str
    what: str
    hint: str

    @property
    def location(self) -> str:
        """File and line, or the file alone."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.location}: {self.connector}: {self.key}: {self.what} {self.hint}"


class ConnectorFindingsError(LakehouseError):
    """Connectors have findings: `findings` has every one."""

    exit_code = 2

    def __init__(self, findings: Sequence[Finding], *, consequence: str = "") -> None:
        count = len(findings)
        what = f"{count} {'finding' if count == 1 else 'findings'} in the configuration of connectors."
        super().__init__(f"{what}{consequence}", hint="Fix what each names, then: lakehouse connect check.")
        self.findings = tuple(findings)
