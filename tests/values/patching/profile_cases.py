"""Profile programs of the corpus in this process, and run them with their change.

    python profile_cases.py FOLDER NAME...        or all of them

Writes `FOLDER/NAME/profile.json` and prints, for each program, whether its change alters the output.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from tests.values.patching import (
    right_patches,
    wrong_operands,
    wrong_ordinary,
    wrong_settings,
    wrong_steps,
    wrong_writes,
)
from tests.values.patching.case import Case
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.pricing.checked_run import CheckedRun
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.proofs.certainty import NATIVE_PROGRAM, certainty_of, make_test

ALL = (
    *wrong_writes.CASES,
    *wrong_steps.CASES,
    *wrong_settings.CASES,
    *wrong_operands.CASES,
    *wrong_ordinary.CASES,
    *right_patches.CASES,
)
_POISONS = ("nan", "negative")


def profile(case: Case, folder: Path) -> None:
    """Write the profile of a program, with certainties as after a run without the profiler."""
    script = case.write(folder)
    session = ProfilingSession(Options(graph=False))
    session.start()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _run(script, other=False)
    finally:
        session.stop()
    result = session.result("finished")
    for finding in result["findings"]:
        tests = [*finding["proof"].get("tests", ()), make_test(NATIVE_PROGRAM, True)]
        certainty, why = certainty_of(tests, inside=bool(finding["path"]))
        finding["proof"] = {"certainty": certainty, "why": why, "tests": tests}
    (folder / "profile.json").write_text(json.dumps(result), encoding="utf-8")


def change_matters(case: Case, folder: Path) -> bool:
    """Return whether the change alters the output, on the profiled values or on others."""
    script = case.write(folder)
    for other in (False, True):
        for poison in _POISONS:
            script.write_text(case.source, encoding="utf-8")
            before = _output(script, other=other, poison=poison)
            script.write_text(case.changed, encoding="utf-8")
            after = _output(script, other=other, poison=poison)
            script.write_text(case.source, encoding="utf-8")
            if before != after:
                return True
    return False


def _output(script: Path, *, other: bool, poison: str) -> str:
    checked = CheckedRun({"seed": 0, "poison": poison})
    checked.start()
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            _run(script, other=other)
    except Exception as error:
        text.write(f"raised {type(error).__name__}")
    finally:
        checked.stop()
    return text.getvalue()


def _run(script: Path, *, other: bool) -> None:
    zeros, argv, path = torch.zeros, sys.argv, list(sys.path)
    modules = set(sys.modules)
    sys.argv = [str(script), *(["other"] if other else [])]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
        torch.zeros = zeros
        torch.set_default_dtype(torch.float32)
        for name in set(sys.modules) - modules:
            if getattr(sys.modules[name], "__file__", None) == str(script.parent / f"{name}.py"):
                del sys.modules[name]


def main() -> None:
    """Print one JSON object."""
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    torch.set_printoptions(precision=9, sci_mode=True)
    home, names = Path(sys.argv[1]), set(sys.argv[2:])
    matters: dict[str, Any] = {}
    for case in ALL:
        if not names or case.name in names:
            profile(case, home / case.name)
            matters[case.name] = change_matters(case, home / case.name)
    sys.stdout.write(json.dumps(matters) + "\n")


if __name__ == "__main__":
    main()
