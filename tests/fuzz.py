"""Random histories folded in plain Python, until Ctrl-C or for so many: each must end in its source's table.

python -m tests.fuzz [--histories 100000] [--kind mysql] [--first 1620]

A history has a name, its kind and its number, and is always the same one. Of one that ends otherwise, or that raises,
its name and the command that repeats it are printed. The exit code is then 1. The known ones: docs/ordering.md,
"Ordering limitations".
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from random import Random

from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import SourceKind
from tests.support.frames import History, differing_histories
from tests.support.histories import FEEDS, KINDS, differing, told
from tests.support.model.batches import WAYS, sent_again
from tests.support.model.history import History as SourceHistory
from tests.support.model.stories import random_history
from tests.support.pure import PureSilver
from tests.support.sharded import sharded

# Of each kind, between two lines of progress; and so many in one process at a time.
IN_A_ROUND, AT_A_TIME = 200, 100
# So many of the histories come from a producer that sends every record twice.
SENT_AGAIN = 0.4


def main(arguments: Sequence[str] | None = None) -> None:
    """Fold histories on every core; say how many there were, and which failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--histories", type=int, help="how many of each kind; without end if not given")
    parser.add_argument("--kind", choices=KINDS, action="append", help="all if not given")
    parser.add_argument("--first", type=int, help="the number to begin with; drawn if not given")
    chosen = parser.parse_args(arguments)
    first = 1_000_000 + secrets.randbelow(10**9) if chosen.first is None else chosen.first
    kinds, begun, failures, done = chosen.kind or list(KINDS), time.monotonic(), 0, 0
    try:
        with workers() as pool:
            for begin, end in rounds(first, chosen.histories):
                parts = [
                    (kind, range(end)[at : at + AT_A_TIME]) for kind in kinds for at in range(begin, end, AT_A_TIME)
                ]
                for said in pool.map(failing, *zip(*parts, strict=True)):
                    failures += len(said)
                    print(*said, sep="\n", end="\n" if said else "", flush=True)
                done += len(kinds) * (end - begin)
                an_hour = done / (time.monotonic() - begun) * 3600
                print(f"{done:,} histories, {failures} failed, {an_hour:,.0f} an hour", flush=True)
    except KeyboardInterrupt:
        pass
    sys.exit(1 if failures else 0)


def workers() -> Executor:
    """A process a core. Polars must not be forked."""
    return ProcessPoolExecutor(mp_context=get_context("spawn"))


def rounds(first: int, histories: int | None) -> Iterator[tuple[int, int]]:
    """The numbers of each round, from and to; without end where `histories` is None."""
    begin, last = first, sys.maxsize if histories is None else first + histories
    while begin < last:
        yield begin, min(begin + IN_A_ROUND, last)
        begin += IN_A_ROUND


def failing(kind: SourceKind, numbers: Sequence[int]) -> list[str]:
    """A line for each of these histories that does not end as its source's table, or raises.

    Or that silver's fold, of all of them together, ends otherwise than the oracle.
    """
    contracts, found = packaged_contracts(), []
    folded: list[tuple[int, History]] = []
    for number in numbers:
        try:
            silver, history = silver_of(contracts, kind, number)
            folded.append((number, (silver.positioned()[1], silver.cutoff_by_shard)))
            why = "differs" if differing(silver, history) else None
        except Exception as error:  # the fold must not raise: that is a finding too, and others are still to come
            why = f"raises {error!r}"
        if why is not None:
            found.append(line(kind, number, why))
    others = differing_histories([one for _number, one in folded], sharded(contracts).feeds[FEEDS[kind]])
    return [*found, *(line(kind, folded[at][0], "is folded otherwise") for at in others)]


@cache
def packaged_contracts() -> Contracts:
    """The packaged contracts, read once a process."""
    return load_contracts()


def line(kind: SourceKind, number: int, why: str) -> str:
    """What is said of a history, with the command that repeats it."""
    return f"{kind} {number} {why}: python -m tests.fuzz --kind {kind} --first {number} --histories 1"


def silver_of(contracts: Contracts, kind: SourceKind, number: int) -> tuple[PureSilver, SourceHistory]:
    """A history, and what has read it."""
    random = Random(f"{kind} {number}")  # noqa: S311
    history = random_history(kind, random, topic=contracts.feeds[FEEDS[kind]].topics[0], features=None)
    if random.random() < SENT_AGAIN:
        history = sent_again(history, random)
    return told(contracts, history, WAYS[number % len(WAYS)](history, random)), history


if __name__ == "__main__":
    main()
