"""Source packages of Debian, any suite, through this machine's own apt configuration.

apt checks every file against the signed index, so no checksum is written in a recipe. The files
stay beside the source in `DESTINATION.files`, for the record. Knows no mirror by name.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from torchyard.build.sources.checksum import sha256_of
from torchyard.build.sources.fetch_plan import (
    FetchPlan,
    SourceIdentity,
    arrive,
    on_this_machine,
    part_of,
    start_afresh,
)
from torchyard.core.build_plan import Action, AptSources
from torchyard.core.recipe import DebianSource
from torchyard.errors import UsageError

__all__ = ["fetch_actions", "source_identity"]

# Debian policy, 5.6.1 and 5.6.12; suites have no policy, and apt allows paths.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*")

# Mirrors have holes: an index lists a file that the pool does not have. apt says so in the middle
# of its output; here it is said last, with the mend.
_DOWNLOAD = """\
if {download} 2>errors; then cat errors; rm errors; exit 0; else status=$?; fi
cat errors
sed -n 's|^E: Failed to fetch [^ ]*/\\([^ /]*\\)  *404 .*|the mirror lists \\1 and does not have it \
(404): take another suite or version, upstream_only, or another mirror|p' errors
if grep -q '^E: Unable to find a source package' errors; then
  echo {unknown}
fi
exit $status"""

# The main archive becomes the tree, and each further one a folder in it, as dpkg-source does.
_UNPACK_UPSTREAM = """\
set -eu
for archive in files/*.tar.*; do
  case $archive in *.asc|*.orig-*|*.debian.tar.*) continue;; esac
  mkdir unpacked
  tar -x --no-same-owner -C unpacked -f "$archive"
  set -- $(find unpacked -mindepth 1 -maxdepth 1 -type d | head -n 2)
  if [ "$(find unpacked -mindepth 1 -maxdepth 1 | wc -l)" = 1 ] && [ $# = 1 ]
  then mv -T "$1" tree; rmdir unpacked; else mv -T unpacked tree; fi
done
for archive in files/*.orig-*.tar.*; do
  case $archive in *.asc|*'*'*) continue;; esac
  name=${archive##*.orig-}; name=${name%.tar.*}
  rm -rf "tree/$name"; mkdir "tree/$name"
  tar -x --no-same-owner --strip-components=1 -C "tree/$name" -f "$archive"
done"""


def fetch_actions(
    table: DebianSource, *, destination: Path, downloads: Path, where: str
) -> FetchPlan:
    """Private apt state, update, download, unpack."""
    _check(table, where)
    part, files = part_of(destination), files_of(destination)
    # One apt folder for each package: apt locks its state, and components fetch side by side.
    apt = downloads / "apt" / (table.suite or "own-suites") / table.package
    configuration = str(apt / "apt.conf")
    package = f"{table.package}={table.version}" if table.version else table.package
    download = ["apt-get", "-c", configuration, "source", "--download-only", "--only-source"]
    if table.upstream_only:
        download.append("--tar-only")
    wanted = table.suite or "this machine's suites"
    script = _DOWNLOAD.format(
        download=shlex.join((*download, package)),
        unknown=shlex.quote(f"no source package {package} in {wanted}: see {where}.package"),
    )
    if table.upstream_only:
        unpack = on_this_machine("sh", "-c", _UNPACK_UPSTREAM, folder=part)
    else:
        unpack = on_this_machine("sh", "-c", "dpkg-source -x files/*.dsc tree", folder=part)
    actions: tuple[Action, ...] = (
        *start_afresh(destination),
        on_this_machine("mkdir", "--", str(part / "files")),
        AptSources(folder=str(apt), suite=table.suite),
        on_this_machine(
            "apt-get",
            "-c",
            configuration,
            "-o",
            # Only source packages are wanted; the index of binary ones is as large again.
            "Acquire::IndexTargets::deb::Packages::DefaultEnabled=false",
            "-o",
            "APT::Update::Error-Mode=any",
            "update",
        ),
        on_this_machine("sh", "-c", script, folder=part / "files"),
        unpack,
        on_this_machine("rm", "-rf", "--", str(files)),
        on_this_machine("mv", "-T", "--", str(part / "files"), str(files)),
        *arrive(destination, part / "tree"),
    )
    what = "upstream archive only" if table.upstream_only else "with Debian's patches"
    return FetchPlan(
        kind="debian", summary=f"{package} from Debian ({wanted}), {what}", actions=actions
    )


def source_identity(table: DebianSource, destination: Path) -> SourceIdentity:
    """The version and the checksums of the package's files."""
    folder = files_of(destination)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    descriptions = [path for path in files if path.suffix == ".dsc"]
    version = _version_of(descriptions[0]) if descriptions else _upstream_version(files)
    series = destination / "debian" / "patches" / "series"
    patches = series.read_text(encoding="utf-8").splitlines() if series.is_file() else []
    return SourceIdentity(
        kind="debian",
        origin=f"debian:{table.suite or 'own-suites'}/{table.package}",
        version=version or table.version,
        files={path.name: sha256_of(path) for path in files},
        patches=tuple(
            words[0] for line in patches if (words := line.split()) and words[0][0] != "#"
        ),
    )


def files_of(destination: Path) -> Path:
    """Where the downloaded files of a fetched source package are kept."""
    return destination.with_name(destination.name + ".files")


def _check(table: DebianSource, where: str) -> None:
    rules = (
        ("package", table.package, _PACKAGE, "a source package's name, such as `pytorch`"),
        ("suite", table.suite, _SUITE, "a suite's name, such as `trixie`"),
        ("version", table.version, _VERSION, "a Debian version, such as `2.6.0+dfsg-7`"),
    )
    for key, value, rule, example in rules:
        if (value or key == "package") and not rule.fullmatch(value):
            raise UsageError(
                f"{where}.{key} is {value!r}, which no Debian archive has", hint=f"give {example}"
            )


def _version_of(description: Path) -> str:
    text = description.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^Version: (\S+)$", text, re.MULTILINE)
    return found[1] if found else ""


def _upstream_version(files: list[Path]) -> str:
    """`0.21.0` of `pytorch-vision_0.21.0.orig.tar.xz`: without a .dsc no more is known."""
    for path in files:
        found = re.fullmatch(r"[^_]+_(.+?)(?:\.orig)?\.tar\.[a-z0-9]+", path.name)
        if found and ".orig-" not in path.name:
            return found[1]
    return ""
