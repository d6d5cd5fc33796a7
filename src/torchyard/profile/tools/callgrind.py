"""callgrind: count every instruction, reproducibly; many times slower than the program.

Importing torch runs without instrumentation; the worker switches it on when the program begins, or
at the requested steps.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from torchyard.errors import StepFailed
from torchyard.profile.model import CostRow, KeptFile
from torchyard.profile.tools.interface import (
    STEPS,
    Collected,
    FoundTool,
    Job,
    Tool,
    ToolCommand,
    plain_path,
    range_pid,
    range_program,
    ranged,
    thread_variables,
)

__all__ = ["LOG_FILE", "OUT_FILE", "TOOL", "annotated_rows"]

OUT_FILE: Final = "callgrind.out"
LOG_FILE: Final = "valgrind.log"
_ANNOTATE_LIMIT_S: Final = 300.0
# `1,923,698 (13.29%)  file:function [library]`
_ROW: Final = re.compile(r"^\s*([\d,]+) \(\s*[\d.]+%\)\s+(\S.*)$")
_LIBRARY: Final = re.compile(r"\s*\[([^\[\]]*)\]$")
_RECURSION: Final = re.compile(r"'\d+$")
# What valgrind writes when it is the one that fails.
_BROKEN: Final = re.compile(
    r"Assertion '.*' failed|the 'impossible' happened|unhandled instruction|Unrecognised instruction"
    r"|Illegal opcode|out of memory"
)


def command(program: str, job: Job) -> ToolCommand:
    """Valgrind around our worker around the program."""
    words, files = range_program(job, "valgrind")
    return ToolCommand(
        words=(
            *(program, "--tool=callgrind", "--instr-atstart=no", "--dump-line=no"),
            # Other programs that it starts run as they are. Forks count into files of their own.
            "--trace-children=no",
            *(
                f"--callgrind-out-file={plain_path(job.folder / OUT_FILE)}.%p",
                f"--log-file={plain_path(job.folder / LOG_FILE)}",
            ),
            *job.options.extra,
            *words,
        ),
        # Valgrind runs one thread at a time: more of them only wait for each other.
        variables=thread_variables(job.options.threads or 1),
        files=files,
        notes=("instructions are counted one thread at a time; times are not measured",),
    )


def explain_failure(job: Job) -> None:
    """Raise when valgrind itself broke."""
    try:
        log = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    found = _BROKEN.search(log)
    if found is not None:
        line = next(line for line in log.splitlines() if found[0] in line)
        raise StepFailed(
            f"valgrind failed, not the program: {line.strip()}",
            why="this valgrind does not know something that torch's libraries hold",
            hint="try a newer valgrind: 3.24 runs torch 2.13 on aarch64 where 3.19 fails",
            log=str(job.folder / LOG_FILE),
        )


def collect(found: FoundTool, job: Job) -> Collected:
    """What callgrind_annotate makes of it."""
    explain_failure(job)
    said = ranged(job)
    path = _counts(job)
    if path is None:
        raise StepFailed(
            "callgrind left no counts",
            hint="look at its log",
            log=str(job.folder / LOG_FILE),
        )
    annotate = str(Path(found.path).with_name("callgrind_annotate"))
    try:
        done = subprocess.run(
            [annotate, "--threshold=100", "--auto=no", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANNOTATE_LIMIT_S,
            check=False,
        )
        rows, trouble = annotated_rows(done.stdout), done.stderr.strip()
        notes = said.notes if done.returncode == 0 else (*said.notes, f"{annotate}: {trouble}")
    except (OSError, subprocess.SubprocessError) as error:
        rows, notes = (), (*said.notes, f"{annotate} cannot be run: {error}")
    return Collected(
        rows=rows,
        unit="instructions",
        row_kind="function",
        steps=said.steps,
        recorded_steps=said.recorded_steps,
        state=said.state,
        files=(
            KeptFile(name=path.name, about="counts: open them in kcachegrind or qcachegrind"),
            KeptFile(name=LOG_FILE, about="what valgrind said"),
        ),
        notes=notes,
    )


def _counts(job: Job) -> Path | None:
    """The program's own file, not that of a process it forked."""
    own = job.folder / f"{OUT_FILE}.{range_pid(job)}"
    if own.is_file():
        return own
    found = sorted(job.folder.glob(f"{OUT_FILE}.*"))
    return found[0] if len(found) == 1 else None


def annotated_rows(text: str) -> tuple[CostRow, ...]:
    """Functions and their own instructions; frames of recursion are one function."""
    costs: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        found = _ROW.match(line)
        if found is None or found[2].endswith("PROGRAM TOTALS"):
            continue
        library = _LIBRARY.search(found[2])
        place = found[2][: library.start()] if library else found[2]
        file, function = _split(place)
        where = file if file != "???" else library[1] if library else ""
        key = (_RECURSION.sub("", function), where)
        costs[key] = costs.get(key, 0.0) + float(found[1].replace(",", ""))
    rows = (
        CostRow(name=name, where=where, self_cost=cost) for (name, where), cost in costs.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.self_cost))


def _split(place: str) -> tuple[str, str]:
    """`file:function`; names of C++ hold colons, files do not begin with one."""
    file, _, function = place.partition(":")
    return (file, function) if function else ("", place)


TOOL: Final = Tool(
    name="callgrind",
    about="instructions of every function, exactly; the program runs many times slower",
    package="Debian, Ubuntu: apt install valgrind; Fedora: dnf install valgrind",
    programs=("valgrind", "vgdb", "callgrind_annotate"),
    takes=(*STEPS, "threads", "extra"),
    command=command,
    collect=collect,
    explain_failure=explain_failure,
)
