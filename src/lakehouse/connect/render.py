"""The packaged connectors, filled in for a target: `resources/connect/*.json` beside the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from lakehouse.connect.connectors import Connector
from lakehouse.connect.files import ConnectorFile, read_file
from lakehouse.connect.variables import Variables
from lakehouse.errors import SettingsError

# Read by the commands themselves, not by a connector.
VARIABLES_OF_COMMANDS = ("connect_url", "connectors", "mysql_own_server_id", "mariadb_own_server_id")
OWN_SERVER_IDS = ("mysql_own_server_id", "mariadb_own_server_id")


def resource_files(bundle_file: Path) -> tuple[Path, ...]:
    """The connectors' files beside a bundle. Raises SettingsError when there is none."""
    folder = bundle_file.parent / "resources" / "connect"
    found = tuple(sorted(folder.glob("*.json")))
    if not found:
        raise SettingsError(f"There is no connector in {folder}.", remedy="Pass --bundle FILE, or give files.")
    return found


def chosen_files(files: Sequence[Path], variables: Variables, names: Sequence[str]) -> tuple[Path, ...]:
    """The files of the named connectors, by the names of the files; for no name those of the variable `connectors`.

    Raises SettingsError for a name that no file has.
    """
    known = {path.stem: path for path in files}
    listed = [name.strip() for name in variables.value_or("connectors", ",".join(known)).split(",")]
    wanted = [*dict.fromkeys(name.removesuffix(".json") for name in (names or listed) if name)]
    for name in wanted:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(known)}."
            raise SettingsError(f"There is no connector {name!r} in {files[0].parent}.", remedy=hint)
    return tuple(known[name] for name in wanted)


def rendered(path: Path, variables: Variables) -> ConnectorFile:
    """The connector of a file with every variable of the bundle filled in, and what is wrong with the file.

    Raises SettingsError, which names variable, file and key, for a variable without a value.
    """
    read = read_file(path)
    if read.connector is None:
        return read
    template = read.connector
    config = {
        key: variables.filled(value, place=f"{path}: {template.name}: {key}") for key, value in template.config.items()
    }
    name = variables.filled(template.name, place=f"{path}: name")
    return ConnectorFile(Connector(name=name, config=config, file=template.file, lines=template.lines), read.findings)


def own_server_ids(variables: Variables) -> tuple[str, ...]:
    """The ids that the database servers of a target have themselves."""
    return tuple(value for name in OWN_SERVER_IDS if (value := variables.value_or(name, "")))
