"""`--trigger continuous`: pass after pass until one fails; when the next one comes, and when the warehouse is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

import cli.jobs
from cli import continuous, main, running, unchanged
from cli.jobs import RunContext, RunOutcome
from lakehouse.errors import BrokerUnavailableError, FeedSuspendedError, GateHeldError, KafkaError
from lakehouse.kafka import retry
from lakehouse.kafka.offsets import Partition

PASS_SECONDS = 25.0
# A topic that bronze reads; of the others it does not.
READ = "postgres_prod_tables.public.orders"


@dataclass
class World:
    """No Spark, no broker: only the order of things. `told`: what happened, each with the second in which it began.

    `arrivals`: in which seconds a record arrives at the broker. `last_pass`: the one that fails. `gone`: from when to
    when the broker does not answer. `held`: what the gates hold, by the number of the pass. `has_nothing_new`: since
    the last run, as `looks` find at their seconds, each for its jobs.
    """

    now: float = 0.0
    told: list[tuple[float, str]] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    remembered: list[tuple[object, object]] = field(default_factory=list)
    resumed: list[frozenset[str]] = field(default_factory=list)
    arrivals: Sequence[float] = ()
    last_pass: int = 3
    gone: tuple[float, float] = (0.0, 0.0)
    held: Mapping[int, GateHeldError] = field(default_factory=dict)
    is_at_work: bool = False
    clients_made: int = 0
    open_clients: list[SimpleNamespace] = field(default_factory=list)
    has_nothing_new: bool = False
    looks: list[tuple[float, str]] = field(default_factory=list)

    def say(self, what: str) -> None:
        self.told.append((self.now, what))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @contextmanager
    def alone(self, *_given: object) -> Iterator[SimpleNamespace]:
        assert not self.is_at_work, "the turn before has not let go of the warehouse"
        self.is_at_work = True
        self.say("takes the warehouse")
        yield SimpleNamespace(check=lambda: None)
        self.is_at_work = False
        self.say("lets it go")

    def run_jobs(self, names: Sequence[str], work: RunContext, **_more: object) -> RunOutcome:
        assert self.is_at_work
        self.say(" ".join(names))
        assert not names or work.known == ({} if {"bronze", "publish"}.isdisjoint(names) else self.topics())
        self.run_ids.append(work.run_id)
        self.remembered.append((work.state_caches, work.gold_state))
        self.resumed.append(work.resumed)
        self.now += PASS_SECONDS
        failures = [self.held[len(self.run_ids)]] if len(self.run_ids) in self.held else []
        ended = [KafkaError("gone", hint="wait")] if len(self.run_ids) == self.last_pass else []
        return RunOutcome({}, [*failures, *ended])

    def look_for_news(
        self, _settings: object, _contracts: object, names: Sequence[str], **_more: object
    ) -> unchanged.Look:
        self.looks.append((self.now, " ".join(names)))
        return unchanged.Look(self.has_nothing_new, self.has_nothing_new, {}, datetime.now(UTC))

    def skip_if_unchanged(
        self, names: Sequence[str], work: RunContext, look: unchanged.Look, **_more: object
    ) -> RunOutcome:
        return self.run_jobs([] if look.has_nothing_new else names, work)

    def client(self, _connection: object) -> SimpleNamespace:
        made = SimpleNamespace(number=self.clients_made)
        made.close = lambda: self.open_clients.remove(made)
        self.clients_made += 1
        self.open_clients.append(made)
        return made

    def topics(self) -> Mapping[str, tuple[int, ...]]:
        """Others with every pass: they are asked for before each."""
        return {READ: (0,), "others": tuple(range(len(self.run_ids) + 1))}

    def partitions(self, _connection: object, *, kept: SimpleNamespace | None = None) -> Mapping[str, tuple[int, ...]]:
        assert kept is None or kept in self.open_clients
        if self.gone[0] < self.now < self.gone[1]:
            raise BrokerUnavailableError("no answer", servers="there", hint="start it")
        return self.topics()

    def latest(
        self, _connection: object, places: Sequence[Partition], *, kept: SimpleNamespace
    ) -> dict[Partition, int]:
        assert kept in self.open_clients
        assert [*places] == [Partition(READ, 0)]
        return {topic_partition: sum(at <= self.now for at in self.arrivals) for topic_partition in places}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(running, "opened", lambda *_given, **_more: SimpleNamespace(spark=None))
    monkeypatch.setattr(running, "acquire_lock", made.alone)
    monkeypatch.setattr(cli.jobs, "run_jobs", made.run_jobs)
    monkeypatch.setattr(unchanged, "look_for_news", made.look_for_news)
    monkeypatch.setattr(unchanged, "skip_if_unchanged", made.skip_if_unchanged)
    monkeypatch.setattr(continuous, "Admin", made.client)
    monkeypatch.setattr(continuous, "partitions", made.partitions)
    monkeypatch.setattr(continuous, "latest", made.latest)
    for module in (continuous, retry):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep))
    return made


WHERE = ["--warehouse=./w", "--bootstrap-servers=127.0.0.1:1"]
CONTINUOUS = [*WHERE, "--trigger", "continuous"]


def run_until_it_fails(command: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main.main([command, *CONTINUOUS])
    return ended.value.code


@pytest.mark.parametrize("command", ["run", "bronze", "silver", "gold", "publish"])
def test_it_goes_on_until_a_pass_fails_and_ends_with_its_exit_code(world: World, command: str) -> None:
    assert run_until_it_fails(command) == 4
    jobs = "bronze silver gold publish" if command == "run" else command
    assert [what for _at, what in world.told if what.startswith(jobs)] == [jobs] * 3
    assert len(set(world.run_ids)) == 3, "every pass is a run of its own"


@pytest.mark.parametrize("command", ["run", "silver", "publish"])
def test_what_a_gate_holds_does_not_end_it_and_is_said_once(
    world: World, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    suspended, blocked = FeedSuspendedError("a table", hint="fix it"), GateHeldError("a source", hint="fix it")
    world.held, world.last_pass = {1: suspended, 2: suspended, 3: blocked, 4: blocked, 6: blocked, 7: suspended}, 7
    assert run_until_it_fails(command) == 4, "the failure that ends it, not what is held beside it"
    said = [line for line in capsys.readouterr().err.splitlines() if "fix it" in line]
    assert ["a table" in line for line in said] == [True, False, False, True]
    assert len(world.run_ids) == 7


def test_otherwise_what_a_gate_holds_ends_it_with_its_exit_code(world: World) -> None:
    world.held = {1: FeedSuspendedError("a table", hint="fix it")}
    with pytest.raises(SystemExit) as ended:
        main.main(["silver", *WHERE])
    assert ended.value.code == 3


def test_a_table_is_resumed_by_the_first_pass_alone(world: World) -> None:
    with pytest.raises(SystemExit):
        main.main(["silver", *CONTINUOUS, "--resume", "mysql_orders"])
    assert world.resumed == [{"mysql_orders"}, set(), set()]


@pytest.mark.parametrize("command", ["run", "bronze", "silver", "gold", "publish"])
def test_otherwise_there_is_one_pass_when_there_is_something_to_do(world: World, command: str) -> None:
    jobs = "bronze silver gold publish" if command == "run" else command
    main.main([command, *WHERE])
    assert [what for _at, what in world.told] == ["takes the warehouse", jobs, "lets it go"]
    world.told.clear()
    world.has_nothing_new = True
    main.main([command, *WHERE])
    assert world.told == []
    assert [names for _at, names in world.looks] == [jobs, jobs]


@pytest.mark.parametrize(
    ("command", "asked"), [("gold", "--full-refresh"), ("publish", "--republish"), ("silver", "--resume=mysql_orders")]
)
def test_what_a_person_asks_for_is_done_without_news(world: World, command: str, asked: str) -> None:
    world.has_nothing_new = True
    main.main([command, *WHERE, asked])
    assert [what for _at, what in world.told] == ["takes the warehouse", command, "lets it go"]
    assert world.looks == []


def test_a_pass_without_news_looks_whether_there_is_anything_to_do(world: World) -> None:
    world.arrivals, world.has_nothing_new, world.last_pass = [10.0], True, 3
    run_until_it_fails("run")
    passes = [what for _at, what in world.told if what not in ("takes the warehouse", "lets it go")]
    # The first, and the one that comes when the longest wait is over; not the one that comes with a record.
    assert passes == ["", "bronze silver gold publish", ""]
    assert [at for at, _names in world.looks] == [0.0, world.told[-1][0]]


def test_with_news_passes_share_a_turn_of_a_minute(world: World) -> None:
    world.arrivals, world.last_pass = range(1000), 5
    run_until_it_fails("run")
    passes = "bronze silver gold publish"
    assert world.told == [
        (0.0, "takes the warehouse"),
        (0.0, passes),
        (25.0, passes),
        (50.0, passes),
        (75.0, "lets it go"),
        (80.0, "takes the warehouse"),
        (80.0, passes),
        (105.0, passes),
    ]


def test_what_is_known_of_tables_is_remembered_within_a_turn_alone(world: World) -> None:
    """Between two turns others may have written."""
    world.arrivals, world.last_pass = range(1000), 4
    run_until_it_fails("run")
    first, second, third, of_next_turn = world.remembered
    for at in (0, 1):
        assert first[at] is second[at] is third[at] is not of_next_turn[at]


@pytest.mark.parametrize("command", ["bronze", "silver", "gold", "publish"])
def test_jobs_that_are_processes_of_their_own_come_in_turn(world: World, command: str) -> None:
    world.arrivals, world.last_pass = range(1000), 2
    run_until_it_fails(command)
    assert [what for _at, what in world.told[:4]] == [
        "takes the warehouse",
        command,
        "lets it go",
        "takes the warehouse",
    ]
    assert world.told[3][0] == PASS_SECONDS + continuous.PAUSE_SECONDS


def test_without_news_the_next_pass_waits_for_them_and_the_warehouse_is_free(world: World) -> None:
    arrival = 43.5
    world.arrivals, world.last_pass = [arrival], 2
    run_until_it_fails("run")
    assert [what for _at, what in world.told[1:4]] == [
        "bronze silver gold publish",
        "lets it go",
        "takes the warehouse",
    ]
    (let_go, _), (taken, _) = world.told[2:4]
    assert let_go == PASS_SECONDS
    assert arrival <= taken <= arrival + continuous.LOOK_EVERY_SECONDS


def test_without_news_a_pass_comes_all_the_same(world: World) -> None:
    world.last_pass = 2
    run_until_it_fails("run")
    waited = world.told[3][0] - PASS_SECONDS
    longest = continuous.PAUSE_SECONDS + continuous.LONGEST_WAIT_SECONDS
    assert longest <= waited <= longest + continuous.LOOK_EVERY_SECONDS


def test_a_record_that_came_during_a_pass_is_news(world: World) -> None:
    world.arrivals, world.last_pass = [10.0], 2
    run_until_it_fails("run")
    assert [at for at, what in world.told if what.startswith("bronze")] == [0.0, PASS_SECONDS]


def test_a_broker_that_does_not_answer_between_passes_is_waited_for(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.gone, world.last_pass = (1.0, 30.0), 2
    run_until_it_fails("run")
    assert len(world.run_ids) == 2
    assert "run: the broker at there does not answer; trying again in 2 s (1 of 5)" in capsys.readouterr().err


def test_one_that_stays_away_ends_it(world: World) -> None:
    world.gone = (1.0, 10_000.0)
    assert run_until_it_fails("run") == 4
    assert len(world.run_ids) == 1


def test_one_client_looks_at_the_broker_and_is_closed_at_the_end(world: World) -> None:
    run_until_it_fails("run")
    assert len(world.run_ids) == 3
    assert (world.clients_made, world.open_clients) == (1, [])


def test_after_a_look_that_failed_there_is_another_client(world: World) -> None:
    world.gone, world.last_pass = (1.0, 26.0), 2
    run_until_it_fails("run")
    assert (world.clients_made, world.open_clients) == (2, [])


def test_jobs_that_need_no_broker_have_no_client(world: World) -> None:
    run_until_it_fails("silver")
    assert world.clients_made == 0


@pytest.mark.parametrize(
    ("command", "once", "what"),
    [
        *[(command, "--dry-run", "dry run") for command in ("run", "bronze", "silver", "gold", "publish")],
        ("gold", "--full-refresh", "full refresh"),
        ("publish", "--republish", "republication"),
    ],
)
def test_what_is_done_once_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], command: str, once: str, what: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([command, *CONTINUOUS, once])
    assert (ended.value.code, world.run_ids) == (2, [])
    assert f"A {what} has one pass." in capsys.readouterr().err
