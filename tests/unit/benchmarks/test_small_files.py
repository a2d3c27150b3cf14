"""What the benchmark of small files tells of its samples."""

from __future__ import annotations

from benchmarks.small_files import Sample, plot, summary


def sample(batches: int, files: int) -> Sample:
    return Sample(batches, {"bronze.events": files}, {"bronze.events": batches / 10})


# Joined after every fourth sample, which every second one would not show.
SAMPLES = [sample(10 * number, (2, 12, 22, 32)[number % 4]) for number in range(1, 41)]


def test_the_plot_shows_the_most_files_however_often_they_are_joined() -> None:
    shown = plot(SAMPLES)
    assert "line [22, 32, 22, 32," in shown
    assert 'x-axis ["20", "40", "60",' in shown


def test_the_most_files_and_the_seconds_of_the_first_and_last_batches_are_told() -> None:
    assert [list(column.cells) for column in summary(SAMPLES).columns] == [
        *(["bronze.events"], ["32"], ["2"], ["2.50"], ["38.50"]),
    ]
