"""`--trigger continuous`: pass after pass, each with the warehouse to itself, until one fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import cli.jobs
import lakehouse.kafka
from cli import main
from cli.jobs import Outcome, Work
from lakehouse.errors import KafkaError


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs' ids and jobs, as they come; the third run fails. No Spark, no broker: only the order of things."""
    seen: list[str] = []
    at_work: list[str] = []

    @contextmanager
    def alone(chosen: object, _warehouse: object, _steps: object) -> Iterator[SimpleNamespace]:
        assert not at_work, "the pass before has not let go of the warehouse"
        at_work.append(str(chosen))
        yield SimpleNamespace(check=lambda: None)
        at_work.clear()

    def run_jobs(names: Sequence[str], work: Work, **_more: object) -> Outcome:
        assert at_work
        if {"bronze", "publish"} & {*names}:
            assert work.known == {"topic": (0,) * (len(seen) + 1)}, "the topics are asked for before every pass"
        seen.append(f"{work.run_id} {' '.join(names)}")
        return Outcome({}, [KafkaError("gone", remedy="wait")] if len(seen) == 3 else [])

    monkeypatch.setattr(main, "opened", lambda *_given: SimpleNamespace(spark=None))
    monkeypatch.setattr(main, "at_work", alone)
    monkeypatch.setattr(main, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(cli.jobs, "run_jobs", run_jobs)
    monkeypatch.setattr(lakehouse.kafka, "partitions", lambda _connection: {"topic": (0,) * (len(seen) + 1)})
    return seen


WHERE = ["--warehouse=./w", "--bootstrap-servers=127.0.0.1:1"]
CONTINUOUS = [*WHERE, "--trigger", "continuous"]


@pytest.mark.parametrize("command", ["run", "bronze", "silver", "gold", "publish"])
def test_it_goes_on_until_a_pass_fails_and_ends_with_its_exit_code(passes: list[str], command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([command, *CONTINUOUS])
    assert ended.value.code == 4
    assert len(set(passes)) == 3
    jobs = "bronze silver gold publish" if command == "run" else command
    assert {one.split(" ", 1)[1] for one in passes} == {jobs}


def test_otherwise_there_is_one_pass(passes: list[str]) -> None:
    main.main(["run", *WHERE])
    assert len(passes) == 1


@pytest.mark.parametrize(
    ("command", "once", "what"),
    [
        *[(command, "--dry-run", "dry run") for command in ("run", "bronze", "silver", "gold", "publish")],
        ("gold", "--full-refresh", "full refresh"),
        ("publish", "--republish", "republication"),
    ],
)
def test_what_is_done_once_is_refused(
    passes: list[str], capsys: pytest.CaptureFixture[str], command: str, once: str, what: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([command, *CONTINUOUS, once])
    assert (ended.value.code, passes) == (2, [])
    assert f"A {what} has one pass." in capsys.readouterr().err
