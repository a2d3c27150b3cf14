"""The command reference, docs/commands.md, made from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from cli.main import app

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "a mistake in a parameter, a contract or a connector",
    3: "a quality gate holds a source back, or has suspended a table; everything else went on",
    4: "Kafka: no broker, a missing topic, records gone before they were read; the schema registry or Kafka Connect: it"
    " refuses, does not answer, or a connector has failed",
    5: "a table: missing, made by another contract, of a newer release, no permission, no space",
    6: "something is not installed",
    7: "another run works on the warehouse; the message names it",
    8: "`lakehouse verify`: a record is missing, stored twice, never read or wrongly counted, or the topic is not gold",
}

OPENING = """\
# Commands

`make generated` writes this page from the command line itself; `lakehouse COMMAND --help` says the same. An option that
has a variable can be set in the environment instead. How a command ends: [exit codes](#exit-codes).
"""
SHARED = "Options of every command on tables"
EXAMPLE = "Example: "
DEFAULT = re.compile(r"\s*Default: (.*)\.$")
# What is written for a value, by Typer's word for its type; the alternatives of a choice stay as they are.
VALUES = {"str": "TEXT", "list[str]": "TEXT", "int": "N", "int range": "N", "list[int]": "N", "path": "PATH"}


@dataclass(frozen=True)
class Row:
    """An argument or option as its table has it: cells of Markdown."""

    name: str
    what: str
    default: str
    variable: str


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands: its name from `lakehouse` on, its help, and its arguments and options."""

    name: str
    help: str
    is_group: bool
    rows: tuple[Row, ...]

    @property
    def paragraphs(self) -> tuple[str, ...]:
        """The help's, each on one line."""
        return tuple(" ".join(each.split()) for each in self.help.split("\n\n"))

    @property
    def first_sentence(self) -> str:
        """What it does."""
        return re.split(r"(?<=\.)\s", self.paragraphs[0], maxsplit=1)[0]


def every_command() -> list[Command]:
    """The commands and groups below `lakehouse`, in the order of the code."""
    root = typer.main.get_command(app)
    context = root.make_context("lakehouse", [], resilient_parsing=True)
    return [one for one in _with_those_below(root, "lakehouse", context) if one.name != "lakehouse"]


def reference() -> str:
    """The page."""
    commands = every_command()
    shared = _shared(commands)
    overview = [
        (f"[`{one.name.removeprefix('lakehouse ')}`](#{_anchor(one.name)})", _prose(one.first_sentence))
        for one in commands
        if not one.is_group
    ]
    codes = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    parts = [OPENING, _table(("command", "what it does"), overview), f"## {SHARED}\n", _options(shared)]
    parts += [part for command in commands for part in _section(command, shared)]
    parts += ["## Exit codes\n", _table(("exit code", "means"), codes)]
    return "\n".join(parts)


def _with_those_below(command: Any, name: str, context: Any) -> Iterator[Command]:
    rows = tuple(_row(each, context) for each in command.params if not each.hidden)
    yield Command(name, command.help or "", isinstance(command, TyperGroup), rows)
    if isinstance(command, TyperGroup):
        for word, one in command.commands.items():
            yield from _with_those_below(one, f"{name} {word}", context)


def _shared(commands: Sequence[Command]) -> list[Row]:
    """The options that every command has that is given a warehouse."""
    on_tables = [one.rows for one in commands if any(row.name.startswith("`--warehouse") for row in one.rows)]
    return [row for row in on_tables[0] if all(row in rows for rows in on_tables)]


def _section(command: Command, shared: Sequence[Row]) -> Iterator[str]:
    yield f"## {command.name}\n"
    for paragraph in command.paragraphs:
        example = paragraph.removeprefix(EXAMPLE)
        yield f"{_prose(paragraph)}\n" if example == paragraph else f"```bash\n{example}\n```\n"
    has_shared = set(shared) <= set(command.rows)
    own = [row for row in command.rows if not has_shared or row not in shared]
    if own:
        yield _options(own)
    if has_shared:
        yield f"{'And the' if own else 'The'} [{SHARED.lower()}](#{_anchor(SHARED)}).\n"


def _row(given: TyperArgument | TyperOption, context: Any) -> Row:
    text = given.help or ""
    said = DEFAULT.search(text)
    default = _default(given) if said is None else _prose(said[1]) if _is_prose(said[1]) else f"`{said[1]}`"
    variable = f"`{given.envvar}`" if given.envvar else ""
    return Row(_names(given, context), _prose(DEFAULT.sub("", text)), default, variable)


def _names(given: TyperArgument | TyperOption, context: Any) -> str:
    """What is written: the option and its value, or what stands in the place of the argument."""
    if isinstance(given, TyperArgument):
        return f"`{given.metavar or (given.name or '').upper()}`"
    if given.is_flag:
        return ", ".join(f"`{name}`" for name in (*given.opts, *given.secondary_opts))
    kind = given.display_type(context).strip("<>")
    return f"`{given.opts[-1]} {given.metavar or VALUES.get(kind, kind)}`"


def _is_prose(default: str) -> bool:
    return " " in default or default.isalpha()


def _default(given: TyperArgument | TyperOption) -> str:
    if isinstance(given, TyperArgument) and given.required:
        return "required"
    if isinstance(given.show_default, str):
        return f"`{given.show_default}`"
    if given.default in (None, "") or isinstance(given.default, bool) or not given.show_default:
        return ""
    return f"`{given.default.value if isinstance(given.default, Enum) else given.default}`"


def _options(rows: Sequence[Row]) -> str:
    return _table(
        ("argument or option", "meaning", "default", "variable"),
        [(row.name, row.what, row.default, row.variable) for row in rows],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns that have nothing are left out."""
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)]
    cells = [[row[at].replace("|", "\\|") for at in kept] for row in rows]
    lines = [[head[at] for at in kept], ["---"] * len(kept), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _prose(text: str) -> str:
    """Text of a help as Markdown: options as code, pages as links, nothing taken for markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _marked(part) for part in parts)


def _marked(text: str) -> str:
    text = re.sub(r"([\\*<])", r"\\\1", text)
    text = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", text)
    return re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", text)
