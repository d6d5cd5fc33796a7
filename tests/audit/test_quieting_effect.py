"""The effect of quieting on noise: real quieting of a fake machine, with an audit supplied by the test.

The program stands for `torchyard machine audit`: it looks at the fake machine's files and hands
over a planted audit, noisy or quiet.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.audit.synthetic_blocks import make_blocks, synthetic_audit
from tests.machine.trees import make_tree
from torchyard.audit.audit_files import write_audit
from torchyard.audit.quieting_effect import EVERYTHING, EffectPlan, EffectRun
from torchyard.audit.report import effect_sentence, effects_text
from torchyard.errors import NotAllowed, NothingToDo, WorkerFailed
from torchyard.machine.knob import Machine
from torchyard.machine.model import QuietRequest
from torchyard.machine.quieting.apply_settings import apply_until_restore
from torchyard.machine.system.file_tree import FileTree

# Tests before this one may have left a thread that starts workers; Python 3.12 warns of forks then.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

RATE = "proc/sys/kernel/perf_event_max_sample_rate"
GOLDEN = Path(__file__).parents[1] / "golden"
PROGRAM = """\
#!{python}
import argparse, json, os, shutil, sys
parser = argparse.ArgumentParser()
for name in ("seconds", "label", "keep", "threads"):
    parser.add_argument("--" + name)
options = parser.parse_args()
rate = open({rate!r}).read().strip()
with open({log!r}, "a") as log:
    log.write(json.dumps({{**vars(options), "rate": rate, "nice": os.nice(0)}}) + "\\n")
calls = len(open({log!r}).readlines())
if calls == {fails_at}:
    sys.exit({code})
