"""What of the faults needs no server: which one a round has, what is written, what is seen, what is reported."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chaos import report
from chaos.checks import differences
from chaos.commits import Commits
from chaos.faults.all import FAULTS
from chaos.observer import Observer
from chaos.rounds import Round, deal, named_command
from chaos.writers import CANARY, Writer
from demo.stack.mysql import MySQL
from lakehouse.kafka.connection import KafkaConnection

NAMES = tuple(FAULTS)


def test_the_same_seed_deals_the_same_faults() -> None:
    assert deal(7, 0, 90, NAMES) == deal(7, 0, 90, NAMES)
    assert deal(7, 0, 90, NAMES) != deal(8, 0, 90, NAMES)


def test_a_round_has_the_fault_that_it_had_among_all() -> None:
    assert deal(7, 41, 3, NAMES) == deal(7, 0, 90, NAMES)[41:44]


def test_every_kind_comes_once_before_any_comes_again() -> None:
    dealt = [fault.name for _number, fault in deal(3, 0, 2 * len(NAMES), NAMES)]
    assert set(dealt[: len(NAMES)]) == set(NAMES)
    assert set(Counter(dealt).values()) == {2}


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_has_a_sentence_for_the_report(name: str) -> None:
    fault = FAULTS[name]
    assert fault.name == name
    assert fault.what[0].isalpha()
    assert fault.what.rstrip(".") == fault.what
    assert fault.strike.__doc__


def test_two_writers_of_a_seed_write_the_same(tmp_path: Path) -> None:
    def statements(seed: int) -> list[str]:
        writer = Writer(MySQL(tmp_path), seed)
        return [statement for _ in range(200) for statement in writer._transaction()]

    assert statements(1) == statements(1)
    assert statements(1) != statements(2)
    text = "\n".join(statements(1))
    for kind in ("INSERT INTO orders", "UPDATE orders SET status", "DELETE", "SET order_id =", "INTO outbox_events"):
        assert kind in text
    assert CANARY in text


def test_commits_are_seen_once_and_by_table(tmp_path: Path) -> None:
    def commit(table: str, version: int) -> None:
        log = tmp_path / table.replace(".", "/") / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{version:020}.json").touch()

    commit("silver.orders", 0)
    commits = Commits(tmp_path)
    assert list(commits.new()) == []
    commit("silver.orders", 1)
    commit("silver.orders", 2)
    assert list(commits.new()) == ["silver.orders", "silver.orders"]
    assert list(commits.new()) == []


def test_differences_name_keys_and_columns_and_no_value() -> None:
    actual = {1: {"note": "secret"}, 2: {"note": "same"}, 4: {"note": "more"}}
    expected = {1: {"note": "other"}, 2: {"note": "same"}, 3: {"note": "gone"}}
    (sentence,) = differences(actual, expected, of="silver.orders", against="its source")
    assert sentence == (
        "silver.orders differs from its source in 3 keys (1 absent, 1 too many): 1 (note), 3 (absent), 4 (too many)"
    )
    assert differences(expected, expected, of="silver.orders", against="its source") == []


def test_the_report_counts_what_passed() -> None:
    def played(number: int, *findings: str, seconds: float = 3.0) -> dict[str, object]:
        return dict(Round(1, number, "killed", "single", (), ("0",), seconds, 40.0, findings).record())

    text = report.tables([played(0), played(1, seconds=9.0), played(2, "I1: wrong")])
    assert "3 rounds, 2 of them passed" in text
    (row,) = [line for line in text.splitlines() if "(`killed`)" in line]
    assert row.endswith("| 3 | 2 | 6 s | 9 s |")


def test_a_pass_that_grows_after_it_was_read_whole_is_torn() -> None:
    observer = Observer(KafkaConnection(bootstrap_servers="127.0.0.1:1"), "topic")
    observer.take("postgres", "1/A")
    observer.take("postgres", "1/A")
    observer.rest()
    observer.take("mysql", "1/A")
    observer.take("postgres", "1/B")
    assert observer.torn() == []
    observer.take("postgres", "1/A")
    assert observer.torn() == ["postgres 1/A"]
    observer.forget()
    observer.take("postgres", "1/A")
    assert observer.torn() == []


@pytest.mark.parametrize(
    ("message", "command"),
    [
        (
            "To read the new one:\nlakehouse offsets set postgres --topic a.public.orders --to earliest.",
            ["offsets", "set", "postgres", "--topic", "a.public.orders", "--to", "earliest", "--yes"],
        ),
        (
            "lakehouse offsets set mysql --topic __debezium-heartbeat.mysql_prod --to earliest.",
            ["offsets", "set", "mysql", "--topic", "__debezium-heartbeat.mysql_prod", "--to", "earliest", "--yes"],
        ),
        (
            "Nothing was skipped: lakehouse offsets set mysql --to earliest\n --only-gaps.",
            ["offsets", "set", "mysql", "--to", "earliest", "--only-gaps", "--yes"],
        ),
        ("then `lakehouse publish --republish` sends all of it", ["publish", "--republish"]),
        ("lakehouse quality report shows them.", None),
    ],
)
def test_the_command_that_a_message_names_is_followed(message: str, command: list[str] | None) -> None:
    assert named_command(message) == command
