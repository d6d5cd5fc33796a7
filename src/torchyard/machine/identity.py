"""Derive a short machine name that is the same for all runs on the same kind of hardware.

Histories are kept apart by this name. A host name does not identify a machine: containers and cloud
instances get a new one at every start, and the hardware behind one name can change. The name is
derived from what determines speed and does not change: architecture, CPU model, the number of cores
that the run could use, and the GPU models if a workload ran on a GPU. The amount of memory is left
out because the number that the kernel reports changes with its version. Settings (governor, huge
pages) are facts to compare, not a different machine. Reads nothing but the record of a run.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from torchyard.machine.facts.processor import ARM_DESIGNS
from torchyard.machine.model import UNAVAILABLE

_ARM_PART: Final = re.compile(r"Arm implementer (0x[0-9a-f]+) part (0x[0-9a-f]+)")
_NOISE: Final = re.compile(r"\((?:r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*$|\bimplementer\b|\bpart\b")
_SLUG_LETTERS: Final = 24


def table_of(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of a record that may be damaged; empty if there is none."""
    value = info.get(name)
    return value if isinstance(value, Mapping) else {}


def machine_name(info: Mapping[str, Any]) -> str:
    """Return the machine name of a `run.json`, such as `neoverse-n1-4c-1f3a`, or `unknown`."""
    facts = _facts(info)
    gpus = _gpus(info) if _used_gpu(info) else []
    parts = {key: facts.get(key, "") for key in ("architecture", "cpu", "cores")}
    if not parts["cpu"] and not gpus:
        return "unknown"
    # The slug may change with its rules; the digest identifies the machine.
    identity = "\n".join([*parts.values(), *gpus])
    digest = hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:4]
    slug = _slug(gpus[0] if gpus else parts["cpu"])
    cores = f"{_slug(parts['cores'])}c" if parts["cores"] and not gpus else ""
    return "-".join(part for part in (slug, cores, digest) if part)


def machine_text(info: Mapping[str, Any]) -> str:
    """Return a description for display: `host: processor, 4 cores, 15.5 GiB; NVIDIA H200`."""
    facts = _facts(info)
    # A merged run names where it was measured.
    owner = table_of(info, "measured_by") or table_of(info, "owner")
    host = str(owner.get("host") or "")
    cores = facts.get("cores", "")
    parts = [
        _ARM_PART.sub(_design, facts.get("cpu", "")),
        f"{cores} core{'' if cores == '1' else 's'}" if cores else "",
        facts.get("memory", ""),
    ]
    text = ", ".join(part for part in parts if part)
    text = "; ".join([part for part in (text, *_gpus(info)) if part])
    return f"{host}: {text}" if host and text else host or text


def _facts(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a run without unavailable ones."""
    facts = table_of(info, "machine")
    texts = {str(name): str(value).strip() for name, value in facts.items()}
    return {name: text for name, text in texts.items() if not text.startswith(UNAVAILABLE)}


def _design(part: re.Match[str]) -> str:
    """Return the name of an Arm processor that the kernel reports by number; else the numbers."""
    name = ARM_DESIGNS.get((part[1], part[2]))
    return f"Arm {name}" if name else part[0]


def _used_gpu(info: Mapping[str, Any]) -> bool:
    workloads = table_of(info, "study").get("workloads")
    if not isinstance(workloads, list):
        return False
    return any(
        isinstance(workload, Mapping) and str(workload.get("device", "cpu")) != "cpu"
        for workload in workloads
    )


def _gpus(info: Mapping[str, Any]) -> list[str]:
    """Return the GPU models that torch listed, with counts: `NVIDIA H200`, `2 x NVIDIA T4`.

    Of the target that listed most: a CPU-only torch lists none on the same machine.
    """
    counts: list[Counter[str]] = [Counter()]
    for target in table_of(info, "targets").values():
        devices = target.get("devices") if isinstance(target, Mapping) else None
        if isinstance(devices, list):
            texts = [str(device).partition(" ") for device in devices]
            counts.append(Counter(model for _, _, model in texts if model))
    most = max(counts, key=Counter.total)
    return [f"{count} x {model}" if count > 1 else model for model, count in sorted(most.items())]


def _slug(text: str) -> str:
    specific = _NOISE.sub(" ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", specific).strip("-")[:_SLUG_LETTERS].strip("-")
