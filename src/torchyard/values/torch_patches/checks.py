"""Compare a patched library of torch with the unchanged one: samples, torch's own tests, a new sweep, speed."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torchyard.worker
from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import Comparison
from torchyard.core.events import ignore_events
from torchyard.core.study import (
    FILE_SUITE,
    Budget,
    Environment,
    MeasureSettings,
    Study,
    Target,
    Variant,
    Workload,
)
from torchyard.errors import StepFailed, WorkerFailed
from torchyard.process.programs import PROGRAM_ENTRY, capture
from torchyard.process.start import LaunchSpec, prepare
from torchyard.process.tree import kill_launch, new_launch_mark
from torchyard.results.directory import new_run_folder, runs_home
from torchyard.values.operator_sweep.model import Sweep, SweepFolder, SweepSettings, run_sweep
from torchyard.values.torch_patches.candidates import DEAD, REDUNDANT
from torchyard.values.torch_patches.model import (
    CaseComparison,
    FoundIn,
    SampleCheck,
    SuiteCheck,
    TorchPatch,
)

TEST_PACKAGES: Final = ("expecttest", "pytest<9")
"""Packages that torch's tests import, in versions they work with; installed into a folder of their own."""
_MOST_NAMED: Final = 20
_SAMPLES_FILE: Final = Path(torchyard.worker.__file__).parent / "values" / "operator_samples.py"
_TEST_LIMIT_S: Final = 3600.0

Say = Callable[[str], None]


def install_test_packages(target: Target, folder: Path, say: Say) -> tuple[Path, str]:
    """Install what torch's tests need beside the build; return the folder, and why it failed."""
    packages = folder / "test-packages"
    if packages.is_dir():
        return packages, ""
    say(f"installing {' and '.join(TEST_PACKAGES)} for torch's tests")
    part = folder / "test-packages.part"
    command = [target.python, "-m", "pip", "install", "--quiet", "--target", str(part)]
    variables = {**os.environ, **dict(target.variables)}
    try:
        result = capture([*command, *TEST_PACKAGES], variables=variables, folder="/")
    except OSError as error:
        return packages, str(error)
    if result.returncode:
        return packages, f"pip ended with {result.returncode}: {result.stderr.strip()[-200:]}"
    part.replace(packages)
    return packages, ""


def compare_samples(
    patches: Sequence[TorchPatch], before: Target, after: Target, folder: Path, packages: Path
) -> list[SampleCheck]:
    """Return, for each patch, whether results of sample inputs are equal bit for bit."""
    names = list(dict.fromkeys(origin.case for patch in patches for origin in patch.found_in))
    unchanged = _samples(before, names, folder / "samples-before.jsonl", packages)
    patched = _samples(after, names, folder / "samples-after.jsonl", packages)
    return [sample_check(patch, unchanged, patched) for patch in patches]


