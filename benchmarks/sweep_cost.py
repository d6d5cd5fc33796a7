"""What a verdict costs: Torchyard's stopping rule against thirty fixed repeats, on the same twenty workloads.

    python benchmarks/sweep_cost.py --out cost.jsonl                # both methods
    python benchmarks/sweep_cost.py --out cost.jsonl --references 6 # go on, with six references
    python benchmarks/sweep_cost.py --out cost.jsonl --report       # only the tables
    python benchmarks/sweep_cost.py --out long.jsonl --long         # twelve with long iterations

Three methods, each in processes of its own, from the first process to the answer:

- `fixed`: the rule of PyTorch's dynamo harness (`fixed_repeats.py`), with both of its verdicts: medians
  that differ by more than 5 %, and Student's t at p < 0.1.
- `adaptive`: a Torchyard run with a margin of 5 %, the same question, and its stopping rule.
- `reference`: the same run, ten times as long and without stopping early. Workloads that are compared
  with themselves need none: their answer is known.

Which of the two methods goes first alternates from workload to workload. Each result is a line of the
file as soon as it is there; what the file has is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sweep_cost_cases import CASES, LONG_CASES, Case
from sweep_cost_report import print_report
from sweep_together import together
from tests.stats.simulated_launches import dynamo_rule, threshold_rule
from torchyard.core.records import encode
from torchyard.core.study import Budget, MeasureSettings, Study, Target, Variant
from torchyard.results.run_reader import read_run

HERE = Path(__file__).resolve().parent
REPEATS = 30
MARGIN = 0.05
"""The relative change at which the harness's dashboard marks a difference."""
LONGER = 10
QUICK = (0, 4, 6, 11, 14, 16)
"""Two cases of each kind."""


