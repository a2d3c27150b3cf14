"""What the models of this package have in common."""

from __future__ import annotations

from pydantic import ConfigDict

from lakehouse.contracts import Model


class Part(Model):
    """A frozen model whose validator is built at its first use: `lakehouse --help` needs none of them."""

    model_config = ConfigDict(defer_build=True)
