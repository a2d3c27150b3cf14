"""The table of a run that finds nothing new: it is compared with the start of Spark of the run before."""

from __future__ import annotations

from benchmarks.backlog import OURS, Run, summary_without_news


def test_a_run_without_news_is_compared_with_the_start_of_spark_of_the_one_before() -> None:
    stages = {"news": 0.1, "session": 4.0, "silver": 20.0}
    run = Run(OURS, 1, 60.0, 0, 10, 100, 900.0, stages, {"command": 2.0, "news": 0.4})
    other = Run("plain Spark", 1, 30.0, 0, 10, 100, 900.0, {}, {})
    table = summary_without_news([run, other])
    assert [list(column.cells) for column in table.columns] == [["command", "news"], ["2.0", "0.4"], ["0.5", "0.1"]]
