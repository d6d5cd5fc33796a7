"""Defaults of options from `[tool.torchyard]` in pyproject.toml.

    [tool.torchyard.bench]
    time = "30s"

A table has the name of a command, or of a group with tables for its commands; a key has the name of an
option. The file is the nearest pyproject.toml with such a table, from the working directory up to the
root of the repository. The command line and a study file override it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchyard.errors import UsageError

if TYPE_CHECKING:
    import click


FILE_NAME: Final = "pyproject.toml"
_ROOT_MARK: Final = ".git"
OTHER_TABLES: Final = ("pytest",)
"""Tables that are no commands: settings of the pytest plugin."""


class ProjectDefaults(dict[str, Any]):
    """The tables of a file, as the default map of a click context."""

    def __init__(
        self,
        table: Mapping[str, Any],
        *,
        path: Path,
        place: str = "",
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`place` is the name of the table below `tool.torchyard`, `names` are the keys by parameter."""
        super().__init__(table)
        self.path = path
        self.place = place
        self._names = names or {}

    def of_command(self, name: str, command: click.Command) -> ProjectDefaults:
        """Return the table of a command, with parameters as keys; raise UsageError for unknown keys.

        The table of a group has the tables of its commands, and the options of its default command.
        """
        import click

        table = self.get(name, {})
        if isinstance(table, ProjectDefaults):
            return table
        place = f"{self.place}.{name}".lstrip(".")
        if not isinstance(table, Mapping):
            raise UsageError(
                f"{self.path}: tool.torchyard.{place} is not a table",
                hint=f"write [tool.torchyard.{place}], and options below it",
            )
        if not isinstance(command, click.Group):
            return self._of_options(table, command, place)
        tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
        own = {key: value for key, value in table.items() if key not in tables}
        context = click.Context(command)
        names = command.list_commands(context)
        default = getattr(command, "default_command", "")
        check_keys(tables if default else table, names, path=self.path, place=place, what="command")
        result = ProjectDefaults(tables, path=self.path, place=place)
        default_command = command.get_command(context, default) if own else None
        if default_command is not None:
            result[default] = self._of_options(own, default_command, place)
        return result

    def _of_options(
        self, table: Mapping[str, Any], command: click.Command, place: str
    ) -> ProjectDefaults:
        options = _options_of(command)
        check_keys(table, list(options), path=self.path, place=place)
        values = {}
        for key, value in table.items():
            option = options[_dashed(key)]
            where = f"{self.path}: tool.torchyard.{place}.{key}"
            values[str(option.name)] = _checked(value, option, where)
        names = {str(options[_dashed(key)].name): _dashed(key) for key in table}
        return ProjectDefaults(values, path=self.path, place=place, names=names)

    def keys_in(self, text: str) -> list[str]:
        """Return the keys of this file whose options the text names."""
        own = [
            f"tool.torchyard.{self.place}.{key}"
            for key in self._names.values()
            if f"--{key}" in text
        ]
        inner = [one for one in self.values() if isinstance(one, ProjectDefaults)]
        return own + [key for one in inner for key in one.keys_in(text)]

    def text(self) -> str:
        """Return one line for the help of a command."""
        values = ", ".join(f"{self._names[key]} = {value!r}" for key, value in self.items())
        return f"Defaults of [tool.torchyard.{self.place}] in {self.path}: {values}"


def read_defaults(folder: Path, *, tables: Sequence[str]) -> ProjectDefaults | None:
    """Return `[tool.torchyard]` of the nearest file; None without one. `tables` are the valid names."""
    for place in (folder, *folder.parents):
        path = place / FILE_NAME
        table = _table_of(path) if _is_own(path) else None
        if table is not None:
            check_keys(table, (*tables, *OTHER_TABLES), path=path, place="", what="table")
            return ProjectDefaults(table, path=path)
        if os.path.lexists(place / _ROOT_MARK):
            return None
    return None


def check_keys(
    table: Mapping[str, Any], names: Sequence[str], *, path: Path, place: str, what: str = "option"
) -> None:
    """Raise UsageError for a key that is not one of the names, with the nearest one."""
    from torchyard.core.records import nearest_hint

    for key in table:
        if _dashed(key) not in names:
            full = ".".join(filter(None, ("tool.torchyard", place, key)))
            raise UsageError(
                f"{path}: unknown key {full}", hint=nearest_hint(_dashed(key), names, what=what)
            )


def _table_of(path: Path) -> Mapping[str, Any] | None:
    from torchyard.core.toml_file import parse_toml, read_text_file

    text = read_text_file(path, what="project file", hint="check the file")
    if "torchyard" not in text:
        return None  # do not parse: an error in it is not of interest here
    tool = parse_toml(text, where=str(path)).get("tool")
    table = tool.get("torchyard") if isinstance(tool, Mapping) else None
    return table if isinstance(table, Mapping) else None


def _is_own(path: Path) -> bool:
    """Return whether it is a file of the user or of root: defaults can name programs to run."""
    try:
        status = path.stat()
    except OSError:
        return False
    owners = {0, os.getuid()}
    user = os.environ.get("SUDO_UID", "")
    if os.getuid() == 0 and user.isdecimal():
        owners.add(int(user))
    return stat.S_ISREG(status.st_mode) and status.st_uid in owners


def _options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options by long name, without dashes."""
    import click

    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
        if name.startswith("--")
    }


def _checked(value: object, option: click.Option, where: str) -> object:
    """Return the value; raise UsageError if it has the wrong type for the option."""
    if option.is_flag != isinstance(value, bool):
        hint = "use true or false" if option.is_flag else "use a text or a number"
        raise UsageError(f"{where}: {value!r} is not a valid value of this option", hint=hint)
    if option.multiple != isinstance(value, list):
        hint = 'use a list, such as ["..."]' if option.multiple else "use one value, not a list"
        raise UsageError(f"{where}: {value!r} is not a valid value of this option", hint=hint)
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, (dict, list)) for one in values):
        raise UsageError(f"{where}: a table is not a valid value of this option", hint="use a text")
    # As on the command line: options parse their text.
    texts = [one if isinstance(one, bool) else str(one) for one in values]
    return texts if option.multiple else texts[0]


def _dashed(key: str) -> str:
    return key.replace("_", "-")
