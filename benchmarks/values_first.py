"""How long `torchyard values` takes to the first finding, beside the same steps without it.

    python benchmarks/values_first.py [--models transformer-512,resnet18] [--deep]

Each run is a new process with an empty cache: imports, compiling the scan, the model, steps and proofs
are included. Without a finding in the closely profiled steps, the end of these steps counts.

Exit code 1 if it takes more than twice the native time of the same steps plus 10 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

STEPS = 3
"""Steps that are profiled closely by default."""
FREE_S = 10.0


def run_native(model: str) -> dict[str, Any]:
    """Return the time from the start to the end of each step."""
    began_s = time.perf_counter()
    step = _model(model)
    ends_s = []
    for _ in range(STEPS):
        step()
        ends_s.append(time.perf_counter() - began_s)
    return {"ends_s": ends_s}


def run_profiled(model: str, *, deep: bool) -> dict[str, Any]:
    """Return the time from the start to the first finding, its step, and the time to the last step."""
    began_s = time.perf_counter()
    from torchyard.worker.values.exchange import Options
    from torchyard.worker.values.profiling_session import ProfilingSession

    first: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as cache:
        session = ProfilingSession(Options(deep=deep), cache=cache)
        add = session.findings.on_add

        def on_add(finding: Any, observation: Any) -> None:
            add(finding, observation)
            first.append((time.perf_counter() - began_s, observation.step))

        session.findings.on_add = on_add
        session.start()
        try:
            step = _model(model)
            for _ in range(STEPS):
                step()
        finally:
            session.stop()
    end_s = time.perf_counter() - began_s
    first_s, first_step = first[0] if first else (end_s, STEPS)
    return {"first_s": first_s, "step": first_step, "found": bool(first), "end_s": end_s}


def _model(name: str) -> Any:
    import torch

    from values_overhead import MODELS

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return MODELS[name]()


def _in_process(model: str, kind: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--models", model, "--run", kind]
    result: dict[str, Any] = json.loads(subprocess.check_output(command))
    return result


def main() -> int:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--models", default="transformer-512,resnet18", help="of values_overhead.py"
    )
    parser.add_argument("--deep", action="store_true", help="also inside operators")
    parser.add_argument(
        "--run", choices=["native", "fast", "deep"], help="one run, in this process"
    )
    given = parser.parse_args()
    if given.run is not None:
        native = given.run == "native"
        model = given.models
        result = run_native(model) if native else run_profiled(model, deep=given.run == "deep")
        print(json.dumps(result))
        return 0
    late = False
    for model in given.models.split(","):
        profiled = _in_process(model, "deep" if given.deep else "fast")
        native_s = _in_process(model, "native")["ends_s"][profiled["step"] - 1]
        goal_s = 2 * native_s + FREE_S
        late = late or profiled["first_s"] > goal_s
        what = "first finding" if profiled["found"] else "no finding, end of close steps"
        print(
            f"{model}: {what} after {profiled['first_s']:.1f} s in step {profiled['step']}, "
            f"natively {native_s:.1f} s (goal {goal_s:.1f} s); {STEPS} steps and the end "
            f"{profiled['end_s']:.1f} s"
        )
    return int(late)


if __name__ == "__main__":
    raise SystemExit(main())
