"""A worker service in this process, with a workload from a temporary file."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any


def variant(
    name: str, backend: str = "eager", precision: str = "float32", **options: Any
) -> dict[str, Any]:
    """Options are written with underscores: `channels_last=True`; a `__` is a dot."""
    chosen = [[key.replace("__", ".").replace("_", "-"), value] for key, value in options.items()]
    return {"name": name, "backend": backend, "precision": precision, "options": chosen}


def write_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(dedent(text), encoding="utf-8")
    return str(path)


def make_service(
    code: str,
    *variants: dict[str, Any],
    mode: str = "inference",
    step: bool = False,
    state: str | None = None,
    seed: int = 1337,
    batch_size: int | None = None,
    device: str = "cpu",
    parameters: dict[str, Any] | None = None,
) -> Any:
    """The service after `build`; `code` is the path of a workload file, or SUITE/NAME."""
    from torchyard.worker.bench.service import WorkerService

    suite, name = ("file", code) if ".py" in code else tuple(code.split("/"))
    service = WorkerService()
    workload: dict[str, object] = {
        "suite": suite,
        "name": name,
        "mode": mode,
        "device": device,
        "batch_size": batch_size,
        "optimizer_step": step,
        "parameters": list((parameters or {}).items()),
    }
    service.build(workload, list(variants) or [variant("eager")], seed, state)
    return service
