"""Wall time of a GPU sweep against a script with one process per model and thirty alternating repeats.

    python benchmarks/sweep_gpu.py --data gpu.jsonl
    python benchmarks/sweep_gpu.py --data gpu.jsonl --cells 12 --parts several
    python benchmarks/sweep_gpu.py --data gpu.jsonl --cell timm/resnet50:training \
        --cell huggingface/DistillGPT2:inference --parts several,paused,null

For the same cells: a sweep with several side by side that reserves cores for timing (several), one that
pauses the others instead (paused), the rule of PyTorch's dynamo harness (by hand, `fixed_repeats.py`), a
sweep with one cell at a time (one), and a sweep of eager code with itself (null). Every method starts with
empty caches of compiled code. Each part is a line of the file as soon as it is there, and is not measured
again; by hand, each cell is a line. At the time limit, the part in progress is stopped and what it has is
kept; the next call with the same file measures that part again, and the rest. Prints one table of times,
one of speedups and verdicts, where the time of each sweep went, and the false alarms.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torchyard.bench.timeline import WAITING, phase_times

HERE = Path(__file__).resolve().parent
REPEATS = 30
PARTS = ("several", "paused", "by hand", "one", "null")
STOP_S = 60.0
CELLS = (
    *("torchvision/resnet50:inference", "torchvision/resnet18:training"),
    *("huggingface/DistillGPT2:inference", "huggingface/DistilBertForMaskedLM:training"),
    *("timm/repvgg_a2:inference", "timm/visformer_small:training"),
    *("torchvision/mobilenet_v2:inference", "torchvision/alexnet:training"),
    *("huggingface/BertForMaskedLM:inference", "huggingface/ElectraForCausalLM:training"),
    *("timm/deit_tiny_patch16_224.fb_in1k:inference", "torchvision/squeezenet1_1:training"),
)
"""Six of them take about three minutes by hand on an H200."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cell", action="append", default=[], help="SUITE/NAME:MODE; repeatable")
    parser.add_argument(
        "--cells", type=int, default=6, help="number of cells without --cell, up to 12"
    )
    parser.add_argument("--parts", default="several,by hand,one", help=",".join(PARTS))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time", default="20s", help="measuring time per cell of the sweeps")
    parser.add_argument("--at-most", type=int, default=6, help="cells side by side")
    parser.add_argument(
        "--limit", type=float, default=470.0, help="wall time of this call in seconds"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.cell = options.cell or list(CELLS[: options.cells])
    options.deadline_s = time.monotonic() + options.limit
    for part in () if options.report else options.parts.split(","):
        if part not in PARTS:
            parser.error(f"unknown part {part!r}; parts are {', '.join(PARTS)}")
        lines = [line for line in _lines(options.data) if not line.get("stopped")]
        measured = {(line["part"], line.get("cell")) for line in lines}
        for cell in options.cell if part == "by hand" else [None]:
            if (part, cell) in measured or time.monotonic() > options.deadline_s:
                continue
            with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
                line = _measure(options, part, cell, Path(folder))
            with options.data.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            stopped = ", stopped at the time limit" if line["stopped"] else ""
            print(
                f"{part} {cell or ''}: {line['wall_s']:.1f} s{stopped}", file=sys.stderr, flush=True
            )
    _report(_lines(options.data))


def _lines(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.open(encoding="utf-8")] if data.exists() else []


def _measure(
    options: argparse.Namespace, part: str, cell: str | None, folder: Path
) -> dict[str, Any]:
    if cell is not None:
        return {"part": part, "cell": cell, **_by_hand(options, cell, folder)}
    return {"part": part, "cells": options.cell, **_sweep(options, folder, part)}


def _run(options: argparse.Namespace, command: list[str], **more: Any) -> tuple[float, str, bool]:
    """Return the wall time, the last output, and whether it was stopped at the time limit."""
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    ) as process:
        stopped = False
        try:
            output, _ = process.communicate(timeout=max(1.0, options.deadline_s - began))
        except subprocess.TimeoutExpired:
            stopped = True
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
        return time.monotonic() - began, output, stopped


def _by_hand(options: argparse.Namespace, cell: str, folder: Path) -> dict[str, Any]:
    name, _, mode = cell.rpartition(":")
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
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "i"), "TRITON_CACHE_DIR": str(folder / "t")}
    wall_s, output, stopped = _run(
        options,
        [sys.executable, str(HERE / "fixed_repeats.py"), str(asked), str(answer)],
        env={**os.environ, **caches},
    )
    result: dict[str, Any] = {"wall_s": wall_s, "stopped": stopped}
    if not answer.exists():
        return {**result, "text": "failed: " + (output.strip().splitlines() or ["?"])[-1][:60]}
    eager, compiled = json.loads(answer.read_text())["times_ns"]
    return {**result, "text": f"{statistics.median(eager) / statistics.median(compiled):.3f}x"}


