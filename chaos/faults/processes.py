"""Faults of the product's own processes, and of the clock that they go by."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.faults.fault import fault
from chaos.world import ChaosError, World, hanging, last_words

BUSY = 7
AREA = "processes"


@fault(AREA, "kill -9 after a random commit of a pass, and a random moment later")
def killed(world: World) -> None:
    """The next run repeats what was not recorded."""
    with world.writing():
        world.say(f"killed {world.pipeline.kill_at_commit(world.random)}")


@fault(AREA, "kill -9 in a pass, and again in the one that recovers")
def killed_twice(world: World) -> None:
    """So a recovery is itself repeated."""
    with world.writing():
        world.say(f"killed {world.pipeline.kill_at_commit(world.random)}")
    world.drain()
    world.say(f"killed again {world.pipeline.kill_at_commit(world.random)}")


@fault(AREA, "SIGSTOP in the middle of a pass, another run meanwhile, then SIGCONT")
def paused(world: World) -> None:
    """The run that stands still keeps the lock: the other is refused, and it ends well itself."""
    with world.writing():
        _begin_and_wait_for_a_commit(world)
        with hanging(world.pipeline):
            _must_be_refused(world)
            time.sleep(world.random.uniform(1, 5))


@fault(AREA, "SIGSTOP in the middle of a pass, its lock's file removed, a whole run by another process, then SIGCONT")
def zombie(world: World) -> None:
    """The run that wakes has lost the warehouse: it writes nothing over the other's work, and ends with exit code 7."""
    with world.writing():
        pass
    world.drain()
    world.pipeline.be(continuous=False)
    _begin_and_wait_for_a_commit(world)
    with hanging(world.pipeline):
        (world.warehouse / "_lock").unlink()
        other = world.pipeline.own_process("run", seconds=240)
        if other.code:
            raise ChaosError(f"the run beside the zombie ended with {last_words(other)}")
    woken = world.pipeline.end_pass()
    world.say(f"the zombie ended with {last_words(woken)}")
    if woken.code == 0:
        raise ChaosError("the zombie has not noticed that it had lost the warehouse")


@fault(AREA, "two runs at once")
def two_runs(world: World) -> None:
    """The second is refused with exit code 7 and a sentence; the first goes on."""
    with world.writing():
        _begin_and_wait_for_a_commit(world)
        _must_be_refused(world)


@fault(AREA, "a run by a clock an hour ahead", single_only=True)
def clock_ahead(world: World) -> None:
    """Order is the source's, never the clock's."""
    _with_clock(world, "+1h")


@fault(AREA, "a run by a clock that goes back an hour", single_only=True)
def clock_back(world: World) -> None:
    """As above."""
    _with_clock(world, "-1h")


def _with_clock(world: World, offset: str) -> None:
    with world.writing():
        pass
    world.drain()
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    clock = {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    done = world.pipeline.own_process("run", more=clock, seconds=240)
    if done.code:
        raise ChaosError(f"the run by another clock ended with {last_words(done)}")


def _begin_and_wait_for_a_commit(world: World) -> None:
    """A pass is under way: some of its commits are made, and not all."""
    world.pipeline.commits.new()
    world.pipeline.begin_pass()
    wanted = world.random.randint(1, 4)
    deadline = time.monotonic() + 120
    while wanted > 0 and time.monotonic() < deadline and not world.pipeline.has_ended():
        wanted -= len(world.pipeline.commits.new())
        time.sleep(0.003)


def _must_be_refused(world: World) -> None:
    """Of a pass that has ended meanwhile nothing is asked; a continuous run frees the warehouse now and then."""
    refused = world.pipeline.own_process("run", seconds=240)
    if refused.code not in (0, BUSY):
        raise ChaosError(f"the second run ended with {last_words(refused)}")
    if refused.code == 0 and not world.pipeline.is_continuous and not world.pipeline.has_ended():
        raise ChaosError("two runs worked at once")
    world.say("the second run was refused" if refused.code == BUSY else "the first had ended before the second began")
