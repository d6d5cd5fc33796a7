"""A private apt configuration: the mirrors, keys and options of this machine, for any suite.

`read_machine_apt` only reads the configuration of the machine; `write_apt_sources` writes a private
one from it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchyard.builds.plan import AptSources
from torchyard.errors import MissingTool, UsageError
from torchyard.files.safe_writing import replace_file, write_error
from torchyard.process.programs import capture

# Fields of a deb822 stanza about the trust in a mirror; the one-line format has them in lower case.
# Architectures, languages and targets are not copied.
_TRUST_FIELDS = (
    "signed-by",
    "trusted",
    "check-valid-until",
    "valid-until-min",
    "valid-until-max",
    "check-date",
    "date-max-future",
    "inrelease-path",
    "allow-insecure",
    "allow-weak",
    "allow-downgrade-to-insecure",
    "by-hash",
)
_FALSE = ("no", "false", "without", "off", "disable", "0")


@dataclass(frozen=True, kw_only=True)
class AptEntry:
    """One line or stanza of a sources file."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    """Option names as in the one-line format; `signed-by` may be an embedded key."""


@dataclass(frozen=True, kw_only=True)
class MachineApt:
    """The parts of the machine's apt configuration that a private one needs."""

    entries: tuple[AptEntry, ...]
    configuration: tuple[tuple[str, str], ...]
    """All options with values, in order; list items have the name `NAME::`."""
    origins: Mapping[str, str]
    """Mirror -> publisher, for mirrors whose index has been downloaded."""
    files: tuple[str, ...]
    """The sources files that were read."""


def read_machine_apt() -> MachineApt:
    """Read the configuration and the sources files of this machine's apt."""
    if shutil.which("apt-get") is None or shutil.which("apt-config") is None:
        raise MissingTool(
            "apt-get, which a Debian source package requires, is not installed",
            hint="use another source of the recipe (`--set source.use=git`) or a Debian machine",
        )
    dump = _output("apt-config", "dump", "--format", "%F %v%n").splitlines()
    configuration = tuple((name, value) for name, _, value in (one.partition(" ") for one in dump))
    paths = _parse_shell(
        _output(
            *("apt-config", "shell"),
            *("LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d"),
        )
    )
    files = [Path(paths["LIST"])] if paths.get("LIST") else []
    if paths.get("PARTS") and Path(paths["PARTS"]).is_dir():
        files += sorted(Path(paths["PARTS"]).iterdir())
    entries: list[AptEntry] = []
    read: list[str] = []
    for file in files:
        if file.suffix not in (".list", ".sources") or not file.is_file():
            continue
        read.append(str(file))
        text = file.read_text(encoding="utf-8", errors="replace")
        entries += parse_stanzas(text) if file.suffix == ".sources" else parse_lines(text)
    origins = _origins(_output("apt-get", "indextargets", "--format", "$(SITE)\t$(ORIGIN)"))
    return MachineApt(
        entries=tuple(entries),
        configuration=configuration,
        origins=origins,
        files=tuple(read),
    )


def parse_lines(text: str) -> Iterator[AptEntry]:
    """Parse a one-line file: `deb [options] URI SUITE COMPONENT...`."""
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        kind, _, rest = line.partition(" ")
        if kind not in ("deb", "deb-src"):
            continue
        rest = rest.strip()
        options: dict[str, str] = {}
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            for option in inside.split():
                name, _, value = option.partition("=")
                # `+=` and `-=` are for lists (arch), which are not copied.
                if name.lower() in _TRUST_FIELDS:
                    options[name.lower()] = value
        words = rest.split()
        if len(words) >= 2:  # noqa: PLR2004 - URI and suite
            yield AptEntry(
                uris=(words[0],),
                suites=(words[1],),
                components=tuple(words[2:]),
                options=options,
            )


def parse_stanzas(text: str) -> Iterator[AptEntry]:
    """Parse a deb822 file; skip disabled stanzas."""
    for stanza in _stanzas(text):
        if stanza.get("enabled", "yes").strip().lower() in _FALSE:
            continue
        uris = tuple(stanza.get("uris", "").split())
        suites = tuple(stanza.get("suites", "").split())
        if uris and suites:
            yield AptEntry(
                uris=uris,
                suites=suites,
                components=tuple(stanza.get("components", "").split()),
                options={name: stanza[name] for name in _TRUST_FIELDS if name in stanza},
            )


def entries_for(machine: MachineApt, suite: str) -> tuple[AptEntry, ...]:
    """Return the machine's entries, changed to `suite`; unchanged if `suite` is empty.

    A suite that is not configured is expected on the mirror of the corresponding suite of the
    machine: `trixie` with `bookworm`, and `trixie-security` with `bookworm-security`.
    """
    entries = _debian_entries(machine)
    if not suite:
        chosen = entries
    else:
        chosen = [replace(entry, suites=(suite,)) for entry in entries if suite in entry.suites]
        chosen = chosen or [
            replace(entry, suites=(suite,))
            for entry in entries
            if any(_pocket(own) == _pocket(suite) for own in entry.suites)
        ]
    if not chosen:
        files = ", ".join(machine.files) or "no sources file"
        raise UsageError(
            f"this machine's apt configuration has no Debian mirror for suite {suite or '(its own)'!r}",
            why=f"files read: {files}",
            hint="add a mirror of Debian (`deb URI SUITE main`) to /etc/apt/sources.list",
        )
    unique: dict[tuple[object, ...], AptEntry] = {}
    for entry in chosen:
        unique.setdefault((entry.uris, entry.suites, entry.components), entry)
    return tuple(unique.values())


