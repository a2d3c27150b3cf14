"""The thresholds of `lakehouse status`: how a value is judged, and whose file holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from lakehouse.contracts.files import MODELS, OPTIONAL, load_contracts, packaged_text, read_document
from lakehouse.contracts.thresholds import Level, Limits, Thresholds
from lakehouse.errors import ContractError

SOURCES = Path(__file__).parents[4] / "src"
THRESHOLDS = "monitoring/thresholds.yaml"
RISING = [name for name in Thresholds.model_fields if name != "headroom_seconds"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged contracts without the optional files."""
    for name in set(MODELS) - OPTIONAL:
        copy = tmp_path / "own" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / name, copy)
    return tmp_path / "own"


def write_thresholds(folder: Path, right: str, wrong: str) -> Path:
    """The packaged thresholds with one text in place of another, in a folder of contracts."""
    text = packaged_text(THRESHOLDS)
    assert right in text
    file = folder / THRESHOLDS
    file.parent.mkdir()
    file.write_text(text.replace(right, wrong, 1))
    return file


@pytest.mark.parametrize(
    ("value", "level"),
    [(-1, "ok"), (0, "ok"), (9.99, "ok"), (10, "warning"), (59.99, "warning"), (60, "critical"), (1e9, "critical")],
)
def test_where_more_is_worse_a_limit_counts_from_itself_on(value: float, level: Level) -> None:
    assert Limits(warning=10, critical=60).level(value) == level


@pytest.mark.parametrize(
    ("value", "level"),
    [(1e9, "ok"), (86_400.01, "ok"), (86_400, "warning"), (7_200.01, "warning"), (7_200, "critical"), (-5, "critical")],
)
def test_where_less_is_worse_a_limit_counts_from_itself_down(value: float, level: Level) -> None:
    assert Limits(warning=86_400, critical=7_200).level(value) == level


@pytest.mark.parametrize(("value", "level"), [(4.9, "ok"), (5, "critical"), (6, "critical")])
def test_two_equal_limits_have_no_warning_between_them(value: float, level: Level) -> None:
    assert Limits(warning=5, critical=5).level(value) == level


@pytest.mark.parametrize("limits", [{"warning": -1, "critical": 2}, {"warning": 1, "critical": -2}, {"warning": 1}])
def test_a_limit_is_not_negative_and_there_are_two(limits: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Limits.model_validate(limits)


def test_the_packaged_thresholds() -> None:
    thresholds = load_contracts().thresholds
    assert thresholds.connector_seconds == Limits(warning=10, critical=60)
    assert thresholds.wal_bytes == Limits(warning=100_000_000, critical=1_000_000_000)
    assert thresholds.headroom_seconds == Limits(warning=86_400, critical=7_200)
    assert thresholds.headroom_seconds.level(3 * 86_400) == "ok"


@pytest.mark.parametrize("name", RISING)
def test_critical_below_warning_is_refused_where_more_is_worse(name: str) -> None:
    given = load_contracts().thresholds.model_dump()
    Thresholds.model_validate({**given, name: {"warning": 1, "critical": 1}})
    with pytest.raises(ValidationError, match="critical is below warning: more is worse here"):
        Thresholds.model_validate({**given, name: {"warning": 2, "critical": 1}})


def test_critical_above_warning_is_refused_where_less_is_worse() -> None:
    given = load_contracts().thresholds.model_dump()
    lower = Thresholds.model_validate({**given, "headroom_seconds": {"warning": 8, "critical": 7}})
    assert [lower.headroom_seconds.level(seconds) for seconds in (9, 8, 7)] == ["ok", "warning", "critical"]
    with pytest.raises(ValidationError, match="headroom_seconds: critical is not below warning"):
        Thresholds.model_validate({**given, "headroom_seconds": {"warning": 7, "critical": 8}})


def test_equal_limits_of_headroom_are_refused_or_fall() -> None:
    given = load_contracts().thresholds.model_dump()
    try:
        same = Thresholds.model_validate({**given, "headroom_seconds": {"warning": 7, "critical": 7}})
    except ValidationError:
        return
    assert [same.headroom_seconds.level(seconds) for seconds in (8, 7, 0)] == ["ok", "critical", "critical"]


def test_a_folder_without_thresholds_has_the_packaged_ones(folder: Path) -> None:
    assert not (folder / THRESHOLDS).exists()
    assert load_contracts(folder).thresholds == load_contracts().thresholds


def test_a_folder_with_thresholds_has_its_own(folder: Path) -> None:
    write_thresholds(folder, "table_files: {warning: 1000,", "table_files: {warning: 7,")
    own, packaged = load_contracts(folder).thresholds, load_contracts().thresholds
    assert own.table_files == Limits(warning=7, critical=10_000)
    assert own.model_copy(update={"table_files": packaged.table_files}) == packaged


@pytest.mark.parametrize(
    ("right", "wrong", "key", "sentence"),
    [
        ("{warning: 10, critical: 60}", "{warning: 10, critical: 9}", "connector_seconds", "critical is below warning"),
        (
            "{warning: 60, critical: 300}",
            "{warning: 60}",
            "heartbeat_seconds.critical",
            "'critical' is required and absent",
        ),
        ("{warning: 0.001,", "{warning: much,", "quarantine_share.warning", "valid number"),
        ("pass_seconds:", "pas_seconds:", "pas_seconds", "did you mean 'pass_seconds'?"),
        ("{warning: 1000,", "{warning: -1,", "table_files.warning", "greater than or equal to 0"),
    ],
)
def test_a_mistake_in_a_folders_thresholds_is_said_with_file_and_line(
    folder: Path, right: str, wrong: str, key: str, sentence: str
) -> None:
    file = write_thresholds(folder, right, wrong)
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    (problem,) = refused.value.problems
    assert (problem.file, problem.key) == (str(file), key)
    assert sentence in problem.what
    assert problem.line is not None
    assert wrong in file.read_text().splitlines()[problem.line - 1]
    assert f"{file}:{problem.line}: " in str(refused.value)


def test_headroom_whose_limits_rise_is_said_with_the_file(folder: Path) -> None:
    file = write_thresholds(folder, "{warning: 86400, critical: 7200}", "{warning: 7200, critical: 86400}")
    with pytest.raises(ContractError) as refused:
        load_contracts(folder)
    (problem,) = refused.value.problems
    assert problem.file == str(file)
    assert problem.what == "headroom_seconds: critical is not below warning, and less time is worse"


def test_an_absent_file_of_the_thresholds_is_named_where_it_is_asked_for(tmp_path: Path) -> None:
    document = read_document(tmp_path / "thresholds.yaml", Thresholds, name="thresholds.yaml")
    assert document.contract is None
    assert "is absent" in document.problems[0].what
