"""The fixed parts of an exported script: a clean start, markers of what is done, a root folder.

Text only. For any POSIX shell; mounts and chroot are there only for plans with a root folder.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLEAN_START", "PRIVATE_MOUNTS", "ROOT_FUNCTIONS", "STEP_FUNCTION"]

# The same rule as `environments.base_variables.passed_through`; a test holds the two together.
CLEAN_START: Final = """\
# Settings of your shell (CC, CFLAGS, LD_LIBRARY_PATH, an active environment) are not passed on:
# they would change the result. Proxies, certificates, settings of installers and caches are.
for name in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $name in
        JOBS | TORCHYARD_MOUNTS) continue ;;
        PIP_TARGET | PIP_PREFIX | PIP_USER | PIP_ROOT | PIP_PYTHON | PIP_REQUIRE_VIRTUALENV | \\
            PIP_CONSTRAINT | PIP_NO_DEPS | PIP_PRE | PIP_DRY_RUN | \\
            UV_PYTHON | UV_PROJECT_ENVIRONMENT | UV_CONSTRAINT | UV_OVERRIDE | \\
            UV_SYSTEM_PYTHON | UV_PRERELEASE) ;;
        TERM | TMPDIR | USER | LOGNAME | NETRC | SSH_AUTH_SOCK | \\
            http_proxy | https_proxy | ftp_proxy | all_proxy | no_proxy | \\
            HTTP_PROXY | HTTPS_PROXY | FTP_PROXY | ALL_PROXY | NO_PROXY | \\
            SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE | \\
            GIT_SSL_CAINFO | NODE_EXTRA_CA_CERTS | \\
            PIP_?* | UV_?* | CCACHE_?* | SCCACHE_?* | GIT_CONFIG_?* | \\
            CONDARC | CONDA_PKGS_DIRS | MAMBA_ROOT_PREFIX | RATTLER_?* | PIXI_HOME | \\
            PIXI_CACHE_DIR | XDG_CONFIG_HOME | XDG_CACHE_HOME) continue ;;
    esac
    command unset "$name" 2>/dev/null || :
done
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
"""

STEP_FUNCTION: Final = """\
# A step that came to its end leaves a mark, and is not done again. The mark's name holds a
# fingerprint: a script exported from a changed plan does the changed steps again.
step() {
    if [ -e "$marks/$2" ]; then
        printf 'done already: %s\\n' "$1"
        return 0
    fi
    printf '\\n== %s\\n' "$1"
    "$3"
    : >"$marks/$2"
}
"""

PRIVATE_MOUNTS: Final = """\
# What is mounted in the root folder is seen by this script alone, and is gone when it ends.
if [ "${TORCHYARD_MOUNTS-}" != private ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "a root folder is made and entered here: run this script as root" >&2
        exit 1
    fi
    export TORCHYARD_MOUNTS=private
    exec unshare --mount --propagation private -- sh "$0" "$@"
fi
unset TORCHYARD_MOUNTS
"""

ROOT_FUNCTIONS: Final = """\
# in_root ROOT FOLDER COMMAND...: run a command in a root folder, which sees the folders of this
# machine that are no part of its system at the same paths.
in_root() {{
    root=$1 folder=$2
    shift 2
    if ! mountpoint -q "$root/proc"; then
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        for top in /*; do
            case $top in
                /bin | /boot | /dev | /etc | /lib* | /lost+found | /proc | /run | /sbin | /sys | \\
                    /usr | /var) continue ;;
            esac
            if [ -d "$top" ]; then show "$top"; fi
        done
{shown}    fi
    chroot "$root" sh -c 'cd "$1" && shift && exec "$@"' sh "$folder" "$@"
}}

show() {{
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
}}
"""
