"""Knobs of NVIDIA cards on a recorded library: survey, set, verify, restore, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.machine.gpu.test_nvidia import make_process
from tests.machine.nvml_cards import CARD, PLACE, add_process, geforce, h200, machine_of, pascal, t4
from tests.machine.recorded_nvml import RecordedNvml
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.gpu.library import GpuLibraries
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.knobs.gpu_clocks import same_clock
from torchyard.machine.model import KnobState, QuietRequest, Restored, Setting
from torchyard.machine.quieting.apply_settings import chosen_knobs, survey
from torchyard.machine.quieting.journal import Journal, boot_of
from torchyard.machine.quieting.restoring import needs_writing, restore_journal, write_setting

NVIDIA = [name for name in KNOBS if name.startswith("nvidia-")]
CLOCKS = KNOBS["nvidia-clocks"]


def one(state: KnobState) -> Setting:
    assert state.unavailable == ""
    (setting,) = state.settings
    return setting


def surveyed(name: str, nvml: RecordedNvml, root: Path, **request: Any) -> KnobState:
    return KNOBS[name].survey(machine_of(nvml, root), QuietRequest(profiles=("gpu",), **request))


def test_knobs_of_gpu_quieting() -> None:
    """What changes what is measured, or breaks runs, only when it is asked for."""
    chosen = chosen_knobs(QuietRequest(profiles=("gpu",)))
    assert sorted(chosen) == ["amd-determinism", "nvidia-clocks", "nvidia-persistence"]
    assert chosen.index("nvidia-persistence") < chosen.index("nvidia-clocks")
    for name in NVIDIA:
        assert KNOBS[name].profile == "gpu"
        assert KNOBS[name].needs_root
        assert KNOBS[name].described.about
        assert KNOBS[name].described.why


def test_persistence_comes_first_and_goes_last() -> None:
    assert in_order([*reversed(NVIDIA)], WRITE_ORDER).index("nvidia-persistence") < min(
        in_order([*reversed(NVIDIA)], WRITE_ORDER).index(name)
        for name in ("nvidia-clocks", "nvidia-memory-clock", "nvidia-power")
    )
    last = in_order(["nvidia-persistence", "nvidia-clocks", "nvidia-power"], RESTORE_ORDER)[-1]
    assert last == "nvidia-persistence"


@pytest.mark.parametrize("name", NVIDIA)
class TestEveryKnob:
    """What holds for all of them."""

    def test_without_a_library(self, name: str, tmp_path: Path) -> None:
        files = machine_of(h200(), tmp_path).files
        machine = Machine(files=files, gpus=GpuLibraries(nvml_because="no NVIDIA driver is loaded"))
        assert (
            KNOBS[name].survey(machine, QuietRequest()).unavailable == "no NVIDIA driver is loaded"
        )
        assert KNOBS[name].survey(Machine(files=files), QuietRequest()).unavailable

    def test_a_survey_changes_nothing(self, name: str, tmp_path: Path) -> None:
        nvml = h200()
        surveyed(name, nvml, tmp_path)
        assert nvml.orders == []

    def test_nothing_raises_on_a_card_that_answers_nothing(self, name: str, tmp_path: Path) -> None:
        nvml = h200()
        for key in [key for key in nvml._answers if key[0].startswith("nvmlDeviceGet")]:
            if key[0] not in (
                "nvmlDeviceGetCount",
                "nvmlDeviceGetHandleByIndex",
                "nvmlDeviceGetUUID",
            ):
                nvml.refuse(*key, code=15)
        state = surveyed(name, nvml, tmp_path)
        assert "GPU 0: skipped, because" in state.unavailable
        with pytest.raises(MissingTool, match="GPU is lost"):
            KNOBS[name].read(machine_of(nvml, tmp_path), f"{PLACE}/x")

    def test_no_permission_is_reported(self, name: str, tmp_path: Path) -> None:
        # GIVEN a card whose every knob has something to do
        nvml = h200()
        nvml.answer("nvmlDeviceGetPersistenceMode", CARD, value=0)
        nvml.answer("nvmlDeviceGetPowerManagementLimit", CARD, value=500_000)
        nvml.permitted = False
        machine = machine_of(nvml, tmp_path)
        setting = one(KNOBS[name].survey(machine, QuietRequest()))
        # WHEN somebody who may not tries
        with pytest.raises(NotAllowed, match="Insufficient Permissions") as refused:
            KNOBS[name].write(machine, setting)
        # THEN the error says what to do, and a tune goes on
        assert "root" in refused.value.hint
        assert write_setting(machine, setting).state == "refused"

    def test_a_card_that_disappeared(self, name: str, tmp_path: Path) -> None:
        setting = Setting(knob=name, place="gpu/GPU-gone/x", found="unlocked", wanted="1 MHz")
        with pytest.raises(MissingTool, match="no GPU GPU-gone"):
            KNOBS[name].restore(machine_of(h200(), tmp_path), setting)

    def test_applied_and_restored(self, name: str, tmp_path: Path) -> None:
        nvml = h200()
        nvml.answer("nvmlDeviceGetPersistenceMode", CARD, value=0)
        nvml.answer("nvmlDeviceGetPowerManagementLimit", CARD, value=500_000)
        answers = dict(nvml._answers)
        machine = machine_of(nvml, tmp_path)
        knob = KNOBS[name]
        setting = one(knob.survey(machine, QuietRequest()))
        assert needs_writing(setting)
        # restoring what was never written is right, too
        knob.restore(machine, setting)
        assert nvml._answers == answers
        assert write_setting(machine, setting).state == "written"
        assert write_setting(machine, setting).state == "written"
        assert nvml._answers != answers
        knob.restore(machine, setting)
        assert nvml._answers == answers
        assert knob.same(setting.place, knob.read(machine, setting.place), setting.found)
        knob.restore(machine, setting)
        assert nvml._answers == answers

    def test_a_setting_that_is_only_restored(self, name: str, tmp_path: Path) -> None:
        nvml = h200()
        setting = replace(one(surveyed(name, nvml, tmp_path)), wanted=None)
        KNOBS[name].write(machine_of(nvml, tmp_path), setting)
        assert nvml.orders == []

    def test_each_card_has_its_place(self, name: str, tmp_path: Path) -> None:
        nvml = h200(cards=3)
        nvml.refuse("nvmlDeviceGetHandleByIndex", 1, code=15)
        state = surveyed(name, nvml, tmp_path)
        places = [setting.place for setting in state.settings]
        assert [place.split("/")[1][-1] for place in places] == ["1", "3"]


def test_persistence_that_is_on_needs_no_order(tmp_path: Path) -> None:
    nvml = h200()
    setting = one(surveyed("nvidia-persistence", nvml, tmp_path))
    assert (setting.found, setting.wanted) == ("on", "on")
    assert not needs_writing(setting)
    KNOBS["nvidia-persistence"].restore(machine_of(nvml, tmp_path), setting)
    assert nvml.orders == []


class TestClocks:
    """The lock of the graphics clock."""

    def test_the_choice_for_the_recorded_card(self, tmp_path: Path) -> None:
        state = surveyed("nvidia-clocks", h200(), tmp_path)
        assert one(state) == Setting(
            knob="nvidia-clocks",
            place=f"{PLACE}/graphics-clock",
            found="unlocked",
            wanted="1380 MHz",
        )
        assert any("70 % of its maximum clock" in note for note in state.notes)
        assert any("cannot read a clock lock" in note for note in state.notes)

    def test_the_requested_clock_is_rounded_to_the_nearest(self, tmp_path: Path) -> None:
        state = surveyed("nvidia-clocks", h200(), tmp_path, gpu_clock_mhz=1499)
        assert one(state).wanted == "1500 MHz"
        assert any("does not support 1499 MHz" in note for note in state.notes)
        exact = surveyed("nvidia-clocks", h200(), tmp_path, gpu_clock_mhz=1500)
        assert not any("no clock of" in note for note in exact.notes)

    def test_calls_to_the_driver(self, tmp_path: Path) -> None:
        nvml = h200()
        machine = machine_of(nvml, tmp_path)
        setting = one(CLOCKS.survey(machine, QuietRequest()))
        CLOCKS.write(machine, setting)
        CLOCKS.restore(machine, setting)
        assert nvml.orders == [
            ("nvmlDeviceSetGpuLockedClocks", CARD, 1380, 1380),
            ("nvmlDeviceResetGpuLockedClocks", CARD),
        ]

    def test_a_card_in_use_is_left_alone(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.nvmlDeviceSetGpuLockedClocks(CARD, 1200, 1200)
        state = surveyed("nvidia-clocks", nvml, tmp_path)
        assert "its clocks are locked already" in state.unavailable
        assert "nvidia-smi -rgc" in state.unavailable

    def test_a_card_that_others_compute_on_is_left_alone(self, tmp_path: Path) -> None:
        nvml = h200()
        add_process(nvml, 60)
        make_process(tmp_path, 60, 1)
        assert "other processes use it (60)" in (
            surveyed("nvidia-clocks", nvml, tmp_path).unavailable
        )
        # unless somebody insists
        insisted = surveyed("nvidia-clocks", nvml, tmp_path, only=("nvidia-clocks",))
        assert one(insisted).wanted == "1380 MHz"
        # persistence disturbs nobody
        assert one(surveyed("nvidia-persistence", nvml, tmp_path)).wanted == "on"

    def test_a_t4_is_locked_to_its_base_clock(self, tmp_path: Path) -> None:
        assert one(surveyed("nvidia-clocks", t4(), tmp_path)).wanted == "585 MHz"

    def test_a_driver_that_takes_no_lock(self, tmp_path: Path) -> None:
        machine = machine_of(t4(locks=False), tmp_path)
        change = write_setting(machine, one(CLOCKS.survey(machine, QuietRequest())))
        assert change.state == "refused"
        assert "Not Supported" in change.reason

    def test_a_geforce_without_application_clocks(self, tmp_path: Path) -> None:
        assert one(surveyed("nvidia-clocks", geforce(), tmp_path)).wanted == "1380 MHz"

    def test_a_card_that_ignores_the_lock_is_detected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # GIVEN a busy card whose clock stays where it was
        nvml = h200("busy")
        nvml.answer("nvmlDeviceGetComputeRunningProcesses", CARD, value=[])
        nvml.answer("nvmlDeviceGetClockInfo", CARD, 1, value=1980)
        nvml.answer("nvmlDeviceGetCurrentClocksEventReasons", CARD, value=0)
        monkeypatch.setattr(nvml, "nvmlDeviceSetGpuLockedClocks", lambda *_: None)
        machine = machine_of(nvml, tmp_path)
        change = write_setting(machine, one(CLOCKS.survey(machine, QuietRequest())))
        assert change.state == "refused"
        assert "seen at 1980 MHz" in change.reason


class TestOldCards:
    """Application clocks, where there is no lock."""

    def test_they_are_read_exactly(self, tmp_path: Path) -> None:
        state = surveyed("nvidia-clocks", pascal(), tmp_path)
        setting = one(state)
        assert setting.found == "memory 715 MHz, graphics 1189 MHz"
        assert setting.wanted == "memory 715 MHz, graphics 544 MHz"
        assert any("application clocks" in note for note in state.notes)

    def test_the_default_is_restored_by_a_reset(self, tmp_path: Path) -> None:
        nvml = pascal()
        machine = machine_of(nvml, tmp_path)
        setting = one(CLOCKS.survey(machine, QuietRequest(gpu_clock_mhz=936)))
        assert write_setting(machine, setting).state == "written"
        CLOCKS.restore(machine, setting)
        assert nvml.orders == [
            ("nvmlDeviceSetApplicationsClocks", CARD, 715, 936),
            ("nvmlDeviceResetApplicationsClocks", CARD),
        ]
        assert CLOCKS.read(machine, setting.place) == setting.found

    def test_clocks_of_the_user_are_restored_as_they_were(self, tmp_path: Path) -> None:
        nvml = pascal()
        nvml.nvmlDeviceSetApplicationsClocks(CARD, 715, 936)
        machine = machine_of(nvml, tmp_path)
        setting = one(CLOCKS.survey(machine, QuietRequest()))
        assert setting.found == "memory 715 MHz, graphics 936 MHz"
        CLOCKS.write(machine, setting)
        CLOCKS.restore(machine, setting)
        assert nvml.orders[-1] == ("nvmlDeviceSetApplicationsClocks", CARD, 715, 936)
        assert CLOCKS.read(machine, setting.place) == setting.found

    def test_an_old_card_without_any(self, tmp_path: Path) -> None:
        nvml = pascal()
        nvml.refuse("nvmlDeviceGetApplicationsClock")
        assert (
            "does not support clock locks" in surveyed("nvidia-clocks", nvml, tmp_path).unavailable
        )


@pytest.mark.parametrize(
    ("one_clock", "other", "same"),
    [
        ("unlocked", "1380 MHz", False),
        ("1380 MHz", "1380 MHz", True),
        ("seen at 1380 MHz", "1380 MHz", True),
        ("seen at 1395 MHz", "1380 MHz", True),
        ("seen at 1410 MHz", "1380 MHz", False),
        ("seen at 345 MHz", "1380 MHz", False),
        ("seen at 345 MHz, idle", "1380 MHz", True),
        ("seen at 1200 MHz, power cap", "1380 MHz", True),
        ("seen at 1980 MHz, power cap", "1380 MHz", False),
        ("seen at 1980 MHz, idle", "1380 MHz", False),
        ("seen at 1380 MHz", "unlocked", True),
        ("seen at 1380 MHz", "memory 715 MHz, graphics 544 MHz", False),
        ("memory 715 MHz, graphics 544 MHz", "memory 715 MHz, graphics 1189 MHz", False),
    ],
)
def test_what_a_clock_that_was_seen_proves(one_clock: str, other: str, same: bool) -> None:
    assert same_clock(one_clock, other) is same
    assert same_clock(other, one_clock) is same


class TestMemoryClock:
    """Locked to the highest."""

    def test_the_recorded_card(self, tmp_path: Path) -> None:
        setting = one(surveyed("nvidia-memory-clock", h200(), tmp_path))
        assert (setting.found, setting.wanted) == ("unlocked", "3201 MHz")

    def test_one_clock_only(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.answer("nvmlDeviceGetSupportedMemoryClocks", CARD, value=[3996])
        state = surveyed("nvidia-memory-clock", nvml, tmp_path)
        assert "only one clock, 3996 MHz" in state.unavailable

    def test_older_than_such_locks(self, tmp_path: Path) -> None:
        assert "Ampere" in surveyed("nvidia-memory-clock", t4(), tmp_path).unavailable


class TestPower:
    """Back at the maker's default."""

    def test_a_lowered_limit(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.answer("nvmlDeviceGetPowerManagementLimit", CARD, value=412_345)
        setting = one(surveyed("nvidia-power", nvml, tmp_path))
        assert (setting.found, setting.wanted) == ("412345 mW", "700000 mW")

    def test_a_limit_that_is_the_default(self, tmp_path: Path) -> None:
        assert not needs_writing(one(surveyed("nvidia-power", h200(), tmp_path)))

    def test_a_limit_that_the_card_refuses(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.answer("nvmlDeviceGetPowerManagementDefaultLimit", CARD, value=900_000)
        machine = machine_of(nvml, tmp_path)
        change = write_setting(machine, one(KNOBS["nvidia-power"].survey(machine, QuietRequest())))
        assert change.state == "refused"
        assert "Invalid Argument" in change.reason


class TestComputeMode:
    """One process only."""

    def test_a_forbidden_card_is_left_alone(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.answer("nvmlDeviceGetComputeMode", CARD, value=2)
        assert "prohibited" in surveyed("nvidia-compute-mode", nvml, tmp_path).unavailable

    def test_a_mode_without_a_name(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.answer("nvmlDeviceGetComputeMode", CARD, value=9)
        assert "mode 9" in surveyed("nvidia-compute-mode", nvml, tmp_path).unavailable

    def test_it_warns_of_what_it_breaks(self) -> None:
        assert "comparison of two interpreters" in KNOBS["nvidia-compute-mode"].described.why


def gpu_cycle(machine: Machine, folder: Path, request: QuietRequest) -> tuple[list[str], Restored]:
    """Survey, journal, writes, restore from the journal, by the real functions."""
    knobs: dict[str, Knob] = {name: KNOBS[name] for name in NVIDIA}
    states = survey(machine, request, knobs=knobs)
    settings = [setting for state in states for setting in state.settings]
    folder.mkdir()
    journal = Journal.create(
        folder, mode="session", request=request, boot=boot_of(machine.files), settings=settings
    )
    changes: list[str] = []
    for setting in settings:
        if needs_writing(setting, knobs):
            journal.note("writing", setting)
            changes.append(write_setting(machine, setting, knobs).state)
    journal.close()
    restored = restore_journal(machine, folder, knobs)
    assert restored is not None
    return changes, restored


def test_complete_quieting_is_restored_from_the_journal(tmp_path: Path) -> None:
    nvml = t4()
    answers = dict(nvml._answers)
    machine = machine_of(nvml, tmp_path)
    changes, restored = gpu_cycle(machine, tmp_path / "journal", QuietRequest(profiles=("gpu",)))
    assert changes == ["written", "written"]
    assert restored.complete
    assert nvml._answers == answers
    assert [order[0] for order in nvml.orders] == [
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetPersistenceMode",
    ]
