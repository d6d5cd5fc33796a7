"""Write an apt configuration of our own: this machine's mirrors and keys, any suite.

Everything apt keeps (indexes, caches, locks, pins) goes below one folder, so that the machine's
own apt is neither read half-way nor changed. Knows nothing of source packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchyard.build.sources.apt_machine import AptEntry, MachineApt, entries_for, read_machine_apt
from torchyard.core.build_plan import AptSources
from torchyard.errors import UsageError
from torchyard.results.durable import replace_file, write_failed

__all__ = ["configuration_text", "source_lines", "write_apt_sources"]

_FOLDERS = (
    "state/lists/partial",
    "cache/archives/partial",
    "etc/apt.conf.d",
    "etc/sources.list.d",
    "etc/preferences.d",
    "log",
)
# Options of the machine that decide whether and how a mirror can be reached.
_KEPT = (
    "acquire::http",
    "acquire::https",
    "acquire::ftp",
    "acquire::socks",
    "acquire::check-valid-until",
    "acquire::check-date",
    "acquire::min-validtime",
    "acquire::max-validtime",
    "acquire::max-futuretime",
    "acquire::retries",
    "acquire::queue-mode",
    "acquire::forceipv4",
    "acquire::forceipv6",
    "acquire::allowinsecurerepositories",
    "acquire::allowweakrepositories",
    "acquire::allowdowngradetoinsecurerepositories",
    "acquire::proxyautodetect",
    "acquire::proxy-auto-detect",
)


def write_apt_sources(action: AptSources) -> None:
    """Write `apt.conf` and `sources.list` into the folder, and make the state folders."""
    folder = Path(action.folder)
    if any(character in action.folder for character in '"\n;'):
        raise UsageError(
            f"{folder} cannot hold an apt configuration",
            why="apt has no way to write a path with a quote, semicolon or line break in it",
            hint="choose another folder with TORCHYARD_HOME",
        )
    machine = read_machine_apt()
    entries = entries_for(machine, action.suite)
    try:
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        # apt wants to know what is installed; for us nothing is.
        (folder / "state" / "status").touch()
    except OSError as error:
        raise write_failed(folder, error, kept="what is there") from error
    lines = [line for entry in entries for line in source_lines(entry, action)]
    replace_file(folder / "sources.list", "\n".join(dict.fromkeys(lines)) + "\n")
    replace_file(folder / "apt.conf", configuration_text(machine, folder, os.environ))
    # A proxy's password may be in it.
    (folder / "apt.conf").chmod(0o600)


def configuration_text(machine: MachineApt, folder: Path, environment: Mapping[str, str]) -> str:
    """The text of `apt.conf`.

    `apt-get -c` reads it after the machine's own files, so it has to undo what must not happen
    here: hooks that tell the desktop about news, and indexes that nobody reads.
    """
    values = {
        "Dir::State": f"{folder}/state",
        "Dir::State::lists": f"{folder}/state/lists",
        "Dir::State::status": f"{folder}/state/status",
        "Dir::State::extended_states": f"{folder}/state/extended_states",
        "Dir::Cache": f"{folder}/cache",
        "Dir::Cache::archives": f"{folder}/cache/archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Etc::sourcelist": f"{folder}/sources.list",
        "Dir::Etc::sourceparts": f"{folder}/etc/sources.list.d",
        "Dir::Etc::preferences": f"{folder}/etc/preferences",
        "Dir::Etc::preferencesparts": f"{folder}/etc/preferences.d",
        "Dir::Log": f"{folder}/log",
        "Acquire::Languages": "none",
        # Downloads are made by us and not by `_apt`, which may not read a private folder.
        "APT::Sandbox::User": "root",
        "APT::Get::Assume-Yes": "true",
    }
    lines = [
        "// Written by torchyard from this machine's apt configuration.",
        "#clear APT::Update::Pre-Invoke;",
        "#clear APT::Update::Post-Invoke;",
        "#clear APT::Update::Post-Invoke-Success;",
        "#clear Acquire::Languages;",
    ]
    lines += [f'{name} "{value}";' for name, value in _kept_options(machine)]
    lines += [f'{name} "{value}";' for name, value in _proxies(machine, environment)]
    lines += [f'{name} "{value}";' for name, value in values.items()]
    lines += [f'{name}::DefaultEnabled "false";' for name in _needless_indexes(machine)]
    return "\n".join(lines) + "\n"


def source_lines(entry: AptEntry, action: AptSources) -> Iterator[str]:
    """Lines of `sources.list` for one entry."""
    options = dict(entry.options)
    if "\n" in options.get("signed-by", ""):
        options["signed-by"] = str(_write_key(options["signed-by"], Path(action.folder)))
    inside = " ".join(f"{name}={','.join(value.split())}" for name, value in options.items())
    start = f"[{inside}] " if inside else ""
    for uri in entry.uris:
        for suite in entry.suites:
            rest = " ".join((f"{start}{uri}", suite, *entry.components))
            yield f"deb {rest}"
            if action.sources:
                yield f"deb-src {rest}"


def _write_key(block: str, folder: Path) -> Path:
    """A key that stands in the machine's sources file becomes a file: one line cannot hold it."""
    # A lone dot stands for an empty line in deb822.
    lines = ["" if line.strip() == "." else line.strip() for line in block.strip().splitlines()]
    text = "\n".join(lines) + "\n"
    number = 0
    while True:
        path = folder / "etc" / f"key-{number}.asc"
        if not path.exists() or path.read_text(encoding="utf-8") == text:
            break
        number += 1
    replace_file(path, text)
    return path


def _kept_options(machine: MachineApt) -> Iterator[tuple[str, str]]:
    for name, value in machine.configuration:
        small = name.lower()
        wanted = any(small == kept or small.startswith(kept + "::") for kept in _KEPT)
        # Items of lists are there already, and a second copy would double them.
        if wanted and value and not name.endswith("::") and '"' not in value:
            yield name, value


def _proxies(machine: MachineApt, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Proxies of the environment: the commands of a step may be started without it."""
    configured = {name.lower() for name, value in machine.configuration if value}
    for scheme in ("http", "https"):
        proxy = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if proxy and '"' not in proxy and f"acquire::{scheme}::proxy" not in configured:
            yield f"Acquire::{scheme}::Proxy", proxy


def _needless_indexes(machine: MachineApt) -> Iterator[str]:
    start = "Acquire::IndexTargets::deb::"
    names = (name.split("::")[3] for name, _ in machine.configuration if name.startswith(start))
    return (f"{start}{name}" for name in dict.fromkeys(names) if name != "Packages")
