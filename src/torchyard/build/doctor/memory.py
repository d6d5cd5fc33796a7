"""Check: memory for the recipe's compiles, one at a time and side by side."""

from __future__ import annotations

from collections.abc import Iterator

from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe
from torchyard.machine.limits import read_limits

__all__ = ["CHECK"]

_GPU_WORDS = ("flash", "cuda", "hip", "attention")
_ORDINARY_MIB = 2400
"""Largest CPU compile of PyTorch 2.6 seen on aarch64 with gcc 14."""


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    limits = read_limits(patient.root)
    if not limits.total_mib:
        yield DoctorFinding(
            check=CHECK.name, severity="notes", what="the memory of this machine can't be read"
        )
        return
    with_swap_mib = limits.total_mib + _swap_mib(patient)
    asked = [_heaviest(patient, recipe) for recipe in patient.recipes] or [("", _ORDINARY_MIB)]
    name, needed_mib = max(asked, key=lambda item: item[1])
    subject = f"the heaviest compile ({name})" if name else "a large compile of PyTorch"
    if needed_mib > with_swap_mib:
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks" if patient.recipes else "warns",
            what=f"{subject} needs {_gib(needed_mib)}, and there are only {_gib(with_swap_mib)}",
            why=f"memory and swap {limits.memory_why} together; the kernel would kill the compiler",
            mend="add swap: fallocate -l 8G /swapfile && chmod 600 /swapfile && mkswap /swapfile"
            " && swapon /swapfile",
        )
    elif needed_mib > limits.available_mib:
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what=f"{subject} needs {_gib(needed_mib)}, and {_gib(limits.available_mib)} are free now",
            why=f"{_gib(limits.total_mib)} {limits.memory_why}, the rest is in use; it would swap",
            mend="end other programs first: ps -eo rss,pid,comm --sort=-rss | head",
        )
    jobs = patient.plan.jobs if patient.plan else 0
    for recipe in patient.recipes:
        together_mib = jobs * recipe.job_memory_mib
        if jobs > 1 and together_mib > with_swap_mib:
            fewer = max(with_swap_mib // recipe.job_memory_mib, 1)
            yield DoctorFinding(
                check=CHECK.name,
                severity="warns",
                what=f"{jobs} jobs of {recipe.name} want {_gib(together_mib)} together",
                why=f"an ordinary compile takes {recipe.job_memory_mib} MiB, and there are"
                f" {_gib(with_swap_mib)}",
                mend=f"--jobs {fewer}, or --jobs auto",
            )


def _heaviest(patient: Patient, recipe: Recipe) -> tuple[str, int]:
    """Name and MiB of a recipe's largest compile; those for GPUs only where GPUs are meant."""
    gpu = patient.wants_cuda or patient.wants_rocm
    heavy = {
        pattern: mib
        for pattern, mib in recipe.heavy.items()
        if gpu or not any(word in pattern.lower() for word in _GPU_WORDS)
    }
    ordinary = {recipe.name: recipe.job_memory_mib}
    return max((heavy | ordinary).items(), key=lambda item: item[1])


def _swap_mib(patient: Patient) -> int:
    try:
        text = patient.system("proc/meminfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["SwapFree:"] and words[1].isdigit():
            return int(words[1]) // 1024
    return 0


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


CHECK = Check(name="memory", looks_at="memory for each compile", run=_examine)