def _debian_entries(machine: MachineApt) -> list[AptEntry]:
    """Return the entries published by Debian, or all if no publisher is known.

    The publisher is known only after `apt-get update`; a new container has no index yet.
    """
    usable = [entry for entry in machine.entries if "main" in entry.components]
    published_by_debian = [
        entry
        for entry in usable
        if all(machine.origins.get(uri.rstrip("/")) == "Debian" for uri in entry.uris)
    ]
    return published_by_debian or usable


def _pocket(suite: str) -> str:
    """Return `security` of `bookworm-security`; empty for a plain suite."""
    return suite.partition("-")[2]


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    stanza: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza, name = {}, ""
        elif line[0] in " \t":
            if name:
                stanza[name] += "\n" + line[1:]
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            stanza[name] = value.strip()


def _origins(text: str) -> dict[str, str]:
    pairs = (line.split("\t") for line in text.splitlines())
    return {pair[0].rstrip("/"): pair[1] for pair in pairs if len(pair) == 2 and pair[1]}  # noqa: PLR2004


def _parse_shell(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip("'") for name, _, value in pairs}


def _output(*argv: str) -> str:
    completed = capture(argv, variables={**os.environ, "LC_ALL": "C"})
    if completed.returncode != 0:
        raise MissingTool(
            f"`{' '.join(argv)}` failed with exit code {completed.returncode}",
            why=completed.stderr.strip().rpartition("\n")[2],
            hint="run the command yourself, and fix the apt configuration of this machine",
        )
    return completed.stdout


_FOLDERS = (
    "state/lists/partial",
    "cache/archives/partial",
    "etc/apt.conf.d",
    "etc/sources.list.d",
    "etc/preferences.d",
    "log",
)
# Options that affect the connection to a mirror.
_COPIED_OPTIONS = (
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
    """Write `apt.conf` and `sources.list` to the folder, and create the state folders."""
    folder = Path(action.folder)
    if any(character in action.folder for character in '"\n;'):
        raise UsageError(
            f"{folder} cannot hold an apt configuration",
            why="apt does not support paths with a quote, semicolon or line break",
            hint="choose another folder with TORCHYARD_HOME",
        )
    machine = read_machine_apt()
    entries = entries_for(machine, action.suite)
    try:
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        # apt requires a list of installed packages; it is empty here.
        (folder / "state" / "status").touch()
    except OSError as error:
        raise write_error(folder, error, kept="existing data") from error
    lines = [line for entry in entries for line in source_lines(entry, action)]
    replace_file(folder / "sources.list", "\n".join(dict.fromkeys(lines)) + "\n")
    replace_file(folder / "apt.conf", configuration_text(machine, folder, os.environ))
    # It may contain the password of a proxy.
    (folder / "apt.conf").chmod(0o600)


def configuration_text(machine: MachineApt, folder: Path, environment: Mapping[str, str]) -> str:
    """Return the text of `apt.conf`.

    `apt-get -c` reads it after the files of the machine, so it disables hooks (desktop
    notifications) and unused indexes that those configure.
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
        # Download as the present user: the user `_apt` may not have access to the folder.
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
    lines += [f'{name} "{value}";' for name, value in _copied_options(machine)]
    lines += [f'{name} "{value}";' for name, value in _proxies(machine, environment)]
    lines += [f'{name} "{value}";' for name, value in values.items()]
    lines += [f'{name}::DefaultEnabled "false";' for name in _unused_indexes(machine)]
    return "\n".join(lines) + "\n"


def source_lines(entry: AptEntry, action: AptSources) -> Iterator[str]:
    """Yield the lines of `sources.list` for one entry."""
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
    """Write an embedded key to a file, because the one-line format has no embedded keys."""
    # In deb822 a single dot is an empty line.
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


def _copied_options(machine: MachineApt) -> Iterator[tuple[str, str]]:
    for name, value in machine.configuration:
        lower = name.lower()
        is_copied = any(
            lower == prefix or lower.startswith(prefix + "::") for prefix in _COPIED_OPTIONS
        )
        # List items are set by the machine's files; a copy would duplicate them.
        if is_copied and value and not name.endswith("::") and '"' not in value:
            yield name, value


def _proxies(machine: MachineApt, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the proxies of the environment, which steps may be started without."""
    configured = {name.lower() for name, value in machine.configuration if value}
    for scheme in ("http", "https"):
        proxy = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if proxy and '"' not in proxy and f"acquire::{scheme}::proxy" not in configured:
            yield f"Acquire::{scheme}::Proxy", proxy


def _unused_indexes(machine: MachineApt) -> Iterator[str]:
    start = "Acquire::IndexTargets::deb::"
    names = (name.split("::")[3] for name, _ in machine.configuration if name.startswith(start))
    return (f"{start}{name}" for name in dict.fromkeys(names) if name != "Packages")
