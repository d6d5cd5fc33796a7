"""Wall time of a GPU sweep against a script with one process per model and thirty alternating repeats.

    python benchmarks/sweep_gpu.py --only huggingface/DistillGPT2 --only timm/resnet50 --modes inference

For the same cells, in one run: the rule of PyTorch's dynamo harness (`fixed_repeats.py`), a sweep with
one cell at a time, and a sweep with several side by side. Every method starts with empty caches of
compiled code. Prints one table of times and one of speedups and verdicts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPEATS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", required=True, help="SUITE/NAME; repeatable")
    parser.add_argument("--modes", default="inference", help="inference,training")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time", default="20s", help="measuring time per cell of the sweeps")
    parser.add_argument("--at-most", type=int, default=6, help="cells side by side")
    parser.add_argument("--null", action="store_true", help="only a sweep of eager with itself")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        if options.null:
            _print_null(_sweep(options, Path(folder), "null", at_most=1, candidate="eager"))
        else:
            _compare(options, Path(folder))


def _compare(options: argparse.Namespace, folder: Path) -> None:
    by_hand: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    for name in options.only:
        for mode in options.modes.split(","):
            by_hand[f"{name} {mode}"] = _by_hand(options, name, mode, folder)
    by_hand_s = time.monotonic() - began
    one = _sweep(options, folder, "one", at_most=1)
    several = _sweep(options, folder, "several", at_most=options.at_most)
    print("| method | cells | wall time (s) | relative |\n| --- | --- | --- | --- |")
    for name, wall_s in (
        ("by hand, one process per model", by_hand_s),
        ("sweep, one cell at a time", one["wall_s"]),
        (f"sweep, {options.at_most} side by side", several["wall_s"]),
    ):
        print(f"| {name} | {len(by_hand)} | {wall_s:.1f} | {wall_s / by_hand_s:.2f} |")
    print("\n| cell | by hand | one at a time | side by side |\n| --- | --- | --- | --- |")
    for label, row in by_hand.items():
        cells = [_cell(sweep["rows"].get(label)) for sweep in (one, several)]
        print(f"| {label} | {row['text']} | {cells[0]} | {cells[1]} |")


def _by_hand(options: argparse.Namespace, name: str, mode: str, folder: Path) -> dict[str, Any]:
    suite, _, model = name.partition("/")
    request = {
        "workload": {
            "suite": suite,
            "name": model,
            "mode": mode,
            "device": options.device,
            "batch_size": options.batch_size,
            "parameters": [],
        },
        "backend": "inductor",
        "repeats": REPEATS,
        "began": time.time(),
    }
    asked, answer = folder / "request.json", folder / "answer.json"
    asked.write_text(json.dumps(request))
    with tempfile.TemporaryDirectory(prefix="torchyard-") as cache:
        variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
        ended = subprocess.run(
            [sys.executable, str(HERE / "fixed_repeats.py"), str(asked), str(answer)],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        return {"text": "failed: " + ended.stderr.strip().splitlines()[-1][:60]}
    eager, compiled = json.loads(answer.read_text())["times_ns"]
    return {"text": f"{statistics.median(eager) / statistics.median(compiled):.3f}x"}


def _sweep(
    options: argparse.Namespace, folder: Path, name: str, *, at_most: int, candidate: str = ""
) -> dict[str, Any]:
    suites = sorted({one.partition("/")[0] for one in options.only})
    command = [sys.executable, "-m", "torchyard", "sweep", "--suites", ",".join(suites)]
    command += [part for one in options.only for part in ("--only", one)]
    command += ["--modes", options.modes, "--device", options.device, "--time", options.time]
    command += ["--batch-size", str(options.batch_size), "--at-most", str(at_most)]
    command += ["--run-dir", str(folder / name), "--quiet"]
    if candidate:
        command += ["--null"]
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - began
    shown = subprocess.run(
        [sys.executable, "-m", "torchyard", "sweep", "report", str(folder / name), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(shown.stdout)
    except ValueError:
        sys.exit(f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}\n{shown.stderr[-2000:]}")
    rows = {}
    for row in report["rows"]:
        rows[" ".join(row["workload"].split()[:2])] = row
    return {"wall_s": wall_s, "rows": rows, "report": report, "output": ended.stdout}


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or row["speedup"] is None:
        return "-" if row is None else str(row["reason"])[:60]
    low, high = row["interval"]["low"], row["interval"]["high"]
    verdict = row["verdict"] if row["trusted"] else "untrusted"
    return f"{row['speedup']:.3f}x [{low:.3f}, {high:.3f}] {verdict}, {row['launches']} launches"


def _print_null(sweep: dict[str, Any]) -> None:
    print(f"{sweep['wall_s']:.1f} s\n\n| cell | result |\n| --- | --- |")
    for label, row in sweep["rows"].items():
        print(f"| {label} | {_cell(row)} |")
    print(json.dumps(sweep["report"]["false_alarms"]))


if __name__ == "__main__":
    main()
