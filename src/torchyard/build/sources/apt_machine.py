"""What this machine's apt knows: its mirrors, keys and options. Read only; fetches nothing.

The mirror's address is never written in a recipe: whoever runs this may use a company's mirror, a
proxy or a snapshot, and all of that is already said in the machine's own apt configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchyard.errors import MissingTool, UsageError

__all__ = [
    "AptEntry",
    "MachineApt",
    "entries_for",
    "parse_lines",
    "parse_stanzas",
    "read_machine_apt",
]

# Fields of a deb822 stanza that say how a mirror is trusted; the one-line format has them, too, in
# small letters. Architectures, languages and targets are left out: they are the machine's affair.
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
    """One line or stanza of a sources file: where packages come from."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    """By the names of the one-line format; `signed-by` may be a whole key."""


@dataclass(frozen=True, kw_only=True)
class MachineApt:
    """The machine's apt configuration, as far as a private one needs it."""

    entries: tuple[AptEntry, ...]
    configuration: tuple[tuple[str, str], ...]
    """Every option with its value, in order; a list's items all have the name `NAME::`."""
    origins: Mapping[str, str]
    """Mirror -> who publishes there, for mirrors whose index the machine has."""
    files: tuple[str, ...]
    """The sources files that were read."""


def read_machine_apt() -> MachineApt:
    """Ask apt for its configuration and read the sources files that it would read."""
    if shutil.which("apt-get") is None or shutil.which("apt-config") is None:
        raise MissingTool(
            "apt-get is not on this machine, and a Debian source package needs it",
            hint="use another source of the recipe (`--set source.use=git`), or a Debian machine",
        )
    configuration = tuple(_parse_dump(_output("apt-config", "dump", "--format", "%F %v%n")))
    paths = _parse_shell(
        _output(
            "apt-config",
            "shell",
            "LIST",
            "Dir::Etc::sourcelist/f",
            "PARTS",
            "Dir::Etc::sourceparts/d",
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
    """Entries of a one-line file: `deb [options] URI SUITE COMPONENT...`."""
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
                # `+=` and `-=` belong to lists (arch), which are not taken over.
                if name.lower() in _TRUST_FIELDS:
                    options[name.lower()] = value
        words = rest.split()
        if len(words) >= 2:  # noqa: PLR2004 - an address and a suite
            yield AptEntry(
                uris=(words[0],),
                suites=(words[1],),
                components=tuple(words[2:]),
                options=options,
            )


def parse_stanzas(text: str) -> Iterator[AptEntry]:
    """Entries of a deb822 file; a stanza that is switched off is left out."""
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
    """The machine's entries, turned to `suite`; its own suites when that is empty.

    A suite that the machine does not list is looked for where the machine's own plain suite is:
    `trixie` beside `bookworm`, and `trixie-security` beside `bookworm-security`.
    """
    entries = _of_the_distribution(machine)
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
        looked = ", ".join(machine.files) or "no sources file at all"
        raise UsageError(
            f"this machine's apt configuration has no Debian mirror for suite {suite or '(its own)'!r}",
            why=f"read: {looked}",
            hint="add a mirror of Debian (`deb URI SUITE main`) to /etc/apt/sources.list",
        )
    seen: dict[tuple[object, ...], AptEntry] = {}
    for entry in chosen:
        seen.setdefault((entry.uris, entry.suites, entry.components), entry)
    return tuple(seen.values())


def _of_the_distribution(machine: MachineApt) -> list[AptEntry]:
    """Without mirrors of other publishers, which have no suite of Debian's names.

    The publisher is known only where the machine has fetched an index; a fresh container has not.
    """
    usable = [entry for entry in machine.entries if "main" in entry.components]
    known = [
        entry
        for entry in usable
        if all(machine.origins.get(uri.rstrip("/")) == "Debian" for uri in entry.uris)
    ]
    return known or usable


def _pocket(suite: str) -> str:
    """`security` of `bookworm-security`; empty for a plain suite."""
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


def _parse_dump(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        yield name, value


def _parse_shell(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip("'") for name, _, value in pairs}


def _output(*argv: str) -> str:
    ended = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if ended.returncode != 0:
        raise MissingTool(
            f"`{' '.join(argv)}` failed with exit code {ended.returncode}",
            why=_last_line(ended.stderr.splitlines()),
            hint="run the command by hand, and mend the machine's apt configuration",
        )
    return ended.stdout


def _last_line(lines: Iterable[str]) -> str:
    return next((line for line in reversed(list(lines)) if line.strip()), "")
