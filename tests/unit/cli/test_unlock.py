"""`lakehouse unlock` of a folder: without Spark it says who holds the lock, and what frees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli import unlock
from cli.main import main
from lakehouse.process.lock import FolderLock, hold, this_process


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_given: Any) -> None:
        pytest.fail("Spark has started")

    monkeypatch.setattr(unlock, "opened", opened)


def lock_of(folder: Path) -> FolderLock:
    return FolderLock(folder, this_process(run_id="0123456789abcdef", command="lakehouse run"))


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_it_says_who_holds_it_and_that_ending_that_process_frees_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    command = ["unlock", "--warehouse", f"{scheme}{tmp_path}"]
    with hold(lock_of(tmp_path), say=print) as held:
        main([*command, "--dry-run"])
        said = capsys.readouterr().out
        assert "`lakehouse run` (run 01234567, user " in said
        assert "or end that process: the warehouse is free at once. Nothing was changed (dry run)." in said
        with pytest.raises(SystemExit) as ended:
            main([*command, "--yes"])
        assert ended.value.code == 7
        assert "or end that process: the warehouse is free at once." in capsys.readouterr().err
        held.check()
    main([*command, "--yes"])
    assert capsys.readouterr().out == "The warehouse is not locked. Nothing was changed.\n"


def test_its_answer_names_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["unlock", "--warehouse", str(tmp_path), "--dry-run", "--json"]
    with hold(lock_of(tmp_path), say=print):
        main(command)
    answer = json.loads(capsys.readouterr().out)
    assert answer["locked_by"]["run"] == "0123456789abcdef"
    assert answer["unlocked"] is False
    main(command)
    assert json.loads(capsys.readouterr().out)["locked_by"] is None
