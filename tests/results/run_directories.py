"""Results directories for tests, written by the real writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.results.run_samples import FASTER, MATMUL, STUDY
from torchyard.core.comparison import Comparison, Interval, VariantMetrics, Verdict
from torchyard.core.study import Study, Workload
from torchyard.results.integrity import replace_facts
from torchyard.results.run_writer import RunWriter

MACHINE = {"architecture": "x86_64", "cpu": "Example 9000", "cores": "4", "memory": "15.5 GiB"}
TARGETS = {"this+tcmalloc": {"torch": "2.9.0", "torch_git": "ab" * 20, "devices": ["cpu"]}}


def compared(
    workload: Workload = MATMUL,
    *,
    speedup: float = 1.25,
    verdict: Verdict = Verdict.FASTER,
    candidate: str = "inductor",
    notes: tuple[str, ...] = (),
) -> Comparison:
    """A comparison with all that a history can be of."""
    assert FASTER.estimate is not None
    interval = Interval(low=speedup * 0.99, high=speedup * 1.01)
    return replace(
        FASTER,
        workload=workload,
        candidate=candidate,
        verdict=verdict,
        estimate=replace(FASTER.estimate, speedup=speedup, interval=interval),
        candidate_metrics=VariantMetrics(
            time_ns=1e6 / speedup, compile_cold_s=3.5, peak_memory_bytes=2**20
        ),
        notes=notes,
    )


def write_run(
    home: Path,
    name: str,
    comparisons: Sequence[Comparison] = (),
    *,
    study: Study = STUDY,
    machine: dict[str, str] = MACHINE,
    targets: dict[str, dict[str, Any]] = TARGETS,
    started: str | None = None,
    finish: bool = True,
    revision: str = "",
    notes: Sequence[str] = (),
) -> Path:
    """A run folder that began when its name says."""
    writer = RunWriter.create(
        home / name,
        study=study,
        command=["torchyard", "bench"],
        machine=machine,
        revision=revision,
        notes=notes,
    )
    for target, facts in targets.items():
        writer.add_target(target, facts)
    for comparison in comparisons:
        writer.add_comparison(comparison)
    if finish:
        writer.finish("finished")
    if started is None and name[:8].isdecimal():
        started = f"{name[:4]}-{name[4:6]}-{name[6:11]}:{name[11:13]}:{name[13:20]}"
    if started is not None:
        facts = json.loads((writer.folder / "run.json").read_bytes()) | {"started": started}
        replace_facts(writer.folder, json.dumps(facts))
    return writer.folder


def change_facts(folder: Path, **changes: Any) -> None:
    """Other values in `run.json`, as an editor would write them: its checksum is wrong then."""
    path = folder / "run.json"
    facts = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps(facts))


def day(number: int, letters: str = "0000") -> str:
    """The id of a run on a day of January 2025."""
    return f"202501{number:02d}T120000.000Z-{letters}"
