"""A mistake between the contracts, and the sentence about a name that is not there. Imports without pyspark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

# The files of a folder of contracts, as messages name them.
TOPICS, TABLES, ROW_GATE = "bronze/topics.yaml", "silver/tables.yaml", "silver/gate.yaml"
GOLD, TABLE_GATE = "gold/tables.yaml", "gold/gate.yaml"

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """What is wrong, in which of the contract's files, and at which of its keys."""

    file: str
    path: Path
    what: str


def unknown(what: str, name: str, valid: Iterable[str], *, where: str) -> str:
    """That there is no such name, which one was probably meant, and which there are."""
    known = sorted(set(valid))
    if not known:
        return f"no {what} {name!r} in {where}; there is none"
    close = get_close_matches(name, known, n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    return f"no {what} {name!r} in {where};{hint} There {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
