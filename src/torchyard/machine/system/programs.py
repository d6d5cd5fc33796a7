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

__all__ = ["find_program", "run_program", "why_no_program"]

_OF_A_COPY: Final = ".kernel/programs"
_OF_ROOT: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
_LAST_LINES: Final = 3


def find_program(files: FileTree, name: str) -> str | None:
    """Where it is; None when there is none."""
    if not files.live:
        return shutil.which(name, path=str(files.path(_OF_A_COPY)))
    # sudo and cron often come without the folders of root's programs. A folder that is relative,
    # or empty, is wherever the user happens to be: nothing that root should run.
    named = os.environ.get("PATH", "").split(os.pathsep)
    folders = [folder for folder in (*named, *_OF_ROOT) if folder.startswith("/")]
    return shutil.which(name, path=os.pathsep.join(folders))


def why_no_program(files: FileTree, *names: str) -> str:
    """The reason for `unavailable`; empty when all are there."""
    missing = [name for name in names if find_program(files, name) is None]
    if not missing:
        return ""
    where = "installed" if files.live else "in this copy of a machine"
    return f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not {where}"


def run_program(files: FileTree, name: str, *arguments: str, limit_s: float) -> str:
    """Run to its end and return what it said; raises when it says no."""
    program = find_program(files, name)
    if program is None:
        raise MissingTool(why_no_program(files, name), hint=f"install the package that has {name}")
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
        raise StepFailed(f"`{line}` took longer than {limit_s:g} s and was ended") from None
    except OSError as error:
        raise MissingTool(f"cannot run {program}: {error.strerror or error}") from error
    if done.returncode != 0:
        said = " / ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise StepFailed(f"`{line}` ended with {done.returncode}: {said or 'it said nothing'}")
    return done.stdout
