"""Texts of Kafka Connect and of databases, with what may be a secret hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lakehouse.connect.connectors import is_reference

MASK = "•••"

_NAMED = re.compile(
    r"""(?P<name>[\w.-]*(?:password|passwd|pwd|passphrase|secret|token|credential)[\w.-]*["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;&})\]]+)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?P<scheme>\w+://)[^\s/@:]+:[^\s/@]+@")
_AUTHORIZATION = re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._-]{8,}")


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, without what follows a name such as `password=`, and without logins in URLs."""
    for secret in sorted({one for one in secrets if len(one) >= 3 and not is_reference(one)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _NAMED.sub(lambda found: f"{found['name']}{MASK}", text)
    text = _IN_URL.sub(lambda found: f"{found['scheme']}{MASK}@", text)
    return _AUTHORIZATION.sub(lambda found: f"{found[1]} {MASK}", text)


def heads(trace: str) -> tuple[str, ...]:
    """Of a Java trace the exceptions with their sentences, without the frames between them; each once."""
    lines = [line.strip() for line in trace.splitlines()]
    kept = [line for line in lines if line and not re.match(r"at [\w.$/@<>-]+\(|\.\.\. \d+ (?:more|common)", line)]
    return tuple(dict.fromkeys(kept))
