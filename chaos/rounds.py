"""One round: a fault under writes, then quiet, then whether all is right. And which fault a round has, by the seed."""

from __future__ import annotations

import random
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chaos import checks
from chaos.faults.all import FAULTS
from chaos.faults.fault import Fault
from chaos.world import FIRST_MARKER, SOURCES, UNIFIED_TOPIC, ChaosError, World, last_words
from lakehouse.kafka.log import committed_records

# Runs that may fail one after the other, with no command in their message, before it is said that the product does not
# recover; and with one.
RUNS = 3
COMMANDS = 10
# What a message says that a person is to run; the end of its sentence is not of it.
_COMMAND = re.compile(
    r"lakehouse (offsets set \w+(?: --[\w-]+(?: [\w.-]*\w)?)+|gold --full-refresh|publish --republish"
    r"|silver --accept-missing \w+)"
)
CONTINUOUS_SECONDS = 240.0
# The share of rounds, of those that may, in which a continuous run works.
CONTINUOUS_SHARE = 0.4


@dataclass(frozen=True)
class Round:
    """What became of a round. `runs`: how the runs after the fault ended; `recovery_seconds`: until all was read."""

    seed: int
    number: int
    fault: str
    mode: str
    acts: Sequence[str]
    runs: Sequence[str]
    recovery_seconds: float
    seconds: float
    findings: Sequence[str]

    def record(self) -> Mapping[str, Any]:
        """For the file of results."""
        return asdict(self)


def deal(seed: int, first: int, count: int, names: Sequence[str]) -> Sequence[tuple[int, Fault]]:
    """The rounds' faults: every kind once before any comes again, in an order of this seed."""
    dealt: list[str] = []
    deck = 0
    while len(dealt) < first + count:
        cards = sorted(names)
        random.Random(f"{seed}:{deck}").shuffle(cards)  # noqa: S311  # a test's, not a secret
        dealt += cards
        deck += 1
    return [(number, FAULTS[dealt[number]]) for number in range(first, first + count)]


def play(world: World, memory: checks.Memory, number: int, fault: Fault) -> Round:
    """Play a round; what is not as it must be is in its findings."""
    begun = time.monotonic()
    world.random = random.Random(f"{world.seed}:{number}")  # noqa: S311  # as above
    world.acts.clear()
    world.rebuilt.clear()
    is_continuous = not fault.single_only and world.random.random() < CONTINUOUS_SHARE
    world.say(f"round {number}: {fault.name}, {'continuous' if is_continuous else 'single'}")
    runs: list[str] = []
    findings: list[str] = []
    recovering = time.monotonic()
    try:
        world.pipeline.be(continuous=is_continuous)
        fault.strike(world)
        recovering = time.monotonic()
        world.drain()
        _settle(world, runs)
        recovered = time.monotonic()
        findings += checks.findings(world, memory)
    except ChaosError as error:
        recovered = time.monotonic()
        findings.append(str(error))
    except Exception as error:  # of a server that this round has hurt: a finding, and other rounds go on
        recovered = time.monotonic()
        world.say(traceback.format_exc())
        findings.append(f"{type(error).__name__}: {error}")
    mode = "continuous" if is_continuous else "single"
    now = time.monotonic()
    return Round(
        world.seed,
        number,
        fault.name,
        mode,
        tuple(world.acts[1:]),
        tuple(runs),
        round(recovered - recovering, 1),
        round(now - begun, 1),
        tuple(findings),
    )


def _settle(world: World, runs: list[str]) -> None:
    """Let the product read all there is: by runs until one ends well, or by the continuous one."""
    if world.pipeline.is_continuous:
        _settle_continuous(world, runs)
        return
    if not world.pipeline.has_ended():
        runs.append(last_words(world.pipeline.end_pass()))
    failed = 0
    while failed < RUNS and len(runs) < COMMANDS:
        world.pipeline.commits.new()
        done = world.pipeline.command("run")
        commits = len(world.pipeline.commits.new())
        runs.append(last_words(done) if done.code else "0")
        if done.code == 0:
            world.pipeline.commits_of_a_pass = max(4, commits)
            return
        command = named_command(done.err)
        if command is None:
            failed += 1
            continue
        followed = world.pipeline.command(*command)
        world.say(f"lakehouse {' '.join(command)}, as the message says: {last_words(followed)}")
    raise ChaosError(f"it does not recover by itself: {runs[-1]}")


def named_command(message: str) -> Sequence[str] | None:
    """The command that the message names, with the answer to its question; None where it names none."""
    found = _COMMAND.search(" ".join(message.split()))
    if found is None:
        return None
    words = found[1].split()
    return [*words, *(["--yes"] if words[0] == "offsets" else [])]


def _settle_continuous(world: World, runs: list[str]) -> None:
    deadline = time.monotonic() + CONTINUOUS_SECONDS
    while time.monotonic() < deadline:
        if world.pipeline.has_ended():
            runs.append("ended, started again")
            world.pipeline.begin_pass()
        if _has_arrived(world):
            return
        time.sleep(2)
    raise ChaosError(f"the continuous run has not brought everything to the topic within {CONTINUOUS_SECONDS:.0f} s")


def _has_arrived(world: World) -> bool:
    """Whether the last marker of every database is in the unified topic."""
    number = FIRST_MARKER + world.markers
    missing = {f'"{names.prefix}-{number}"'.encode() for names in SOURCES}
    for record in committed_records(world.kafka, UNIFIED_TOPIC):
        missing = {key for key in missing if key not in record.key}
    return not missing
