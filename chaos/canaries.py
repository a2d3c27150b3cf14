"""Whether a value of a row, or a secret, is anywhere but where it belongs (I10).

Values are searched for in all that is written for people and machines: the product's log, its metrics, its report, what
`status` says. Secrets are searched for there and in every file of the warehouse too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from chaos.world import World
from chaos.writers import CANARY


def leaks(world: World) -> Iterator[str]:
    """A sentence for every file that has what it must not have."""
    secrets = [text for one in world.stack.databases for text in (one.password, one.replication_password)]
    page = world.home / "report.html"
    world.pipeline.own_process("report", "--output", str(page), seconds=240)
    world.pipeline.own_process("status", seconds=240)
    written = [world.log, world.home / "metrics.prom", page]
    yield from _found(written, [CANARY, *secrets])
    yield from _found((file for file in world.warehouse.rglob("*") if file.is_file()), secrets)


def _found(files: Iterable[Path], texts: list[str]) -> Iterator[str]:
    for file in files:
        if file.exists():
            data = file.read_bytes()
            for number, text in enumerate(texts):
                if text.encode() in data:
                    kind = "a value of a row" if text == CANARY else f"secret {number}"
                    yield f"{file.name} has {kind}"
