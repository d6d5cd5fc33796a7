"""Advice for fake machines, its order, and what makes a machine unfit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.trees import KINDS, make_tree
from torchyard.machine.advice import advise
from torchyard.machine.advice.activity import Activity, BusyProgram
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import EFFECTS, Advice
from torchyard.machine.system.file_tree import FileTree

QUIET = Activity(
    processors=8,
    window_s=0.5,
    busy_processors=0.02,
    waiting_share=0.001,
    stolen_share=0.0,
    swapped_pages_per_s=0.0,
    memory_stall_share=0.0,
    throttle_events=0,
    cooling_state=0,
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tree of each kind, for tests that only look."""
    return {kind: make_tree(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def advice_for(root: Path, activity: Activity = QUIET) -> dict[str, Advice]:
    every = advise(Machine(files=FileTree(root)), activity)
    assert len({advice.name for advice in every}) == len(every)
    return {advice.name: advice for advice in every}


def changed(**values: object) -> Activity:
    from dataclasses import replace

    return replace(QUIET, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_quiet_machines_are_fit_and_get_ranked_advice(kind: str, trees: dict[str, Path]) -> None:
    every = list(advice_for(trees[kind]).values())
    assert every
    assert not any(advice.unfit for advice in every)
    ranks = [EFFECTS.index(advice.effect) for advice in every]
    assert ranks == sorted(ranks)
    for advice in every:
        assert advice.what
        assert advice.why


@pytest.mark.parametrize(
    ("kind", "there", "not_there"),
    [
        (
            "intel-pstate",
            {"smt", "governor", "turbo", "frequency", "numa-balancing", "watchdogs", "cores"},
            {"guest", "stolen", "throttled", "quota", "busy"},
        ),
        ("amd-acpi", {"smt", "governor", "turbo"}, {"guest", "preference"}),
        ("amd-epp", {"governor", "turbo", "preference"}, {"guest"}),
        ("arm-cpufreq", {"governor", "cores"}, {"smt", "turbo", "swap"}),
        ("arm-bare", {"guest", "cores"}, {"governor", "turbo", "frequency", "idle-latency"}),
        ("cloud-vm", {"guest", "stolen", "cores"}, {"smt", "governor", "idle-latency"}),
        ("cgroup-v1", {"quota"}, {"guest"}),
        ("cgroup-v2", {"quota"}, {"guest"}),
        ("smt-off-at-boot", {"governor", "turbo"}, {"smt", "guest"}),
    ],
)
def test_what_is_advised(
    kind: str, there: set[str], not_there: set[str], trees: dict[str, Path]
) -> None:
    names = set(advice_for(trees[kind]))
    assert there <= names
    assert not not_there & names


def test_settings_are_those_of_the_knobs(trees: dict[str, Path]) -> None:
    advice = advice_for(trees["intel-pstate"])["turbo"]
    assert advice.effect == KNOBS["turbo"].described.effect
    assert advice.why == KNOBS["turbo"].described.why
    assert advice.what.endswith(": no_turbo 0 instead of 1")
    assert advice.fix == "sudo torchyard machine quiet --only turbo"
    assert advice.needs_root


def test_places_that_agree_are_counted(trees: dict[str, Path]) -> None:
    advice = advice_for(trees["intel-pstate"])["governor"]
    assert advice.what.endswith("scaling_governor powersave instead of performance (8 times)")


def test_a_knob_that_is_set_right_is_not_advised(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    (tmp_path / "sys/devices/system/cpu/intel_pstate/no_turbo").write_text("1\n")
    assert "turbo" not in advice_for(tmp_path)


UNFIT = {
    "all cores busy": (changed(busy_processors=7.9, waiting_share=0.6), "busy"),
    "a quarter of them": (changed(busy_processors=2.0), "busy"),
    "contention": (changed(busy_processors=1.0, waiting_share=0.12), "busy"),
    "steal": (changed(stolen_share=0.06), "stolen"),
    "swap": (changed(swapped_pages_per_s=3000.0), "memory-short"),
    "memory": (changed(memory_stall_share=0.2), "memory-short"),
    "throttled": (changed(throttle_events=2), "throttled"),
    "cooled": (changed(cooling_state=1), "throttled"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_makes_a_machine_unfit(case: str, trees: dict[str, Path]) -> None:
    activity, name = UNFIT[case]
    every = list(advice_for(trees["intel-pstate"], activity).values())
    assert [advice.name for advice in every if advice.unfit] == [name]
    assert every[0].name == name
    assert every[0].effect == "large"


FIT = {
    "a desktop": changed(busy_processors=0.4),
    "two that fight for one core of many": changed(busy_processors=0.5, waiting_share=0.5),
    "some steal": changed(stolen_share=0.02),
    "a page now and then": changed(swapped_pages_per_s=8.0),
    "nothing known": Activity(processors=8, window_s=0.5),
    "nothing known, not even processors": Activity(processors=0),
}


@pytest.mark.parametrize("case", FIT)
def test_what_does_not_make_a_machine_unfit(case: str, trees: dict[str, Path]) -> None:
    every = advice_for(trees["intel-pstate"], FIT[case]).values()
    assert not any(advice.unfit for advice in every)


def test_busy_processes_are_named_with_their_share(trees: dict[str, Path]) -> None:
    activity = changed(
        busy_processors=6.0,
        waiting_share=0.4,
        busiest=(BusyProgram(name="cc1plus", processors=5.9),),
    )
    advice = advice_for(trees["intel-pstate"], activity)["busy"]
    assert advice.what == (
        "other programs use 6.0 of 8 CPUs; processes waited for a CPU 40% of the time: cc1plus"
    )


def test_a_copied_machine_is_rated_by_averages(trees: dict[str, Path]) -> None:
    activity = Activity(processors=8, busy_processors=12.5, waiting_share=0.5)
    advice = advice_for(trees["intel-pstate"], activity)["busy"]
    assert advice.unfit
    assert advice.what.startswith("load average 12.5 on 8 CPUs")


def test_a_battery_makes_unfit_until_it_is_plugged_in(tmp_path: Path) -> None:
    make_tree("smt-off-at-boot", tmp_path)
    battery, mains = (tmp_path / "sys/class/power_supply" / name for name in ("BAT0", "AC"))
    for folder, kind in ((battery, "Battery"), (mains, "Mains")):
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{kind}\n")
    (battery / "status").write_text("Discharging\n")
    (mains / "online").write_text("0\n")
    assert advice_for(tmp_path)["battery"].unfit
    (mains / "online").write_text("1\n")
    assert "battery" not in advice_for(tmp_path)


def test_throttling_since_boot_is_advice_only(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    count = "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count"
    (tmp_path / count).write_text("17\n")
    advice = advice_for(tmp_path)["throttled"]
    assert advice.effect == "medium"
    assert not advice.unfit


def test_a_quota_below_the_processors(trees: dict[str, Path]) -> None:
    for kind in ("cgroup-v1", "cgroup-v2"):
        advice = advice_for(trees[kind])["quota"]
        assert "its quota is 2 CPUs" in advice.what
        assert advice.fix.startswith("OMP_NUM_THREADS=2,")


def test_isolated_processors_of_this_process(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    (tmp_path / "sys/devices/system/cpu/isolated").write_text("2-3\n")
    named = advice_for(tmp_path)
    assert "2-3, which have no load balancing" in named["unbalanced"].what
    assert "cores" not in named
    status = tmp_path / "proc/self/status"
    text = status.read_text().replace("Cpus_allowed_list:\t0-7", "Cpus_allowed_list:\t0-2")
    status.write_text(text)
    assert "unbalanced" not in advice_for(tmp_path)


def test_ticks_that_intel_pstate_needs(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    (tmp_path / "sys/devices/system/cpu/nohz_full").write_text("4-7\n")
    assert advice_for(tmp_path)["tickless-clock"].effect == "large"
    (tmp_path / "sys/devices/system/cpu/nohz_full").write_text("(null)\n")
    assert "tickless-clock" not in advice_for(tmp_path)


def test_cores_at_boot_need_a_restart(trees: dict[str, Path]) -> None:
    advice = advice_for(trees["intel-pstate"])["cores-at-boot"]
    assert advice.needs_reboot
    assert advice.fix == "torchyard machine boot --cores auto"


def test_one_core_has_none_to_isolate(tmp_path: Path) -> None:
    make_tree("cloud-vm", tmp_path)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0\n")
    assert not {"cores", "cores-at-boot"} & set(advice_for(tmp_path))


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("proc/sys/kernel/randomize_va_space", "0\n", "one-layout"),
        (
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet\n",
            "clock-source",
        ),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 30 kB\n", "little-memory"),
    ],
)
def test_other_advice(path: str, text: str, name: str, tmp_path: Path) -> None:
    make_tree("amd-acpi", tmp_path)
    assert name not in advice_for(tmp_path)
    (tmp_path / path).write_text(text)
    assert name in advice_for(tmp_path)


def test_an_empty_root_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert not any(advice.unfit for advice in advice_for(tmp_path, Activity(processors=0)).values())
