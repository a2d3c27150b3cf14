"""What a fault is, and how a function is declared to be one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.world import World

Strike = Callable[[World], None]


@dataclass(frozen=True)
class Fault:
    """`what`: the sentence of the report. `single_only`: a person works on the tables, so no continuous run goes on."""

    name: str
    area: str
    what: str
    strike: Strike
    single_only: bool


def fault(area: str, what: str, *, single_only: bool = False) -> Callable[[Strike], Fault]:
    """Make a fault of a function, by its name."""

    def declare(strike: Strike) -> Fault:
        return Fault(strike.__name__, area, what, strike, single_only)

    return declare
