"""What people read uses the field's words: help, messages, README and docs have none of the project's former own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli.main import app

ROOT = Path(__file__).parents[2]
FORMER = re.compile(
    r"\b(told|tells?|misfits?|held|sent along|laid beside|held against|what waits|stands? still|poison\w*|anew"
    r"|mend(s|ed|ing)?|awaited|older keys|ledger|standing|patience|stretch(es)?|requeue\w*"
    r"|lakehouse (collect|maintain)|_cell_positions|counts? for nothing|gone afterwards|with news|meet at tables"
    r"|what cannot be distinguished|a person can)\b",
    re.IGNORECASE,
)
# Names of the code's former own. A name says what a thing is, in the words of Spark, Kafka, Debezium and Delta.
FORMER_NAMES = frozenset(
    [
        "told",
        "tells",
        "unsaid",
        "places",
        "PLACES",
        "Reach",
        "Extent",
        "covering",
        "Arrived",
        "Numbered",
        "OfSource",
        "JudgedBatch",
        "Memory",
        "left_out",
        "leaving_out",
        "passed_over",
        "untold",
        "list_of_changes",
        "as_gone_below_cutoffs",
        "fallen_behind",
        "not_sent_before",
        "misplaced",
        "ENDS",
        "COLLECTED",
        "Making",
        "MadeTable",
        "not_made",
        "may_come",
        "made",
        "met_again",
        "set_aside",
        "moved_row",
        "strays",
        "Explaining",
        "Typed",
        "may_be_typed",
        "small_table",
        "let_java_forget",
        "run_unless_settled",
        "Settled",
        "Work",
        "Chosen",
        "Desired",
        "Kept",
        "kept_changes",
        "together",
        "answered",
        "materialized_or_fetched",
        "prepared_for",
        "MANY",
        "SEARCHED_FOR_ONE",
        "take_back",
        "BrokerGoneError",
        "go_on",
        "going_on",
        "at_work",
        "Scene",
        "Seen",
        "Trouble",
        "Asked",
        "Said",
        "Step",
        "beside",
        "left_behind",
        "remedy",
        "Consumed",
        "may_be_published",
        "passed_tables",
        "blocked_at",
        "WAITS",
    ]
)
# The name of a table of an earlier format, which a message about such a warehouse has to name.
EXCEPTIONS = {"ops.ledger"}
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_words_of_the_field(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if FORMER.search(line)] == []


def test_help_has_the_words_of_the_field() -> None:
    found = [text for text in helps(typer.main.get_command(app)) if FORMER.search(text)]
    assert found == []


def helps(command: Any) -> Iterator[str]:
    """The texts of a command and of those below it: its help, and that of its options."""
    yield command.help or ""
    yield from (getattr(option, "help", None) or "" for option in command.params)
    for one in getattr(command, "commands", {}).values():
        yield from helps(one)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_a_message_has_the_words_of_the_field(source: Path) -> None:
    found = [text for text in texts(ast.parse(source.read_text(encoding="utf-8"))) if FORMER.search(text)]
    assert [text for text in found if text not in EXCEPTIONS] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_a_name_has_the_words_of_the_field(source: Path) -> None:
    given = {name.strip("_") for name in names(ast.parse(source.read_text(encoding="utf-8")))}
    found = (given & FORMER_NAMES) | {name for name in given if name.startswith("MOST_")}
    assert found == set()


def names(tree: ast.Module) -> Iterator[str]:
    """Every name that the code gives or uses."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                yield name.rsplit(".", 1)[-1]


def texts(tree: ast.Module) -> Iterator[str]:
    """Every text of the code, but docstrings: what may be shown."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
