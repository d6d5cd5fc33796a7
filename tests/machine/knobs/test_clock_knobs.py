"""All clock knobs together, on every fake machine: restored byte for byte."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel, snapshot
from tests.machine.knob_cycle import CLOCK_KNOBS, KnobCycle
from tests.machine.trees import KINDS, make_tree
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.model import EFFECTS, QuietRequest
from torchyard.machine.system.file_tree import FileTree

CPU = "sys/devices/system/cpu"
MANNERS: dict[str, dict[str, object]] = {
    "Linux 6": {},
    "limits are refused": {"limits": "refuse"},
    "policies vanish": {"offline_policies": "vanish"},
    "the governor resets turbo": {"governor_resets_turbo": True},
}
CLOCKED = ("intel-pstate", "amd-acpi", "amd-epp", "arm-cpufreq")
"""Trees with a driver for clocks, each another one."""


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("kind", "manners"),
    [(kind, "Linux 6") for kind in KINDS]
    + [(kind, manners) for kind in CLOCKED for manners in MANNERS if manners != "Linux 6"],
)
def test_quieting_is_restored_byte_for_byte(kind: str, manners: str, tmp_path: Path) -> None:
    root = make_tree(kind, tmp_path / "root")
    kernel = FakeKernel(root, **MANNERS[manners])  # type: ignore[arg-type]
    round_ = KnobCycle(kernel, tmp_path)
    changes = round_.tune()
    assert round_.left(), "nothing was tuned"
    refused = [change for change in changes if change.state == "refused"]
    assert refused == []
    restored = round_.restore()
    assert restored is not None
    assert restored.missing == ()
    assert round_.left() == {}
    # The order of knobs is right when no write has to be tried twice.
    assert kernel.refused == []
    # Nobody else wrote anything, so nobody may be accused of it.
    assert [item for item in restored.settings if item.meanwhile] == []


@pytest.mark.parametrize("kind", ["intel-pstate", "cgroup-v1", "arm-cpufreq", "cloud-vm"])
def test_a_copy_of_a_machine_is_restored_too(kind: str, tmp_path: Path) -> None:
    """With plain files that take every value, as `--root` has them."""
    machine = Machine(files=FileTree(make_tree(kind, tmp_path)))
    before = _texts(tmp_path)
    settings = [
        setting
        for knob in CLOCK_KNOBS.values()
        for setting in knob.survey(machine, QuietRequest()).settings
    ]
    for setting in settings:
        CLOCK_KNOBS[setting.knob].write(machine, setting)
    assert _texts(tmp_path) != before
    for setting in reversed(settings):
        CLOCK_KNOBS[setting.knob].restore(machine, setting)
    assert _texts(tmp_path) == before


def _texts(root: Path) -> dict[str, bytes]:
    """Plain files keep what was written, which has no newline at its end."""
    return {path: text.rstrip(b"\n") for path, text in snapshot(root).items()}


@pytest.mark.parametrize("kind", [*CLOCKED, "cgroup-v1"])
def test_a_second_restore_changes_nothing(kind: str, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path)
    round_.tune()
    settings = [setting for state in round_.states for setting in state.settings]
    round_.restore()
    taken = len(round_.kernel.accepted)
    for setting in reversed(settings):
        round_.knobs[setting.knob].restore(round_.machine, setting)
    assert round_.left() == {}
    assert len(round_.kernel.accepted) == taken, "written again although it was there"


def test_a_restore_without_quieting_writes_nothing(kind: str, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path)
    for setting in reversed(round_.survey()):
        round_.knobs[setting.knob].restore(round_.machine, setting)
    assert round_.kernel.accepted == []
    assert round_.left() == {}


@pytest.mark.parametrize(
    ("kind", "places"),
    [(kind, 4) for kind in CLOCKED]
    + [pytest.param(kind, 1000, marks=pytest.mark.slow) for kind in CLOCKED],
)
def test_quieting_interrupted_anywhere_is_restored(kind: str, places: int, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path)
    round_.tune()
    count = len(round_.kernel.accepted)
    round_.restore()
    for taken in range(1, count, max(1, count // places)):
        round_.kernel.dies_after = len(round_.kernel.accepted) + taken
        with pytest.raises(KeyboardInterrupt):
            round_.tune()
        round_.kernel.dies_after = None
        restored = round_.restore()
        assert restored is not None
        assert restored.missing == ()
        assert round_.left() == {}, f"cut off after {taken} of {count} writes"


@pytest.mark.parametrize("kind", ["intel-pstate", "amd-acpi", "amd-epp"])
def test_an_interrupted_restore_is_resumed(kind: str, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path)
    round_.tune()
    for more in (1, 3, 2):
        round_.kernel.dies_after = len(round_.kernel.accepted) + more
        with pytest.raises(KeyboardInterrupt):
            round_.restore()
    round_.kernel.dies_after = None
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (f"{CPU}/smt/control", errno.EBUSY),
        (f"{CPU}/cpufreq/policy0/scaling_governor", errno.EINVAL),
        (f"{CPU}/intel_pstate/no_turbo", errno.EPERM),
        (f"{CPU}/cpufreq/policy0/scaling_min_freq", errno.EINVAL),
        (f"{CPU}/cpu0/power/energy_perf_bias", errno.EIO),
        (f"{CPU}/cpufreq/policy1/energy_performance_preference", errno.EBUSY),
    ],
)
def test_one_refused_write_does_not_stop_the_others(place: str, code: int, tmp_path: Path) -> None:
    round_ = KnobCycle.of("intel-pstate", tmp_path)
    round_.kernel.refuse(place, code)
    changes = round_.tune()
    refused = [change for change in changes if change.state == "refused"]
    assert refused
    assert all(change.reason for change in refused)
    knobs = {change.setting.knob for change in refused}
    assert {change.setting.knob for change in changes if change.state == "written"} >= (
        set(CLOCK_KNOBS) - knobs
    )
    round_.kernel.refusals.clear()
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


def test_what_cannot_be_restored_is_reported_and_retried(tmp_path: Path) -> None:
    round_ = KnobCycle.of("amd-acpi", tmp_path)
    round_.tune()
    round_.kernel.refuse(f"{CPU}/cpufreq/boost", errno.EIO)
    restored = round_.restore()
    assert restored is not None
    assert [item.setting.place for item in restored.missing] == [f"{CPU}/cpufreq/boost"]
    assert "Input/output error" in restored.missing[0].reason
    round_.kernel.refusals.clear()
    again = round_.restore()
    assert again is not None
    assert again.complete
    assert round_.left() == {}


def test_second_threads_are_left_alone_and_not_refused(tmp_path: Path) -> None:
    """They go offline before their clocks are set; a list of refusals would hide real ones."""
    round_ = KnobCycle.of("intel-pstate", tmp_path)
    changes = round_.tune()
    alone = [change for change in changes if change.state == "left alone"]
    assert {change.setting.knob for change in alone} == {
        "governor",
        "preference",
        "frequency",
        "idle-states",
    }
    assert all("online" in change.reason or "offline" in change.reason for change in alone)
    places = {change.setting.place for change in alone}
    assert f"{CPU}/cpufreq/policy4/scaling_governor" in places
    assert f"{CPU}/cpufreq/policy3/scaling_governor" not in places


def test_missing_files_make_a_knob_unavailable_with_a_reason(tmp_path: Path) -> None:
    """An empty machine: every knob has to say why."""
    (tmp_path / "root").mkdir()
    round_ = KnobCycle(FakeKernel(tmp_path / "root"), tmp_path)
    assert round_.survey() == []
    assert [state.knob for state in round_.states if not state.unavailable] == []


@pytest.mark.parametrize("kind", CLOCKED)
def test_unreadable_text_never_raises(kind: str, tmp_path: Path) -> None:
    root = make_tree(kind, tmp_path / "root")
    for path in (root / CPU).rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"\xff\xfe\x00 what is this?\n")
    round_ = KnobCycle(FakeKernel(root), tmp_path)
    round_.survey()
    assert all(state.unavailable or state.settings is not None for state in round_.states)


def test_every_knob_has_a_description() -> None:
    for name, knob in CLOCK_KNOBS.items():
        assert knob.name == name
        assert knob.profile == "cpu"
        assert knob.described.effect in EFFECTS
        assert knob.needs_root
        assert len(knob.described.about) < 80
        assert knob.described.why.endswith(".")
    assert not KNOBS["idle-states"].described.default
    assert all(CLOCK_KNOBS[name].described.default for name in CLOCK_KNOBS if name != "idle-states")


def test_order_of_writing_and_of_restoring() -> None:
    names = sorted(CLOCK_KNOBS, reverse=True)
    write = in_order(names, WRITE_ORDER)
    assert write[0] == "smt" or write.index("smt") < write.index("governor")
    assert write.index("governor") < write.index("turbo") < write.index("frequency")
    restore = in_order(names, RESTORE_ORDER)
    assert restore.index("smt") < restore.index("governor") < restore.index("preference")
    assert restore.index("governor") < restore.index("turbo") < restore.index("frequency")
    # Orders hold without the knob in between, too.
    without = in_order(["frequency", "preference", "smt"], WRITE_ORDER)
    assert without[0] == "smt"
    assert all(reason for order in (WRITE_ORDER, RESTORE_ORDER) for _, _, reason in order)
