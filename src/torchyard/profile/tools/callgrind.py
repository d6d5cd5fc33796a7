"""callgrind: count every instruction, reproducibly; many times slower than the program.

Importing torch runs without instrumentation; the worker switches it on when the program begins, or
at the requested steps.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.errors import StepFailed
from torchyard.process.programs import capture
from torchyard.profile.model import Collected, CostRow, KeptFile
from torchyard.profile.tools import interface

OUT_FILE: Final = "callgrind.out"
LOG_FILE: Final = "valgrind.log"
_ANNOTATE_LIMIT_S: Final = 300.0
# `1,923,698 (13.29%)  file:function [library]`
_ROW: Final = re.compile(r"^\s*([\d,]+) \(\s*[\d.]+%\)\s+(\S.*)$")
_LIBRARY: Final = re.compile(r"\s*\[([^\[\]]*)\]$")
_RECURSION: Final = re.compile(r"'\d+$")
# Messages of failures of Valgrind itself.
_VALGRIND_FAILURE: Final = re.compile(
    r"Assertion '.*' failed|the 'impossible' happened|unhandled instruction|Unrecognised instruction"
    r"|Illegal opcode|out of memory"
)


def command(program: str, job: interface.Job) -> interface.ToolCommand:
    """Return the command that runs the worker and the program under Valgrind."""
    words, files = interface.step_range_command(job, "valgrind")
    return interface.ToolCommand(
        words=(
            *(program, "--tool=callgrind", "--instr-atstart=no", "--dump-line=no"),
            # Child programs are not instrumented; forked processes write files of their own.
            "--trace-children=no",
            *(
                f"--callgrind-out-file={interface.escaped_path(job.folder / OUT_FILE)}.%p",
                f"--log-file={interface.escaped_path(job.folder / LOG_FILE)}",
            ),
            *job.options.extra,
            *words,
        ),
        # Valgrind runs one thread at a time, so more threads only add waiting.
        variables=interface.thread_variables(job.options.threads or 1),
        files=files,
        notes=(
            "callgrind runs one thread at a time; it counts instructions and measures no times",
        ),
    )


def explain_failure(job: interface.Job) -> None:
    """Raise StepFailed if Valgrind itself failed."""
    log = interface.text_of(job.folder / LOG_FILE)
    failure = _VALGRIND_FAILURE.search(log)
    if failure is not None:
        line = next(line for line in log.splitlines() if failure[0] in line)
        raise StepFailed(
            f"valgrind failed, not the program: {line.strip()}",
            why="this version of valgrind does not support an instruction or section in torch's libraries",
            hint="try a newer valgrind: 3.24 runs torch 2.13 on aarch64 where 3.19 fails",
            log=str(job.folder / LOG_FILE),
        )


def collect(installed: interface.InstalledTool, job: interface.Job) -> Collected:
    """Read the counts with callgrind_annotate."""
    explain_failure(job)
    recorded = interface.recorded_steps_of(job)
    path = _counts(job)
    if path is None:
        log = str(job.folder / LOG_FILE)
        raise StepFailed("callgrind wrote no counts", hint="see its log", log=log)
    annotate = str(Path(installed.path).with_name("callgrind_annotate"))
    try:
        words = [annotate, "--threshold=100", "--auto=no", str(path)]
        completed = capture(words, limit_s=_ANNOTATE_LIMIT_S)
        rows = annotated_rows(completed.stdout)
        export_failure = f"{annotate}: {completed.stderr.strip()}" if completed.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        rows, export_failure = (), f"cannot run {annotate}: {error}"
    return replace(
        recorded,
        rows=rows,
        unit="instructions",
        row_kind="function",
        files=(
            KeptFile(
                name=path.name, about="instruction counts; open with kcachegrind or qcachegrind"
            ),
            KeptFile(name=LOG_FILE, about="log of valgrind"),
        ),
        notes=(*recorded.notes, export_failure) if export_failure else recorded.notes,
    )


def _counts(job: interface.Job) -> Path | None:
    """Return the output file of the program itself, not of a forked process."""
    own = job.folder / f"{OUT_FILE}.{interface.program_pid(job)}"
    if own.is_file():
        return own
    files = sorted(job.folder.glob(f"{OUT_FILE}.*"))
    return files[0] if len(files) == 1 else None


def annotated_rows(text: str) -> tuple[CostRow, ...]:
    """Return the functions with their self cost; recursive frames are merged."""
    costs: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        row = _ROW.match(line)
        if row is None or row[2].endswith("PROGRAM TOTALS"):
            continue
        library = _LIBRARY.search(row[2])
        place = row[2][: library.start()] if library else row[2]
        # At the first colon: C++ names contain colons.
        file, _, function = place.partition(":")
        where = file if file != "???" else library[1] if library else ""
        key = (_RECURSION.sub("", function or place), where if function else "")
        costs[key] = costs.get(key, 0.0) + float(row[1].replace(",", ""))
    rows = (
        CostRow(name=name, where=where, self_cost=cost) for (name, where), cost in costs.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.self_cost))


TOOL: Final = interface.Tool(
    name="callgrind",
    about="exact instruction counts per function; the program runs many times slower",
    package="Debian, Ubuntu: apt install valgrind; Fedora: dnf install valgrind",
    programs=("valgrind", "vgdb", "callgrind_annotate"),
    supported_options=(*interface.STEPS, "threads", "extra"),
    command=command,
    collect=collect,
    explain_failure=explain_failure,
)
