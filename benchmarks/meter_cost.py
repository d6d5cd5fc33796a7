"""What the compile meter costs: the same tree built plain and with it, in turns.

Two trees, because the cost is per compile: many tiny C files, where it is largest, and C++ files
with standard headers, as in ordinary projects. Prints the ratio of CPU time and of wall time with
its spread over the rounds, and the cost of one launch.

    python benchmarks/meter_cost.py [--rounds 5] [--c-files 200] [--cxx-files 20]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from process_cost import Cost, percent_more, run
from torchyard.builds.meter.compile_costs import read_meter_log
from torchyard.builds.meter.compiler_launcher import meter_actions, meter_variables
from torchyard.builds.plan import Command, WriteFile

C_FILE = '#include <stdio.h>\nint f{n}(int x) {{ return printf("%d", x + {n}); }}\n'
CXX_FILE = (
    "#include <algorithm>\n#include <functional>\n#include <iostream>\n#include <map>\n"
    "#include <memory>\n#include <string>\n#include <vector>\n"
    "int f{n}(std::vector<std::string> const &words) {{\n"
    "  std::map<std::string, std::vector<int>> found;\n"
    "  for (auto &word : words) found[word].push_back({n});\n"
    "  std::vector<int> all;\n"
    "  for (auto &entry : found) all.insert(all.end(), entry.second.begin(), entry.second.end());\n"
    "  std::sort(all.begin(), all.end());\n"
    "  std::cout << all.size();\n"
    "  return (int)all.size();\n}}\n"
)


def make_tree(folder: Path, *, count: int, suffix: str, text: str) -> None:
    folder.mkdir()
    names = [f"f{number}.{suffix}" for number in range(count)]
    for number, name in enumerate(names):
        (folder / name).write_text(text.format(n=number))
    language = "C" if suffix == "c" else "CXX"
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.17)\nproject(tree {language})\n"
        f"set(CMAKE_BUILD_TYPE Release)\nadd_library(tree SHARED {' '.join(names)})\n"
    )


def compare(folder: Path, environments: Mapping[str, Mapping[str, str]], rounds: int) -> None:
    costs: dict[str, list[Cost]] = {name: [] for name in environments}
    for name, variables in environments.items():
        run(["cmake", "-G", "Ninja", "-S", str(folder), "-B", str(folder / name)], variables)
        run(["cmake", "--build", str(folder / name), "-j2"], variables)  # warms the page cache
    for number in range(rounds):
        # In turns, and the other one first every other time: a machine that gets busier hits both.
        order = list(environments.items())[:: 1 if number % 2 else -1]
        for name, variables in order:
            run(["cmake", "--build", str(folder / name), "--target", "clean"], variables)
            costs[name].append(run(["cmake", "--build", str(folder / name), "-j2"], variables))
    for what in ("cpu_s", "wall_s"):
        plain, metered = ([getattr(cost, what) for cost in costs[name]] for name in environments)
        print(
            f"  {what[:-2]:4} {statistics.median(plain):7.2f} s plain, "
            f"{statistics.median(metered):7.2f} s metered: {percent_more(plain, metered)}",
            flush=True,
        )


def launch_cost(meter: Path, variables: Mapping[str, str], launches: int) -> None:
    true = shutil.which("true") or "/bin/true"
    loop = f'i=0; while [ $i -lt {launches} ]; do "$@"; i=$((i+1)); done'
    plain, metered = (
        [
            run(["sh", "-c", loop, "sh", *before, true, "-c", "a.c", "-o", "a.o"], variables)
            for _ in range(5)
        ]
        for before in ((), (str(meter),))
    )
    for what in ("cpu_s", "wall_s"):
        less, more = (min(getattr(cost, what) for cost in costs) for costs in (plain, metered))
        print(f"  {what[:-2]:4} {1000 * (more - less) / launches:.2f} ms more per launch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--c-files", type=int, default=200)
    parser.add_argument("--cxx-files", type=int, default=20)
    options = parser.parse_args()
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("CMAKE_", "TORCHYARD"))}
    with tempfile.TemporaryDirectory(prefix="torchyard-meter-cost-") as name:
        folder = Path(name)
        meter = folder / "meter"
        meter.mkdir()
        for action in meter_actions(meter):
            if isinstance(action, WriteFile):
                Path(action.path).write_text(action.text)
            elif isinstance(action, Command):
                subprocess.run(action.argv, cwd=action.folder, check=True)
        variables = meter_variables(meter, jobs=2, memory_mib=8192, masquerade=False, cache=None)
        environments = {"plain": plain, "metered": {**plain, **variables}}
        print(
            f"one launch of the meter before a program that does nothing ({os.cpu_count()} cores)"
        )
        launch_cost(meter / "meter", environments["metered"], 200)
        for title, count, suffix, text in (
            ("tiny C files", options.c_files, "c", C_FILE),
            ("C++ files with standard headers", options.cxx_files, "cpp", CXX_FILE),
        ):
            tree = folder / suffix
            make_tree(tree, count=count, suffix=suffix, text=text)
            print(f"{count} {title}, cmake --build -j2")
            compare(tree, environments, options.rounds)
        log = read_meter_log(Path(variables["TORCHYARD_METER_LOG"]))
        waited_s = sum(one.waited_s for one in log.compiles)
        print(f"metered: {len(log.compiles)} compiles, {waited_s:.2f} s waited for slots in all")


if __name__ == "__main__":
    main()
