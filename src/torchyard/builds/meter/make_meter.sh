#!/bin/sh
# Build the meter of Torchyard in FOLDER, and FOLDER/bin with one link to it per compiler on PATH.
# usage: make_meter.sh FOLDER      (FOLDER/meter.c exists)
# Without a C compiler the launcher is a script that only runs its arguments: the build is then not
# measured, but it does not fail.
set -eu
folder=$1
new="$folder/.new.$$/meter"
mkdir -p -- "${new%/*}"
made=no
# A static program starts faster (measured: 1.0 instead of 1.2 ms, of which the started program took
# 0.4), but not every system has a static C library.
for compiler in "${CC:-cc}" cc gcc clang; do
    if "$compiler" -std=c99 -O2 -static -o "$new" "$folder/meter.c" 2>/dev/null && "$new" true ||
        "$compiler" -std=c99 -O2 -o "$new" "$folder/meter.c" && "$new" true; then
        made=yes
        break
    fi
done
if [ $made = no ]; then
    echo "torchyard: the meter could not be compiled; this build is not measured" >&2
    printf '#!/bin/sh\nexec "$@"\n' >"$new"
    chmod 755 "$new"
fi
mv -f -- "$new" "$folder/meter"
rm -rf -- "${new%/*}" "$folder/bin"
mkdir -- "$folder/bin"
if [ $made = no ]; then
    exit 0
fi
# Only for existing names: a project must not find a clang that is not installed.
IFS=:
for place in $PATH; do
    for tool in "$place"/cc "$place"/c++ "$place"/gcc "$place"/g++ "$place"/clang "$place"/clang++ \
        "$place"/gfortran "$place"/nvcc "$place"/hipcc "$place"/amdclang "$place"/amdclang++ \
        "$place"/gcc-[0-9]* "$place"/g++-[0-9]* "$place"/clang-[0-9]* "$place"/clang++-[0-9]* \
        "$place"/*-gcc "$place"/*-g++ "$place"/*-cc "$place"/*-c++ \
        "$place"/*-gcc-[0-9]* "$place"/*-g++-[0-9]*; do
        if [ -f "$tool" ] && [ -x "$tool" ]; then
            ln -sf -- ../meter "$folder/bin/${tool##*/}"
        fi
    done
done
