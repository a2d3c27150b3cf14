"""Text from outside is printed as it is: none is markup, an emoji's code, or anything that controls a terminal."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lakehouse.process.steps import LoggedSteps, Steps, wide_console
from lakehouse.process.terminal import PlainConsole, json_text, styled, visible

ROOT = Path(__file__).parents[3]
# What ended a command, what vanished, and what a terminal would have obeyed.
HOSTILE = [
    *(
        "[/b]",
        "[/]",
        "[code=12]",
        "[red]x",
        "[bold",
        "[link=http://x]y[/link]",
        "[[a]]",
        "\\[b]",
        "a\\",
        "[@click=f]x[/]",
    ),
    *(":x:", ":warning:", ":smile:", "a:heart:b"),
    *(
        "\x1b[2J",
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\y",
        "\x9b31m",
        "\x90q\x9c",
        "\x07\x08\x0b\x0c",
    ),
    *("over\rwritten", "\x00", "\x7f", "\u202egnp.exe", "\u2066a\u2069", "\ud800", "a\udfffb", "\ufeffx", "\u2028y"),
    *("{x}", "%s", "'\"", "日本", "👍🏽", "e\u0301"),
]
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(show: Callable[[Console], None], *, is_terminal: bool = False) -> str:
    """What is written."""
    out = io.StringIO()
    show(
        PlainConsole(file=out, width=400, force_terminal=is_terminal, color_system="standard" if is_terminal else None)
    )
    return out.getvalue()


def table(text: str) -> Table:
    made = Table(text, title=text, caption=text)
    made.add_row(text)
    made.add_row(styled(text))
    return made


def step(steps: Steps, text: str) -> None:
    with steps.step("silver", text) as note:
        note.now(text)
        note.say(text)
        note(text)


def watch(console: Console, text: str) -> None:
    with Live(table(text), console=console, auto_refresh=False) as live:
        live.update(styled(text), refresh=True)


WAYS: dict[str, Callable[[Console, str], None]] = {
    "a sentence": lambda console, text: console.print(f"Key {text} is absent.", soft_wrap=True),
    "markup that was asked for": lambda console, text: console.print(text, markup=True, emoji=True, highlight=True),
    "a styled text": lambda console, text: console.print(styled((text, "red"), text), soft_wrap=True),
    "a table": lambda console, text: console.print(table(text)),
    "a group": lambda console, text: console.print(Group(text, styled(text))),
    "a step": lambda console, text: step(Steps(console), text),
    "an error": lambda console, text: Steps(console).error("Kafka", text),
    "beside a step": lambda console, text: Steps(console).say(text),
    "what is looked at again": watch,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_text_from_outside_is_printed_as_it_is(way: str, text: str) -> None:
    printed = shown(lambda console: WAYS[way](console, text))
    assert visible(text) in printed
    assert not CONTROLS.search(printed)


@pytest.mark.parametrize("way", WAYS)
@given(text=st.text(min_size=1, max_size=30).filter(lambda text: not re.search(r"\s", text)))
def test_any_text_is_printed_as_it_is(way: str, text: str) -> None:
    printed = shown(lambda console: WAYS[way](console, text))
    assert visible(text) in printed
    assert not CONTROLS.search(printed)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_controls_a_terminal_whoever_made_it(text: str) -> None:
    made = Table(title=Text(text))
    made.add_row(Text(text, "red"))
    assert not CONTROLS.search(shown(lambda console: console.print(made, Text(text))))


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_on_a_terminal_it_has_a_style_and_no_effect(text: str) -> None:
    printed = shown(lambda console: console.print(table(text), styled((text, "red"))), is_terminal=True)
    assert "\x1b[31m" in printed
    # Rich's own codes are those of colours and of the cursor of a table's lines alone.
    left = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert not CONTROLS.search(left)
    assert visible(text) in left


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_step_on_a_terminal_shows_it_beside_its_spinner(text: str) -> None:
    printed = shown(lambda console: step(Steps(console), text), is_terminal=True)
    # Of what rich itself writes: colours, the cursor hidden and shown, a line written again.
    left = re.sub(r"\x1b\[([0-9;]*m|\?25[lh]|1A|2K)|\r", "", printed)
    assert not CONTROLS.search(left)
    assert left.count(visible(text)) >= 2


@given(text=st.text())
def test_what_is_visible_has_nothing_that_controls(text: str) -> None:
    assert not CONTROLS.search(visible(text))
    assert visible(visible(text)) == visible(text)
    visible(text).encode("utf-8")


def test_lines_and_tabs_stay() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b[0m\r\u202e\ud800") == "\\x1b[0m\\r\\u202e\\ud800"


@given(value=st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_json_reads_as_what_it_was_made_of(value: dict[str, object]) -> None:
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert not CONTROLS.search(text)
        assert json.loads(text.encode("utf-8")) == value


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_log_has_the_text_itself(text: str) -> None:
    out = io.StringIO()
    LoggedSteps(out).error("Kafka", text)
    assert json.loads(out.getvalue().encode("utf-8"))["text"] == text
    assert not CONTROLS.search(out.getvalue().removesuffix("\n"))


def test_the_consoles_of_the_commands_are_plain() -> None:
    assert isinstance(wide_console(), PlainConsole)
    assert isinstance(wide_console(stderr=True), PlainConsole)


# There is no other way to print.

CODE = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "demo").rglob("*.py")])
PRINTS = {"src/lakehouse/process/terminal.py"}
MARKUP = re.compile(r"\[/?(red|green|yellow|blue|bold|dim|b|i)?\]")


@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_else_prints(file: Path) -> None:
    name = str(file.relative_to(ROOT))
    found = [] if name in PRINTS else list(other_ways(ast.parse(file.read_text(encoding="utf-8"))))
    assert found == []


def other_ways(tree: ast.Module) -> Iterator[str]:
    """What would print, or would be taken for markup, beside the one console."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="rich.markup" | "rich" | "rich.emoji" | "rich.prompt"):
                if any(one.name not in {"filesize"} for one in node.names):
                    yield f"line {node.lineno}: {node.module}"
            case ast.Call(func=ast.Name(id="print" | "Console" | "Table" | "Text" as called)):
                yield f"line {node.lineno}: {called}"
            case ast.Call(func=ast.Attribute(attr="from_markup" | "from_ansi" | "assemble" as called)):
                yield f"line {node.lineno}: {called}"
            case ast.keyword(arg="markup" | "emoji" | "highlight", value=ast.Constant(value=True)):
                yield f"line {node.value.lineno}: {node.arg}"
            case ast.Constant(value=str() as text) if MARKUP.search(text) and "[/" in text:
                yield f"line {node.lineno}: {text!r}"
