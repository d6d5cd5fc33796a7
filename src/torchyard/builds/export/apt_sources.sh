#!/bin/sh
# Write a separate apt configuration: sh write-apt-sources.sh FOLDER SUITE "deb deb-src"
#
# Mirrors, keys and options are those of this machine; the suite may differ. An empty SUITE means the
# suites of this machine. All files of apt are below FOLDER: `apt-get -c FOLDER/apt.conf`.
set -eu

folder=$1 suite=$2 kinds=$3
case $folder in
    *[\"\;]*)
        echo "apt cannot represent the path $folder: choose another folder" >&2
        exit 1
        ;;
esac

mkdir -p "$folder/state/lists/partial" "$folder/cache/archives/partial" "$folder/log" \
    "$folder/etc/sources.list.d" "$folder/etc/preferences.d" "$folder/etc/keys"
: >"$folder/state/status"

# All keys that apt trusts: those in its folder, and those of single sources.
for key in /etc/apt/trusted.gpg.d/*.gpg /etc/apt/trusted.gpg.d/*.asc \
    /usr/share/keyrings/debian-archive-keyring.gpg \
    $(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        sed -n -e 's/^[Ss]igned-[Bb]y: *\(\/[^ ]*\) *$/\1/p' -e 's/^deb.*[[ ]signed-by=\(\/[^] ]*\).*/\1/p'); do
    [ ! -f "$key" ] || cp -L -- "$key" "$folder/etc/keys/"
done

# Mirrors of Debian, if apt knows their origin. A suite that is not listed is expected on the mirror of
# the plain suite of this machine, and `other-security` on that of `own-security`.
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' |
    awk -v wanted="$suite" -v kinds="$kinds" '
        function pocket(name) { return index(name, "-") ? substr(name, index(name, "-") + 1) : "" }
        NF < 3 { next }
        { total++; uri[total] = $1; own[total] = $2; part[total] = $3; origin[total] = $4 }
        $4 == "Debian" { debian = 1 }
        $4 == "Debian" && $2 == wanted { listed = 1 }
        END {
            count = split(kinds, kind, " ")
            for (i = 1; i <= total; i++) {
                if (debian && origin[i] != "Debian") continue
                if (wanted == "") named = own[i]
                else if (listed ? own[i] == wanted : pocket(own[i]) == pocket(wanted)) named = wanted
                else continue
                for (k = 1; k <= count; k++) {
                    line = kind[k] " " uri[i] " " named " " part[i]
                    if (!seen[line]++) print line
                }
            }
        }' >"$folder/sources.list"
if [ ! -s "$folder/sources.list" ]; then
    echo "this machine's apt configuration has no Debian mirror for suite ${suite:-(its own)}" >&2
    exit 1
fi

cat >"$folder/apt.conf" <<END
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::Languages;
Dir::State "$folder/state";
Dir::State::lists "$folder/state/lists";
Dir::State::status "$folder/state/status";
Dir::State::extended_states "$folder/state/extended_states";
Dir::Cache "$folder/cache";
Dir::Cache::archives "$folder/cache/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "$folder/etc/sources.list.d";
Dir::Etc::preferences "$folder/etc/preferences";
Dir::Etc::preferencesparts "$folder/etc/preferences.d";
Dir::Etc::trusted "$folder/etc/none";
Dir::Etc::trustedparts "$folder/etc/keys";
Dir::Log "$folder/log";
Acquire::Languages "none";
APT::Sandbox::User "root";
APT::Get::Assume-Yes "true";
END
