"""`make fuzz`: of histories that end as they should, of one that does not, and of one that raises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import fuzz


def test_histories_that_end_as_their_source_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fuzz.main(["--first", "7", "--histories", "2"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("6 histories, 0 failed, ")


def test_one_that_ends_otherwise_is_named_with_the_way_to_repeat_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{(1,): None}, {}, {}]
    monkeypatch.setattr(fuzz, "differing", lambda *_given: rows.pop())
    monkeypatch.setattr(fuzz, "workers", ThreadPoolExecutor)
    with pytest.raises(SystemExit) as ended:
        fuzz.main(["--kind", "mysql", "--first", "1618", "--histories", "3"])
    assert ended.value.code == 1
    named, counted = capsys.readouterr().out.splitlines()
    assert named == "mysql 1620 differs: python -m tests.fuzz --kind mysql --first 1620 --histories 1"
    assert counted.startswith("3 histories, 1 failed, ")


def test_one_that_raises_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object) -> None:
        raise ValueError("no place")

    assert fuzz.failing("mysql", range(1, 2)) == []
    monkeypatch.setattr(fuzz, "told", broken)
    first, second = fuzz.failing("mysql", range(1, 3))
    assert first == "mysql 1 raises ValueError('no place'): python -m tests.fuzz --kind mysql --first 1 --histories 1"
    assert second.startswith("mysql 2 raises ")


def test_one_that_silver_folds_otherwise_than_the_oracle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "differing_histories", lambda *_given: [1])
    (named,) = fuzz.failing("mysql", range(7, 9))
    assert named.startswith("mysql 8 is folded otherwise: ")


def test_without_a_number_there_is_no_last_round() -> None:
    rounds = fuzz.rounds(5, None)
    assert [next(rounds), next(rounds)] == [(5, 205), (205, 405)]
    assert [*fuzz.rounds(5, 201)] == [(5, 205), (205, 206)]
