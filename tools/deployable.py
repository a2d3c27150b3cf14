"""Refuses a deployment that must not be, before its wheel is built: bundle.yaml calls this at `plan` and `deploy`.

python3 -m tools.deployable --of=any|commit|tag NAME=VALUE...

Needs nothing but Python and git: it runs in a plain clone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.version import version

WHEEL_OF = ("any", "commit", "tag")


def refusals(wheel_of: str, values: Sequence[str], built: str) -> list[str]:
    """Why a wheel of version `built` is not deployed with these values, NAME=VALUE each; empty if it may be."""
    empty = [name for name, _equals, value in (one.partition("=") for one in values) if not value.strip()]
    found = [f"the variable {name} is empty. Set BUNDLE_VAR_{name}, or pass --var {name}=VALUE." for name in empty]
    if wheel_of not in WHEEL_OF:
        return [*found, f"the variable wheel_of is {wheel_of!r}. It is one of: {', '.join(WHEEL_OF)}."]
    is_of_a_commit = not built.endswith(("dirty", "nogit"))
    if wheel_of != "any" and not is_of_a_commit:
        found.append(f"version {built}: files are not as they are in a commit. Deploy from a clone without changes.")
    elif wheel_of == "tag" and "+" in built:
        found.append(f"version {built}: this commit has no tag. Check a tag out, or tag the commit v1.2.3.")
    return found


def main(arguments: Sequence[str]) -> None:
    """Ends with 2 and a sentence for each reason."""
    option, *values = arguments
    try:
        found = refusals(option.removeprefix("--of="), values, version())
    except ValueError as error:
        found = [str(error)]
    if found:
        print("\n".join(f"Not deployed: {one}" for one in found), file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