class NoAnswer(Exception):
    """A workload gave no number; the others go on."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("sweep-cost.jsonl"))
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name fits, such as '*gpt*'")
    parser.add_argument("--long", action="store_true", help="twelve with long iterations instead")
    parser.add_argument("--quick", action="store_true", help="six cases instead of twenty")
    parser.add_argument(
        "--references",
        default="0",
        help="how many cases get a reference, some two minutes each: a number, or `all`",
    )
    parser.add_argument(
        "--together", type=int, default=0, metavar="N", help="also as one sweep, N cells at once"
    )
    parser.add_argument("--time", type=float, default=15.0, help="measuring time allowed (s)")
    parser.add_argument(
        "--goal", type=float, default=1.0, help="half-width that is wanted; 1: a verdict is enough"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, print the table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; what is measured is kept"))
    if not options.report:
        collect(options)
    print_report(read_lines(options.out))


def collect(options: argparse.Namespace) -> None:
    """Measure what the file does not have yet."""
    budget = Budget(time_s=options.time, precision_goal=options.goal, margin=MARGIN)
    every = LONG_CASES if options.long else CASES
    cases = [every[index] for index in QUICK if index < len(every)] if options.quick else [*every]
    if options.only:
        cases = [case for case in cases if fnmatch(case.name, options.only)]
    for case in cases:
        # From its place in the whole list, so that parts and resumed runs alternate alike.
        methods = ("fixed", "adaptive") if every.index(case) % 2 == 0 else ("adaptive", "fixed")
        for method in methods:
            if (case.name, method) in done(options.out):
                continue
            try:
                found = fixed(case) if method == "fixed" else adaptive(case, budget)
            except NoAnswer as error:
                print(f"{case.name}: {method} failed: {error}", file=sys.stderr)
                continue
            keep(options.out, case, method, found)
    if options.together:
        studies = [study_of(case, budget) for case in cases]
        found = together(cases, studies, options.together)
        with options.out.open("a") as file:
            file.write(json.dumps({"case": "", "method": "together", **found}) + "\n")
    different = [case for case in cases if case.backend != "eager"]
    wanted = len(different) if options.references == "all" else int(options.references)
    for case in spread_out(different, wanted):
        known = done(options.out)
        if (case.name, "reference") in known or (case.name, "adaptive") not in known:
            continue
        longer_s = LONGER * known[(case.name, "adaptive")]["elapsed_s"]
        whole = replace(budget, time_s=longer_s, precision_goal=0.0)
        keep(options.out, case, "reference", adaptive(case, whole))


def fixed(case: Case) -> dict[str, Any]:
    """Thirty repeats in one process."""
    asked = {"workload": encode(case.workload), "backend": case.backend, "repeats": REPEATS}
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        answer, cost = child("fixed_repeats.py", asked, Path(folder))
    marks = {name: (wall, cpu) for name, (wall, cpu) in answer["marks"].items()}
    iteration_s = min(answer["times_ns"][1]) / 1e9
    compile_s = max(0.0, marks["compile"][0] - marks["eager_warm"][0] - iteration_s)
    measure_s = marks["measure"][0] - marks["warm"][0]
    by_t = dynamo_rule(*answer["times_ns"])
    by_size = threshold_rule(*answer["times_ns"], threshold=MARGIN)
    return {
        **cost,
        "compile_s": compile_s,
        "measure_s": measure_s,
        "start_s": cost["wall_s"] - compile_s - measure_s,
        "measure_cpu_s": marks["measure"][1] - marks["warm"][1],
        "processes": 1,
        "pairs": REPEATS,
        "speedup": by_size.speedup,
        "p": by_t.p_value,
        "verdicts": {
            "fixed, 5 %": word(by_size.different, by_size.speedup),
            "fixed, p < 0.1": word(by_t.different, by_t.speedup),
        },
    }


def study_of(case: Case, budget: Budget) -> Study:
    """Without the check of results, which `fixed` has not either."""
    target = Target(name="here", python=sys.executable)
    return Study(
        name="sweep cost",
        baseline=Variant(name="eager", target=target),
        candidates=(Variant(name="candidate", target=target, backend=case.backend),),
        workloads=(case.workload,),
        budget=budget,
        settings=MeasureSettings(check_accuracy=False),
    )


def adaptive(case: Case, budget: Budget) -> dict[str, Any]:
    """A Torchyard run of one workload."""
    study = study_of(case, budget)
    with tempfile.TemporaryDirectory(prefix="torchyard-") as name:
        folder = Path(name)
        asked = {"study": encode(study), "folder": str(folder / "run")}
        answer, cost = child("adaptive_run.py", asked, folder)
        row = read_run(folder / "run").comparisons[0]
        found = row.estimate
    if row.failure is not None or found is None:
        raise NoAnswer(row.failure.message if row.failure else "nothing was measured")
    metrics = row.candidate_metrics
    parts = [
        (name, following[1] - wall, following[2] - cpu)
        for (name, wall, cpu), following in zip(answer["marks"], answer["marks"][1:], strict=False)
    ]
    warm_s = metrics.compile_warm_s or 0.0
    compile_s = (metrics.compile_cold_s or 0.0) + warm_s * (found.launches - 1)
    measure_s = sum(wall for name, wall, _ in parts if name == "measuring")
    return {
        **cost,
        "compile_s": compile_s,
        "measure_s": measure_s,
        "start_s": cost["wall_s"] - compile_s - measure_s,
        "measure_cpu_s": sum(cpu for name, _, cpu in parts if name == "measuring"),
        "compile_warm_s": warm_s,
        "elapsed_s": row.elapsed_s,
        "processes": found.launches,
        "pairs": found.pairs,
        "speedup": found.speedup,
        "low": found.interval.low if found.interval else None,
        "high": found.interval.high if found.interval else None,
        "p": found.p_value,
        "launch_sd": found.launch_sd,
        "pair_sd": found.pair_sd,
        "trusted": row.trusted,
        "verdicts": {"adaptive": found.verdict.value},
    }


def child(
    script: str, request: dict[str, Any], folder: Path
) -> tuple[dict[str, Any], dict[str, float]]:
    """Run a script with a request; its answer, and what it took with all its processes."""
    paths = folder / "request.json", folder / "answer.json"
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    paths[0].write_text(json.dumps({**request, "began": began}))
    # Compilers begin with empty caches; Torchyard sees to that itself.
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = [sys.executable, str(HERE / script), *map(str, paths)]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    try:
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if code:
        raise NoAnswer(f"{script} ended with exit code {code}")
    wall_s, after = time.time() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(paths[1].read_text()), {"wall_s": wall_s, "cpu_s": cpu_s}


def word(different: bool, speedup: float) -> str:
    if not different:
        return "same"
    return "faster" if speedup > 1.0 else "slower"


def spread_out(cases: Sequence[Case], wanted: int) -> list[Case]:
    """So many of the cases, from all over the list."""
    wanted = min(wanted, len(cases))
    return [cases[(2 * number + 1) * len(cases) // (2 * wanted)] for number in range(wanted)]


def keep(path: Path, case: Case, method: str, found: dict[str, Any]) -> None:
    line = {"case": case.name, "again": case.backend == "eager", "method": method, **found}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{case.name}: {method} {found['wall_s']:.1f} s (start {found['start_s']:.1f}, compile "
        f"{found['compile_s']:.1f}, measure {found['measure_s']:.1f}), {found['speedup']:.3f}x, "
        f"{', '.join(found['verdicts'].values())}",
        file=sys.stderr,
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    return list(_lines(path)) if path.exists() else []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # a kill cut it off; it is measured again
            continue


def done(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["case"], line["method"]): line for line in read_lines(path)}


if __name__ == "__main__":
    main()
