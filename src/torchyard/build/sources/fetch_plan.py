"""What fetching a source consists of, and what is known of a source that was fetched.

Shared by the modules of this family. Actions are data: nothing is done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchyard.core.build_plan import Action, Command
from torchyard.core.build_record import SourceIdentity
from torchyard.core.recipe import SourceKind

__all__ = [
    "FetchPlan",
    "SourceIdentity",
    "arrive",
    "files_of",
    "keep_files",
    "nothing_to_update",
    "on_this_machine",
    "part_of",
    "start_afresh",
]


@dataclass(frozen=True, kw_only=True)
class FetchPlan:
    """How a source gets into its folder."""

    kind: SourceKind
    summary: str
    """For people: `pytorch from Debian trixie, complete`."""
    actions: tuple[Action, ...]
    """None at all when an update has nothing to do."""
    inputs: tuple[tuple[str, str], ...] = ()
    """What the actions do not show and the result depends on, for `Step.inputs`."""


def part_of(destination: Path) -> Path:
    """Where the work happens until it is whole; never looked at again when it is left over."""
    return destination.with_name(destination.name + ".part")


def start_afresh(destination: Path) -> tuple[Command, ...]:
    """Remove what an earlier attempt left, and make an empty place for this one."""
    part = str(part_of(destination))
    return (
        on_this_machine("rm", "-rf", "--", part),
        on_this_machine("mkdir", "-p", "--", part),
    )


def arrive(destination: Path, tree: Path) -> tuple[Command, ...]:
    """Give the finished tree its name. The rename is the last thing, and it is whole or not done."""
    part = part_of(destination)
    commands = (
        on_this_machine("rm", "-rf", "--", str(destination)),
        on_this_machine("mv", "-T", "--", str(tree), str(destination)),
    )
    return commands if tree == part else (*commands, on_this_machine("rm", "-rf", "--", str(part)))


def files_of(destination: Path) -> Path:
    """Where downloaded files of a fetched source are kept, for the record."""
    return destination.with_name(destination.name + ".files")


def keep_files(destination: Path) -> tuple[Command, ...]:
    """Move `files` out of the working folder to their place beside the source."""
    files = files_of(destination)
    return (
        on_this_machine("rm", "-rf", "--", str(files)),
        on_this_machine("mv", "-T", "--", str(part_of(destination) / "files"), str(files)),
    )


def nothing_to_update(kind: SourceKind, why: str) -> FetchPlan:
    """The plan of an update that cannot change anything."""
    return FetchPlan(kind=kind, summary=f"nothing to update: {why}", actions=())


def on_this_machine(*argv: str, folder: Path | None = None) -> Command:
    """A command that is never run in a root folder, and whose messages are in English."""
    return Command(
        argv=argv,
        folder=str(folder) if folder else "",
        variables=(("LC_ALL", "C.UTF-8"),),
        inside_root=False,
    )
