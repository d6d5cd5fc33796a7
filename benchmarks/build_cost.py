"""What `torchyard build` itself costs: the same tree by plain `cmake --build` and by Torchyard.

Both build the same generated C++ project from scratch, in turns, in one run, without a compiler
cache. Each round removes all objects first. CPU time of all processes is compared, Torchyard's own
included (planning, sandbox, meter, states), because wall time on a shared machine says little.

Two answers. The ratio of the pairs has the noise of the compilers in it, whose CPU time differs by
a percent or two from run to run on a busy machine. The account has not: what one run took, less what
the meter says the compilers took, is Torchyard with cmake and ninja, so that it is an upper bound of
Torchyard's own cost.

    python benchmarks/build_cost.py [--files 100] [--rounds 3] [--tiny]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from process_cost import Cost, percent_more, run, seconds_more
from torchyard.builds.meter.compile_costs import read_meter_log

FILE = (
    "#include <functional>\n#include <iostream>\n#include <map>\n#include <regex>\n#include <string>\n"
    "int f{n}(std::string const &text) {{\n"
    '  std::regex pattern("([a-z]+){n}");\n  std::smatch found;\n'
    "  std::map<std::string, int> seen;\n"
    "  if (std::regex_search(text, found, pattern)) seen[found[1]] = {n};\n"
    "  std::cout << seen.size();\n  return (int)seen.size();\n}}\n"
)
TINY = "int f{n}() {{ return {n}; }}\n"
LISTS = """\
cmake_minimum_required(VERSION 3.18)
project(cost CXX)
file(GLOB files *.cpp)
add_library(cost SHARED ${files})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tiny", action="store_true", help="files of one line: what a compile costs us, in seconds"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="build-cost-") as name:
        text = TINY if options.tiny else FILE
        measure(Path(name), text, options.files, options.rounds)


def measure(folder: Path, text: str, files: int, rounds: int) -> None:
    source, plain = folder / "source", folder / "plain"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(LISTS)
    for number in range(files):
        (source / f"f{number}.cpp").write_text(text.format(n=number))
    jobs = str(len(os.sched_getaffinity(0)))
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    ours = {**variables, "TORCHYARD_HOME": str(folder / "yard")}
    torchyard = [
        *(sys.executable, "-m", "torchyard", "build", "generic", "--name", "cost", "--quiet"),
        *("--set", f"source.folder.path={source}", "--set", "cmake.install=false"),
        *("--cache", "none", "--no-doctor", "--jobs", jobs),
    ]
    configure = ["cmake", "-S", str(source), "-B", str(plain), "-G", "Ninja"]
    subprocess.run(
        [*configure, "-DCMAKE_BUILD_TYPE=Release"], env=variables, check=True, capture_output=True
    )
    build = ["cmake", "--build", str(plain), "--parallel", jobs]
    # Everything but compiling is done once before: fetching, copying, configuring.
    run(torchyard, ours)
    tree = folder / "yard/builds/cost/trees/generic/build"
    costs: dict[str, list[Cost]] = {"plain": [], "torchyard": []}
    own: list[float] = []
    for number in range(rounds):
        order = [("plain", build, variables), ("torchyard", [*torchyard, "--only", "build"], ours)]
        for word, argv, environment in order if number % 2 == 0 else reversed(order):
            clean(plain if word == "plain" else tree)
            begun = time.time()
            costs[word].append(run(argv, environment))
            print(f"round {number + 1}: {word:<10} {costs[word][-1].cpu_s:8.2f} s CPU", flush=True)
            if word == "torchyard":
                log = read_meter_log(folder / "yard/builds/cost/meter/generic.log").since(begun)
                own.append(costs[word][-1].cpu_s - log.cpu_s)
    report(files, costs, own)


def clean(build: Path) -> None:
    """Remove the objects and what ninja remembers of them."""
    shutil.rmtree(build / "CMakeFiles/cost.dir", ignore_errors=True)
    for name in ("libcost.so", ".ninja_log", ".ninja_deps"):
        (build / name).unlink(missing_ok=True)


def report(files: int, costs: Mapping[str, Sequence[Cost]], own: Sequence[float]) -> None:
    plain, ours = ([cost.cpu_s for cost in costs[word]] for word in ("plain", "torchyard"))
    print(f"{files} files, {len(plain)} rounds; CPU time of torchyard against cmake --build:")
    print(f"  pairs      {percent_more(plain, ours)}, {seconds_more(plain, ours)}")
    shares = [100 * part / whole for part, whole in zip(own, plain, strict=True)]
    print(
        f"  account    {statistics.median(own):.2f} s beside the compilers (cmake and ninja among it):"
        f" {statistics.median(shares):.2f} %, from {min(shares):.2f} to {max(shares):.2f} %"
    )
    walls = [
        ours.wall_s / plain.wall_s
        for plain, ours in zip(costs["plain"], costs["torchyard"], strict=True)
    ]
    print(f"  wall time, median {statistics.median(walls):.3f} (says little on a shared machine)")


if __name__ == "__main__":
    main()
