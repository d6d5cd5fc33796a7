"""A copy of a program in which single files are replaced: other files are links to the original ones.

Both variants run from the same place, so that names of files in their output are equal. The working folder of a
script stays that of the original run.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.errors import UsageError
from torchyard.files.safe_writing import write_error
from torchyard.values.model import ProfileRequest
from torchyard.values.patching.model import NotProposed

_LEFT_OUT: Final = frozenset({"__pycache__"})
_MOST_ENTRIES: Final = 20_000


class ProgramCopy:
    """A folder of links to the files of a program."""

    def __init__(self, request: ProfileRequest, working_folder: Path, at: Path) -> None:
        """Describe the copy; `at` must not exist."""
        if not request.program:
            raise UsageError(
                "the profile is of a workload, not of a program",
                hint="`torchyard values fix` patches programs: give a script",
            )
        self._request = request
        self.working_folder = working_folder
        self._module = request.program[0] == "-m"
        words = request.program
        self.main = (
            _file_of_module(words[1], working_folder)
            if self._module
            else absolute(words[0], working_folder)
        )
        """The file that runs first."""
        self.root = working_folder if self._module else self.main.parent
        self.at = at

    def contains(self, file: Path) -> bool:
        """Return whether a file belongs to the program's folder."""
        return file.is_relative_to(self.root) and "site-packages" not in file.parts

    def create(self, files: list[Path]) -> None:
        """Create the copy, with real folders around the files that will be replaced."""
        real = {self.root}
        for file in files:
            for folder in file.relative_to(self.root).parents:
                real.add(self.root / folder)
        try:
            for folder in sorted(real):
                place = self.at / folder.relative_to(self.root)
                place.mkdir(parents=True)
                for number, entry in enumerate(sorted(folder.iterdir())):
                    if number >= _MOST_ENTRIES:
                        raise NotProposed("the folder of the program has too many files")
                    inside = entry in real or self.at == entry or self.at.is_relative_to(entry)
                    if entry.name not in _LEFT_OUT and not inside:
                        (place / entry.name).symlink_to(entry)
        except OSError as error:
            raise write_error(self.at, error, kept="the program") from error

    def place_of(self, file: Path) -> Path:
        """Return where the copy of a file is."""
        return self.at / file.relative_to(self.root)

    def write(self, file: Path, content: bytes) -> None:
        """Replace a file of the copy."""
        place = self.place_of(file)
        temporary = place.with_name(f".{place.name}.new")
        try:
            temporary.write_bytes(content)
            temporary.chmod(file.stat().st_mode & 0o777 | 0o200)
            temporary.replace(place)
        except OSError as error:
            raise write_error(place, error, kept="the program") from error

    def holds(self, file: Path, content: bytes) -> bool:
        """Return whether the copy of a file still has this content."""
        place = self.place_of(file)
        return not place.is_symlink() and place.read_bytes() == content

    @property
    def request(self) -> ProfileRequest:
        """Return the request that runs the copy."""
        if self._module:
            return self._request
        words = self._request.program
        return replace(self._request, program=(str(self.at / self.main.name), *words[1:]))

    @property
    def folder_to_run_in(self) -> Path:
        """Return the working folder of the copy."""
        return self.at if self._module else self.working_folder


def _file_of_module(name: str, folder: Path) -> Path:
    path = folder.joinpath(*name.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def absolute(file: str, working_folder: Path) -> Path:
    """Return the path of a file that a profile names, without resolving links of its folder."""
    return Path(os.path.normpath(working_folder / file))
