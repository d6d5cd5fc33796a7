"""A fixed clock: its choice, the order of writes, and exact restore."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import CLOCK_KNOBS, KnobCycle, difference
from tests.machine.trees import make_tree
from torchyard.errors import MissingTool
from torchyard.machine.knob import Machine, SkippedWrite
from torchyard.machine.knobs.cpu_power import FREQUENCY_KNOB
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.cores import base_clock, reachable_khz
from torchyard.machine.system.file_tree import FileTree

CPU = "sys/devices/system/cpu"
POLICY = f"{CPU}/cpufreq/policy0"
SHARES = f"{CPU}/intel_pstate"


def _policy(root: Path, **files: object) -> FakeKernel:
    """A machine of one policy."""
    folder = root / POLICY
    folder.mkdir(parents=True)
    for name, value in {
        "affected_cpus": 0,
        "related_cpus": 0,
        "cpuinfo_min_freq": 800000,
        "cpuinfo_max_freq": 4000000,
        "scaling_min_freq": 800000,
        "scaling_max_freq": 4000000,
        "scaling_driver": "acpi-cpufreq",
        **files,
    }.items():
        (folder / name).write_text(f"{value}\n")
    return FakeKernel(root)


def _limits(kernel: FileTree) -> tuple[int | None, int | None]:
    return (
        kernel.read(f"{POLICY}/scaling_min_freq").number,
        kernel.read(f"{POLICY}/scaling_max_freq").number,
    )


@pytest.mark.parametrize(
    ("kind", "khz"),
    [
        ("intel-pstate", 2500000),
        ("amd-acpi", 2450000),
        ("amd-epp", 2450000),
        ("arm-cpufreq", 3000000),
    ],
)
def test_the_clock_is_fixed_at_the_base_clock(kind: str, khz: int, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path, "frequency")
    changes = round_.tune()
    assert {change.state for change in changes} == {"written"}
    assert _limits(round_.kernel) == (khz, khz)
    round_.restore()
    assert round_.left() == {}


clocks = st.integers(800000, 4000000)
pairs = st.tuples(clocks, clocks).map(lambda pair: tuple(sorted(pair)))


@settings(max_examples=60, deadline=None)
@given(found=pairs, request=clocks, refuse=st.booleans(), twice=st.booleans())
def test_random_limits_are_restored_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    found: tuple[int, int],
    request: int,
    refuse: bool,
    twice: bool,
) -> None:
    root = tmp_path_factory.mktemp("limits")
    kernel = _policy(root, scaling_min_freq=found[0], scaling_max_freq=found[1])
    kernel.limits = "refuse" if refuse else "clamp"
    machine = Machine(files=kernel)
    (setting,) = FREQUENCY_KNOB.survey(machine, QuietRequest(frequency_khz=request)).settings
    assert setting.found == f"{found[0]}-{found[1]}"
    FREQUENCY_KNOB.write(machine, setting)
    assert _limits(kernel) == (request, request)
    assert FREQUENCY_KNOB.same(POLICY, FREQUENCY_KNOB.read(machine, POLICY), setting.wanted or "")
    for _ in range(1 + twice):
        FREQUENCY_KNOB.restore(machine, setting)
        assert _limits(kernel) == found


@settings(max_examples=40, deadline=None)
@given(found=pairs, present=pairs, refuse=st.booleans())
def test_any_state_in_between_is_restored(
    tmp_path_factory: pytest.TempPathFactory,
    found: tuple[int, int],
    present: tuple[int, int],
    refuse: bool,
) -> None:
    """Half written, written by somebody else: limits never cross on the way back."""
    kernel = _policy(
        tmp_path_factory.mktemp("between"),
        scaling_min_freq=present[0],
        scaling_max_freq=present[1],
    )
    kernel.limits = "refuse" if refuse else "clamp"
    setting = Setting(
        knob="frequency", place=POLICY, found=f"{found[0]}-{found[1]}", wanted="900000-900000"
    )
    FREQUENCY_KNOB.restore(Machine(files=kernel), setting)
    assert _limits(kernel) == found


@settings(max_examples=40, deadline=None)
@given(
    found=st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted),
    present=st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted),
)
def test_random_shares_of_intel_are_restored(
    tmp_path_factory: pytest.TempPathFactory, found: list[int], present: list[int]
) -> None:
    root = tmp_path_factory.mktemp("shares")
    folder = root / SHARES
    folder.mkdir(parents=True)
    (folder / "min_perf_pct").write_text(f"{present[0]}\n")
    (folder / "max_perf_pct").write_text(f"{present[1]}\n")
    machine = Machine(files=FakeKernel(root))
    value = f"{found[0]}-{found[1]}"
    FREQUENCY_KNOB.restore(
        machine, Setting(knob="frequency", place=SHARES, found=value, wanted=None)
    )
    assert FREQUENCY_KNOB.read(machine, SHARES) == value


def test_a_low_share_of_intel_is_raised_for_the_base_clock_and_is_restored(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path / "root"))
    kernel.write(f"{SHARES}/max_perf_pct", "40")
    round_ = KnobCycle(kernel, tmp_path)
    round_.tune()
    assert round_.text(f"{SHARES}/max_perf_pct") == "100"
    round_.restore()
    assert round_.left() == {}


@pytest.mark.parametrize("knobs", [("turbo",), ("turbo", "frequency"), tuple(CLOCK_KNOBS)])
def test_the_lowest_share_that_turbo_squashes_is_restored(
    knobs: tuple[str, ...], tmp_path: Path
) -> None:
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path / "root"))
    kernel.write(f"{SHARES}/min_perf_pct", "90")
    round_ = KnobCycle(kernel, tmp_path, {name: CLOCK_KNOBS[name] for name in knobs})
    round_.tune()
    assert round_.text(f"{SHARES}/min_perf_pct") == "64"
    round_.restore()
    assert round_.text(f"{SHARES}/min_perf_pct") == "90"
    assert round_.left() == {}


def test_what_was_asked_for_and_is_not_in_force_is_not_overwritten(tmp_path: Path) -> None:
    """Turbo was found off: the highest limit shows the base clock, 3.9 GHz were asked for."""
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path / "root"))
    kernel.write(f"{SHARES}/no_turbo", "1")
    assert _limits(kernel) == (1000000, 2500000)
    round_ = KnobCycle(kernel, tmp_path)
    round_.tune()
    round_.restore()
    assert round_.left() == {}
    kernel.write(f"{SHARES}/no_turbo", "0")
    assert _limits(kernel) == (1000000, 3900000)


def test_a_limit_that_somebody_set_survives_boost(tmp_path: Path) -> None:
    """amd-pstate requests its highest clock again whenever boost changes."""
    for knobs in (("turbo",), ("turbo", "frequency"), tuple(CLOCK_KNOBS)):
        folder = tmp_path / "-".join(knobs)
        folder.mkdir()
        kernel = FakeKernel(make_tree("amd-epp", folder / "root"))
        kernel.write(f"{POLICY}/scaling_max_freq", "2000000")
        round_ = KnobCycle(kernel, folder, {name: CLOCK_KNOBS[name] for name in knobs})
        round_.tune()
        restored = round_.restore()
        assert restored is not None
        assert restored.complete
        assert round_.left() == {}, knobs


@pytest.mark.parametrize(
    ("quiet_request", "used", "note"),
    [
        (9_000_000, 3_900_000, "9000000 kHz is not supported by this CPU: using 3900000 kHz"),
        (100_000, 1_000_000, "100000 kHz is not supported by this CPU: using 1000000 kHz"),
        (3_000_000, 3_000_000, "above the base clock of 2500000 kHz"),
        (2_000_000, 2_000_000, ""),
    ],
)
def test_unsupported_requests_are_reported(
    quiet_request: int, used: int, note: str, tmp_path: Path
) -> None:
    machine = Machine(files=FakeKernel(make_tree("intel-pstate", tmp_path)))
    state = FREQUENCY_KNOB.survey(machine, QuietRequest(frequency_khz=quiet_request))
    assert state.settings[-1].wanted == f"{used}-{used}"
    assert bool(state.notes) == bool(note)
    assert note in " ".join(state.notes)
    assert len(state.notes) == len(set(state.notes)), "said once, not for every policy"


def test_a_clock_between_two_steps_becomes_the_lower_step(tmp_path: Path) -> None:
    kernel = _policy(tmp_path, scaling_available_frequencies="4000000 2200000 800000 ")
    assert reachable_khz(kernel, POLICY, 3_999_999) == 2_200_000
    assert reachable_khz(kernel, POLICY, 2_200_000) == 2_200_000
    assert reachable_khz(kernel, POLICY, 5_000_000) == 4_000_000
    assert reachable_khz(kernel, POLICY, 1) == 800_000
    (tmp_path / POLICY / "scaling_available_frequencies").write_text("4000000 1000000\n")
    assert reachable_khz(kernel, POLICY, 1) == 1_000_000, "not a clock between limit and step"


def test_where_the_base_clock_is_known_from(tmp_path: Path) -> None:
    kernel = _policy(tmp_path)
    best = base_clock(kernel, POLICY)
    assert best is not None
    assert (best.khz, best.guessed) == (4_000_000, True)
    table = tmp_path / POLICY / "scaling_available_frequencies"
    table.write_text("2501000 2500000 1200000 \n")
    best = base_clock(kernel, POLICY)
    assert best is not None
    assert (best.khz, best.guessed) == (2_500_000, False), "the step 1 MHz above is turbo"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz\n"
    )
    best = base_clock(kernel, POLICY)
    assert best is not None
    assert (best.khz, best.guessed) == (2_400_000, False)
    nominal = tmp_path / CPU / "cpu0/acpi_cppc/nominal_freq"
    nominal.parent.mkdir(parents=True)
    nominal.write_text("0\n")
    best = base_clock(kernel, POLICY)
    assert best is not None
    assert best.khz == 2_400_000, "0 is what firmware says that does not know"
    nominal.write_text("2300\n")
    best = base_clock(kernel, POLICY)
    assert best is not None
    assert best.khz == 2_300_000
    (tmp_path / POLICY / "base_frequency").write_text("2200000\n")
    best = base_clock(kernel, POLICY)
    assert best is not None
    assert (best.khz, best.guessed) == (2_200_000, False)


def test_a_guess_is_reported(tmp_path: Path) -> None:
    state = FREQUENCY_KNOB.survey(Machine(files=_policy(tmp_path)), QuietRequest())
    assert "the base clock is unknown" in state.notes[0]


def test_policies_that_show_no_limits_are_left_alone(tmp_path: Path) -> None:
    root = make_tree("arm-cpufreq", tmp_path)
    (root / POLICY / "scaling_min_freq").unlink()
    machine = Machine(files=FakeKernel(root))
    state = FREQUENCY_KNOB.survey(machine, QuietRequest())
    assert f"skipped, because /{POLICY} does not report its limits" in state.notes
    assert [item.place for item in state.settings] == [
        f"{CPU}/cpufreq/policy{number}" for number in (1, 2, 3)
    ]
    for number in (1, 2, 3):
        (root / CPU / f"cpufreq/policy{number}/scaling_max_freq").unlink()
    assert (
        "does not report its limits" in FREQUENCY_KNOB.survey(machine, QuietRequest()).unavailable
    )
    with pytest.raises(MissingTool):
        FREQUENCY_KNOB.read(machine, POLICY)


def test_policies_that_are_offline_are_left_alone_and_are_restored(tmp_path: Path) -> None:
    round_ = KnobCycle.of("amd-epp", tmp_path, "frequency")
    settings_ = round_.survey()
    round_.kernel.write(f"{CPU}/cpu7/online", "0")
    last = settings_[-1]
    assert last.place.endswith("policy7")
    with pytest.raises(SkippedWrite):
        FREQUENCY_KNOB.write(round_.machine, last)
    with pytest.raises(MissingTool):
        FREQUENCY_KNOB.restore(round_.machine, last)
    round_.kernel.write(f"{CPU}/cpu7/online", "1")
    FREQUENCY_KNOB.restore(round_.machine, last)
    assert difference(round_.found, round_.kernel.snapshot()) == {}
