"""Every knob of processor and kernel at once, with core isolation: everything is restored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.fake_programs import put_programs
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import KINDS, make_tree
from torchyard.machine.knob import Knob
from torchyard.machine.knobs import KNOBS
from torchyard.machine.system.cores import choose_cores

OF_THE_MACHINE: Mapping[str, Knob] = {
    name: knob
    for name, knob in KNOBS.items()
    if knob.profile == "cpu" and knob.reach in ("machine", "held")
}


def cycle_on(kind: str, folder: Path) -> KnobCycle:
    root = make_tree(kind, folder / "root")
    put_programs(root)
    return KnobCycle(FakeKernel(root), folder, OF_THE_MACHINE)


def tune(round_: KnobCycle) -> None:
    cores = choose_cores(round_.kernel, "auto", smt_off=True).cores
    round_.tune(cores=cores, huge_pages="always", randomize="off")


def left(round_: KnobCycle) -> dict[str, object]:
    """Which processor of its mask handles an interrupt is the kernel's choice."""
    return {path: texts for path, texts in round_.left().items() if "effective_aff" not in path}


@pytest.mark.parametrize("kind", KINDS)
def test_complete_quieting_is_restored(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    tune(round_)
    assert [change for change in round_.changes if change.state == "refused"] == []
    written = {change.setting.knob for change in round_.changes}
    assert written >= {"isolation", "interrupts", "workqueues", "perf-rate", "watchdogs", "aslr"}
    restored = round_.restore()
    assert restored is not None
    assert restored.missing == ()
    assert left(round_) == {}


@pytest.mark.parametrize("kind", ["cgroup-v1", "intel-pstate"])
def test_complete_quieting_that_dies_is_restored(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    tune(round_)
    writes = len(round_.kernel.accepted)
    round_.restore()
    for after in (writes // 8, writes // 2, writes * 9 // 10, writes - 1):
        round_.kernel.accepted.clear()
        round_.kernel.dies_after = after
        with pytest.raises(KeyboardInterrupt):
            tune(round_)
        round_.kernel.dies_after = None
        assert left(round_)
        restored = round_.restore()
        assert restored is not None
        assert restored.missing == ()
        assert left(round_) == {}, after