shutil.copy({quiet!r} if rate == "1" or calls >= {quiet_from} else {noisy!r}, options.keep)
sys.exit(6 if calls % 2 else 0)
"""


class QuietingHarness:
    """A fake machine, and a program that audits it."""

    def __init__(self, folder: Path) -> None:
        self.tree = make_tree("cloud-vm", folder / "tree")
        self.machine = Machine(files=FileTree(self.tree))
        self.log = folder / "log"
        self.program = folder / "audit"
        noisy, quiet = folder / "noisy.json", folder / "quiet.json"
        write_audit(synthetic_audit(make_blocks(1, pair_sd=0.03, process_sd=0.05)), noisy)
        write_audit(synthetic_audit(make_blocks(2, pair_sd=0.003, process_sd=0.005)), quiet)
        self.files = {"noisy": str(noisy), "quiet": str(quiet)}
        self.arm()
        self.found = self.value(RATE)
        assert self.found != "1"

    def arm(self, *, fails_at: int = 0, code: int = 0, quiet_from: int = 99) -> None:
        self.program.write_text(
            PROGRAM.format(
                python=sys.executable,
                rate=str(self.tree / RATE),
                log=str(self.log),
                fails_at=fails_at,
                code=code,
                quiet_from=quiet_from,
                **self.files,
            )
        )
        self.program.chmod(0o755)

    def value(self, path: str) -> str:
        return str((self.tree / path).read_text()).strip()

    def run(self, **changes: object) -> EffectRun:
        plan = EffectPlan(
            request=QuietRequest(only=("perf-rate",)), seconds=60.0, command=(str(self.program),)
        )
        return EffectRun(self.machine, replace(plan, **changes))  # type: ignore[arg-type]

    @property
    def calls(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuietingHarness:
    monkeypatch.delenv("TORCHYARD_MACHINE_JOURNAL", raising=False)
    return QuietingHarness(tmp_path)


def test_audits_before_during_and_after_quieting(harness: QuietingHarness) -> None:
    (effect,) = harness.run().run()
    assert [(call["label"], call["seconds"]) for call in harness.calls] == [
        ("plain", "30"),
        (EVERYTHING, "60"),
        ("plain", "30"),
    ]
    assert [call["rate"] for call in harness.calls] == [harness.found, "1", harness.found]
    assert len({call["threads"] for call in harness.calls}) == 1
    assert harness.value(RATE) == harness.found
    assert effect.written == ("perf-rate",)
    assert [change.verdict for change in effect.changes] == ["quieter"] * 3
    assert len(effect.plain) == 2
    assert effect.unsteady == ()
    assert "of the spread remains" in effect_sentence(effect, user=False)


def test_a_machine_that_gets_quieter_by_itself_proves_nothing(harness: QuietingHarness) -> None:
    """The second plain audit is quiet, too: whatever happened was not the tune."""
    harness.arm(quiet_from=2)
    (effect,) = harness.run().run()
    assert effect.unsteady == ("within launches", "between launches", "without pairing")
    assert "NOT PROVEN" in effects_text([effect], user=False)
    sentence = effect_sentence(effect, user=False)
    assert "not proven" in sentence or "no significant change" in sentence


def test_knobs_measured_alone_share_the_audits_without_quieting(harness: QuietingHarness) -> None:
    request = QuietRequest(only=("perf-rate", "watchdogs"))
    run = harness.run(request=request, each=True)
    effects = run.run()
    assert [effect.what for effect in effects] == [EVERYTHING, "perf-rate", "watchdogs"]
    labels = [call["label"] for call in harness.calls]
    assert labels == ["plain", EVERYTHING, "plain", "perf-rate", "plain", "watchdogs", "plain"]
    assert [call["seconds"] for call in harness.calls][::2] == ["30", "60", "60", "30"]
    assert [effect.changes[0].verdict for effect in effects] == [
        "quieter",
        "quieter",
        "not told apart",
    ]
    assert effects[2].written == ("watchdogs",)
    assert effects[0].plain[1] is effects[1].plain[0]
    assert len(run.audits) == 7
    assert harness.value(RATE) == harness.found


def test_ctrl_c_in_the_audit_while_quieted_restores_everything(harness: QuietingHarness) -> None:
    harness.arm(fails_at=2, code=130)
    run = harness.run()
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert harness.calls[1]["rate"] == "1"
    assert harness.value(RATE) == harness.found
    assert run.effects == []
    assert len(run.audits) == 1


def test_an_audit_that_fails_restores_everything(harness: QuietingHarness) -> None:
    harness.arm(fails_at=2, code=5)
    with pytest.raises(WorkerFailed, match="failed with exit code 5"):
        harness.run().run()
    assert harness.value(RATE) == harness.found


def test_effects_before_an_interrupt_are_kept(harness: QuietingHarness) -> None:
    harness.arm(fails_at=4, code=130)
    run = harness.run(request=QuietRequest(only=("perf-rate", "watchdogs")), each=True)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert [effect.what for effect in run.effects] == [EVERYTHING]


def test_nothing_to_change_is_reported_before_anything_is_measured(
    harness: QuietingHarness,
) -> None:
    with pytest.raises(NothingToDo, match="no knob has anything to change"):
        harness.run(request=QuietRequest(only=("turbo",))).run()
    assert not harness.log.exists()


def test_a_machine_that_is_already_quieted(harness: QuietingHarness) -> None:
    apply_until_restore(harness.machine, QuietRequest(only=("perf-rate",)))
    with pytest.raises(NotAllowed, match="already quieted"):
        harness.run(request=QuietRequest(only=("watchdogs",))).run()
    assert not harness.log.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may tune")
def test_without_root_it_says_so_first() -> None:
    plan = EffectPlan(request=QuietRequest(), seconds=60.0, command=("false",))
    with pytest.raises(NotAllowed, match="needs root"):
        EffectRun(Machine(), plan).run()


def test_settings_without_root_reach_the_audit_and_write_nothing(harness: QuietingHarness) -> None:
    steps: list[str] = []
    plan = EffectPlan(
        request=QuietRequest(only=("pinning", "perf-rate")),
        seconds=20.0,
        user=True,
        command=(str(harness.program),),
    )
    run = EffectRun(Machine(), plan, on_step=steps.append)
    (effect,) = run.run()
    assert effect.written == ("pinning",)
    assert {call["rate"] for call in harness.calls} == {harness.found}
    assert effect.changes[0].verdict == "not told apart"
    assert "process settings have no effect" in effect_sentence(effect, user=True)
    assert steps[0] == "audit: plain, 10 s"


def test_the_text_states_only_significant_effects(harness: QuietingHarness) -> None:
    effects = harness.run(request=QuietRequest(only=("perf-rate", "watchdogs")), each=True).run()
    text = effects_text(effects, user=False)
    path = GOLDEN / "tune-effect.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "UPDATE_GOLDEN=1 accepts it; look at the difference"
