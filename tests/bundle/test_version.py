"""The version of the wheel comes from git, and what must not be deployed is refused before a wheel is built."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.wheel import pinned_uv
from tools.bundle import ROOT
from tools.deployable import refusals
from tools.targets import PASSED, resolved
from tools.version import version

Git = Callable[..., str]
VALUES = ("catalog=orders_prod", "bootstrap_servers=b:9092")


def git_in(folder: Path) -> Git:
    """git in a folder, without the settings of whoever runs the tests."""
    who = {"NAME": "someone", "EMAIL": "someone@example.com"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        **{f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in who.items()},
        "GIT_CONFIG_GLOBAL": os.devnull,
    }

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return git


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A work tree with one commit."""
    git = git_in(tmp_path)
    git("init", "--quiet")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    return tmp_path


def commit(folder: Path) -> str:
    return f"g{git_in(folder)('rev-parse', 'HEAD')[:12]}"


def test_a_tag_is_the_version_and_later_commits_count_from_it(folder: Path) -> None:
    git = git_in(folder)
    assert version(folder) == f"0+{commit(folder)}"
    git("tag", "v1.2.3")
    assert version(folder) == "1.2.3"
    (folder / "file").write_text("2")
    assert version(folder) == "1.2.3+dirty"
    git("commit", "--quiet", "--all", "--message", "two")
    assert version(folder) == f"1.2.3.post1+{commit(folder)}"
    git("tag", "--annotate", "v1.3.0rc1", "--message", "a candidate")
    git("tag", "other")
    assert version(folder) == "1.3.0rc1"


def test_a_folder_without_git_says_so_and_a_tag_that_is_no_version_is_refused(folder: Path, tmp_path: Path) -> None:
    assert version(folder / "elsewhere") == "0+nogit"
    git_in(folder)("tag", "v2024.final")
    with pytest.raises(ValueError, match=r"the tag v2024.final is no version"):
        version(folder)


@pytest.mark.parametrize(
    ("wheel_of", "built", "says"),
    [
        ("any", "0+nogit", None),
        ("commit", "1.2.3.post4+g0123456789ab", None),
        ("commit", "0+g0123456789ab", None),
        ("commit", "1.2.3+dirty", "files are not as they are in a commit"),
        ("commit", "0+nogit", "files are not as they are in a commit"),
        ("tag", "1.2.3", None),
        ("tag", "1.2.3rc1", None),
        ("tag", "1.2.3.post4+g0123456789ab", "has no tag"),
        ("tag", "1.2.3+dirty", "files are not as they are in a commit"),
        ("tags", "1.2.3", "wheel_of is 'tags'"),
    ],
)
def test_what_a_wheel_must_be_of(wheel_of: str, built: str, says: str | None) -> None:
    found = refusals(wheel_of, VALUES, built)
    assert len(found) == (1 if says else 0)
    assert not says or says in found[0]


def test_an_empty_value_is_named() -> None:
    (found,) = refusals("any", (*VALUES, "notification_email= "), "1.2.3")
    assert "notification_email is empty" in found


def built(clone: Path, passed: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What `databricks bundle deploy -t prod` runs in a clone first, with nothing but uv, git and Python."""
    command = resolved("prod", {**PASSED["prod"], **passed})["artifacts"]["wheel"]["build"]
    environment = {
        "PATH": f"{pinned_uv().parent}:{os.environ['PATH']}",
        "HOME": os.environ["HOME"],
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        **{
            name: os.environ[name]
            for name in ("UV_CACHE_DIR", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
            if name in os.environ
        },
    }
    return subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=clone,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_plain_clone_builds_the_wheel_of_its_tag_twice_alike_and_no_other(tmp_path: Path) -> None:
    git_in(tmp_path)("clone", "--quiet", "--no-tags", str(ROOT), str(tmp_path / "clone"))
    clone, git = tmp_path / "clone", git_in(tmp_path / "clone")
    # What is not committed yet is part of the test, too.
    for name in git_in(ROOT)("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, clone / name)
        else:
            (clone / name).unlink(missing_ok=True)
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", "now")
    refused = built(clone, {})
    assert (refused.returncode, "has no tag" in refused.stderr) == (2, True), refused.stderr
    assert not (clone / "dist").exists()

    wheels: list[tuple[str, bytes]] = []
    git("tag", "v1.2.3")
    for _ in range(2):
        done = built(clone, {})
        assert not done.returncode, done.stderr
        (wheel,) = (clone / "dist").glob("*.whl")
        wheels.append((wheel.name, wheel.read_bytes()))
    assert wheels[0][0] == "orders_lakehouse-1.2.3-py3-none-any.whl"
    assert wheels[0] == wheels[1]

    (clone / "src/cli/new.py").write_text("")
    git("add", "--all")
    git("commit", "--quiet", "--message", "next")
    git("tag", "v1.2.2")  # lower, as after a branch for mending: of two wheels the CLI takes the highest version
    assert not built(clone, {}).returncode
    (wheel,) = (clone / "dist").glob("*.whl")
    assert wheel.name == "orders_lakehouse-1.2.2-py3-none-any.whl"


def test_the_build_uses_the_packages_that_are_locked() -> None:
    """One commit is one wheel: another release of them may write other bytes."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    locked = {package["name"]: package for package in lock}
    needed = {"hatchling", *(one["name"] for one in locked["hatchling"]["dependencies"])}
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert sorted(required) == sorted(f"{name}=={locked[name]['version']}" for name in needed)
