"""Query a target before measuring: its torch and devices, and which workloads load.

Each workload is built in its own process with a time and memory limit, so that one that
crashes or hangs affects only its own line. Nothing is compiled or measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import encode, nearest_hint
from torchyard.core.study import SCRIPT_SUITE, Study, Target, Variant, Workload
from torchyard.core.variant_parts import PROFILED_DEVICES, check_device, indexed_device
from torchyard.errors import UsageError
from torchyard.process.ending import WorkerFailure
from torchyard.process.start import LaunchSpec
from torchyard.process.worker_process import WorkerGroup

_LIMIT_S: Final = 120.0


def inspect_target(target: Target, *requests: tuple[str, dict[str, str]]) -> dict[str, Any]:
    """Return the answer of a new worker to the last request (verb and fields), else its handshake.

    Raises WorkerFailure.
    """
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder, WorkerGroup() as group:
        spec = LaunchSpec(
            name=target.name,
            python=target.python,
            variables=target.variables,
            start_limit_s=_LIMIT_S,
            working_folder=folder,
        )
        try:
            worker = group.start(spec, log_path=Path(folder) / "worker.log")
            answer = worker.ask("hello", limit_s=_LIMIT_S)
            for verb, fields in requests:
                answer = worker.ask(verb, limit_s=_LIMIT_S, on_note=None, **fields)
        except WorkerFailure as trouble:
            trouble.log = ""  # the log is deleted with the folder; its tail is in the error
            raise
        return answer


def check_backends(studies: Iterable[Study]) -> None:
    """Raise UsageError if a target has no backend of the name in `dynamo:NAME`.

    Other backends were checked by name. Starts one worker per target that has such a variant, and
    none if there is no such variant. A target that does not start is reported by the run.
    """
    requested: dict[Target, dict[str, None]] = {}
    for study in studies:
        for variant in study.variants:
            if variant.backend.startswith(_DYNAMO):
                name = variant.backend.removeprefix(_DYNAMO)
                requested.setdefault(variant.target, {})[name] = None
    for target, names in requested.items():
        try:
            available = inspect_target(target, ("backends", {}))["names"]
        except WorkerFailure:
            continue
        for name in names:
            if name not in available:
                raise UsageError(
                    f"the torch of the target {target.name!r} has no backend {name!r}",
                    why=f"{_DYNAMO}{name} names a backend that is registered in dynamo",
                    hint=nearest_hint(name, available, what="backend"),
                )


def check_devices(studies: Iterable[Study]) -> dict[str, dict[str, Any]]:
    """Return the handshakes of targets; raise UsageError if one cannot measure on a requested device.

    Starts one worker per target, and none if all workloads run on the CPU. A target that does not
    start is reported by the run.
    """
    files_by_process: dict[tuple[Any, ...], tuple[Variant, dict[str, str]]] = {}
    for study in studies:
        for one in study.workloads:
            if one.suite == SCRIPT_SUITE:
                check_device(one.device, where="--script", kinds=PROFILED_DEVICES)
        files = {
            one.device: one.name if one.suite == "file" else ""
            for one in study.workloads
            if one.device != "cpu"
        }
        for variant in study.variants if files else ():
            key = (variant.target, variant.environment.variables)
            files_by_process.setdefault(key, (variant, {}))[1].update(files)
    handshakes: dict[str, dict[str, Any]] = {}
    for variant, files in files_by_process.values():
        variables = (*variant.target.variables, *variant.environment.variables)
        target = replace(variant.target, variables=variables)
        try:
            facts = inspect_target(target)
        except WorkerFailure:
            continue
        for device, file in files.items():
            if file and device.partition(":")[0] not in PROFILED_DEVICES:
                facts |= {"devices": _devices_with_file(target, device, file)}
            check_seen(device, facts)
        handshakes["+".join(variant.process_key)] = facts
    return handshakes


def _devices_with_file(target: Target, device: str, file: str) -> list[str]:
    """Return the devices that the target sees after loading a file, which may register a backend."""
    try:
        answer = inspect_target(target, ("device", {"device": device, "file": file}))
    except WorkerFailure as trouble:
        if trouble.kind != "cannot-build":
            raise
        reason = trouble.message.removeprefix(f"{target.name}: ")
        raise UsageError(
            f"--device: cannot measure on {device!r}", why=reason, hint=trouble.hint
        ) from trouble
    return [str(one) for one in answer["devices"]]


def check_seen(device: str, facts: Mapping[str, Any]) -> None:
    """Raise UsageError unless the handshake `facts` of a worker list the device."""
    devices = [str(one) for one in facts.get("devices") or ()]
    if indexed_device(device) not in {text.partition(" ")[0] for text in devices}:
        raise UsageError(
            f"--device: {device!r} is not visible to the target",
            why=f"its devices: {', '.join(devices) or 'none'}",
            hint="use one of these devices, a target whose torch supports the device, or another "
            "CUDA_VISIBLE_DEVICES",
        )


_DYNAMO: Final = "dynamo:"
LOADS: Final = "loads"
_SEED: Final = 1337


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Result of building one workload."""

    name: str
    mode: str
    state: str
    """`loads`, or the failure kind: `cannot-build`, `crashed`, `timeout`, `out-of-memory`, ..."""
    reason: str = ""
    hint: str = ""
    parameters: int | None = None
    """Number of parameters of the module."""
    loss: str = ""
    """Loss that training would use."""
    duration_s: float = 0.0
    """Wall time, including the start of the process."""


def check_loading(
    workloads: Sequence[Workload], target: Target, *, limit_s: float
) -> Iterator[Loading]:
    """Yield one result per workload as each completes."""
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        for number, workload in enumerate(workloads):
            spec = LaunchSpec(
                name=workload.name,
                python=target.python,
                variables=(("HF_HUB_OFFLINE", "1"), *target.variables),
                start_limit_s=limit_s,
                working_folder=folder,
            )
            yield _load(workload, spec, Path(folder) / f"{number}.log", limit_s)


def _load(workload: Workload, spec: LaunchSpec, log: Path, limit_s: float) -> Loading:
    started = time.monotonic()
    try:
        with WorkerGroup() as group:
            worker = group.start(spec, log_path=log)
            worker.ask("hello", limit_s=limit_s)
            answer = worker.ask(
                "build", limit_s=limit_s, workload=encode(workload), variants=[], seed=_SEED
            )
    except WorkerFailure as trouble:
        return Loading(
            name=workload.name,
            mode=workload.mode,
            state=trouble.kind,
            reason=trouble.message.removeprefix(f"{spec.name}: "),
            hint=trouble.hint,
            duration_s=time.monotonic() - started,
        )
    return Loading(
        name=workload.name,
        mode=workload.mode,
        state=LOADS,
        parameters=answer["parameters"],
        loss=answer["loss"],
        duration_s=time.monotonic() - started,
    )
