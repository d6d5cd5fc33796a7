"""A plan as one POSIX shell script that runs the same steps without Torchyard. No I/O.

Its fixed parts are a clean start, markers of finished steps, and a root folder where the plan has
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.export.model import ExportedFile, ExportFacts
from torchyard.builds.export.plain_actions import freeze_command, without_own_steps
from torchyard.builds.export.shell import (
    JOB_VARIABLES,
    Difference,
    comment,
    difference_statements,
    distinct_differences,
    exports,
    quoted,
    shared_by_most,
    step_statements,
)
from torchyard.builds.plan import Plan, Step, fingerprints

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


_SYSTEM: Final = re.compile(r"/(bin|boot|dev|etc|lib[^/]*|lost\+found|proc|run|sbin|sys|usr|var)/")

_HEAD: Final = """\
#!/bin/sh
# Builds {name} by hand, as Torchyard would: {title}
#
#   sh build.sh             do what is not done yet; run it again after a failure
#   JOBS=2 sh build.sh      compile two files at once{default}
#
# Sources are fetched to {sources}
# Everything else goes below {folder}
# To have everything done again, remove the folder by-hand there.
{notes}#
# Not the same as with Torchyard:
# - the network is not cut off in the steps that do not fetch, and nothing is kept from the
#   files of this machine;
# - compiles are not measured, and not held back by the memory they need: lower JOBS if they are
#   killed;
# - of the checks, only the import and the smoke tests are made, not those of options and libraries;
# - steps run one after the other.
#
# Quoted text that looks like shell is meant for the shell that gets it.
# shellcheck disable=SC2016
"""


def export_script(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """One file, to be run with `sh`."""
    plan = without_own_steps(plan)
    rooted = any(step.root for step in plan.steps)
    differences = distinct_differences(plan.steps)
    names = {key: f"variables_{number}" for number, key in enumerate(differences, start=1)}
    parts = [
        _head(plan, facts),
        "set -eu\n",
        CLEAN_START,
        *((PRIVATE_MOUNTS,) if rooted else ()),
        _places(plan),
        _shared(plan),
        STEP_FUNCTION,
        *((_root_functions(plan, facts),) if rooted else ()),
        *(_variables_function(names[key], key, users) for key, users in differences.items()),
        *(_step_function(plan, step, number, names) for number, step in _numbered(plan)),
        *_freeze(plan, names),
        _calls(plan),
    ]
    return (ExportedFile(name="build.sh", text="\n".join(parts), executable=True),)


def _numbered(plan: Plan) -> list[tuple[int, Step]]:
    return list(enumerate(plan.steps, start=1))


def _head(plan: Plan, facts: ExportFacts) -> str:
    names = [f"{part.name} {part.recipe.version}".strip() for part in plan.components]
    default = f" ({plan.jobs} without it)" if plan.jobs else " (one for each core without it)"
    return _HEAD.format(
        name=comment(plan.name),
        title=comment(", ".join(names)),
        default=default,
        folder=comment(plan.folder),
        sources=comment(facts.sources),
        notes="".join(f"# Note: {comment(note)}\n" for note in plan.notes),
    )


def _places(plan: Plan) -> str:
    jobs = str(plan.jobs) if plan.jobs else "$(nproc)"
    folder = quoted(plan.folder)
    return f"JOBS=${{JOBS:-{jobs}}}\nmarks={folder}/by-hand\nmkdir -p -- {folder}/by-hand\n"


def _shared(plan: Plan) -> str:
    lines = exports(shared_by_most(plan.steps), one_line=False)
    jobs = " ".join(f'{name}="$JOBS"' for name in JOB_VARIABLES)
    limit = ("# For steps that compile", "limit_jobs() {", f"    export {jobs}", "}", "")
    return "\n".join(("# For all steps", *(line.strip(" ") for line in lines), "", *limit))


def _variables_function(name: str, difference: Difference, users: tuple[str, ...]) -> str:
    told = [f"# {comment(user)}" for user in users]
    body = difference_statements(difference, one_line=False)
    return "\n".join((*told, f"{name}() {{", *body, "}", ""))


def _step_function(plan: Plan, step: Step, number: int, names: Mapping[Difference, str]) -> str:
    lines = [f"# {comment(step.name)}: {comment(step.title)}", f"{_function(number, step)}() ("]
    lines += _own_variables(plan, step, names)
    if step.compiles:
        lines.append("    limit_jobs")
    lines += step_statements(plan, step, one_line=False)
    return "\n".join((*lines, ") </dev/null", ""))


def _own_variables(plan: Plan, step: Step, names: Mapping[Difference, str]) -> list[str]:
    difference = Difference.of(step, shared_by_most(plan.steps))
    return [f"    {names[difference]}"] if difference in names else []


def _freeze(plan: Plan, names: Mapping[Difference, str]) -> tuple[str, ...]:
    """The list of Python packages, made anew each time: it costs a second."""
    command = freeze_command(plan, str(_freeze_file(plan)))
    if command is None or not plan.steps:
        return ()
    last = plan.steps[-1]
    step = replace(last, actions=(command,))
    statements = step_statements(plan, step, one_line=False)
    lines = ["freeze() (", *_own_variables(plan, last, names), *statements, ") </dev/null", ""]
    return ("\n".join(lines),)


def _freeze_file(plan: Plan) -> Path:
    return BuildFolder(folder=Path(plan.folder)).freeze_file


def _calls(plan: Plan) -> str:
    prints = fingerprints(plan)
    lines = []
    for number, step in _numbered(plan):
        mark = f"{re.sub(r'[^A-Za-z0-9._-]', '-', step.name)}.{prints[step.name][:16]}"
        lines.append(f"step {quoted(step.name)} {mark} {_function(number, step)}")
    if freeze_command(plan, "") and plan.steps:
        lines.append("freeze")
    lines.append(f"printf '\\nbuilt: %s\\n' {quoted(plan.folder)}")
    return "\n".join(lines) + "\n"


def _function(number: int, step: Step) -> str:
    return f"step_{number}_{re.sub(r'[^A-Za-z0-9]+', '_', step.name)}"


def _root_functions(plan: Plan, facts: ExportFacts) -> str:
    """Folders of the build that lie in the machine's system folders are shown one by one."""
    folders = [facts.home] if PurePosixPath(plan.folder).is_relative_to(facts.home) else []
    folders = folders or [plan.folder, facts.home]
    hidden = [folder for folder in folders if _SYSTEM.match(f"{folder}/")]
    shown = "".join(f"        show {quoted(folder)}\n" for folder in hidden)
    return ROOT_FUNCTIONS.format(shown=shown)
