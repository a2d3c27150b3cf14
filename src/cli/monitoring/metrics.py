"""The metrics of the jobs: a file after every pass, or answers over HTTP while the command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import CommandContext
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse
    from lakehouse.process.steps import Note


@dataclass(frozen=True)
class Metrics:
    """Where the metrics of a command go, as options: nowhere, where neither a file nor a port was given."""

    metrics_file: Annotated[
        Path | None,
        typer.Option(
            envvar="LAKEHOUSE_METRICS_FILE",
            help="A file of metrics, written after every pass, for the textfile collector of node_exporter.",
            show_default=False,
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="LAKEHOUSE_METRICS_PORT",
            min=1,
            max=65535,
            help="Answer Prometheus at this port while the command runs.",
            show_default=False,
        ),
    ] = None
    metrics_host: Annotated[
        str,
        typer.Option(
            envvar="LAKEHOUSE_METRICS_HOST", help="The address of that port; 0.0.0.0 lets other machines ask."
        ),
    ] = "127.0.0.1"

    def write(self, chosen: CommandContext, with_spark: Callable[[], Warehouse], *, say: Note) -> None:
        """Write the file, where there is one. What the jobs have committed stays done: that it fails is said alone."""
        if self.metrics_file is None:
            return
        from cli.monitoring.shared import view_of
        from monitoring.metrics import write_metrics
        from monitoring.status import status_of

        try:
            write_metrics(lambda: status_of(view_of(chosen, None, with_spark=with_spark)), self.metrics_file)
        except Exception as error:
            # The text of any other error may quote rows.
            why = error.what if isinstance(error, LakehouseError) else f"{type(error).__name__}."
            say(f"no metrics of this pass: {why}")

    @contextmanager
    def served(self, chosen: CommandContext, with_spark: Callable[[], Warehouse]) -> Iterator[None]:
        """Inside the block Prometheus is answered, where there is a port."""
        if self.metrics_port is None:
            yield
            return
        from cli.monitoring.shared import view_of
        from monitoring.metrics import serve_metrics
        from monitoring.status import status_of

        stop = serve_metrics(
            lambda: status_of(view_of(chosen, None, with_spark=with_spark)),
            host=self.metrics_host,
            port=self.metrics_port,
        )
        try:
            yield
        finally:
            stop()
