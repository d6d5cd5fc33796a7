"""Whether targets see the devices that a study asks for, asked before anything is measured or kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchyard.core.study import Study
from torchyard.core.variant import Variant
from torchyard.errors import UsageError
from torchyard.measure.targets import inspect_target
from torchyard.process.trouble import WorkerTrouble

__all__ = ["check_devices", "check_seen"]


def check_devices(studies: Iterable[Study]) -> None:
    """Raise UsageError when a target does not see a device that is asked for.

    Costs the start of a worker for each target, and nothing for a study of processors alone. A target
    that does not start is left to the run, which says why.
    """
    wanted: dict[tuple[Any, ...], tuple[Variant, dict[str, None]]] = {}
    for study in studies:
        devices = {one.device: None for one in study.workloads if one.device != "cpu"}
        for variant in study.variants if devices else ():
            key = (variant.target, variant.environment.variables)
            wanted.setdefault(key, (variant, {}))[1].update(devices)
    for variant, devices in wanted.values():
        variables = (*variant.target.variables, *variant.environment.variables)
        try:
            facts = inspect_target(replace(variant.target, variables=variables))
        except WorkerTrouble:
            continue
        for device in devices:
            check_seen(device, facts)


def check_seen(device: str, facts: Mapping[str, Any]) -> None:
    """Raise UsageError unless the handshake `facts` of a worker list the device."""
    seen = [str(one) for one in facts.get("devices") or ()]
    name = "cuda:0" if device == "cuda" else device
    if name not in {text.partition(" ")[0] for text in seen}:
        raise UsageError(
            f"--device: this target sees no {device!r}",
            why=f"it sees {', '.join(seen) or 'nothing'}",
            hint="choose one of these, a target whose torch was built for the device, or other "
            "CUDA_VISIBLE_DEVICES",
        )
