"""The version of this folder, as git tells it: what a wheel that is built here is called. pyproject.toml asks for it.

1.2.3                      the commit has the tag v1.2.3
1.2.3.post4+g0123456789ab  it is the fourth after that tag
0+g0123456789ab            it has no tag before it
0+nogit                    git knows nothing of this folder: it was copied, or downloaded as an archive
….dirty                    and files are not as they are in the commit

The same commit is the same version on every machine.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Twelve figures in every clone: left to itself, git takes as many as the clone needs.
_DESCRIBE = ("describe", "--tags", "--always", "--long", "--dirty", "--abbrev=12", "--match=v[0-9]*")
_TAGGED = re.compile(r"v(?P<tag>[^-]+)-(?P<after>\d+)-(?P<commit>g[0-9a-f]+)(?P<dirty>-dirty)?")
_UNTAGGED = re.compile(r"(?P<commit>[0-9a-f]+)(?P<dirty>-dirty)?")
_RELEASE = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?")


def version(root: Path = ROOT) -> str:
    """The version of a folder. Raises ValueError for a tag that is no version."""
    described = _git(root)
    if described is None:
        return "0+nogit"
    if match := _TAGGED.fullmatch(described):
        if not _RELEASE.fullmatch(match["tag"]):
            raise ValueError(f"the tag v{match['tag']} is no version. Tag the commit v1.2.3, or v1.2.3rc1.")
        after = "" if match["after"] == "0" else f".post{match['after']}"
        local = [match["commit"]] if after else []
        return f"{match['tag']}{after}{_local(local, match['dirty'])}"
    match = _UNTAGGED.fullmatch(described)
    if not match:
        raise ValueError(f"git describes this commit as {described}. Tag it v1.2.3, or v1.2.3rc1.")
    return f"0{_local(['g' + match['commit']], match['dirty'])}"


def _local(parts: list[str], dirty: str | None) -> str:
    """What follows the version of a release."""
    said = [*parts, "dirty"] if dirty else parts
    return f"+{'.'.join(said)}" if said else ""


def _git(root: Path) -> str | None:
    """What git says of the commit in a folder; None where the folder is no work tree of its own."""
    if not (root / ".git").exists():
        return None
    done = subprocess.run(["git", *_DESCRIBE], cwd=root, check=False, capture_output=True, text=True)  # noqa: S607
    if done.returncode:
        raise ValueError(f"git cannot describe {root}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    print(version())
