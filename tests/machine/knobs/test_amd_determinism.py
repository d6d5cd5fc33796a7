"""The determinism mode of AMD cards, with a fake driver that behaves like the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.amd_cards import ADDRESS, DEVICE, AmdDriver
from tests.machine.gpu.test_nvidia import make_process
from torchyard.errors import MissingTool
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.quieting.restoring import write_setting
from torchyard.machine.system.file_tree import FileTree

KNOB = KNOBS["amd-determinism"]
PLACE = f"gpu/{ADDRESS}/determinism"
LEVEL = f"{DEVICE}/power_dpm_force_performance_level"
TABLE = f"{DEVICE}/pp_od_clk_voltage"


def one(state: KnobState) -> Setting:
    assert state.unavailable == ""
    (setting,) = state.settings
    return setting


def survey(driver: AmdDriver, **request: object) -> KnobState:
    return KNOB.survey(Machine(files=driver), QuietRequest(profiles=("gpu",), **request))  # type: ignore[arg-type]


def shown(driver: AmdDriver) -> tuple[str, str]:
    return driver.level, (driver.root / TABLE).read_text()


@pytest.mark.parametrize(
    ("kind", "found", "wanted"),
    [
        ("mi200", "auto 500-1700", "perf_determinism 500-1190"),
        ("mi300x", "auto 500-2100", "perf_determinism 500-1470"),
    ],
)
def test_applied_and_restored(tmp_path: Path, kind: str, found: str, wanted: str) -> None:
    driver = AmdDriver(kind, tmp_path)
    machine = Machine(files=driver)
    before = shown(driver)
    setting = one(survey(driver))
    assert (setting.place, setting.found, setting.wanted) == (PLACE, found, wanted)
    # restoring what was never written is right, too
    KNOB.restore(machine, setting)
    assert driver.accepted == []
    assert write_setting(machine, setting).state == "written"
    assert driver.level == "perf_determinism"
    assert write_setting(machine, setting).state == "written"
    KNOB.restore(machine, setting)
    assert shown(driver) == before
    KNOB.restore(machine, setting)
    assert shown(driver) == before


def test_calls_to_the_driver(tmp_path: Path) -> None:
    driver = AmdDriver("mi200", tmp_path)
    KNOB.write(Machine(files=driver), one(survey(driver, gpu_clock_mhz=1300)))
    assert driver.accepted == [
        ("power_dpm_force_performance_level", "perf_determinism"),
        ("pp_od_clk_voltage", "s 1 1300"),
        ("pp_od_clk_voltage", "c"),
    ]
    assert driver.limits == (500, 1300)


@pytest.mark.parametrize(("asked", "cap"), [(9999, 1700), (100, 500), (1400, 1400)])
def test_the_requested_clock_is_clamped_to_the_range_of_the_card(
    tmp_path: Path, asked: int, cap: int
) -> None:
    driver = AmdDriver("mi200", tmp_path)
    assert one(survey(driver, gpu_clock_mhz=asked)).wanted == f"perf_determinism 500-{cap}"


def test_limits_of_the_user_are_restored(tmp_path: Path) -> None:
    # GIVEN limits that a user set by hand
    driver = AmdDriver("mi200", tmp_path)
    for path, order in ((LEVEL, "manual"), (TABLE, "s 0 600"), (TABLE, "s 1 1500"), (TABLE, "c")):
        driver.write(path, order)
    before = shown(driver)
    machine = Machine(files=driver)
    setting = one(survey(driver))
    assert setting.found == "manual 600-1500"
    # WHEN the card is capped, which makes the driver forget them
    assert write_setting(machine, setting).state == "written"
    assert driver.limits == (500, 1190)
    # THEN restoring brings both back
    KNOB.restore(machine, setting)
    assert driver.limits == (600, 1500)
    assert shown(driver) == before


def test_a_cap_of_the_user_is_restored(tmp_path: Path) -> None:
    driver = AmdDriver("mi300x", tmp_path)
    for path, order in ((LEVEL, "perf_determinism"), (TABLE, "s 1 1900"), (TABLE, "c")):
        driver.write(path, order)
    machine = Machine(files=driver)
    setting = one(survey(driver))
    assert setting.found == "perf_determinism 500-1900"
    assert write_setting(machine, setting).state == "written"
    assert driver.limits[1] == 1470
    KNOB.restore(machine, setting)
    assert driver.limits[1] == 1900
    assert driver.level == "perf_determinism"


def test_half_a_write_is_restored(tmp_path: Path) -> None:
    """A tune that was killed between the level and the limit."""
    driver = AmdDriver("mi200", tmp_path)
    before = shown(driver)
    setting = one(survey(driver))
    driver.write(LEVEL, "perf_determinism")
    KNOB.restore(Machine(files=driver), setting)
    assert shown(driver) == before


def test_a_chip_that_refuses_is_as_it_was(tmp_path: Path) -> None:
    """MI308X takes the level and refuses the cap."""
    driver = AmdDriver("mi308x", tmp_path)
    before = shown(driver)
    state = survey(driver)
    assert any("known only after writing it" in note for note in state.notes)
    change = write_setting(Machine(files=driver), one(state))
    assert change.state == "refused"
    assert "pp_od_clk_voltage" in change.reason
    assert shown(driver) == before


def test_a_driver_that_drops_the_cap_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = AmdDriver("mi300x", tmp_path)
    setting = one(survey(driver))
    monkeypatch.setattr(driver, "_edit", lambda _: None)
    change = write_setting(Machine(files=driver), setting)
    assert change.state == "refused"
    assert "perf_determinism 500-2100" in change.reason
    assert driver.level == "auto"


def test_rdna_is_left_alone(tmp_path: Path) -> None:
    driver = AmdDriver("rdna3", tmp_path)
    state = survey(driver)
    assert "RDNA" in state.unavailable
    assert driver.accepted == []


def test_a_guest_may_not_write(tmp_path: Path) -> None:
    driver = AmdDriver("mi300x", tmp_path)
    driver.read_only = True
    change = write_setting(Machine(files=driver), one(survey(driver)))
    assert change.state == "refused"
    assert "not permitted" in change.reason.lower()


def test_a_card_that_others_compute_on_is_left_alone(tmp_path: Path) -> None:
    driver = AmdDriver("mi300x", tmp_path)
    driver.add_process(500, 2**30)
    make_process(tmp_path, 500, 1)
    assert "other processes use it (500)" in survey(driver).unavailable
    assert one(survey(driver, only=("amd-determinism",))).wanted


def test_a_card_without_limits(tmp_path: Path) -> None:
    driver = AmdDriver("mi300x", tmp_path)
    (tmp_path / TABLE).unlink()
    assert "pp_od_clk_voltage" in survey(driver).unavailable


def test_no_card(tmp_path: Path) -> None:
    machine = Machine(files=FileTree(tmp_path))
    assert KNOB.survey(machine, QuietRequest()).unavailable == "no AMD GPU"
    with pytest.raises(MissingTool, match="no AMD GPU at 0000:83"):
        KNOB.read(machine, PLACE)


@pytest.mark.parametrize(
    ("one_value", "other", "same"),
    [
        ("auto 500-1700", "auto 500-1400", True),
        ("auto 500-1700", "manual 500-1700", False),
        ("manual 500-1700", "manual 600-1700", False),
        ("perf_determinism 500-1300", "perf_determinism 600-1300", True),
        ("perf_determinism 500-1300", "perf_determinism 500-1310", False),
        ("nonsense", "auto 500-1700", False),
    ],
)
def test_what_means_the_same(one_value: str, other: str, same: bool) -> None:
    assert KNOB.same(PLACE, one_value, other) is same


def test_invalid_value(tmp_path: Path) -> None:
    setting = Setting(knob="amd-determinism", place=PLACE, found="nonsense", wanted=None)
    machine = Machine(files=AmdDriver("mi200", tmp_path))
    with pytest.raises(MissingTool, match="not a level with limits"):
        KNOB.restore(machine, setting)
    KNOB.write(machine, setting)
