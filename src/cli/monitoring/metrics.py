"""The metrics of the jobs: a file after every pass, or answers over HTTP while the command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import Chosen
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from lakehouse.spark.tables import Warehouse
    from lakehouse.steps import Note


@dataclass(frozen=True)
class Metrics:
    """Where the metrics of a command go: nowhere, where neither a file nor a port was given."""

    file: Path | None
    port: int | None
    host: str

    def write(self, chosen: Chosen, with_spark: Callable[[], Warehouse], *, say: Note) -> None:
        """Write the file, where there is one. What the jobs have committed stays done: that it fails is said alone."""
        if self.file is None:
            return
        from cli.monitoring.shared import view_of
        from monitoring.metrics import write_metrics
        from monitoring.status import status_of

        try:
            write_metrics(lambda: status_of(view_of(chosen, None, with_spark=with_spark)), self.file)
        except Exception as error:
            # The text of any other error may quote rows.
            why = error.what if isinstance(error, LakehouseError) else f"{type(error).__name__}."
            say(f"no metrics of this pass: {why}")

    @contextmanager
    def served(self, chosen: Chosen, with_spark: Callable[[], Warehouse]) -> Iterator[None]:
        """Inside the block Prometheus is answered, where there is a port."""
        if self.port is None:
            yield
            return
        from cli.monitoring.shared import view_of
        from monitoring.metrics import serve_metrics
        from monitoring.status import status_of

        stop = serve_metrics(
            lambda: status_of(view_of(chosen, None, with_spark=with_spark)), host=self.host, port=self.port
        )
        try:
            yield
        finally:
            stop()
