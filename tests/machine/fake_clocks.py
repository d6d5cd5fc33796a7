"""Rules of the fake kernel for clocks: governors, limits, boost, preferences, idle states.

After drivers/cpufreq/{cpufreq,intel_pstate,amd-pstate,acpi-cpufreq}.c of Linux 6.x, as far as the
product can see a difference.
"""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING, Final

from tests.machine.fake_cgroups import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.machine.fake_kernel import FakeKernel


CPU: Final = "sys/devices/system/cpu"
NO_TURBO: Final = f"{CPU}/intel_pstate/no_turbo"
BOOST: Final = f"{CPU}/cpufreq/boost"
PREFERENCES: Final = ("default", "performance", "balance_performance", "balance_power", "power")
BIASES: Final = {
    "performance": 0,
    "balance-performance": 4,
    "normal": 6,
    "balance-power": 8,
    "power": 15,
}
POLICY_DRIVERS: Final = ("intel_pstate", "amd-pstate-epp")
"""Drivers that choose the clock themselves: governors are two words, preferences are taken."""

GOVERNOR_DEFAULTS: Final[dict[str, dict[str, str]]] = {
    "ondemand": {
        "ignore_nice_load": "0",
        "io_is_busy": "0",
        "powersave_bias": "0",
        "sampling_down_factor": "1",
        "sampling_rate": "4000",
        "up_threshold": "95",
    },
    "conservative": {
        "down_threshold": "20",
        "freq_step": "5",
        "ignore_nice_load": "0",
        "sampling_down_factor": "1",
        "sampling_rate": "4000",
        "up_threshold": "80",
    },
    "schedutil": {"rate_limit_us": "1000"},
}


def policies(kernel: FakeKernel) -> list[str]:
    """Folders of policies that have a processor."""
    idle = kernel.recall("idle policies", [])
    return [path for path in kernel.paths(f"{CPU}/cpufreq/policy*") if path not in idle]


# Governors.


def _governor(kernel: FakeKernel, path: str, value: str) -> None:
    policy = path.rpartition("/")[0]
    if value not in kernel.text(f"{policy}/scaling_available_governors").split():
        raise refusal(errno.EINVAL)
    before = kernel.text(path)
    if value == before:
        return
    per_policy = tunables_per_policy(kernel)
    kernel.put(path, value)
    _change_tunables(kernel, policy, before, value, per_policy=per_policy)
    speed = f"{policy}/scaling_setspeed"
    if kernel.exists(speed):
        now = kernel.number(f"{policy}/scaling_cur_freq")
        # cpufreq_userspace.c starts at the present clock; what it was told before is gone.
        kernel.remember(f"speed {policy}", now)
        kernel.put(speed, str(now) if value == "userspace" else "<unsupported>")
    _preference_of_governor(kernel, policy, value)
    if kernel.governor_resets_turbo and kernel.exists(NO_TURBO):
        kernel.put(NO_TURBO, "0")
        refresh_limits(kernel)


def tunables_per_policy(kernel: FakeKernel) -> bool:
    """Whether the driver keeps tunables for each policy; a tree shows it while it has some."""
    known = kernel.recall("tunables per policy")
    if known is None:
        known = any(
            kernel.exists(f"{policy}/{governor}")
            for policy in policies(kernel)
            for governor in GOVERNOR_DEFAULTS
        )
        kernel.remember("tunables per policy", known)
    return bool(known)


def _change_tunables(
    kernel: FakeKernel, policy: str, before: str, after: str, *, per_policy: bool
) -> None:
    if kernel.text(f"{policy}/scaling_driver") in POLICY_DRIVERS:
        return
    governors = {kernel.text(f"{other}/scaling_governor") for other in policies(kernel)}
    folder = policy if per_policy else f"{CPU}/cpufreq"
    # Tunables that all policies share live as long as one policy uses the governor.
    if per_policy or before not in governors:
        shutil.rmtree(kernel.path(f"{folder}/{before}"), ignore_errors=True)
    if not kernel.exists(f"{folder}/{after}"):
        for name, value in GOVERNOR_DEFAULTS.get(after, {}).items():
            kernel.put(f"{folder}/{after}/{name}", value)


def _tunable(kernel: FakeKernel, path: str, value: str) -> None:
    folder, _, name = path.rpartition("/")
    number = _whole(value)
    if folder.endswith("conservative"):
        # drivers/cpufreq/cpufreq_conservative.c: each threshold is checked against the other.
        if name == "up_threshold" and number <= kernel.number(f"{folder}/down_threshold"):
            raise refusal(errno.EINVAL)
        if name == "down_threshold" and number >= kernel.number(f"{folder}/up_threshold"):
            raise refusal(errno.EINVAL)
    if name.endswith("threshold") and not 1 <= number <= 100:
        raise refusal(errno.EINVAL)
    kernel.put(path, str(number))


