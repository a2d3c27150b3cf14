"""docs/reliability.md, made from all rounds that were ever recorded (`chaos/rounds.jsonl`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from chaos.faults.all import FAULTS
from chaos.rounds import Round

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "chaos" / "rounds.jsonl"
PAGE = ROOT / "docs" / "reliability.md"
# Of a round; what was done in it names files of a machine.
KEPT = ("seed", "number", "fault", "mode", "recovery_seconds", "findings")
BEGIN, END = "<!-- rounds -->", "<!-- end of rounds -->"


def add(played: Iterable[Round]) -> None:
    """Add rounds to the results, and write the page's tables again."""
    with RESULTS.open("a", encoding="utf-8") as file:
        for one in played:
            record = one.record()
            file.write(json.dumps({name: record[name] for name in KEPT}) + "\n")
    write(results())


def results() -> Sequence[Mapping[str, Any]]:
    """All recorded rounds."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def write(rounds: Sequence[Mapping[str, Any]]) -> None:
    """Write the tables into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{tables(rounds)}{END}{after}", encoding="utf-8")


def tables(rounds: Sequence[Mapping[str, Any]]) -> str:
    """The rounds by fault: how many, how many passed, and how long recovery took."""
    passed = [one for one in rounds if not one["findings"]]
    lines = [
        f"\n{len(rounds)} rounds, {len(passed)} of them passed. Seeds: {', '.join(_seeds(rounds))}.\n",
        "| where | fault | rounds | passed | recovery, median | longest |",
        "|---|---|---|---|---|---|",
    ]
    for fault in FAULTS.values():
        of_fault = [one for one in rounds if one["fault"] == fault.name]
        seconds = [one["recovery_seconds"] for one in of_fault if not one["findings"]]
        times = f"{median(seconds):.0f} s | {max(seconds):.0f} s" if seconds else " | "
        holding = sum(not one["findings"] for one in of_fault)
        lines.append(f"| {fault.area} | {fault.what} (`{fault.name}`) | {len(of_fault)} | {holding} | {times} |")
    return "\n".join(lines) + "\n"


def _seeds(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(seed) for seed in sorted({one["seed"] for one in rounds})]
