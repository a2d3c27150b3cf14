"""What benchmarks write into their page."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table

from benchmarks import report

PAGE = (
    "# Page\n\n<!-- one: written by make one -->\nold\n<!-- /one -->\n\n<!-- two: by hand -->\nstays\n<!-- /two -->\n"
)


def shown() -> Table:
    table = Table("rows", "seconds")
    table.add_row("1,000", "2.5")
    return table


def test_a_table_and_its_plots_take_the_place_of_the_last_ones(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    plot = report.bars("Both", "seconds", {"one": 2.5, "other": 10.0})
    for _again in range(2):
        report.write("one", shown(), [plot], asked="a test", page=page)
        text = page.read_text()
        assert "| rows | seconds |\n| --- | --- |\n| 1,000 | 2.5 |" in text
        assert text.count(": a test.") == 1
        assert 'x-axis ["one", "other"]' in text
        assert 'y-axis "seconds" 0 --> 11' in text
        assert "bar [2.5, 10]" in text
        assert "old" not in text
        assert "stays" in text


def test_a_page_without_the_place_is_said(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="no place for three"):
        report.write("three", shown(), [], asked="a test", page=page)
    assert page.read_text() == PAGE


@pytest.mark.parametrize("name", ["backlog", "bare consumer", "growth", "steady", "tables"])
def test_the_page_has_a_place_for_every_benchmark(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(report.PAGE.read_text())
    report.write(name, shown(), [report.lines("Plot", "MB", ["1", "2"], [[1.0, 2.0]])], asked="a test", page=page)
    assert "line [1, 2]" in page.read_text()
