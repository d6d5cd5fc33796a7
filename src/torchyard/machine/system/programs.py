"""Find and run system programs that a knob needs, such as swapoff and systemctl.

On the running machine these are the programs on PATH and in the system directories of root. A copy
of a machine has only those in its `.kernel/programs`, where tests put them: a program of this
machine would change this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import Final

from torchyard.errors import MissingTool, StepFailed
from torchyard.machine.system.file_tree import FileTree

_COPY_PROGRAMS: Final = ".kernel/programs"
_ROOT_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
_LAST_LINES: Final = 3


def find_program(files: FileTree, name: str) -> str | None:
    """Return the path of a program, or None."""
    if not files.live:
        return shutil.which(name, path=str(files.path(_COPY_PROGRAMS)))
    # The PATH of sudo and cron often lacks the folders of root's programs. Relative and empty
    # entries depend on the working directory: root must not run programs from there.
    path_folders = os.environ.get("PATH", "").split(os.pathsep)
    folders = [folder for folder in (*path_folders, *_ROOT_FOLDERS) if folder.startswith("/")]
    return shutil.which(name, path=os.pathsep.join(folders))


def missing_programs(files: FileTree, *names: str) -> str:
    """Return why programs are unavailable; empty if all are installed."""
    missing = [name for name in names if find_program(files, name) is None]
    if not missing:
        return ""
    where = "installed" if files.live else "in this copy of a machine"
    return f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not {where}"


def run_program(files: FileTree, name: str, *arguments: str, limit_s: float) -> str:
    """Run a program and return its stdout; raises if it fails."""
    program = find_program(files, name)
    if program is None:
        raise MissingTool(
            missing_programs(files, name), hint=f"install the package that contains {name}"
        )
    line = shlex.join((name, *arguments))
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            env={**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": ""},
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"`{line}` timed out after {limit_s:g} s") from None
    except OSError as error:
        raise MissingTool(f"cannot run {program}: {error.strerror or error}") from error
    if done.returncode != 0:
        output = " / ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise StepFailed(
            f"`{line}` failed with exit code {done.returncode}: {output or 'no output'}"
        )
    return done.stdout
