"""Which package index pip would ask on this machine, and how it would get there.

Asked of pip itself, so that files, variables and environments count as they do for pip. What is
read here may hold logins: it is used and never shown or kept.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchyard.build.sources.addresses import without_credentials
from torchyard.build.sources.transfer import TransferSettings
from torchyard.errors import MissingTool

__all__ = ["PipSettings", "read_pip_settings"]

# Later ones win: pip reads the section of its command after [global], and variables last.
_SECTIONS = ("global", "install", "download", ":env:")


@dataclass(frozen=True, kw_only=True)
class PipSettings:
    """Where pip looks for packages."""

    indexes: tuple[str, ...]
    """Addresses of simple indexes, in the order of asking; none with `no-index`."""
    find_links: tuple[str, ...]
    """Folders, pages or files with links."""
    transfer: TransferSettings


def read_pip_settings() -> PipSettings:
    """Ask pip."""
    pip, listing = _configuration()
    values = dict(_values(listing))
    indexes: tuple[str, ...] = ()
    if not _is_true(values.get("no-index", "")):
        first = values.get("index-url", "").strip() or _default_index(pip)
        indexes = (first, *values.get("extra-index-url", "").split())
    return PipSettings(
        indexes=indexes,
        find_links=tuple(values.get("find-links", "").split()),
        transfer=TransferSettings(
            ca_file=values.get("cert", ""),
            trusted_hosts=tuple(values.get("trusted-host", "").split()),
            proxy=values.get("proxy", ""),
        ),
    )


def _values(listing: str) -> Iterator[tuple[str, str]]:
    """Names and values of `pip config list`, the strongest section last."""
    found: list[tuple[int, str, str]] = []
    for line in listing.splitlines():
        left, equals, right = line.partition("=")
        section, _, name = left.rpartition(".")
        if equals and section in _SECTIONS:
            found.append((_SECTIONS.index(section), name.lower().replace("_", "-"), _text(right)))
    found.sort(key=lambda item: item[0])
    return ((name, value) for _, name, value in found)


def _text(literal: str) -> str:
    """A value as it is; pip prints it as Python would write it."""
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return literal
    return value if isinstance(value, str) else literal


def _default_index(pip: tuple[str, ...]) -> str:
    """The index pip asks when none is configured, as its help says."""
    words = " ".join(_run((*pip, "download", "--help")).stdout.split())
    found = re.search(r"--index-url <url>.*?\(default (\S+?)\)", words)
    if not found:
        raise MissingTool(
            "no package index is configured, and this pip names no default",
            hint="set one: `pip config set global.index-url URL`, or PIP_INDEX_URL",
        )
    return found[1]


def _configuration() -> tuple[tuple[str, ...], str]:
    """How pip is started (this interpreter's, or the first on PATH), and what it is set to."""
    # -P: a folder called pip in the current one is not pip.
    candidates: list[tuple[str, ...]] = [(sys.executable, "-P", "-m", "pip")]
    candidates += [(path,) for name in ("pip3", "pip") if (path := shutil.which(name))]
    candidates += [(path, "-m", "pip") for name in ("python3",) if (path := shutil.which(name))]
    why = ""
    for argv in candidates:
        try:
            ended = _run((*argv, "config", "list"))
        except OSError:
            continue
        if ended.returncode == 0:
            return argv, ended.stdout
        if "No module named pip" not in ended.stderr:
            why = without_credentials(ended.stderr.strip().rpartition("\n")[2])
    raise MissingTool(
        "pip, whose configuration says where source distributions are, does not answer",
        why=why,
        hint="mend `pip config list` (or install pip), or use another source of the recipe",
    )


def _run(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        # Help is folded to the width of the terminal, and an address must not be broken.
        "COLUMNS": "1000",
        "LC_ALL": "C.UTF-8",
    }
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment,
    )


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on", "t", "y")
