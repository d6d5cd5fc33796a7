#!/bin/sh
# Create a Debian root folder: sh make_root.sh ROOT SUITE MIRROR PACKAGE,PACKAGE,... [AREA...]
#
# An empty MIRROR means the mirror of this machine's apt, and no AREA (main, contrib) its areas. Keys,
# proxies and certificates are also those of this machine. The root gets its name only when it is complete; an incomplete one
# (ROOT.part) is discarded.
set -eu

root=$1 suite=$2 mirror=$3 packages=$4
shift 4
areas=$*
part=$root.part
keys=$root.keys

say() { printf '%s\n' "$*"; }
fail() {
    printf 'torchyard: %s\n' "$*" >&2
    exit 1
}

# A folder with a mount below it (such as /home in a chroot) must not be removed: the removal would
# continue in the mounted file system. mountinfo has a space as \040.
check_unmounted() {
    [ -e "$1" ] || return 0
    folder=$(cd "$1" && pwd -P)
    if FOLDER=$folder awk '
        BEGIN {
            folder = ENVIRON["FOLDER"]
            gsub(/\\/, "\\134", folder); gsub(/ /, "\\040", folder); gsub(/\t/, "\\011", folder)
        }
        $5 == folder || index($5, folder "/") == 1 { print "torchyard: mounted: " $5; found = 1 }
        END { exit !found }' /proc/self/mountinfo >&2; then
        fail "$folder is in use: unmount the folders listed above, then start again"
    fi
}

remove_folder() {
    check_unmounted "$1"
    rm -rf --one-file-system -- "$1"
}

# The mirror of this machine's main archive. Security and update archives do not have a complete
# suite, and archives of other publishers (drivers, container tools) have none. The archive is
# identified by the label of its index if that is downloaded, else by its URL.
machine_mirror() {
    apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(LABEL)' 'Created-By: Packages' | awk -F'|' '
        $1 !~ /^(https?|ftp|file|copy):/ || $2 !~ /^[a-z][a-z0-9.]*$/ || $1 ~ /security/ { next }
        $3 == "Debian" || $3 == "Ubuntu" { points = 3 }
        $3 != "Debian" && $3 != "Ubuntu" { points = ($3 ~ /^\$|^$/ ? ($1 ~ /\/(debian|ubuntu)\/?$/ ? 2 : 1) : 0) }
        points > best { best = points; mirror = $1 }
        END { print mirror }'
}

machine_areas() {
    apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages' | awk -v mirror="$1" '
        $1 == mirror && !seen[$2]++ { names = names " " $2 }
        END { print (names == "" ? "main" : substr(names, 2)) }'
}

# Collect all keys that apt trusts: those in its folder and those named by single sources.
collect_keys() {
    mkdir -p "$keys"
    for file in /etc/apt/trusted.gpg.d/*.gpg /etc/apt/trusted.gpg.d/*.asc \
        /usr/share/keyrings/debian-archive-keyring.gpg \
        $(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
            sed -n -e 's/^[Ss]igned-[Bb]y: *\(\/[^ ]*\) *$/\1/p' -e 's/^deb.*[[ ]signed-by=\(\/[^] ]*\).*/\1/p'); do
        [ ! -f "$file" ] || cp -L -- "$file" "$keys/"
    done
}

# Options that apt needs to reach the mirror from inside the root: proxies, retries, time checks.
# Proxy auto-detection is left out, because its program is not in the root.
machine_apt_options() {
    say 'Acquire::Retries "3";'
    apt-config dump 2>/dev/null |
        grep -E '^Acquire::(Check-Valid-Until|Check-Date|Retries|ForceIPv[46]|Languages|By-Hash|AllowInsecureRepositories|AllowWeakRepositories|http|https|ftp)(::| )' |
        grep -vE 'Proxy-?Auto-?Detect|^Acquire::(http|https|ftp|Languages) ""' || true
    # The user _apt may not be mapped if the root is entered without root privileges.
    say 'APT::Sandbox::User "root";'
    say 'APT::Install-Recommends "false";'
}

# Copy the files that name resolution and TLS depend on to the same paths in the root.
copy_machine_files() {
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt \
        "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}" "${PIP_CERT:-}"; do
        case $file in
            /etc/* | /usr/*)
                [ -f "$file" ] || continue
                mkdir -p "$part$(dirname "$file")"
                cp -L --remove-destination -- "$file" "$part$file"
                ;;
        esac
    done
    if [ -d /usr/local/share/ca-certificates ]; then
        mkdir -p "$part/usr/local/share/ca-certificates"
        cp -RL -- /usr/local/share/ca-certificates/. "$part/usr/local/share/ca-certificates/"
    fi
}

if [ -z "$mirror" ]; then
    mirror=$(machine_mirror) || mirror=
    [ -n "$mirror" ] || fail "this machine's apt has no mirror: set environment.debian-root.mirror"
fi
[ -n "$areas" ] || areas=$(machine_areas "$mirror" 2>/dev/null) || areas=main

check_unmounted "$root"
remove_folder "$part"
rm -rf -- "$keys"
mkdir -p "$(dirname "$root")"
collect_keys
machine_apt_options >"$root.apt.conf"

# Both programs mount /proc and /sys. In a private mount namespace no mount remains if they are
# killed.
private=
if unshare --mount true 2>/dev/null; then private='unshare --mount --propagation private'; fi

say "creating a Debian $suite root folder in $root"
if command -v mmdebstrap >/dev/null; then
    # shellcheck disable=SC2086
    $private mmdebstrap --variant=apt --keyring="$keys" --aptopt="$root.apt.conf" \
        --dpkgopt=force-unsafe-io --include="$packages" -- \
        "$suite" "$part" "deb $mirror $suite $areas"
elif command -v debootstrap >/dev/null; then
    # debootstrap takes one binary keyring; without it, it uses its default.
    cat "$keys"/*.gpg >"$root.keyring.gpg" 2>/dev/null || true
    if [ -s "$root.keyring.gpg" ]; then set -- --keyring="$root.keyring.gpg"; else set --; fi
    # shellcheck disable=SC2086
    $private debootstrap --variant=minbase "$@" --include="$packages" "$suite" "$part" "$mirror"
    mkdir -p "$part/etc/apt/apt.conf.d" "$part/etc/dpkg/dpkg.cfg.d"
    cp -- "$root.apt.conf" "$part/etc/apt/apt.conf.d/99torchyard"
    say force-unsafe-io >"$part/etc/dpkg/dpkg.cfg.d/99torchyard"
    rm -f -- "$root.keyring.gpg"
else
    fail "neither mmdebstrap nor debootstrap is installed: apt-get install mmdebstrap"
fi

say "deb $mirror $suite $areas" >"$part/etc/apt/sources.list"
say "deb-src $mirror $suite $areas" >>"$part/etc/apt/sources.list"
cp -n -- "$keys"/* "$part/etc/apt/trusted.gpg.d/" || true
copy_machine_files
# Keep packages from starting services: the root has no init.
printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"
chmod 755 "$part/usr/sbin/policy-rc.d"
say "$suite" >"$part/etc/torchyard-root"

remove_folder "$root"
rm -rf -- "$keys" "$root.apt.conf"
mv -T -- "$part" "$root"
say "created $root"
