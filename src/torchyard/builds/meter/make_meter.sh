#!/bin/sh
# Build Torchyard's meter in FOLDER, and FOLDER/bin with one link to it per compiler on PATH.
# usage: make_meter.sh FOLDER      (FOLDER/meter.c is there)
# Without a C compiler the launcher becomes a script that only runs what it is given: the build is
# then not measured, but it is not stopped either.
set -eu
folder=$1
new="$folder/.new.$$/meter"
mkdir -p -- "${new%/*}"
made=no
# Without shared libraries it starts in less time (1.0 instead of 1.2 ms were measured, of which
# the program that it started took 0.4), but not every system has a static C library.
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
# Only for names that exist: a project that asks for clang must not be told that it is there.
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
