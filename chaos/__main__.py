"""Faults at random on the real stack: python -m chaos --seed 1 --rounds 20 [--only FAULT,…] [--list]

Every round is one fault under writes, then quiet, then all invariants against the databases themselves. A round that
fails ends its world: the tables and the product's log are kept in `chaos-artifacts`, and the next round begins another
one. The exit code is 1 when any round has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from chaos import canaries, checks, report
from chaos.faults.all import FAULTS
from chaos.faults.fault import Fault
from chaos.rounds import Round, deal, play
from chaos.world import ChaosError, World
from demo.__main__ import end_on_signals
from demo.stack.stack import live_stack
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import new_table

ROOT = Path(__file__).parents[1]
ARTIFACTS = ROOT / "chaos-artifacts"


def main(argv: Sequence[str] | None = None) -> int:
    """Play the rounds; 0 when all of them passed."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Faults at random on the real stack.")
    parser.add_argument("--seed", type=int, default=1, help="the same seed is the same faults (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--first", type=int, default=0, help="the first round's number (default: 0)")
    parser.add_argument("--only", default="", help="faults, by comma; default: all")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("--record", action="store_true", help="add the rounds to the results of docs/reliability.md")
    asked = parser.parse_args(argv)
    console = wide_console()
    if asked.list:
        console.print(_list())
        return 0
    if os.geteuid() != 0:
        parser.error("Run it as root: the warehouse is on a file system of its own, which is mounted.")
    only = [name for name in asked.only.split(",") if name]
    unknown = set(only) - FAULTS.keys()
    if unknown:
        parser.error(f"No fault {', '.join(sorted(unknown))}. There are: {', '.join(FAULTS)}.")
    dealt = list(deal(asked.seed, asked.first, asked.rounds, only or list(FAULTS)))
    steps = Steps(console)
    played: list[Round] = []
    leaks: list[str] = []
    while dealt:
        with ExitStack() as running:
            leaks += _play_in_a_world(console, asked.seed, dealt, played, running)
    for sentence in leaks:
        steps.error("I10", sentence)
    if asked.record:
        report.add(played)
    failed = [one for one in played if one.findings]
    console.print(f"{len(played)} rounds, {len(failed)} failed")
    return 1 if failed or leaks else 0


def _play_in_a_world(
    console: Console, seed: int, dealt: list[tuple[int, Fault]], played: list[Round], running: ExitStack
) -> list[str]:
    """Play rounds in a new world until one fails; what was found of canaries and secrets afterwards."""
    home = Path(running.enter_context(TemporaryDirectory(prefix="chaos-")))
    steps = Steps(console)
    end_on_signals(console, running)
    with steps.step("servers", "starting databases, broker, registry and Kafka Connect"):
        world = World(running.enter_context(live_stack()), home, seed)
        running.callback(world.tear_down)
        world.set_up()
        running.enter_context(world.observer)
    memory = checks.Memory()
    while dealt:
        number, fault = dealt.pop(0)
        with steps.step(f"round {number}", f"{fault.name}: {fault.what}") as note:
            one = play(world, memory, number, fault)
            note(f"{fault.name} ({one.mode}): {'; '.join(one.findings) or 'passed'}; {one.seconds:.0f} s")
        played.append(one)
        _log(one)
        if one.findings:
            _keep(world, one)
            break
    try:
        return list(canaries.leaks(world))
    except ChaosError as error:
        return [str(error)]


def _log(one: Round) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    with (ARTIFACTS / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(one.record()) + "\n")


def _keep(world: World, one: Round) -> None:
    """Keep what is needed to find out why."""
    world.pipeline.stop()
    folder = ARTIFACTS / f"seed-{one.seed}-round-{one.number}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world.warehouse, folder / "warehouse")
    shutil.copy(world.log, folder)
    shutil.copy(world.stack.connect.log, folder)


def _list() -> Table:
    table = new_table("Faults", "area", "fault", "what")
    for fault in FAULTS.values():
        table.add_row(fault.area, fault.name, fault.what)
    return table


if __name__ == "__main__":
    sys.exit(main())
