set -eu
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
fi
