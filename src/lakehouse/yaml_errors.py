"""Where a text is not YAML, and why, for messages.

Imports without pyspark.
"""

from __future__ import annotations

import yaml


def place_and_reason(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """The line in `text` that the parser refuses, from 1, and what it says of it.

    A character that YAML does not have (a control character, say) is refused before there are lines: the parser knows
    its place in the text alone.
    """
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        return line, f"the character U+{error.character:04X} in column {column} is not allowed there"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return mark.line + 1 if mark else 1, problem or "it cannot be parsed"
