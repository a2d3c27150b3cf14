"""Small mistakes put into the rules, one by one: for each, a unit test must fail, or it is on a reviewed list.

python -m tools.mutants [silver.order.runs ...]    mutants of the modules whose name begins so; of all reviewed ones

Of a mutant (tools/mutations.py) run the tests that run its lines, the quickest first, until one fails. What no test
notices has survived: it shows a rule without a test, code that is not needed, or a mutant that is the same as the code.
tests/rules/survivors.yaml lists the last kind, each with the reason, and the modules that were reviewed. The exit code
is 1 if another one has survived, or if one of the list has not.

Not mutmut 3.8.1, nor cosmic-ray 8.7.0: mutmut mutates every text and argument, and takes no choice of operators (9,300
mutants of these modules, thousands of them in names and sentences), numbers mutants by function, so that a list of
survivors is another one after each change, and leaves properties alone. cosmic-ray starts a pytest for each mutant.
Here all tests are collected once; a mutant is a fork of that process in which a function has other code.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings

from tools.mutations import Mutant, Mutations, replace_code

ROOT = Path(__file__).parent.parent
SURVIVORS = ROOT / "tests" / "rules" / "survivors.yaml"
_UNIT = "tests/unit/silver"
_FROZEN = f"{_UNIT}/decode/test_frozen.py::test_records_come_to_what_was_frozen"
# Packages, and the tests that have to notice their mutants, as pytest takes them. A survivor runs all that reach it: so
# none that folds whole recordings, or reads thousands of generated records, or compares other decoders with this one.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "silver.order": (f"{_UNIT}/order", f"--ignore={_UNIT}/order/test_recordings.py"),
    "silver.decode.reference": (
        f"{_UNIT}/decode",
        *(
            f"--ignore={_UNIT}/decode/test_{name}.py"
            for name in ("arrow", "avro", "drift", "laws", "typed", "typed_avro")
        ),
        *(f"--deselect={_FROZEN}[{name}]" for name in ("generated_values", "histories")),
        f"--deselect={_UNIT}/decode/test_frozen.py::test_what_has_changed_has_its_reason",
    ),
}
# A mutant may never end, or fill the memory: a test has so many times the processor's seconds that it takes without
# one, and so many more; by the clock, if it waits for something, so many times that.
TIMES, SECONDS, BY_THE_CLOCK, BYTES = 3, 3, 20, 8 * 1024**3
TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Reviewed:
    """`tests/rules/survivors.yaml`: the modules that were reviewed, and the mutants that survive there."""

    modules: Sequence[str]
    survivors: Sequence[tuple[str, str, str, str, int]]

    @classmethod
    def read(cls) -> Reviewed:
        """The file. Raises KeyError where an entry lacks a field."""
        content = yaml.safe_load(SURVIVORS.read_text(encoding="utf-8"))
        entries = [
            (one["module"], one["function"], one["from"], one["to"], one.get("nth", 1))
            for one in content["survivors"]
            if one["why"]
        ]
        return cls(content["modules"], entries)


def mutations_of(module: str) -> Mutations:
    """All mutants of this module."""
    path = _path(module)
    return Mutations(module, path.read_text(encoding="utf-8"), str(path))


def modules_of(package: str) -> list[str]:
    """The names of a package's modules."""
    return sorted(f"{package}.{file.stem}" for file in _path(package).glob("[!_]*.py"))


