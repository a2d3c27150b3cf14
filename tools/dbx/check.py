"""Reads the deployment with dbx's own loader, as `dbx deploy` does before it asks a workspace, for each environment.

python -m tools.dbx.check    in the environment of tools/dbx and the project's folder; `make dbx-check` does that
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from dbx.api.config_reader import ConfigReader
from dbx.api.configure import ProjectConfigurationManager
from dbx.models.deployment import AnyWorkflow, DeploymentConfig
from pydantic import ValidationError

from tools.bundle import USER, Bundle, BundleError, id_variable, left_to_deployer, read_bundle
from tools.dbx.workflows import LEFT_OUT, deployment

DEPLOYMENT = Path("conf/deployment.yml.j2")
OF_AN_ID = re.compile(r"\$\{resources\.(\w+)\.(\w+)\.id\}")
STAND_IN = "stand-in"
SOMEONE = "someone@example.com"


def check() -> None:
    """Prints every environment with its workflows and their tasks. Raises what dbx or the bundle says against it."""
    bundle = read_bundle(Path.cwd())
    for target in bundle.targets:
        with _set(_stand_ins(bundle, target)) as added, _command(target):
            config = _read()
            given = yaml.safe_load(deployment(os.environ, Path.cwd()))["environments"][target]["workflows"]
        ProjectConfigurationManager().get(target)
        workflows = config.get_environment(target, raise_if_not_found=True).payload.workflows
        print(f"{target}: {len(workflows)} {'workflow' if len(workflows) == 1 else 'workflows'}")
        for workflow, ours in zip(workflows, given, strict=True):
            _refuse_lost(ours, workflow.dict(exclude_none=True), f"{target}: {workflow.name}")
            print(f"  {workflow.name}: {_tasks(workflow)}")
        print(f"  stood in for: {', '.join(added) or 'nothing'}")
    print(f"built with: {'; '.join(config.build.commands)}")
    print("left out everywhere, if a job has it:")
    for name, reason in LEFT_OUT.items():
        print(f"  {name}: {reason}")


def _read() -> DeploymentConfig:
    """The deployment as dbx's models hold it. What dbx says meanwhile is not repeated."""
    with contextlib.redirect_stdout(io.StringIO()):
        return ConfigReader(DEPLOYMENT).get_config()


def _tasks(workflow: AnyWorkflow) -> str:
    """The tasks in order, each with what it waits for."""
    after = {task.task_key: [other.task_key for other in task.depends_on or []] for task in workflow.tasks}
    return ", ".join(f"{key} (after {' and '.join(others)})" if others else key for key, others in after.items())


def _refuse_lost(given: Any, held: Any, where: str) -> None:
    """Raises when dbx's models do not hold something that they were given: it would not reach the workspace."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key not in held:
                raise BundleError(f"{where}.{key}: dbx drops it. Add it to LEFT_OUT in tools/dbx/workflows.py.")
            _refuse_lost(value, held[key], f"{where}.{key}")
    elif isinstance(given, list):
        for index, (value, other) in enumerate(zip(given, held, strict=True)):
            _refuse_lost(value, other, f"{where}[{index}]")


def _stand_ins(bundle: Bundle, target: str) -> Mapping[str, str]:
    """A value for all that whoever deploys to a target has to say, since a check is no deployment."""
    return {
        **{f"BUNDLE_VAR_{name}": STAND_IN for name in left_to_deployer(bundle, target)},
        **{id_variable(kind, key): "1" for kind, key in OF_AN_ID.findall(str(bundle.resources))},
        USER: SOMEONE,
    }


@contextlib.contextmanager
def _set(values: Mapping[str, str]) -> Iterator[list[str]]:
    """Sets what the environment does not say already, for a while; says what that is."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield list(added)
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def _command(target: str) -> Iterator[None]:
    """As within `dbx deploy -e <target>`."""
    with click.Context(click.Command("deploy")) as context:
        context.params["environment_name"] = target
        yield


def main() -> None:
    """Ends with 1 and a sentence when dbx would not deploy this."""
    try:
        check()
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        sys.exit(f"dbx refuses the deployment: {wrong}")
    except BundleError as error:
        sys.exit(f"dbx cannot deploy the bundle: {error}")
    except Exception as error:
        sys.exit(f"dbx cannot read the deployment: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
