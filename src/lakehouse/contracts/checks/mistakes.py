"""A mistake between the contracts, and the sentences about a name that is not there. Imports without pyspark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    verb = "is" if len(known) == 1 else "are"
    return f"no {what} {name!r} in {where}{did_you_mean(name, known)} There {verb}: {', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str], *, form: str = "; {}", otherwise: str = ".", most: int = 1) -> str:
    """The question whether one of the closest names was meant, in this form; `otherwise` where none is close."""
    close = closest(name, known, most=most)
    return form.format(f"did you mean {' or '.join(map(repr, close))}?") if close else otherwise


def closest(name: str, known: Iterable[str], *, most: int = 1) -> Sequence[str]:
    """The names that are written nearly like this one, the closest first; whether letters are large does not count."""
    names = {one.lower(): one for one in known}
    return [names[one] for one in get_close_matches(name.lower(), names, n=most)]