def _setspeed(kernel: FakeKernel, path: str, value: str) -> None:
    policy = path.rpartition("/")[0]
    if kernel.text(f"{policy}/scaling_governor") != "userspace":
        raise refusal(errno.EINVAL)
    kernel.remember(f"speed {policy}", _whole(value))
    _refresh(kernel, policy)


# Preferences.


def _preference_of_governor(kernel: FakeKernel, policy: str, governor: str) -> None:
    """The governor `performance` takes the preference along; only Intel's gives it back."""
    path = f"{policy}/energy_performance_preference"
    driver = kernel.text(f"{policy}/scaling_driver")
    if not kernel.exists(path) or driver not in POLICY_DRIVERS:
        return
    choices = f"{policy}/energy_performance_available_preferences"
    saved = kernel.recall(f"preference {policy}")
    if governor == "performance":
        kernel.remember(
            f"preference {policy}",
            [kernel.text(path), kernel.path(choices).read_text().rstrip("\n")]
            if kernel.exists(choices)
            else [kernel.text(path), ""],
        )
        kernel.put(path, "performance")
        if driver == "amd-pstate-epp" and kernel.exists(choices):
            kernel.put(choices, "performance")
    elif saved is not None:
        if driver == "intel_pstate":
            kernel.put(path, saved[0])
        elif kernel.exists(choices):
            kernel.put(choices, saved[1])


def _preference(kernel: FakeKernel, path: str, value: str) -> None:
    policy = path.rpartition("/")[0]
    if value not in PREFERENCES and not (value.isdigit() and int(value) <= 255):
        raise refusal(errno.EINVAL)
    driver = kernel.text(f"{policy}/scaling_driver")
    governor = kernel.text(f"{policy}/scaling_governor")
    if driver in POLICY_DRIVERS and governor == "performance" and value not in ("performance", "0"):
        raise refusal(errno.EBUSY)
    shown = {"default": "balance_performance", "0": "performance"}
    kernel.put(path, shown.get(value, value))


def _bias(kernel: FakeKernel, path: str, value: str) -> None:
    number = BIASES[value] if value in BIASES else _whole(value)
    if not 0 <= number <= 15:
        raise refusal(errno.EINVAL)
    kernel.put(path, str(number))


# Limits. What was asked for is kept apart from what is in force, as the kernel does since 5.4.


def _limit(kernel: FakeKernel, path: str, value: str) -> None:
    policy, _, name = path.rpartition("/")
    number = _whole(value)
    requested = _asked(kernel, policy)
    which = 0 if name == "scaling_min_freq" else 1
    if kernel.limits == "refuse":
        pair = [
            kernel.number(f"{policy}/scaling_min_freq"),
            kernel.number(f"{policy}/scaling_max_freq"),
        ]
        pair[which] = number
        if pair[0] > pair[1]:
            raise refusal(errno.EINVAL)
    requested[which] = number
    kernel.remember(f"asked {policy}", requested)
    _refresh(kernel, policy)


def _asked(kernel: FakeKernel, policy: str) -> list[int]:
    previous = kernel.recall(f"asked {policy}")
    if previous is None:
        previous = [
            kernel.number(f"{policy}/scaling_min_freq"),
            kernel.number(f"{policy}/scaling_max_freq"),
        ]
        kernel.remember(f"asked {policy}", previous)
    return list(previous)


def _full_clock(kernel: FakeKernel, policy: str) -> int:
    """The highest clock with boost: what the tree had at first."""
    known = kernel.recall(f"full {policy}")
    if known is None:
        known = kernel.number(f"{policy}/cpuinfo_max_freq")
        kernel.remember(f"full {policy}", known)
    return int(known)


def _plain_clock(kernel: FakeKernel, policy: str) -> int:
    """The highest clock without boost."""
    full = _full_clock(kernel, policy)
    if kernel.exists(f"{policy}/base_frequency"):
        return min(full, kernel.number(f"{policy}/base_frequency"))
    if kernel.exists(f"{policy}/scaling_available_frequencies"):
        table = kernel.text(f"{policy}/scaling_available_frequencies").split()
        return min(full, max(int(clock) for clock in table)) if table else full
    cpu = kernel.text(f"{policy}/affected_cpus").split()[:1]
    nominal = f"{CPU}/cpu{cpu[0] if cpu else 0}/acpi_cppc/nominal_freq"
    if kernel.exists(nominal) and kernel.number(nominal):
        return min(full, kernel.number(nominal) * 1000)
    return full


def _boosted(kernel: FakeKernel, policy: str) -> bool:
    if kernel.exists(NO_TURBO):
        return kernel.text(NO_TURBO) == "0"
    own = f"{policy}/boost"
    if kernel.exists(own):
        return kernel.text(own) == "1"
    return not kernel.exists(BOOST) or kernel.text(BOOST) == "1"


def refresh_limits(kernel: FakeKernel) -> None:
    """Bring what is in force in line with what was asked for, for every policy."""
    for policy in policies(kernel):
        _asked(kernel, policy)
        _full_clock(kernel, policy)
        _refresh(kernel, policy)