def _sweep(options: argparse.Namespace, folder: Path, part: str) -> dict[str, Any]:
    """Run all cells as one sweep; modes differ between cells, so they are in a study file."""
    study, sweep = folder / "study.toml", folder / "sweep"
    study.write_text(
        f'baseline = "eager"\ncandidates = ["inductor"]\nbudget.time = "{options.time}"\n'
        + "".join(
            f'[[workloads]]\nsuite = "{suite}"\nname = "{model}"\nmode = "{mode}"\n'
            f'batch_size = {options.batch_size}\ndevice = "{options.device}"\n'
            for name, _, mode in (one.rpartition(":") for one in options.cell)
            for suite, _, model in [name.partition("/")]
        )
    )
    command = [sys.executable, "-m", "torchyard", "sweep", str(study), "--run-dir", str(sweep)]
    side_by_side = part in ("several", "paused")
    command += ["--at-most", str(options.at_most if side_by_side else 1)]
    command += ["--reserve-cores", "0"] if part == "paused" else []
    command += ["--null"] if part == "null" else []
    wall_s, output, stopped = _run(options, command)
    shown = subprocess.run(
        [sys.executable, "-m", "torchyard", "sweep", "report", str(sweep), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(shown.stdout)
    except ValueError:
        report = {}
    if "rows" not in report and not stopped:
        sys.exit(f"{output[-6000:]}\n{shown.stderr[-2000:]}")
    plan = [line.strip() for line in output.splitlines() if "timed" in line][:2]
    return {
        "wall_s": wall_s,
        "stopped": stopped,
        "rows": {
            ":".join(row["workload"].split()[:2]): _text(row) for row in report.get("rows", ())
        },
        "finished": sum(row["speedup"] is not None for row in report.get("rows", ())),
        "phases": _phases(sweep),
        "plan": plan,
        "false_alarms": report.get("false_alarms"),
    }


def _phases(sweep: Path) -> dict[str, dict[str, float]]:
    """Return where the wall time of each cell went; pauses and waits for turns are `waiting`."""
    phases = {}
    for file in sorted(sweep.glob("cells/*/run-*/launches.jsonl")):
        launches = [json.loads(line) for line in file.open(encoding="utf-8")]
        seconds = phase_times(launches).seconds
        spans = [one for launch in launches for one in launch["phases"]]
        seconds[WAITING] = sum(end - start for name, _, start, end in spans if name == WAITING)
        rounded = {name: round(value, 1) for name, value in seconds.items() if value >= 0.05}
        phases[file.parts[-3]] = {**rounded, "launches": len(launches)}
    return phases


def _text(row: dict[str, Any]) -> str:
    if row["speedup"] is None:
        return str(row["reason"])[:60]
    low, high = row["interval"]["low"], row["interval"]["high"]
    verdict = row["verdict"] if row["trusted"] else "untrusted"
    return f"{row['speedup']:.3f}x [{low:.3f}, {high:.3f}] {verdict}, {row['launches']} launches"


def _report(lines: list[dict[str, Any]]) -> None:
    finished = [line for line in lines if not line.get("stopped")]
    by_hand = {line["cell"]: line for line in finished if line["part"] == "by hand"}
    sweeps = {line["part"]: line for line in lines if line["part"] != "by hand"}
    by_hand_s = sum(line["wall_s"] for line in by_hand.values())
    print("| method | cells | wall time (s) | relative |\n| --- | --- | --- | --- |")
    if by_hand:
        print(f"| by hand, one process per model | {len(by_hand)} | {by_hand_s:.1f} | 1.00 |")
    for part, line in sweeps.items():
        cells = line.get("cells") or list(line["rows"])
        hand_s = sum(by_hand[cell]["wall_s"] for cell in cells if cell in by_hand)
        comparable = by_hand and set(cells) <= set(by_hand)
        relative = f"{line['wall_s'] / hand_s:.2f}" if comparable else "-"
        done, more = f"{line.get('finished', len(line['rows']))} of {len(cells)}", ""
        if line.get("stopped"):
            more = ", stopped"
            relative = f"more than {relative}" if comparable else relative
        print(f"| sweep, {part}{more} | {done} | {line['wall_s']:.1f} | {relative} |")
    cells = dict.fromkeys([*by_hand, *(cell for line in sweeps.values() for cell in line["rows"])])
    print("\n| " + " | ".join(["cell", "by hand", *sweeps]) + " |")
    print("| " + " | ".join(["---"] * (2 + len(sweeps))) + " |")
    for cell in cells:
        texts = [by_hand[cell]["text"] if cell in by_hand else "-"]
        texts += [line["rows"].get(cell, "-") for line in sweeps.values()]
        print("| " + " | ".join([cell, *texts]) + " |")
    for part, line in sweeps.items():
        _report_phases(part, line)
    if "null" in sweeps:
        print(json.dumps(sweeps["null"]["false_alarms"]))


def _report_phases(part: str, line: dict[str, Any]) -> None:
    """Print where the time of each cell went, in seconds."""
    cells = line.get("phases") or {}
    names = dict.fromkeys(name for phases in cells.values() for name in phases)
    print(f"\n{part}: {'; '.join(line.get('plan') or ())}\n")
    print("| " + " | ".join(["cell", *names]) + " |")
    print("| " + " | ".join(["---"] * (1 + len(names))) + " |")
    for cell, phases in cells.items():
        print("| " + " | ".join([cell, *(str(phases.get(name, "-")) for name in names)]) + " |")


if __name__ == "__main__":
    main()
