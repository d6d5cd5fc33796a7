"""Run the shell commands of exported image definitions without an image, with harmless programs.

What a Dockerfile's and an Apptainer definition's readers do with the text (joining lines, leaving
out comments, sections, placeholders) is done here by their rules; then a real shell runs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from torchyard.builds.environments.model import SYSTEM_PATH

SECTIONS = {"files", "arguments", "post", "environment", "runscript", "test", "labels", "help"}


def fake_system(folder: Path) -> Path:
    """Programs that would change the machine, and here only write down that they were called."""
    folder.mkdir(exist_ok=True)
    for name in ("apt-get", "dpkg"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{folder}/called"\n')
        (folder / name).chmod(0o755)
    # Lists of packages are removed in images, and must not be here.
    (folder / "rm").write_text(
        '#!/bin/sh\ncase "$*" in */var/lib/apt*) exit 0;; esac\nexec /bin/rm "$@"\n'
    )
    (folder / "rm").chmod(0o755)
    return folder


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile: comments go, lines that end with a backslash are joined."""
    found: list[tuple[str, str]] = []
    joined = ""
    for line in text.split("\n"):
        if line.lstrip().startswith("#"):
            continue
        if not joined and not line.strip():
            continue
        if re.search(r"\\[ \t]*$", line):
            joined += re.sub(r"\\[ \t]*$", "", line)
            continue
        word, _, rest = (joined + line).strip().partition(" ")
        found.append((word, rest))
        joined = ""
    assert not joined
    return found


def run_dockerfile(text: str, *, stage: str, system: Path, context: Path) -> dict[str, str]:
    """Run one stage on this machine; the environment at its end is returned."""
    environ = {"PATH": f"{system}:{SYSTEM_PATH}"}
    here, reached = "/", ""
    for word, rest in instructions(text):
        if word == "FROM":
            reached = rest.rpartition(" ")[2]
        elif reached != stage:
            continue
        elif word == "ENV":
            name, _, value = rest.partition("=")
            environ[name] = re.sub(r"\\(.)", r"\1", value[1:-1])
        elif word == "ARG":
            name, _, value = rest.partition("=")
            environ[name] = value
        elif word == "WORKDIR":
            here = rest
            Path(here).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            source, target = json.loads(rest)
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-aT", context / source, target], check=True)
        elif word == "RUN":
            # The real ones have no newline left: the shell gets one line.
            assert "\n" not in rest
            _shell(rest, here, environ, system)
    return environ


def sections(text: str) -> dict[str, str]:
    """The sections of an Apptainer definition; those of one name are joined."""
    found = {"": ""}
    name = ""
    for line in text.split("\n"):
        first = line.split()[0] if line.split() else ""
        if first.startswith("%"):
            name = first.lstrip("%").lower()
            assert name in SECTIONS
            found.setdefault(name, "")
        else:
            found[name] += f"{line}\n"
    return found


def run_section(text: str, name: str, *, system: Path, jobs: str = "") -> str:
    """Run a section as Apptainer does, with its arguments filled in; what it says is returned."""
    parts = sections(text)
    arguments = dict(
        line.strip().split("=", 1)
        for line in parts.get("arguments", "").splitlines()
        if "=" in line
    )
    if jobs:
        arguments["JOBS"] = jobs
    script = re.sub(r"{{\s*(\w+)\s*}}", lambda found: arguments[found[1]], parts[name])
    environ = {"PATH": f"{system}:{SYSTEM_PATH}"}
    ended = subprocess.run(
        ["/bin/sh", "-e", "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _shell(command: str, folder: str, environ: dict[str, str], system: Path) -> None:
    # Steps put the system's programs first on PATH; ours must still be found before them.
    command = command.replace(f"PATH={SYSTEM_PATH}", f"PATH={system}:{SYSTEM_PATH}")
    own = {**environ, "PATH": f"{system}:{environ['PATH']}"}
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stderr}{os.linesep}"
