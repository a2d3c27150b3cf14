"""`lakehouse run --trigger continuous`: pass after pass, each with the warehouse to itself, until one fails."""

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
    """The runs' ids, as they come; the third run fails. No Spark, no broker: only the order of things is asked."""
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
        assert tuple(names) == ("bronze", "silver", "gold", "publish")
        assert work.known == {"topic": (0,) * (len(seen) + 1)}, "the topics are asked for before every pass"
        seen.append(work.run_id)
        return Outcome({}, [KafkaError("gone", remedy="wait")] if len(seen) == 3 else [])

    monkeypatch.setattr(main, "opened", lambda *_given: SimpleNamespace(spark=None))
    monkeypatch.setattr(main, "at_work", alone)
    monkeypatch.setattr(main, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(cli.jobs, "run_jobs", run_jobs)
    monkeypatch.setattr(lakehouse.kafka, "partitions", lambda _connection: {"topic": (0,) * (len(seen) + 1)})
    return seen


OPTIONS = ["run", "--warehouse=./w", "--bootstrap-servers=127.0.0.1:1"]


def test_it_goes_on_until_a_pass_fails_and_ends_with_its_exit_code(passes: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([*OPTIONS, "--trigger", "continuous"])
    assert ended.value.code == 4
    assert len(set(passes)) == 3


def test_otherwise_there_is_one_pass(passes: list[str]) -> None:
    main.main(OPTIONS)
    assert len(passes) == 1


def test_a_dry_run_that_does_not_end_is_refused(passes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([*OPTIONS, "--trigger", "continuous", "--dry-run"])
    assert (ended.value.code, passes) == (2, [])
    assert "A dry run has one pass." in capsys.readouterr().err
