"""Unpack an archive, as a command: tar in any compression, or zip.

The kind is told from the first bytes, because an index or a forge may name the file as it likes.
"""

from __future__ import annotations

from pathlib import Path

from torchyard.build.sources.fetch_plan import on_this_machine
from torchyard.core.build_plan import Command

__all__ = ["unpack_command"]

# Names are looked at before anything is unpacked. Links that lead out and are then written through
# are left to tar and unzip: both make links last, so the write fails and with it the command.
_UNPACK = r"""set -eu
archive=$1 strip=$2
names=$(pwd)/names
zip=false
if [ "$(head -c 2 "$archive")" = PK ]; then zip=true; fi
if $zip; then unzip -Z1 "$archive" >"$names"; else tar -tPf "$archive" >"$names"; fi || {
  echo "$archive cannot be read: it is damaged, or no archive that tar or unzip knows" >&2; exit 1; }
if grep -E '^[/\\]|(^|[/\\])\.\.([/\\]|$)' "$names" >escaping; then
  echo "$archive has members that lead out of its folder, such as $(head -n 1 escaping);" \
    "nothing was unpacked: get the archive from its publisher" >&2
  exit 1
fi
if ! $zip && LC_ALL=C tar -tvPf "$archive" | grep -a '^[bcp]' >devices; then
  echo "$archive has devices or FIFOs, such as $(head -n 1 devices);" \
    "nothing was unpacked: get the archive from its publisher" >&2
  exit 1
fi
mkdir tree
if $zip; then
  mkdir unzipped
  unzip -q "$archive" -d unzipped
  find unzipped -mindepth $((strip + 1)) -maxdepth $((strip + 1)) -exec mv -t tree {} +
  rm -rf unzipped
else
  tar -x --no-same-owner --no-same-permissions --strip-components="$strip" -C tree -f "$archive"
fi
if [ -z "$(ls -A tree)" ]; then
  echo "$archive is empty below $strip leading folder(s): correct the recipe's strip" >&2; exit 1
fi"""


def unpack_command(archive: Path, *, part: Path, strip: int) -> Command:
    """Unpack into `part/tree`; `part` exists, and is thrown away when this fails."""
    return on_this_machine("sh", "-c", _UNPACK, "unpack", str(archive), str(strip), folder=part)
