"""YAML as a proposal writes it: every line with its reason. Imports without pyspark."""

from __future__ import annotations

import re
import textwrap

import yaml

from lakehouse.contracts.files import MODELS, SCHEMAS

LINE = 120


def schema_line(file: str) -> str:
    """The first line of a file of contracts, by which editors complete and check it."""
    (schema,) = [name for name, model in SCHEMAS.items() if model is MODELS[file]]
    return f"# yaml-language-server: $schema=../schemas/{schema}"


def scalar(text: str) -> str:
    """The text as YAML that is read as this text: in quotes where it would be a number, a boolean or no scalar."""
    if re.fullmatch(r"[A-Za-z_][\w.-]*( [\w.-]+)*", text, re.ASCII) and yaml.safe_load(text) == text:
        return text
    return yaml.safe_dump(text, default_style='"', width=float("inf")).rstrip("\n")


def line(indent: int, text: str, why: str) -> list[str]:
    """A line with its reason behind it, or above it where the line would be too long."""
    margin = " " * indent
    if not why:
        return [margin + text]
    behind = f"{margin}{text} # {why}"
    if len(behind) <= LINE:
        return [behind]
    return [*(margin + one for one in comment(why, indent=indent)), margin + text]


def comment(text: str, *, indent: int = 0) -> list[str]:
    """The text as lines of a comment, which stand so far to the right."""
    return [f"# {one}" for one in textwrap.wrap(text, width=LINE - 2 - indent)]
