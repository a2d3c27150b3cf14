"""The stack, once for all tests, its databases set up, and the packaged connectors running on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from demo.stack.set_up import set_up, variables
from demo.stack.stack import Stack, live_stack
from tests.support.live.command import Command
from tests.support.live.connectors import Config

PACKAGED = tuple(
    f"{name}-connector"
    for name in ("postgres-outbox", "postgres-tables", "mysql-outbox", "mysql-tables", "mariadb-tables")
)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The three databases, set up as the documentation says, the broker, the registry and Kafka Connect."""
    with live_stack() as running:
        set_up(running)
        yield running


@pytest.fixture(scope="session")
def command(stack: Stack) -> Command:
    """The `lakehouse` command with the stack as its target."""
    return Command(variables(stack))


@pytest.fixture(scope="session")
def packaged_connectors(command: Command) -> Mapping[str, Config]:
    """The packaged connectors as `lakehouse connect render` fills them in."""
    rendered = command("connect", "render", *PACKAGED, "--json")
    assert rendered.code == 0, rendered.err
    return {one["name"]: one["config"] for one in rendered.json["connectors"]}


@pytest.fixture(scope="session")
def deployed(command: Command, stack: Stack) -> Stack:
    """The stack with the packaged connectors deployed."""
    done = command("connect", "deploy", *PACKAGED)
    assert done.code == 0, done.err
    return stack
