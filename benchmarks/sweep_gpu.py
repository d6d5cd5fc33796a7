"""Wall time of a GPU sweep against a script with one process per model and thirty alternating repeats.

    python benchmarks/sweep_gpu.py --data gpu.jsonl --cell timm/resnet50:training \
        --cell huggingface/DistillGPT2:inference
    python benchmarks/sweep_gpu.py --data gpu.jsonl --cell ... --parts several,null

For the same cells: the rule of PyTorch's dynamo harness (`fixed_repeats.py`), a sweep with one cell at
a time, a sweep with several side by side, and a sweep of eager code with itself. Every method starts
with empty caches of compiled code. Each part is a line of the file as soon as it is there, and is not
measured again. Prints one table of times, one of speedups and verdicts, and the false alarms.
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
PARTS = ("by hand", "one", "several", "null")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cell", action="append", default=[], help="SUITE/NAME:MODE; repeatable")
    parser.add_argument("--parts", default="by hand,one,several", help=",".join(PARTS))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time", default="20s", help="measuring time per cell of the sweeps")
    parser.add_argument("--at-most", type=int, default=6, help="cells side by side")
    options = parser.parse_args()
    parts = options.parts.split(",") if options.cell else []
    for part in parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r}; parts are {', '.join(PARTS)}")
        measured = {(line["part"], line.get("cell")) for line in _lines(options.data)}
        for cell in options.cell if part == "by hand" else [None]:
            if (part, cell) in measured:
                continue
            with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
                line = _measure(options, part, cell, Path(folder))
            with options.data.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{part} {cell or ''}: {line['wall_s']:.1f} s", file=sys.stderr, flush=True)
    _report(_lines(options.data))


def _lines(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.open(encoding="utf-8")] if data.exists() else []


def _measure(
    options: argparse.Namespace, part: str, cell: str | None, folder: Path
) -> dict[str, Any]:
    if cell is not None:
        return {"part": part, "cell": cell, **_by_hand(options, cell, folder)}
    modes: dict[str, list[str]] = {}
    for name, _, mode in (one.rpartition(":") for one in options.cell):
        modes.setdefault(mode, []).append(name)
    rows: dict[str, str] = {}
    alarms: list[Any] = []
    wall_s = 0.0
    for mode, names in modes.items():
        swept = _sweep(options, folder / mode, part, mode, names)
        wall_s += swept["wall_s"]
        rows.update(swept["rows"])
        alarms.append(swept["false_alarms"])
    return {"part": part, "wall_s": wall_s, "rows": rows, "false_alarms": alarms}


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
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, str(HERE / "fixed_repeats.py"), str(asked), str(answer)],
        env={**os.environ, **caches},
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s = time.monotonic() - began
    if ended.returncode:
        return {"wall_s": wall_s, "text": "failed: " + ended.stderr.strip().splitlines()[-1][:60]}
    eager, compiled = json.loads(answer.read_text())["times_ns"]
    ratio = statistics.median(eager) / statistics.median(compiled)
    return {"wall_s": wall_s, "text": f"{ratio:.3f}x"}


def _sweep(
    options: argparse.Namespace, folder: Path, part: str, mode: str, names: list[str]
) -> dict[str, Any]:
    command = [sys.executable, "-m", "torchyard", "sweep", "--modes", mode]
    command += [word for name in names for word in ("--workload", name)]
    command += ["--device", options.device, "--time", options.time]
    command += ["--batch-size", str(options.batch_size), "--run-dir", str(folder), "--quiet"]
    command += ["--at-most", str(options.at_most if part == "several" else 1)]
    command += ["--null"] if part == "null" else []
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - began
    shown = subprocess.run(
        [sys.executable, "-m", "torchyard", "sweep", "report", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(shown.stdout)
    except ValueError:
        sys.exit(f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}\n{shown.stderr[-2000:]}")
    rows = {f"{row['workload'].split()[0]}:{mode}": _text(row) for row in report["rows"]}
    return {"wall_s": wall_s, "rows": rows, "false_alarms": report.get("false_alarms")}


def _text(row: dict[str, Any]) -> str:
    if row["speedup"] is None:
        return str(row["reason"])[:60]
    low, high = row["interval"]["low"], row["interval"]["high"]
    verdict = row["verdict"] if row["trusted"] else "untrusted"
    return f"{row['speedup']:.3f}x [{low:.3f}, {high:.3f}] {verdict}, {row['launches']} launches"


def _report(lines: list[dict[str, Any]]) -> None:
    by_hand = {line["cell"]: line for line in lines if line["part"] == "by hand"}
    sweeps = {line["part"]: line for line in lines if line["part"] != "by hand"}
    by_hand_s = sum(line["wall_s"] for line in by_hand.values())
    print("| method | cells | wall time (s) | relative |\n| --- | --- | --- | --- |")
    if by_hand:
        print(f"| by hand, one process per model | {len(by_hand)} | {by_hand_s:.1f} | 1.00 |")
    for part, line in sweeps.items():
        relative = f"{line['wall_s'] / by_hand_s:.2f}" if by_hand else "-"
        print(f"| sweep, {part} | {len(line['rows'])} | {line['wall_s']:.1f} | {relative} |")
    cells = dict.fromkeys([*by_hand, *(cell for line in sweeps.values() for cell in line["rows"])])
    print("\n| " + " | ".join(["cell", "by hand", *sweeps]) + " |")
    print("| " + " | ".join(["---"] * (2 + len(sweeps))) + " |")
    for cell in cells:
        texts = [by_hand[cell]["text"] if cell in by_hand else "-"]
        texts += [line["rows"].get(cell, "-") for line in sweeps.values()]
        print("| " + " | ".join([cell, *texts]) + " |")
    if "null" in sweeps:
        print(json.dumps(sweeps["null"]["false_alarms"]))


if __name__ == "__main__":
    main()