def _path(module: str) -> Path:
    path = ROOT / "src" / Path(*module.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


@dataclass
class MutantRun:
    """A plugin of pytest: runs the collected tests for each mutant of these modules, instead of once."""

    modules: Sequence[str]
    killed_by: dict[Mutant, str | None] = field(default_factory=dict)
    _failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which lines each test runs, then try the mutants."""
        for module in self.modules:
            importlib.import_module(module)
        lines, seconds, failed = in_child(lambda: self._reached(session))
        if failed:
            pytest.exit(f"These tests fail without a mutant: {', '.join(failed)}", returncode=1)
        gc.unfreeze()  # what the part before has frozen is no object to the collector
        functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
        caches = [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]
        gc.freeze()
        for module in self.modules:
            mutations, path = mutations_of(module), str(_path(module))
            code, loaded = mutations.code(), [one for one in functions if one.__code__.co_filename == path]

            def mutate(new: CodeType, loaded: list[FunctionType] = loaded, old: CodeType = code) -> None:
                replace_code(loaded, old, new)
                for cache in caches:
                    cache.cache_clear()

            for mutant in mutations.mutants:
                reaching = set().union(*(lines[path].get(line, ()) for line in mutant.lines))
                items = sorted(
                    (one for one in session.items if one.nodeid in reaching), key=lambda one: seconds[one.nodeid]
                )
                limits = [SECONDS + TIMES * seconds[one.nodeid] for one in items]
                change = partial(mutate, mutations.code(mutant))
                run = partial(self._first_failing, items, limits, change)
                self.killed_by[mutant] = in_child(run) if items else None
                if self.killed_by[mutant] is None:
                    print(f"survived ({len(items)} tests)  {mutant}", flush=True)
            of_module = Counter(_verdict(self.killed_by[one]) for one in mutations.mutants)
            print(f"{module}: {_counts(of_module)}", flush=True)
        return True

    def _run(self, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        """Run the tests; each one, when it has run."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item

    def _reached(self, session: pytest.Session) -> tuple[dict[str, dict[int, list[str]]], dict[str, float], list[str]]:
        """By file and line the tests that run it; how long each test takes; and those that fail."""
        from coverage import Coverage

        files, seconds = [str(_path(module)) for module in self.modules], {}
        coverage = Coverage(data_file=None, include=files, config_file=False)
        coverage.start()
        begun = time.process_time()
        coverage.switch_context(session.items[0].nodeid)
        for at, item in enumerate(self._run(session.items), 1):
            seconds[item.nodeid] = time.process_time() - begun
            begun = time.process_time()
            if at < len(session.items):
                coverage.switch_context(session.items[at].nodeid)
        coverage.stop()
        return {file: coverage.get_data().contexts_by_lineno(file) for file in files}, seconds, self._failed

    def _first_failing(
        self, items: Sequence[pytest.Item], limits: Sequence[float], mutate: Callable[[], None]
    ) -> str | None:
        """The first test that fails with the mutant, if one does."""
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        mutate()
        set_limit(limits[0])
        for item, following in zip(self._run(items), [*limits[1:], 0], strict=True):
            if self._failed:
                return item.nodeid
            set_limit(following)
        return None


def set_limit(seconds: float) -> None:
    """End this process after so many seconds of the processor, or BY_THE_CLOCK times that by the clock; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, BY_THE_CLOCK * seconds)


def in_child(function: Callable[[], Any]) -> Any:
    """What the function returns in a fork of this process; TIMED_OUT where a limit has ended it.

    Or the number of another signal that has. Raises RuntimeError when it raises there.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with Path(os.devnull).open("w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            result, error = function(), None
        except BaseException as raised:
            result, error = None, f"{type(raised).__name__}: {raised}"
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump((result, error), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        return TIMED_OUT if -status in (signal.SIGPROF, signal.SIGALRM) else f"ended with {status}"
    result, error = pickle.loads(content)  # noqa: S301
    if error is not None:
        raise RuntimeError(error)
    return result


def _verdict(killed_by: str | None) -> str:
    return "survived" if killed_by is None else TIMED_OUT if killed_by == TIMED_OUT else "killed"


def _counts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{verdicts.get(name, 0)} {name}" for name in ("killed", "survived", TIMED_OUT))


def main(prefixes: Sequence[str]) -> int:
    """Try the mutants, and compare those that survive with the list; 1 where they are others, 2 without any mutant."""
    reviewed, every = Reviewed.read(), [module for package in PACKAGES for module in modules_of(package)]
    if prefixes and not any(module.startswith(tuple(prefixes)) for module in every):
        print(
            f"No module's name begins with {' or '.join(prefixes)}. Modules are: {', '.join(every)}.", file=sys.stderr
        )
        return 2
    killed_by: dict[Mutant, str | None] = {}
    for package, tests in PACKAGES.items():
        names = [one for one in modules_of(package) if prefixes or one in reviewed.modules]
        chosen = [one for one in names if not prefixes or one.startswith(tuple(prefixes))]
        if chosen:
            killed_by |= run_mutants(chosen, tests)
    survived = {one.identity: one for one, test in killed_by.items() if test is None}
    known = {one for one in reviewed.survivors if one[0] in {mutant.module for mutant in killed_by}}
    new, gone = [one for at, one in survived.items() if at not in known], sorted(known - survived.keys())
    print(f"{len(killed_by)} mutants: {_counts(Counter(map(_verdict, killed_by.values())))}.")
    print(*(f"NOT ON THE LIST     {one}" for one in new), sep="\n", end="\n" if new else "")
    print(*(f"ON IT, BUT NOTICED  {one}" for one in gone), sep="\n", end="\n" if gone else "")
    if left := [module for module in every if module not in reviewed.modules]:
        print(f"Not reviewed yet: {', '.join(left)}.")
    return 1 if new or gone else 0


def run_mutants(modules: Sequence[str], tests: Sequence[str]) -> dict[Mutant, str | None]:
    """Of every mutant of these modules the test that notices it. Exits as pytest does where tests cannot be run."""
    run = MutantRun(modules)
    # A run is like the one before, and a test that fails need not be made shorter.
    phases, slow = (Phase.explicit, Phase.generate), [HealthCheck.too_slow]
    settings.register_profile("mutants", derandomize=True, phases=phases, deadline=None, suppress_health_check=slow)
    settings.load_profile("mutants")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        plain = ("-q", "-s", "-n0", "-p", "no:cacheprovider", f"--basetemp={folder}/tests")
        status = pytest.main([*plain, *tests], plugins=[run])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(int(status))
    return run.killed_by


if __name__ == "__main__":
    os.environ["POLARS_MAX_THREADS"] = "1"
    sys.exit(main(sys.argv[1:]))
