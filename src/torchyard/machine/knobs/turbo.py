"""Clocks above the base clock: Intel's turbo, AMD's and Arm's boost.

Three switches exist: `intel_pstate/no_turbo` (Intel's own driver), `cpufreq/boost` (other drivers,
AMD, some Arm), and `policyN/boost` (since 6.11, for each policy). `policyN/cpb` is an older name of
`cpufreq/boost` and follows it.

Bit 38 of MSR 0x1a0 is a fourth, for Intel without its driver. It is read and told, never written:
kernels since 5.9 filter writes to MSRs from outside (`msr.allow_writes`), a locked-down kernel
refuses them, and a written one marks the kernel as tainted for good, which no restore takes back.
"""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Wish
from torchyard.machine.clock_policy import CPU, CPUFREQ, ProcessorKnob, policies
from torchyard.machine.device_file import read_device
from torchyard.machine.file_knob import Wants
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Knob, Machine

__all__ = ["KNOB"]

NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
BOOST: Final = f"{CPUFREQ}/boost"
_LOWEST_SHARE: Final = f"{CPU}/intel_pstate/min_perf_pct"
_MSR: Final = "dev/cpu/0/msr"
_MISC_ENABLE: Final = 0x1A0
_TURBO_OFF_BIT: Final = 38


def _wants(machine: Machine, wish: Wish) -> Wants:  # noqa: ARG001
    files = machine.files
    # What is lost with a switch stands before it, because a restore goes backwards.
    if files.exists(NO_TURBO):
        # store_no_turbo() squashes the lowest share into what is left and does not give it back.
        return Wants(values={**_kept(files, [_LOWEST_SHARE]), NO_TURBO: "1"})
    found = policies(files)
    # Drivers of boost ask for their highest clock anew, whatever limit was there.
    limits = _kept(files, [f"{policy}/scaling_max_freq" for policy in found])
    own = _kept(files, [f"{policy}/boost" for policy in found])
    if files.exists(BOOST):
        # The switch for all sets every policy's, both ways: one may have been found without boost.
        return Wants(values={**limits, **own, BOOST: "0"})
    if own:
        return Wants(values={**limits, **dict.fromkeys(own, "0")})
    return Wants(unavailable=_why_not(files))


def _kept(files: FileTree, places: list[str]) -> dict[str, str | None]:
    return {place: None for place in places if files.exists(place)}


def _why_not(files: FileTree) -> str:
    if "GenuineIntel" in (files.read("proc/cpuinfo").value or ""):
        bits = read_device(files, _MSR, size_bytes=8, offset=_MISC_ENABLE)
        if bits.value is not None:
            off = int.from_bytes(bits.value, "little") >> _TURBO_OFF_BIT & 1
            return (
                f"turbo is {'off' if off else 'on'} (MSR 0x1a0) and this driver has no switch; "
                "kernels filter writes to MSRs, so set it in the firmware"
            )
    if policies(files):
        return (
            f"the driver has no switch: neither /{NO_TURBO} nor /{BOOST}; "
            "the knob `frequency` keeps clocks at the base clock all the same"
        )
    return f"there is no switch: neither /{NO_TURBO} nor /{BOOST}"


KNOB: Final[Knob] = ProcessorKnob(
    name="turbo",
    about="clocks above the base clock (turbo, boost)",
    why=(
        "Turbo clocks depend on temperature, on how many cores work and on the instructions they "
        "run, so the same code runs at other clocks a minute later. Off, work on one core is "
        "slower by the ratio of both clocks."
    ),
    effect="large",
    wants=_wants,
)
