"""`make fuzz`: what it says of histories that end as they should, and of one that is known not to."""

from __future__ import annotations

import pytest

from tests import fuzz


def test_histories_that_end_as_their_source_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fuzz.main(["--first", "7", "--histories", "2"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("6 histories, 0 differ, ")


def test_one_that_ends_otherwise_is_named_with_the_way_to_tell_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fuzz.main(["--kind", "mysql", "--first", "1619", "--histories", "3"])
    assert ended.value.code == 1
    told, counted = capsys.readouterr().out.splitlines()
    assert told == "mysql 1620 differs: python -m tests.fuzz --kind mysql --first 1620 --histories 1"
    assert counted.startswith("3 histories, 1 differ, ")
