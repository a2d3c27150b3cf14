"""Random histories told to the fold in plain Python, until Ctrl-C or for so many: each must end in its source's table.

python -m tests.fuzz [--histories 100000] [--kind mysql] [--first 1620]

A history has a name, its kind and its number, and is always the same one. Of one that ends otherwise, its name and the
command that tells it again are printed, and the exit code is 1. The known ones: docs/ordering.md, "What is not told
apart".
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from random import Random

from lakehouse.contract_files import load_contracts
from lakehouse.contracts import SourceKind
from tests.support.histories import FEEDS, KINDS, differing, told
from tests.support.model.batches import WAYS
from tests.support.model.stories import random_history

AT_A_TIME = 200


def main(arguments: Sequence[str] | None = None) -> None:
    """Tell histories on every core; say how many there were, and which ended otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--histories", type=int, help="how many of each kind; without end if not given")
    parser.add_argument("--kind", choices=KINDS, action="append", help="all if not given")
    parser.add_argument("--first", type=int, help="the number to begin with; drawn if not given")
    chosen = parser.parse_args(arguments)
    first = 1_000_000 + secrets.randbelow(10**9) if chosen.first is None else chosen.first
    kinds, begun, failures, number = chosen.kind or list(KINDS), time.monotonic(), 0, 0
    parts = islice(count(first, AT_A_TIME), chosen.histories and -(-chosen.histories // AT_A_TIME))
    last = first + chosen.histories if chosen.histories else None
    try:
        with ProcessPoolExecutor() as pool:
            for part in parts:
                end = min(part + AT_A_TIME, last or sys.maxsize)
                share = -(-(end - part) // (os.cpu_count() or 1))
                starts = range(part, end, share)
                jobs = [(kind, start, min(start + share, end)) for kind in kinds for start in starts]
                for name in (name for found in pool.map(_failing, *zip(*jobs, strict=True)) for name in found):
                    failures += 1
                    kind, its = name.split()
                    print(f"{name} differs: python -m tests.fuzz --kind {kind} --first {its} --histories 1", flush=True)
                number += len(kinds) * (end - part)
                seconds = time.monotonic() - begun
                print(f"{number:,} histories, {failures} differ, {number / seconds * 3600:,.0f} an hour", flush=True)
    except KeyboardInterrupt:
        pass
    sys.exit(1 if failures else 0)


def _failing(kind: SourceKind, first: int, last: int) -> list[str]:
    """The names of the histories that end otherwise than their source's table."""
    contracts = load_contracts()
    topic = contracts.feeds[FEEDS[kind]].topics[0]
    found = []
    for number in range(first, last):
        random = Random(name := f"{kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=topic, features=None)
        batches = WAYS[number % len(WAYS)](history, random)
        if differing(told(contracts, history, batches), history):
            found.append(name)
    return found


if __name__ == "__main__":
    main()
