"""What the processor is: model, design, microcode, vector instructions, mitigations."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import as_fact, as_found, fields_of, line_of
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = ["SECTION", "architecture", "flags", "model", "read"]

SECTION: Final = "processor"
_INFO: Final = "proc/cpuinfo"
_FLAWS: Final = "sys/devices/system/cpu/vulnerabilities"

ARM_DESIGNS: Final = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1A",
}
"""(implementer, part) of Arm's designs, as the kernel's cputype.h names them."""

VECTORS: Final = (
    *("sse4_2", "avx", "avx2", "fma", "f16c"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16", "sme"),
)
"""Instructions that PyTorch's kernels ask for, under the kernel's names."""


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section. cpuinfo is read once: the kernel asks every core for its clock to write it."""
    found = machine.files.read(_INFO)
    fields = fields_of(found)
    because = found.because or "cpuinfo does not name it"
    named = {
        "architecture": architecture(machine.files),
        "model": _model(found),
        "design": as_found(_design(fields), because),
        "microcode": as_found(fields.get("microcode"), because),
        "vector instructions": as_found(_vectors(fields), because),
        "mitigations": _mitigations(machine.files),
    }
    return tuple(as_fact(SECTION, name, value) for name, value in named.items())


def architecture(files: FileTree) -> Found:
    """`x86_64` or `aarch64`. Kernels before 6.1 have no file for it, so a copy is guessed at."""
    found = line_of(files, "proc/sys/kernel/arch")
    if found.value is not None:
        return found
    if files.live:
        return Found(value=os.uname().machine)
    fields = fields_of(files.read(_INFO))
    if "CPU implementer" in fields:
        return Found(value="aarch64")
    return Found(value="x86_64") if "lm" in _flags(fields) else found


def model(files: FileTree) -> Found:
    """The processor's name, or its numbers where Arm gives no name."""
    return _model(files.read(_INFO))


def flags(files: FileTree) -> tuple[str, ...]:
    """Features of the first processor; x86 calls them flags."""
    return _flags(fields_of(files.read(_INFO)))


def _model(found: Found) -> Found:
    if found.value is None:
        return found
    fields = fields_of(found)
    if fields.get("model name"):
        return Found(value=fields["model name"])
    if "CPU part" in fields:
        implementer = fields.get("CPU implementer", "?")
        return Found(value=f"Arm implementer {implementer} part {fields['CPU part']}")
    return Found(because="cpuinfo names no model")


def _design(fields: dict[str, str]) -> str | None:
    if "CPU part" in fields:
        name = ARM_DESIGNS.get((fields.get("CPU implementer", ""), fields["CPU part"]))
        revision = fields.get("CPU revision", "?")
        return name and f"{name} r{_number(fields.get('CPU variant', '?'))}p{revision}"
    if "cpu family" in fields:
        family, number = fields["cpu family"], fields.get("model", "?")
        return f"family {family} model {number} stepping {fields.get('stepping', '?')}"
    return None


def _number(text: str) -> str:
    try:
        return str(int(text, 0))
    except ValueError:
        return text


def _flags(fields: dict[str, str]) -> tuple[str, ...]:
    return tuple((fields.get("flags") or fields.get("Features") or "").split())


def _vectors(fields: dict[str, str]) -> str:
    have = set(_flags(fields))
    return ", ".join(name for name in VECTORS if name in have)


def _mitigations(files: FileTree) -> Found:
    """How many flaws are mitigated: another boot line can change speed by these alone."""
    counts: Counter[str] = Counter()
    for name in files.names(_FLAWS):
        text = files.read(f"{_FLAWS}/{name}").value or ""
        word = text.partition(":")[0].strip()
        counts["in force" if word == "Mitigation" else word.lower() or "unreadable"] += 1
    shown = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return as_found(shown, f"/{_FLAWS} is empty or missing")
