"""Convert sets of CPUs to and from the lists (`0-2,5`) and masks that Linux uses. No I/O."""

from __future__ import annotations

from typing import Final

MAX_CPUS: Final = 1 << 16
"""Eight times the largest NR_CPUS of Linux."""
_MASK_LETTERS: Final = frozenset("0123456789abcdefABCDEF,")


def cpus_of_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel list such as `0-2,5`; raise ValueError when it is invalid."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if part:
            numbers = range(int(first), int(last if dash else first) + 1)
            if numbers and numbers[-1] >= MAX_CPUS:  # damaged: it would fill the memory
                raise ValueError(f"{part!r} exceeds the number of CPUs that Linux supports")
            cpus.update(numbers)
    return tuple(sorted(cpus))


def cpu_list(cpus: tuple[int, ...]) -> str:
    """Return the CPUs as a list such as `0-2,5`."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    while ordered:
        count = 1
        while count < len(ordered) and ordered[count] == ordered[0] + count:
            count += 1
        parts.append(str(ordered[0]) if count == 1 else f"{ordered[0]}-{ordered[count - 1]}")
        ordered = ordered[count:]
    return ",".join(parts)


def cpus_of_mask(text: str) -> tuple[int, ...]:
    """Return the CPUs of a mask such as `3` or `ff,00000000`; raise ValueError when it is invalid."""
    if len(text) > MAX_CPUS or not set(text.strip()) <= _MASK_LETTERS:
        raise ValueError(f"{text[:80]!r} is not a CPU mask")
    bits = int("".join(word.zfill(8) for word in text.strip().split(",")), 16)
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def cpu_mask(cpus: tuple[int, ...]) -> str:
    """Return the mask in the kernel's format: words of 32 bits, highest first."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words = [
        f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(1, bits.bit_length()), 32)
    ]
    return ",".join(reversed(words))


def split_cpus(cpus: tuple[int, ...], parts: int) -> tuple[tuple[int, ...], ...]:
    """Split the CPUs into `parts` contiguous groups of nearly equal size, none of them empty.

    With more parts than CPUs, CPUs are assigned repeatedly.
    """
    ordered = sorted(cpus)
    if parts >= len(ordered):
        return tuple((ordered[part % len(ordered)],) for part in range(parts))
    size, larger_groups = divmod(len(ordered), parts)
    groups = []
    start = 0
    for part in range(parts):
        end = start + size + (part < larger_groups)
        groups.append(tuple(ordered[start:end]))
        start = end
    return tuple(groups)