def _samples(target: Target, names: Sequence[str], output: Path, packages: Path) -> Samples:
    output.unlink(missing_ok=True)
    plan = output.with_suffix(".plan.json")
    plan.write_text(json.dumps({"samples": {"cases": list(names)}, "output": str(output)}))
    variables = dict(target.variables)
    paths = filter(None, (variables.get("PYTHONPATH", ""), str(packages)))
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    mark = new_launch_mark()
    spec = LaunchSpec(name=target.name, python=target.python, variables=tuple(variables.items()))
    ready = prepare(spec, launch_mark=mark, entry=PROGRAM_ENTRY)
    log = output.with_suffix(".log")
    try:
        with log.open("wb") as file:
            code = subprocess.run(
                [ready.python, str(PROGRAM_ENTRY), str(plan), "--"],
                env=dict(ready.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
            ).returncode
    finally:
        kill_launch(mark)
    rows = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    if code or not rows or rows[-1]["kind"] != "end":
        raise WorkerFailed(
            f"{target.name}: the samples ended with {code}",
            hint="the log has the output of the process",
            log=str(log),
        )
    return Samples(rows)


class Samples:
    """Digests of one library."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.operators = [row for row in rows if row["kind"] == "operator"]
        self.by_operator: dict[str, dict[str, tuple[str, str]]] = {}
        for row in rows:
            if row["kind"] == "sample":
                samples = self.by_operator.setdefault(row["operator"], {})
                samples[row["sample"]] = (row["digest"], row["error"])


def sample_check(patch: TorchPatch, before: Samples, after: Samples) -> SampleCheck:
    """Return which samples of a patch's operators have the same digest with both libraries."""
    compared, different, operators, reasons = 0, [], [], []
    cases = {origin.case for origin in patch.found_in}
    for row in before.operators:
        operator = row["operator"]
        if cases.isdisjoint(row["cases"]):
            continue
        operators.append(operator)
        reasons += [row["why"]] if row["why"] else []
        old, new = before.by_operator.get(operator, {}), after.by_operator.get(operator, {})
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                different.append(name)
            elif old[name][0]:
                compared += 1
    return SampleCheck(
        operators=tuple(operators),
        compared=compared,
        different=tuple(different[:_MOST_NAMED]),
        why="; ".join(dict.fromkeys(reasons)),
    )


def run_tests(
    patches: Sequence[TorchPatch],
    before: Target,
    after: Target,
    *,
    tree: Path,
    folder: Path,
    packages: Path,
    say: Say,
) -> list[SuiteCheck]:
    """Run the operator tests of the source tree with both libraries; return the account for each patch."""
    words = [words_of_tests(patch) for patch in patches]
    expression = " or ".join(sorted({word for several in words for word in several}))
    outcomes = []
    for name, target in (("before", before), ("after", after)):
        say(f"running torch's tests of these operators, {name} the patches")
        outcomes.append(
            _test_outcomes(target, expression, tree, folder / f"tests-{name}.xml", packages)
        )
    unchanged, patched = outcomes
    return [suite_check(several, unchanged, patched) for several in words]


def words_of_tests(patch: TorchPatch) -> tuple[str, ...]:
    """Return the parts of test names that select the tests of a patch's operators, and of no other."""
    names = {operator.replace(".", "_") for operator in patch.samples.operators}
    return tuple(sorted(f"_{name}_cpu_" for name in names))


def _test_outcomes(
    target: Target, expression: str, tree: Path, report: Path, packages: Path
) -> dict[str, str]:
    report.unlink(missing_ok=True)
    variables = {**os.environ, **dict(target.variables)}
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, (dict(target.variables).get("PYTHONPATH", ""), str(packages)))
    )
    # The tree has a folder torch without the compiled parts: it must not be found first.
    command = [target.python, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junit-xml={report}", "-k", expression, "test_ops.py"]
    with report.with_suffix(".log").open("wb") as log:
        try:
            subprocess.run(
                command,
                cwd=tree / "test",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=_TEST_LIMIT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"torch's tests took longer than {_TEST_LIMIT_S:g} s") from error
    if not report.is_file():
        log_file = report.with_suffix(".log")
        raise StepFailed(f"torch's tests did not run: see {log_file}", log=str(log_file))
    return read_outcomes(report)


def read_outcomes(report: Path) -> dict[str, str]:
    """Return passed, failed or skipped by test, from a JUnit file of pytest."""
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  # written by pytest here
        state = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            state = "failed"
        elif case.find("skipped") is not None:
            state = "skipped"
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = state
    return outcomes


def suite_check(
    words: Collection[str], before: dict[str, str], after: dict[str, str]
) -> SuiteCheck:
    """Return the account of the tests whose name has one of the words."""
    chosen = [name for name in before if any(word in name for word in words)]
    states = [(before[name], after.get(name, "missing"), name) for name in chosen]
    return SuiteCheck(
        selected=" or ".join(words),
        passed=sum(old == new == "passed" for old, new, _ in states),
        skipped=sum(old == "skipped" for old, _, _ in states),
        failed_before=sum(old == "failed" for old, _, _ in states),
        broken=tuple(name for old, new, name in states if old == "passed" != new)[:_MOST_NAMED],
        why="" if states else "no test of these operators was found",
    )


def sweep_again(
    patches: Sequence[TorchPatch], after: Target, folder: Path, say: Say
) -> list[TorchPatch]:
    """Sweep the patched library; add to each patch the cases that still have the finding."""
    cases: dict[str, Sweep] = {}
    for case in dict.fromkeys(origin.case for patch in patches for origin in patch.found_in):
        stored = SweepFolder(folder / f"sweep-{case}")
        stored.folder.mkdir(parents=True, exist_ok=True)
        settings = SweepSettings(
            python=after.python, target=after.name, only=case, variables=tuple(after.variables)
        )
        stored.rows.unlink(missing_ok=True)
        stored.begin(settings)
        say(f"sweeping {case} with the patched library")
        run_sweep(stored, settings, lambda *_: None)
        cases[case] = stored.read()
    return [
        replace(
            patch,
            swept=True,
            remaining=tuple(
                origin.case
                for origin in patch.found_in
                if _remains(patch, origin, cases[origin.case])
            ),
        )
        for patch in patches
    ]


def _remains(patch: TorchPatch, found: FoundIn, sweep: Sweep) -> bool:
    """Whether a sweep still has a finding in the same operator and direction, or did not run."""
    if not all(case.directions for case in sweep.cases):
        return True
    return any(
        finding.direction == found.direction
        and finding.pattern in (DEAD, REDUNDANT)
        and finding.path
        and finding.path[0].rpartition("::")[2] == patch.operator
        and finding.bytes_wasted == found.bytes_wasted
        for case in sweep.cases
        for finding in case.findings
    )


def compare_speed(
    patches: Sequence[TorchPatch], before: Target, after: Target, *, time_s: float, say: Say
) -> tuple[list[TorchPatch], Path]:
    """Compare all cases of the patches by `bench` with one thread; return the patches, and the folder of the run."""
    origins = list(dict.fromkeys(one for patch in patches for one in patch.found_in))
    # As in the sweep that found them.
    one_thread = Environment(name="one-thread", threads=1)
    variants = [
        Variant(name=target.name, target=target, environment=one_thread)
        for target in (before, after)
    ]
    study = Study(
        name="torch patches",
        baseline=variants[0],
        candidates=(variants[1],),
        workloads=tuple(_workload(one) for one in origins),
        budget=Budget(time_s=time_s),
        settings=MeasureSettings(),
    )
    folder = new_run_folder(runs_home())
    say(f"comparing the speed of {len(origins)} cases: {folder}")
    results = run_bench(
        study, folder=folder, command=["torchyard", "values", "fix"], listener=ignore_events
    )
    by_case = {one: _comparison(one, result) for one, result in zip(origins, results, strict=True)}
    return [
        replace(patch, comparisons=tuple(by_case[one] for one in patch.found_in))
        for patch in patches
    ], folder


def _workload(found: FoundIn) -> Workload:
    return Workload(
        suite=FILE_SUITE,
        name=f"{_SAMPLES_FILE}:make",
        parameters=(("case", found.case), ("direction", found.direction)),
    )


def _comparison(found: FoundIn, result: Comparison) -> CaseComparison:
    estimate = result.estimate
    return CaseComparison(
        case=found.case,
        verdict=result.state.value,
        speedup=estimate.speedup if estimate else None,
        interval=estimate.interval if estimate else None,
        trusted=result.trusted,
        why=result.failure.message if result.failure else "; ".join(result.untrusted),
    )
