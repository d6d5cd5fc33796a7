"""A plan as one POSIX shell script that runs the same steps without Torchyard. No I/O.

Its fixed parts are a clean environment, markers of finished steps, and a root folder if the plan has
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.export.shell import (
    JOB_VARIABLES,
    Difference,
    ExportedFile,
    ExportFacts,
    comment,
    difference_statements,
    distinct_differences,
    exports,
    freeze_command,
    quoted,
    shared_by_most,
    step_statements,
    without_own_steps,
)
from torchyard.builds.plan import Plan, Step, fingerprints

# The same rule as `environments.base_variables.passed_through`; a test compares the two.
CLEAN_START: Final = """\
# Variables of your shell (CC, CFLAGS, LD_LIBRARY_PATH, an active environment) are unset, because
# they would change the result. Proxies, certificates and settings of installers and caches are kept.
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
# A finished step leaves a marker file and is not run again. The name of the marker contains a
# fingerprint: a script exported from a changed plan runs the changed steps again.
step() {
    if [ -e "$marks/$2" ]; then
        printf 'already done: %s\\n' "$1"
        return 0
    fi
    printf '\\n== %s\\n' "$1"
    "$3"
    : >"$marks/$2"
}
"""

PRIVATE_MOUNTS: Final = """\
# Mounts in the root folder are visible only to this script, and end with it.
if [ "${TORCHYARD_MOUNTS-}" != private ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "this script creates and enters a root folder: run it as root" >&2
        exit 1
    fi
    export TORCHYARD_MOUNTS=private
    exec unshare --mount --propagation private -- sh "$0" "$@"
fi
unset TORCHYARD_MOUNTS
"""

ROOT_FUNCTIONS: Final = """\
# in_root ROOT FOLDER COMMAND...: run a command in a root folder. Folders of this machine that are
# not part of its system are visible there at the same paths.
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
# Build {name} without Torchyard: {title}
#
#   sh build.sh             run the steps that are not done; run it again after a failure
#   JOBS=2 sh build.sh      compile two files in parallel{default}
#
# Sources are fetched to {sources}
# Everything else is written below {folder}
# To run all steps again, remove the folder by-hand there.
{notes}#
# Differences from a build with Torchyard:
# - all steps have network access and access to the files of this machine;
# - compile jobs are not measured and not scheduled by memory: lower JOBS if they are killed;
# - only the import and the smoke tests are checked, not options and libraries;
# - steps run one after the other.
#
# Quoted text that looks like shell code is for an inner shell.
# shellcheck disable=SC2016
"""


def export_script(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return one file, to be run with `sh`."""
    plan = without_own_steps(plan)
    rooted = any(step.root for step in plan.steps)
    differences = distinct_differences(plan.steps)
    names = {key: f"variables_{number}" for number, key in enumerate(differences, start=1)}
    parts = [
        _head(plan, facts),
        "set -eu\n",
        CLEAN_START,
        *((PRIVATE_MOUNTS,) if rooted else ()),
        _folders(plan),
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
    default = f" [default: {plan.jobs}]" if plan.jobs else " [default: one per core]"
    return _HEAD.format(
        name=comment(plan.name),
        title=comment(", ".join(names)),
        default=default,
        folder=comment(plan.folder),
        sources=comment(facts.sources),
        notes="".join(f"# Note: {comment(note)}\n" for note in plan.notes),
    )


def _folders(plan: Plan) -> str:
    jobs = str(plan.jobs) if plan.jobs else "$(nproc)"
    folder = quoted(plan.folder)
    return f"JOBS=${{JOBS:-{jobs}}}\nmarks={folder}/by-hand\nmkdir -p -- {folder}/by-hand\n"


def _shared(plan: Plan) -> str:
    lines = exports(shared_by_most(plan.steps), one_line=False)
    jobs = " ".join(f'{name}="$JOBS"' for name in JOB_VARIABLES)
    limit = ("# Steps that compile", "limit_jobs() {", f"    export {jobs}", "}", "")
    return "\n".join(("# All steps", *(line.strip(" ") for line in lines), "", *limit))


def _variables_function(name: str, difference: Difference, users: tuple[str, ...]) -> str:
    comments = [f"# {comment(user)}" for user in users]
    body = difference_statements(difference, one_line=False)
    return "\n".join((*comments, f"{name}() {{", *body, "}", ""))


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
    """Return the function that lists Python packages, updated at every run: it takes a second."""
    command = freeze_command(plan, str(BuildFolder(folder=Path(plan.folder)).freeze_file))
    if command is None or not plan.steps:
        return ()
    last = plan.steps[-1]
    step = replace(last, actions=(command,))
    statements = step_statements(plan, step, one_line=False)
    lines = ["freeze() (", *_own_variables(plan, last, names), *statements, ") </dev/null", ""]
    return ("\n".join(lines),)


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
    """Return the functions; build folders inside system folders are mounted individually."""
    folders = [facts.home] if PurePosixPath(plan.folder).is_relative_to(facts.home) else []
    folders = folders or [plan.folder, facts.home]
    hidden = [folder for folder in folders if _SYSTEM.match(f"{folder}/")]
    shown = "".join(f"        show {quoted(folder)}\n" for folder in hidden)
    return ROOT_FUNCTIONS.format(shown=shown)
