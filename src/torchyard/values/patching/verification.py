"""Compare a patched program with the unchanged one: results bit for bit, then time by paired runs.

Each check has its own random seeds and its own garbage in uninitialized memory; both variants get the same. A result
that differs, a run that fails, or a program without results means that the patch is not verified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard.errors import ResultsDamaged
from torchyard.values.fix_runs import NO_FIX, PRINTED, estimated, same_results
from torchyard.values.model import FixMeasurement
from torchyard.values.patching.model import Gain, NotProposed, Verification
from torchyard.values.patching.program_copy import ProgramCopy
from torchyard.values.target_run import NativeRun, read_native_run, run_in_target

CHECKS: Final = (
    {"seed": 0, "poison": "nan"},
    {"seed": 1, "poison": "large"},
    {"seed": 2, "poison": "negative"},
)
_LEAST_CHECKS: Final = 2
PAIRS: Final = 6
_LEAST_PAIRS: Final = 4
TIME_BUDGET_S: Final = 60.0
"""After it no further pair of timed runs is begun, beyond the least number."""
_LEAST_LIMIT_S: Final = 120.0
_LIMIT_FACTOR: Final = 10.0

Contents = Mapping[Path, bytes]
"""Content of each file that a variant replaces."""


class Interrupted(Exception):
    """The user interrupted a run of the program."""


@dataclass(kw_only=True)
class Verifier:
    """Runs variants of one program."""

    copy: ProgramCopy
    folder: Path
    original: Contents
    profiled_s: float
    pairs: int = PAIRS
    budget_s: float = TIME_BUDGET_S
    say: Callable[[str], None] = lambda _text: None
    _references: dict[int, NativeRun] = field(default_factory=dict)
    _kinds: dict[int, list[str]] = field(default_factory=dict)
    _number: int = 0

    def prepare(self) -> None:
        """Run the unchanged program with each check; raise NotProposed if its results cannot be compared."""
        for number, check in enumerate(CHECKS):
            self.say(f"running the unchanged program, check {number + 1} of {len(CHECKS)}")
            run = self._run(self.original, check)
            if run is None or run.state != "finished":
                if number == 0:
                    raise NotProposed("the program does not finish when it is run again")
                continue
            kinds = list(run.observed)
            if number == 0:
                again = self._run(self.original, check)
                if again is None or again.state != "finished":
                    raise NotProposed("the program does not finish when it is run again")
                same = same_results(run.observed, again.observed)
                unlike = [kind for kind, difference in same.items() if difference]
                if any(kind != PRINTED for kind in unlike):
                    raise NotProposed(
                        f"results differ from run to run without a patch ({', '.join(unlike)})"
                    )
                kinds = [kind for kind in kinds if kind not in unlike]
            else:
                kinds = [kind for kind in kinds if kind in self._kinds.get(0, kinds)]
            self._references[number], self._kinds[number] = run, kinds
        shown = [
            kind
            for kind, result in self._references[0].observed.items()
            if kind in self._kinds[0] and (kind != PRINTED or result.get("numbers"))
        ]
        if not shown:
            raise NotProposed(
                "the program shows no results to compare: it prints no numbers, reads no values, "
                "saves no tensors and leaves none in its main module"
            )
        if len(self._references) < _LEAST_CHECKS:
            raise NotProposed("the program finishes with its own random numbers only")

    def verify(self, patched: Contents, *, rounds: bool = False) -> Verification:
        """Compare the results of a variant with those of the unchanged program; `rounds` accepts rounding."""
        digests = {
            str(sorted((kind, one["digest"]) for kind, one in run.observed.items()))
            for run in self._references.values()
        }
        base = Verification(
            seeds_matter=len(digests) > 1, compared=tuple(sorted(self._kinds.get(0, ())))
        )
        passed = 0
        for number, reference in self._references.items():
            run = self._run(patched, CHECKS[number])
            why, rounded = self._difference(run, reference, self._kinds[number], rounds)
            if not why and run is not None:
                why = self._why_not_loaded(run, patched)
            if why:
                return Verification(
                    why=why, runs=passed, seeds_matter=base.seeds_matter, compared=base.compared
                )
            passed += 1
            base = replace(base, rounded=max(base.rounded, rounded))
        for file, content in patched.items():
            if not self.copy.holds(file, content):
                return Verification(why="the program writes this file itself", runs=passed)
        return replace(base, passed=True, runs=passed)

    def measure(self, patched: Contents) -> Gain:
        """Compare the time of a variant with that of the unchanged program, by paired runs."""
        effects: list[list[float]] = []
        by_cpu = False
        end_s = time.monotonic() + self.budget_s
        while len(effects) < self.pairs:
            if time.monotonic() > end_s and len(effects) >= _LEAST_PAIRS:
                break
            order = (False, True) if len(effects) % 2 == 0 else (True, False)
            runs: dict[bool, NativeRun] = {}
            for changed in order:
                run = self._run(patched if changed else self.original, {"seed": 0}, timed=True)
                if run is None or run.state != "finished":
                    return Gain(why="the program did not finish when it was timed")
                runs[changed] = run
            by_cpu = all(run.threads == 1 and not run.accelerated for run in runs.values())
            plain, fixed = (_time_ns(runs[changed], by_cpu) for changed in (False, True))
            if plain <= 0 or fixed <= 0:
                return Gain(why="the program is too short to be timed")
            effects.append([math.log(plain / fixed)])
        measured = estimated(FixMeasurement(fix=""), effects, by_cpu=by_cpu, applied=0, rounded="")
        return Gain(
            share=measured.share,
            interval=measured.interval,
            clock=measured.clock,
            pairs=len(effects),
        )

    def _why_not_loaded(self, run: NativeRun, patched: Contents) -> str:
        for file, content in patched.items():
            place = str(self.copy.place_of(file).resolve())
            if content != self.original[file] and place not in run.loaded_files:
                return "the program loads this file from another place than its folder"
        return ""

    def _difference(
        self, run: NativeRun | None, reference: NativeRun, kinds: list[str], rounds: bool
    ) -> tuple[str, str]:
        """Return why a run does not have the results of the reference, and how far it rounds."""
        if run is None:
            return "with the patch the program leaves no result", ""
        if run.state != "finished":
            return f"with the patch the program exits with code {run.exit_code}", ""
        if set(run.observed) != set(reference.observed):
            return "with the patch the program shows results of other kinds", ""
        if run.steps != reference.steps:
            return "with the patch the program runs another number of steps", ""
        same = same_results(reference.observed, run.observed, rounds=rounds)
        wrong = [kind for kind in kinds if same.get(kind, "differs").startswith("differs")]
        if wrong:
            return f"with the patch the results differ: {', '.join(wrong)}", ""
        return "", max((same[kind] for kind in kinds), default="")

    def _run(
        self, contents: Contents, check: Mapping[str, Any], *, timed: bool = False
    ) -> NativeRun | None:
        for file, content in contents.items():
            self.copy.write(file, content)
        self._number += 1
        plan: dict[str, Any] = {} if timed else {"fix": NO_FIX}
        end = run_in_target(
            self.copy.request,
            self.folder,
            name=f"run-{self._number}",
            silent=True,
            limit_s=max(_LEAST_LIMIT_S, _LIMIT_FACTOR * self.profiled_s),
            working_folder=self.copy.folder_to_run_in,
            native=True,
            wanted=[],
            check=dict(check),
            **plan,
        )
        if end.interrupted:
            raise Interrupted
        try:
            return read_native_run(end.output)
        except ResultsDamaged:
            return None


def _time_ns(run: NativeRun, by_cpu: bool) -> float:
    """Return the time of a step, or of the whole program if it has no steps."""
    if run.step_ns is not None and run.timed_steps > 1:
        return (run.step_cpu_ns or 0.0) if by_cpu else run.step_ns
    return run.program_cpu_ns if by_cpu else run.program_ns
