"""How Data Docs look: Great Expectations' views with our templates, which need neither scripts nor a network.

Great Expectations imports this module by its name; nothing else does.
"""

from __future__ import annotations

from typing import Any

from great_expectations.render.view.view import DefaultJinjaIndexPageView, DefaultJinjaPageView
from jinja2 import ChoiceLoader, Environment, PackageLoader


def _ours_first(environment: Environment) -> None:
    ours = PackageLoader("lakehouse.quality", "data_docs_templates")
    environment.loader = ChoiceLoader([loader for loader in (ours, environment.loader) if loader])


class PageView(DefaultJinjaPageView):
    """A page of a suite, or of one validation."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _ours_first(self.env)


class IndexView(DefaultJinjaIndexPageView):
    """The first page."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _ours_first(self.env)
