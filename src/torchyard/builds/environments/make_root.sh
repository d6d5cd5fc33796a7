#!/bin/sh
# Make a Debian root folder: sh make_root.sh ROOT SUITE MIRROR PACKAGE,PACKAGE,...
#
# MIRROR may be empty: then it is the one this machine's own apt uses. Keys, proxies and certificates
# are this machine's, too. The root appears under its name only when it is whole; a half-made one
# (ROOT.part) is thrown away.
set -eu

root=$1 suite=$2 mirror=$3 packages=$4
part=$root.part
keys=$root.keys

say() { printf '%s\n' "$*"; }
fail() {
    printf 'torchyard: %s\n' "$*" >&2
    exit 1
}

# A folder with something mounted below it (/home of a chroot that somebody left open) must not be
# removed: the removal would go on into what is mounted. The kernel writes a space as \040 there.
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
        fail "$folder is in use: unmount what is listed above, then start again"
    fi
}

remove_folder() {
    check_unmounted "$1"
    rm -rf --one-file-system -- "$1"
}

# The mirror of this machine's main archive. Security and update archives hold no whole suite, and
# other publishers (a driver's, a container program's) none at all: the label says whose it is, where
# the index is here; else the address does.
machine_mirror() {
    apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(LABEL)' 'Created-By: Packages' | awk -F'|' '
        $1 !~ /^(https?|ftp|file|copy):/ || $2 !~ /^[a-z][a-z0-9.]*$/ || $1 ~ /security/ { next }
        $3 == "Debian" || $3 == "Ubuntu" { points = 3 }
        $3 != "Debian" && $3 != "Ubuntu" { points = ($3 ~ /^\$|^$/ ? ($1 ~ /\/(debian|ubuntu)\/?$/ ? 2 : 1) : 0) }
        points > best { best = points; mirror = $1 }
        END { print mirror }'
}

machine_components() {
    apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages' | awk -v mirror="$1" '
        $1 == mirror && !seen[$2]++ { names = names " " $2 }
        END { print (names == "" ? "main" : substr(names, 2)) }'
}

# Every key apt trusts here, in one folder: those in its folder, and those that single sources name.
collect_keys() {
    mkdir -p "$keys"
    for file in /etc/apt/trusted.gpg.d/*.gpg /etc/apt/trusted.gpg.d/*.asc \
        /usr/share/keyrings/debian-archive-keyring.gpg \
        $(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
            sed -n -e 's/^[Ss]igned-[Bb]y: *\(\/[^ ]*\) *$/\1/p' -e 's/^deb.*[[ ]signed-by=\(\/[^] ]*\).*/\1/p'); do
        [ ! -f "$file" ] || cp -L -- "$file" "$keys/"
    done
}

# What apt needs to reach the same mirror from inside: proxies, retries, clocks that are off. A
# program that finds proxies is not in the root, so its setting stays out.
machine_apt_options() {
    say 'Acquire::Retries "3";'
    apt-config dump 2>/dev/null |
        grep -E '^Acquire::(Check-Valid-Until|Check-Date|Retries|ForceIPv[46]|Languages|By-Hash|AllowInsecureRepositories|AllowWeakRepositories|http|https|ftp)(::| )' |
        grep -vE 'Proxy-?Auto-?Detect|^Acquire::(http|https|ftp|Languages) ""' || true
    # The user that apt changes to may not exist where a root is entered without root's rights.
    say 'APT::Sandbox::User "root";'
    say 'APT::Install-Recommends "false";'
}

# Files of this machine that names and secure connections depend on, at the same paths inside.
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
    [ -n "$mirror" ] || fail "this machine's apt names no mirror: give environment.debian-root.mirror"
fi
components=$(machine_components "$mirror" 2>/dev/null) || components=main

check_unmounted "$root"
remove_folder "$part"
rm -rf -- "$keys"
mkdir -p "$(dirname "$root")"
collect_keys
machine_apt_options >"$root.apt.conf"

# Both programs mount /proc and /sys inside. In a mount namespace of their own, nothing of that is
# left behind when they are killed.
alone=
if unshare --mount true 2>/dev/null; then alone='unshare --mount --propagation private'; fi

say "making a Debian $suite in $root"
if command -v mmdebstrap >/dev/null; then
    # shellcheck disable=SC2086
    $alone mmdebstrap --variant=apt --keyring="$keys" --aptopt="$root.apt.conf" \
        --dpkgopt=force-unsafe-io --include="$packages" -- \
        "$suite" "$part" "deb $mirror $suite $components"
elif command -v debootstrap >/dev/null; then
    # debootstrap takes one file of keys, in the binary form; without any it uses its own.
    cat "$keys"/*.gpg >"$root.keyring.gpg" 2>/dev/null || true
    if [ -s "$root.keyring.gpg" ]; then set -- --keyring="$root.keyring.gpg"; else set --; fi
    # shellcheck disable=SC2086
    $alone debootstrap --variant=minbase "$@" --include="$packages" "$suite" "$part" "$mirror"
    mkdir -p "$part/etc/apt/apt.conf.d" "$part/etc/dpkg/dpkg.cfg.d"
    cp -- "$root.apt.conf" "$part/etc/apt/apt.conf.d/99torchyard"
    say force-unsafe-io >"$part/etc/dpkg/dpkg.cfg.d/99torchyard"
    rm -f -- "$root.keyring.gpg"
else
    fail "neither mmdebstrap nor debootstrap is here: apt-get install mmdebstrap"
fi

say "deb $mirror $suite $components" >"$part/etc/apt/sources.list"
say "deb-src $mirror $suite $components" >>"$part/etc/apt/sources.list"
cp -n -- "$keys"/* "$part/etc/apt/trusted.gpg.d/" || true
copy_machine_files
# No service may start when a package is installed: the root has no init.
printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"
chmod 755 "$part/usr/sbin/policy-rc.d"
say "$suite" >"$part/etc/torchyard-root"

remove_folder "$root"
rm -rf -- "$keys" "$root.apt.conf"
mv -T -- "$part" "$root"
say "made $root"
