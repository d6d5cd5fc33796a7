"""Start or resume a sweep of operators, in one worker process after the other.

A process that dies costs one case. What a row contains is up to the worker
(`worker/values/operator_sweep.py`).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from torchyard.errors import NothingToDo, WorkerFailed
from torchyard.process.programs import PROGRAM_ENTRY
from torchyard.process.start import LaunchSpec, prepare
from torchyard.process.tree import kill_launch, new_launch_mark, sweep_orphans
from torchyard.results.directory import home_folder, new_run_folder
from torchyard.values.model import new_profile_folder
from torchyard.values.operator_sweep.model import CaseState, Sweep, SweepFolder, SweepSettings

_CASES_EACH: Final = 64
"""Cases per process, which bounds the memory that torch keeps of operators."""
_POLL_S: Final = 0.2
_TAIL: Final = 12

Progress = Callable[[int, int, str], None]
"""Progress callback: finished cases, all cases, the current case."""


def run_sweep(folder: SweepFolder, settings: SweepSettings, progress: Progress) -> None:
    """Run every case without a result. An interrupt keeps the results so far."""
    while not folder.read().finished:
        before = len(folder.done())
        code, log = _run_chunk(folder, settings, progress)
        names = folder.names()
        if not names:
            if code == 0:
                raise NothingToDo(
                    f"no case matches {settings.only}", hint="`--only '*'` selects all cases"
                )
            raise _not_started(settings, code, log)
        died_in = folder.under_way()
        if code != 0 and died_in:
            folder.add(died_in, *_death(code, settings))
        elif len(folder.done()) == before:
            raise _not_started(settings, code, log)


def _run_chunk(
    folder: SweepFolder, settings: SweepSettings, progress: Progress
) -> tuple[int, Path]:
    """Run one worker process until it ends; return its exit code and log."""
    plan = folder.folder / "plan.json"
    log = folder.folder / "worker.log"
    chunk = {
        "device": settings.device,
        "only": settings.only,
        "file": settings.cases_file,
        "threads": settings.threads,
        "limit_s": settings.limit_s,
        "done": folder.done(),
        "most": _CASES_EACH,
    }
    contents = {
        "sweep": chunk,
        "output": str(folder.rows),
        "cache": str(home_folder() / "scan"),
        "options": {},
    }
    plan.write_text(json.dumps(contents), encoding="utf-8")
    mark = new_launch_mark()
    spec = LaunchSpec(name=settings.target, python=settings.python, variables=settings.variables)
    ready = prepare(spec, launch_mark=mark, entry=PROGRAM_ENTRY)
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [ready.python, str(PROGRAM_ENTRY), str(plan), "--"],
            env=dict(ready.environment),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            # Ctrl-C is handled here: a case must not report it as its own error.
            start_new_session=True,
        )
        try:
            _wait(process, folder, progress)
        finally:
            if process.poll() is None:
                kill_launch(mark)
                process.kill()
                process.wait()
    return process.returncode, log


def _wait(process: subprocess.Popen[bytes], folder: SweepFolder, progress: Progress) -> None:
    size = -1
    while process.poll() is None:
        now = folder.rows.stat().st_size if folder.rows.is_file() else 0
        if now != size:
            size = now
            progress(len(folder.done()), len(folder.names()), folder.under_way())
        time.sleep(_POLL_S)


def _death(code: int, settings: SweepSettings) -> tuple[CaseState, str]:
    if code < 0:
        return CaseState.CRASHED, f"the process was ended by signal {-code}"
    # faulthandler ends a process with 1; Python does so, too, but exceptions of cases are caught.
    if code == 1:
        return CaseState.TOO_LONG, f"it took longer than {settings.limit_s:g} s"
    return CaseState.CRASHED, f"the process ended with {code}"


def _not_started(settings: SweepSettings, code: int, log: Path) -> WorkerFailed:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return WorkerFailed(
        f"{settings.target}: the sweep ended with {code} before a case began",
        why="\n".join(lines[-_TAIL:]),
        hint="`torchyard target` shows whether the target has torch",
        log=str(log),
    )


Swept = tuple[Sweep, Path]


def start_sweep(
    settings: SweepSettings, *, folder: Path | None = None, say: Callable[[str], None]
) -> Swept:
    """Start a sweep in a new folder."""
    path = (
        new_run_folder(home_folder() / "sweeps") if folder is None else new_profile_folder(folder)
    )
    stored = SweepFolder(path)
    stored.begin(settings)
    return _run(stored, settings, say)


def resume_sweep(folder: Path, *, say: Callable[[str], None]) -> Swept:
    """Resume a sweep with its settings."""
    stored = SweepFolder(folder)
    return _run(stored, stored.settings(), say)


def _run(stored: SweepFolder, settings: SweepSettings, say: Callable[[str], None]) -> Swept:
    sweep_orphans()
    say(
        f"sweep: {stored.folder}; if interrupted, resume it with "
        f"`torchyard values sweep --resume {stored.folder}`"
    )

    def progress(done: int, total: int, current_case: str) -> None:
        if current_case:
            say(f"{done + 1}/{total} {current_case}")

    run_sweep(stored, settings, progress)
    return stored.read(), stored.folder
