"""Debian source packages of any suite, through the apt configuration of this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from torchyard.builds.plan import Action, AptSources
from torchyard.builds.recipe import DebianSource
from torchyard.builds.record import SourceIdentity
from torchyard.builds.sources.fetch_plan import (
    FetchPlace,
    FetchPlan,
    files_of,
    keep_files,
    move_to_destination,
    nothing_to_update,
    on_this_machine,
    recreate_part_folder,
    sha256_of,
)
from torchyard.errors import UsageError

_INDEX = "index"
"""File with the package's entry in the archive index, stored with the package files."""

# Debian policy, 5.6.1 and 5.6.12; suites have no policy, and apt allows paths.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*")

# Mirrors may be incomplete: an index lists a file that the pool does not have. apt reports that in
# the middle of its output; the script repeats it at the end, with a fix.
_DOWNLOAD = """\
{index} >index 2>/dev/null || true
if {download} 2>../errors; then cat ../errors; exit 0; else status=$?; fi
cat ../errors
sed -n '/^E: Failed to fetch .*  404 /{{s/%2b/+/g;s/%7e/~/g;s/%3a/:/g
s|^[^/]*//[^ ]*/\\([^ /]*\\) .*|the mirror lists \\1 and does not have it (404): take another \
suite or version, upstream_only, or another mirror|p}}' ../errors >&2
if grep -q '^E: Unable to find a source package' ../errors; then
  echo {unknown} >&2
fi
exit $status"""

# The main archive becomes the tree, each additional one a folder in it, as with dpkg-source.
_UNPACK_UPSTREAM = Path(__file__).with_name("unpack_upstream.sh")


def fetch_actions(table: DebianSource, place: FetchPlace) -> FetchPlan:
    """Return the actions: private apt state, update, download, unpack."""
    _check(table, place.where)
    # One apt folder per package: apt locks its state, and components are fetched in parallel.
    apt = place.downloads / "apt" / (table.suite or "own-suites") / table.package
    configured = ("-c", str(apt / "apt.conf"))
    package = f"{table.package}={table.version}" if table.version else table.package
    suite = table.suite or "this machine's suites"
    tar_only = ("--tar-only",) if table.upstream_only else ()
    download = ("source", "--download-only", "--only-source", *tar_only, package)
    script = _DOWNLOAD.format(
        index=shlex.join(("apt-cache", *configured, "showsrc", "--only-source", table.package)),
        download=shlex.join(("apt-get", *configured, *download)),
        unknown=shlex.quote(
            f"no source package {package} in {suite}: correct {place.where}.package"
        ),
    )
    unpack = "dpkg-source -x files/*.dsc tree"
    if table.upstream_only:
        unpack = _UNPACK_UPSTREAM.read_text(encoding="utf-8").rstrip("\n")
    # The index of binary packages is not needed.
    no_binaries = "Acquire::IndexTargets::deb::Packages::DefaultEnabled=false"
    strict = "APT::Update::Error-Mode=any"
    actions: tuple[Action, ...] = (
        *recreate_part_folder(place.destination),
        on_this_machine("mkdir", "--", str(place.part / "files")),
        AptSources(folder=str(apt), suite=table.suite),
        on_this_machine("apt-get", *configured, "-o", no_binaries, "-o", strict, "update"),
        on_this_machine("sh", "-c", script, folder=place.part / "files"),
        on_this_machine("sh", "-c", unpack, folder=place.part),
        *keep_files(place.destination),
        *move_to_destination(place, place.part / "tree"),
    )
    what = "upstream archive only" if table.upstream_only else "with Debian's patches"
    return FetchPlan(
        kind="debian", summary=f"{package} from Debian ({suite}), {what}", actions=actions
    )


def update_actions(table: DebianSource, place: FetchPlace) -> FetchPlan:
    """Return the actions that fetch the newest version, unless the recipe pins one."""
    if table.version:
        return nothing_to_update("debian", f"{table.package} {table.version} is a release")
    return fetch_actions(table, place)


def source_identity(table: DebianSource, destination: Path) -> SourceIdentity:
    """Return the version and the checksums of the package files."""
    folder = files_of(destination)
    paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    files = {path.name: sha256_of(path) for path in paths if path.name != _INDEX}
    series = destination / "debian" / "patches" / "series"
    patches = series.read_text(encoding="utf-8").splitlines() if series.is_file() else []
    return SourceIdentity(
        kind="debian",
        origin=f"debian:{table.suite or 'own-suites'}/{table.package}",
        version=_version(folder, files) or table.version,
        files=files,
        patches=tuple(
            words[0] for line in patches if (words := line.split()) and words[0][0] != "#"
        ),
    )


def _version(folder: Path, files: Mapping[str, str]) -> str:
    """Return the version in the .dsc, or of the newest index entry that has these archives."""
    dsc_files = [name for name in files if name.endswith(".dsc")]
    if dsc_files:
        return _version_line((folder / dsc_files[0]).read_text(encoding="utf-8", errors="replace"))
    try:
        index = (folder / _INDEX).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    stanzas = (text for text in index.split("\n\n") if all(sha in text for sha in files.values()))
    newest = ""
    for version in filter(None, map(_version_line, stanzas)):
        if not newest or _is_newer(version, newest):
            newest = version
    return newest


def _version_line(text: str) -> str:
    match = re.search(r"^Version: (\S+)$", text, re.MULTILINE)
    return match[1] if match else ""


def _is_newer(version: str, other: str) -> bool:
    """Compare two Debian versions with dpkg."""
    argv = ("dpkg", "--compare-versions", version, "gt", other)
    return subprocess.run(argv, check=False).returncode == 0


def _check(table: DebianSource, where: str) -> None:
    rules = (
        ("package", table.package, _PACKAGE, "the name of a source package, such as `pytorch`"),
        ("suite", table.suite, _SUITE, "the name of a suite, such as `trixie`"),
        ("version", table.version, _VERSION, "a Debian version, such as `2.6.0+dfsg-7`"),
    )
    for key, value, rule, example in rules:
        if (value or key == "package") and not rule.fullmatch(value):
            raise UsageError(
                f"{where}.{key} is {value!r}, which is not valid", hint=f"give {example}"
            )