def _refresh(kernel: FakeKernel, policy: str) -> None:
    lowest, highest = _asked(kernel, policy)
    full = _full_clock(kernel, policy)
    # acpi-cpufreq hides boost behind the highest clock of its table; limits do not move.
    hides = kernel.text(f"{policy}/scaling_driver") == "acpi-cpufreq"
    top = full if hides or _boosted(kernel, policy) else _plain_clock(kernel, policy)
    bottom = kernel.number(f"{policy}/cpuinfo_min_freq")
    highest = min(max(highest, bottom), top)
    lowest = min(max(lowest, bottom), highest)
    for name, number in (
        ("cpuinfo_max_freq", top),
        ("scaling_min_freq", lowest),
        ("scaling_max_freq", highest),
    ):
        if kernel.number(f"{policy}/{name}") != number:
            kernel.put(f"{policy}/{name}", str(number))
    speed = kernel.recall(f"speed {policy}")
    if speed is not None and kernel.text(f"{policy}/scaling_governor") == "userspace":
        # What was asked for stays; what is shown is the clock that is allowed now.
        kernel.put(f"{policy}/scaling_setspeed", str(min(max(speed, lowest), highest)))


def _percent(kernel: FakeKernel, path: str, value: str) -> None:
    folder, _, name = path.rpartition("/")
    number = _whole(value)
    low = kernel.number(f"{folder}/min_perf_pct")
    high = kernel.number(f"{folder}/max_perf_pct")
    bounds = (0, high) if name == "min_perf_pct" else (low, 100)
    kernel.put(path, str(min(max(number, bounds[0]), bounds[1])))


# Boost.


def _no_turbo(kernel: FakeKernel, path: str, value: str) -> None:
    if kernel.recall("turbo unavailable"):
        raise refusal(errno.EPERM)
    number = _whole(value)
    refresh_limits(kernel)
    kernel.put(path, str(int(bool(number))))
    refresh_limits(kernel)
    lowest = f"{CPU}/intel_pstate/min_perf_pct"
    if number and kernel.exists(lowest):
        # store_no_turbo() squashes the lowest share into what is left, and never gives it back.
        share = min(
            100 * _plain_clock(kernel, policy) // _full_clock(kernel, policy)
            for policy in policies(kernel)
        )
        if kernel.number(lowest) > share:
            kernel.put(lowest, str(share))


def _boost(kernel: FakeKernel, path: str, value: str) -> None:
    if value not in ("0", "1"):
        raise refusal(errno.EINVAL)
    refresh_limits(kernel)
    if path == BOOST:
        if kernel.text(path) == value:
            return
        changed = policies(kernel)
        kernel.put(path, value)
        for policy in changed:
            for name in ("boost", "cpb"):  # cpb is AMD's older name for the same
                if kernel.exists(f"{policy}/{name}"):
                    kernel.put(f"{policy}/{name}", value)
    else:
        # cpufreq.c: a policy cannot boost while boost is off as a whole.
        if value == "1" and kernel.exists(BOOST) and kernel.text(BOOST) == "0":
            raise refusal(errno.EINVAL)
        if kernel.text(path) == value:
            return
        changed = [path.rpartition("/")[0]]
        kernel.put(path, value)
    for policy in changed:
        if kernel.text(f"{policy}/scaling_driver") != "acpi-cpufreq":
            # cpufreq_boost_set_sw() and amd-pstate write the request for the highest clock anew.
            requested = _asked(kernel, policy)
            on = value == "1"
            requested[1] = _full_clock(kernel, policy) if on else _plain_clock(kernel, policy)
            kernel.remember(f"asked {policy}", requested)
    refresh_limits(kernel)


def _disable(kernel: FakeKernel, path: str, value: str) -> None:
    kernel.put(path, str(int(bool(_whole(value)))))


def _whole(value: str) -> int:
    try:
        number = int(value, 0)
    except ValueError:
        raise refusal(errno.EINVAL) from None
    if number < 0:
        raise refusal(errno.EINVAL)
    return number


_POLICY = rf"{CPU}/cpufreq/policy\d+"

CLOCK_RULES: Final[dict[str, Callable[[FakeKernel, str, str], None]]] = {
    rf"{_POLICY}/scaling_governor": _governor,
    rf"{_POLICY}/scaling_setspeed": _setspeed,
    rf"({_POLICY}|{CPU}/cpufreq)/(ondemand|conservative|schedutil)/\w+": _tunable,
    rf"{_POLICY}/energy_performance_preference": _preference,
    rf"{_POLICY}/scaling_(min|max)_freq": _limit,
    rf"({_POLICY}|{CPU}/cpufreq)/boost": _boost,
    rf"{CPU}/intel_pstate/(min|max)_perf_pct": _percent,
    NO_TURBO: _no_turbo,
    rf"{CPU}/cpu\d+/power/energy_perf_bias": _bias,
    rf"{CPU}/cpu\d+/cpuidle/state\d+/disable": _disable,
}
"""Pattern of a path -> what a write to it does."""
