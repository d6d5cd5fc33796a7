"""Virtual environments with fixed versions of packages, made once and kept for later searches.

pip decides where packages come from: its configuration and its variables apply (PIP_INDEX_URL,
PIP_FIND_LINKS, PIP_NO_INDEX, ...).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from torchyard.bisect.model import RevisionFailed
from torchyard.errors import StepFailed, UsageError
from torchyard.files.safe_writing import replace_json
from torchyard.process.programs import capture
from torchyard.results.directory import home_folder

_INSTALL_LIMIT_S: Final = 1800.0
_ERROR_CHARACTERS: Final = 400
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FORM: Final = "write PACKAGE:FIRST..LAST, such as numpy:1.26..2.2, or PACKAGE:1.26.4,2.0.2"


@dataclass(frozen=True, kw_only=True)
class PackageEnvironments:
    """Environments of one interpreter; `setup` is part of what an environment is made of."""

    python: str
    setup: str = ""
    say: Callable[[str], None] = lambda _text: None

    def interpreter(self, packages: Sequence[str]) -> Path:
        """Return the interpreter of an environment, which may not exist yet."""
        return self._folder(packages) / "venv" / "bin" / "python"

    def is_complete(self, packages: Sequence[str]) -> bool:
        """Whether the environment exists and its setup is done."""
        return (self._folder(packages) / "complete.json").exists()

    def complete(self, packages: Sequence[str]) -> None:
        """Mark the environment as complete."""
        replace_json(
            self._folder(packages) / "complete.json",
            {"python": self.python, "packages": list(packages), "setup": self.setup},
        )

    @contextmanager
    def locked(self, packages: Sequence[str]) -> Iterator[None]:
        """Wait until no other process makes this environment."""
        folder = self._folder(packages)
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def install(self, packages: Sequence[str], name: str) -> None:
        """Make the environment from scratch; raise RevisionFailed if pip cannot."""
        folder = self._folder(packages)
        self.say(f"making an environment with {', '.join(packages) or 'no packages'}")
        shutil.rmtree(folder / "venv", ignore_errors=True)
        made = _run([self.python, "-m", "venv", "--without-pip", str(folder / "venv")])
        if made.returncode:
            raise StepFailed(
                f"{self.python} cannot make a virtual environment", why=_tail(made.stderr)
            )
        target = str(self.interpreter(packages))
        if not packages:
            return
        argv = [self.python, "-m", "pip", "--python", target, "install", "--only-binary=:all:"]
        done = _run([*argv, "--no-input", "--disable-pip-version-check", *packages])
        if done.returncode:
            raise RevisionFailed(name, f"pip install: {_tail(done.stderr)}")

    def _folder(self, packages: Sequence[str]) -> Path:
        text = "\0".join([self.python, self.setup, *sorted(packages)])
        digest = hashlib.sha256(text.encode()).hexdigest()
        return home_folder() / "environments" / digest[:16]


def parse_releases(text: str) -> tuple[str, str]:
    """Split `PACKAGE:VERSIONS` and check both."""
    package, colon, versions = text.partition(":")
    ends = versions.split("..") if ".." in versions else versions.split(",")
    try:
        parsed = [Version(one) for one in ends]
    except InvalidVersion as error:
        raise UsageError(
            f"--releases: {text!r} has no versions", why=str(error), hint=_FORM
        ) from None
    if not colon or not _NAME.fullmatch(package) or len(parsed) < 2:  # noqa: PLR2004
        raise UsageError(f"--releases: {text!r} is not a range", hint=_FORM)
    if ".." in versions and (len(parsed) != 2 or parsed[0] >= parsed[1]):  # noqa: PLR2004
        raise UsageError(f"--releases: {text!r} is not a range", hint=_FORM)
    return package, versions


def available_versions(
    python: str, package: str, versions: str, *, sources: bool = False
) -> list[str]:
    """Return the versions of a list, or those that pip finds in a range, in ascending order.

    Those with wheels, or with `sources` those with source distributions. A last version without all parts
    includes what begins with it: `..2.6` includes 2.6.3.
    """
    if ".." not in versions:
        texts = {Version(one): one for one in versions.split(",")}
        return [texts[one] for one in sorted(texts)]
    kind = "--no-binary=:all:" if sources else "--only-binary=:all:"
    argv = [python, "-m", "pip", "index", "versions", kind, package]
    answer = _run(argv)
    listed = re.search(r"^Available versions: (.*)$", answer.stdout, re.MULTILINE)
    if answer.returncode or listed is None:
        raise StepFailed(
            f"pip cannot list the versions of {package}",
            why=_tail(answer.stderr),
            hint="give --python an interpreter with pip 22.3 or later, or list the versions",
        )
    low, high = (Version(one) for one in versions.split(".."))
    parsed_versions = sorted(Version(one) for one in listed.group(1).split(", "))
    return [
        str(one)
        for one in parsed_versions
        if low <= one and (one <= high or one.release[: len(high.release)] == high.release)
    ]


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        return capture(argv, variables=variables, limit_s=_INSTALL_LIMIT_S)
    except OSError as error:
        raise UsageError(
            f"--python: {argv[0]!r} cannot be started",
            why=str(error.strerror),
            hint="check the path",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"{' '.join(argv[:4])} takes too long", why=str(error)) from error


def _tail(text: str) -> str:
    return text.strip()[-_ERROR_CHARACTERS:]
