"""Tunes on fake machines: chosen knobs, order, refusals, and everything put back."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from knob_rounds import difference
from trees import KINDS, make_tree

from torchyard.core.machine import KnobState, Setting, Wish
from torchyard.errors import MissingTool, NotAllowed, NothingToDo, StepFailed, UsageError
from torchyard.machine.file_knob import FileKnob, Wants
from torchyard.machine.file_tree import FileTree
from torchyard.machine.journal import JOURNAL_FILE, RESTORED_FILE, journal_folder, read_journal
from torchyard.machine.journal_lock import JOURNAL_VARIABLE
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knob_order import RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.knobs import KNOBS
from torchyard.machine.restoring import recover, restore
from torchyard.machine.tuning import (
    Tuning,
    chosen_knobs,
    dry_run,
    survey,
    tune_standing,
    wants_gpus,
)

ASLR = "proc/sys/kernel/randomize_va_space"
ASLR_OFF = Wish(only=("aslr",), randomize="off")


@pytest.fixture(autouse=True)
def own_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOURNAL_VARIABLE, raising=False)


@dataclass
class Fake:
    """A fake machine and what it was like at first."""

    kernel: FakeKernel
    found: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, folder: Path) -> Fake:
        kernel = FakeKernel(make_tree(kind, folder))
        return cls(kernel, kernel.snapshot())

    @property
    def machine(self) -> Machine:
        return Machine(files=self.kernel)

    @property
    def folder(self) -> Path:
        return journal_folder(self.kernel)

    def left(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """What differs from the beginning, but for the journal's own files.

        Without last newlines: the keeper writes to plain files, which do not add them.
        """
        now = self.kernel.snapshot()
        return difference(_compared(self.found), _compared(now))


def _compared(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {k: v.rstrip(b"\n") for k, v in files.items() if not k.startswith("var/")}


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake.of("arm-bare", tmp_path)


# Which knobs, and in which order.


def test_the_orders_have_no_cycle_and_hold_for_all_knobs() -> None:
    names = sorted(
        {name for order in (WRITE_ORDER, RESTORE_ORDER) for pair in order for name in pair[:2]}
    )
    for order in (WRITE_ORDER, RESTORE_ORDER):
        for given in (names, names[::-1], list(KNOBS)):
            result = in_order(given, order)
            assert sorted(result) == sorted(given)
            for first, then, reason in order:
                assert reason
                if first in given and then in given:
                    assert result.index(first) < result.index(then)


def test_a_cycle_is_found() -> None:
    from graphlib import CycleError

    with pytest.raises(CycleError):
        in_order(["a", "b"], (("a", "b", "x"), ("b", "a", "y")))


def test_names_that_are_in_no_pair_stay_as_given() -> None:
    assert in_order(["z", "y", "a"], ()) == ["z", "y", "a"]
    assert in_order(["z", "y", "a"], (("a", "z", ""),)) == ["y", "a", "z"]


def test_default_knobs_of_a_profile() -> None:
    names = chosen_knobs(Wish())
    assert "aslr" not in names
    assert all(KNOBS[name].default and KNOBS[name].profile == "cpu" for name in names)
    assert all(KNOBS[name].reach != "process" for name in names)
    assert not wants_gpus(Wish())
    assert wants_gpus(Wish(profiles=("gpu",)))
    both = chosen_knobs(Wish(profiles=("cpu", "gpu")))
    assert set(names) < set(both)


def test_only_also_and_without() -> None:
    assert chosen_knobs(Wish(only=("aslr",))) == ["aslr"]
    assert chosen_knobs(Wish(only=("aslr", "swap"), without=("swap",))) == ["aslr"]
    assert set(chosen_knobs(Wish(also=("aslr",)))) == {*chosen_knobs(Wish()), "aslr"}
    assert "turbo" not in chosen_knobs(Wish(without=("turbo",)))


@pytest.mark.parametrize(
    "wish", [Wish(only=("govenor",)), Wish(also=("govenor",)), Wish(without=("govenor",))]
)
def test_an_unknown_knob_is_named_with_the_nearest(wish: Wish) -> None:
    with pytest.raises(UsageError, match="govenor") as caught:
        chosen_knobs(wish)
    assert "governor" in caught.value.hint


def test_a_knob_that_raises_is_unavailable(fake: Fake) -> None:
    def bad(machine: Machine, wish: Wish) -> Wants:
        raise ValueError("boom")

    knob = FileKnob(name="bad", about="", why="", effect="small", wants=bad)
    (state,) = survey(fake.machine, Wish(), knobs={"bad": knob})
    assert state == KnobState(knob="bad", unavailable="ValueError: boom")


# A whole tune.


QUICK_KINDS = ("intel-pstate", "cgroup-v1")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK_KINDS else pytest.mark.slow) for kind in KINDS],
)
def test_every_knob_of_a_tune_comes_back_byte_for_byte(kind: str, tmp_path: Path) -> None:
    fake = Fake.of(kind, tmp_path)
    wish = Wish(also=("aslr",), randomize="off", huge_pages="never")
    with Tuning(fake.machine, wish) as tuning:
        assert tuning.tuned.refused == ()
        assert tuning.tuned.written
        changed = set(fake.left())
        assert {change.setting.place for change in tuning.tuned.written} & changed
    assert tuning.restored is not None
    assert tuning.restored.missing == ()
    assert fake.left() == {}
    assert not (fake.folder / JOURNAL_FILE).exists()
    assert (fake.folder / RESTORED_FILE).exists()


def test_writes_are_in_order_and_restored_in_theirs(tmp_path: Path) -> None:
    fake = Fake.of("intel-pstate", tmp_path)
    with Tuning(fake.machine, Wish()):
        pass
    lines = [json.loads(line) for line in (fake.folder / RESTORED_FILE).read_text().splitlines()]
    written = [line["knob"] for line in lines if line["kind"] == "writing"]
    restored = [line["knob"] for line in lines if line["kind"] == "restored"]
    for order, names in ((WRITE_ORDER, written), (RESTORE_ORDER, restored)):
        checked = 0
        for first, then, _ in order:
            if first in names and then in names:
                checked += 1
                last_of_first = len(names) - 1 - names[::-1].index(first)
                assert last_of_first < names.index(then), (first, then)
        assert checked >= 3
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "tune"
    assert kinds.index("writing") > max(n for n, kind in enumerate(kinds) if kind == "found")


def test_a_dry_run_writes_nothing(fake: Fake) -> None:
    tuned = dry_run(fake.machine, Wish(also=("aslr",), randomize="off"))
    assert fake.left() == {}
    assert fake.kernel.accepted == []
    assert not fake.folder.exists()
    assert {state.knob for state in tuned.knobs} >= {"governor", "aslr"}
    assert tuned.written == ()


def test_the_body_is_restored_when_it_fails(fake: Fake) -> None:
    with suppress(ZeroDivisionError), Tuning(fake.machine, ASLR_OFF):
        assert fake.kernel.text(ASLR) == "0"
        raise ZeroDivisionError
    assert fake.left() == {}


@pytest.mark.parametrize(
    "count", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 4, 12))]
)
def test_a_tune_that_ends_at_any_write_is_put_back_by_the_keeper(
    count: int, tmp_path: Path
) -> None:
    """The kernel ends the tune at a write, and its own restore at once, too.

    Without SMT and the latency device: plain files, to which the keeper writes, do not answer as
    Linux does.
    """
    fake = Fake.of("intel-pstate", tmp_path)
    fake.kernel.dies_after = count
    with pytest.raises(KeyboardInterrupt):
        Tuning(fake.machine, Wish(without=("smt", "idle-latency"))).apply()
    assert len(fake.kernel.accepted) == count
    assert read_journal(fake.folder) is None
    assert fake.left() == {}


# What the machine does not take.


def test_a_refused_write_is_reported_and_the_tune_goes_on(fake: Fake) -> None:
    fake.kernel.refuse(ASLR, errno.EPERM)
    with Tuning(fake.machine, Wish(only=("aslr", "perf-rate"), randomize="off")) as tuning:
        (refused,) = tuning.tuned.refused
        assert refused.setting.place == ASLR
        assert "Operation not permitted" in refused.reason
        assert len(tuning.tuned.written) == 2
    assert fake.left() == {}


class Deaf(FakeKernel):
    """Takes a value of ASLR and does nothing."""

    def write(self, path: str, value: str) -> None:
        if path != ASLR:
            super().write(path, value)


@pytest.mark.slow
def test_a_write_that_has_no_effect_is_refused(tmp_path: Path) -> None:
    machine = Machine(files=Deaf(make_tree("arm-bare", tmp_path)))
    with Tuning(machine, ASLR_OFF) as tuning:
        (change,) = tuning.tuned.changes
    assert (change.state, change.reason) == ("refused", "the kernel took it and has '2'")


def test_a_knob_undone_by_a_later_one_is_reported(fake: Fake) -> None:
    knobs = dict(_pair_of_knobs())
    with Tuning(fake.machine, Wish(), knobs=knobs) as tuning:
        states = {change.setting.knob: change for change in tuning.tuned.changes}
    assert states["second"].state == "written"
    assert states["first"].state == "refused"
    assert "another knob made it '1'" in states["first"].reason
    assert fake.left() == {}


def _pair_of_knobs() -> list[tuple[str, Knob]]:
    """Two knobs of one file: the second undoes what the first wrote."""

    def knob(name: str, value: str) -> Knob:
        def wants(machine: Machine, wish: Wish) -> Wants:
            return Wants(values={ASLR: value})

        return FileKnob(name=name, about="", why="", effect="small", wants=wants)

    return [("first", knob("first", "0")), ("second", knob("second", "1"))]


def test_nothing_is_written_without_root(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    live = Machine(files=FileTree())
    with pytest.raises(NotAllowed) as caught:
        Tuning(live, ASLR_OFF).apply()
    assert "--user" in caught.value.hint
    assert "--dry-run" in caught.value.hint
    assert caught.value.exit_code == 4


def test_nothing_is_written_when_the_journal_cannot_be_kept(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "file" / "sub"))
    with pytest.raises(NotAllowed, match="cannot keep a journal"):
        Tuning(fake.machine, ASLR_OFF).apply()
    assert fake.kernel.accepted == []


# Two at once, standing tunes, and other processes.


def test_a_second_tune_is_refused_while_one_is_in_force(fake: Fake) -> None:
    with Tuning(fake.machine, ASLR_OFF):
        other = Tuning(fake.machine, ASLR_OFF)
        with pytest.raises(NotAllowed) as caught:
            other.apply()
        assert f"process {os.getpid()}" in caught.value.what
        assert "torchyard machine restore" in caught.value.hint
        with pytest.raises(NotAllowed):
            restore(fake.machine)
        assert recover(fake.machine) is None
        assert fake.kernel.text(ASLR) == "0"
    assert fake.left() == {}


def test_a_standing_tune_lasts_until_restore(fake: Fake) -> None:
    tuned = tune_standing(fake.machine, ASLR_OFF)
    assert [change.setting.place for change in tuned.written] == [ASLR]
    assert fake.kernel.text(ASLR) == "0"
    assert recover(fake.machine) is None, "a standing tune is left alone"
    with pytest.raises(NotAllowed, match="tuned already"):
        tune_standing(fake.machine, ASLR_OFF)
    restored = restore(fake.machine)
    assert restored.complete
    assert fake.left() == {}
    with pytest.raises(NothingToDo):
        restore(fake.machine)


@pytest.mark.slow
def test_a_standing_tune_that_has_nothing_to_write_leaves_no_journal(fake: Fake) -> None:
    tuned = tune_standing(fake.machine, Wish(only=("aslr",), randomize="on"))
    assert [change.state for change in tuned.changes] == ["already so"]
    assert read_journal(fake.folder) is None


def test_what_somebody_else_changed_is_noted_and_put_back(fake: Fake) -> None:
    with Tuning(fake.machine, ASLR_OFF) as tuning:
        fake.kernel.put(ASLR, "1")
    assert tuning.restored is not None
    (item,) = tuning.restored.settings
    assert (item.state, item.meanwhile) == ("restored", "1")
    assert fake.left() == {}


def test_what_was_found_and_never_written_is_left_to_others(fake: Fake) -> None:
    place = "proc/sys/vm/swappiness"
    watched = FileKnob(
        name="watched",
        about="",
        why="",
        effect="small",
        wants=lambda _machine, _wish: Wants(values={place: None}),
    )
    knobs = {"aslr": KNOBS["aslr"], "watched": watched}
    wish = Wish(only=("aslr", "watched"), randomize="off")
    with Tuning(fake.machine, wish, knobs=knobs) as tuning:
        fake.kernel.put(place, "7")
    assert fake.kernel.text(place) == "7"
    assert tuning.restored is not None
    assert [item.setting.place for item in tuning.restored.settings] == [ASLR]


def test_what_cannot_be_put_back_stays_in_the_journal(fake: Fake) -> None:
    wish = Wish(only=("aslr", "perf-rate"), randomize="off")
    with Tuning(fake.machine, wish) as tuning:
        fake.kernel.refuse(ASLR, errno.EIO)
    assert tuning.restored is not None
    (missing,) = tuning.restored.missing
    assert missing.setting.place == ASLR
    assert "Input/output error" in missing.reason
    # The rest is back, and is not touched by the next try.
    assert list(fake.left()) == [ASLR]
    fake.kernel.put("proc/sys/kernel/perf_event_max_sample_rate", "777")
    with pytest.raises(StepFailed, match="randomize_va_space"):
        Tuning(fake.machine, wish).apply()
    fake.kernel.refusals.clear()
    restored = restore(fake.machine)
    assert [item.setting.place for item in restored.settings] == [ASLR]
    assert list(fake.left()) == ["proc/sys/kernel/perf_event_max_sample_rate"]


@pytest.mark.slow
def test_a_limit_refused_at_first_is_put_back_at_the_second_try(fake: Fake) -> None:
    class Stubborn(FakeKernel):
        tries = 0

        def write(self, path: str, value: str) -> None:
            if path == ASLR and value == "2":
                type(self).tries += 1
                if type(self).tries == 1:
                    self.refuse(ASLR)
                else:
                    self.refusals.clear()
            super().write(path, value)

    machine = Machine(files=Stubborn(fake.kernel.root))
    with Tuning(machine, ASLR_OFF) as tuning:
        pass
    assert tuning.restored is not None
    assert tuning.restored.complete
    assert fake.left() == {}


def test_a_removed_journal_does_not_keep_the_machine_changed(fake: Fake) -> None:
    with Tuning(fake.machine, ASLR_OFF) as tuning:
        (fake.folder / JOURNAL_FILE).unlink()
    assert tuning.restored is not None
    assert tuning.restored.complete
    assert fake.left() == {}


@pytest.mark.slow
def test_a_damaged_journal_does_not_keep_the_machine_changed(fake: Fake) -> None:
    with Tuning(fake.machine, ASLR_OFF) as tuning:
        (fake.folder / JOURNAL_FILE).write_text("no\njournal\n")
    assert tuning.restored is not None
    assert fake.left() == {}


@pytest.mark.slow
def test_a_knob_that_this_version_lacks_is_named(fake: Fake) -> None:
    tune_standing(fake.machine, ASLR_OFF)
    path = fake.folder / JOURNAL_FILE
    path.write_text(path.read_text().replace('"aslr"', '"future"'))
    restored = restore(fake.machine)
    (missing,) = restored.missing
    assert "no knob 'future'" in missing.reason
    assert read_journal(fake.folder) is not None


def test_after_a_reboot_nothing_is_written(fake: Fake) -> None:
    tune_standing(fake.machine, ASLR_OFF)
    fake.kernel.put("proc/sys/kernel/random/boot_id", "another-boot")
    fake.kernel.put(ASLR, "1")
    writes = len(fake.kernel.accepted)
    restored = restore(fake.machine)
    assert restored.rebooted
    assert restored.complete
    (item,) = restored.settings
    assert item.meanwhile == "1"
    assert len(fake.kernel.accepted) == writes
    assert read_journal(fake.folder) is None


@pytest.mark.slow
def test_a_tune_after_a_reboot_needs_no_restore(fake: Fake) -> None:
    tune_standing(fake.machine, ASLR_OFF)
    fake.kernel.put("proc/sys/kernel/random/boot_id", "another-boot")
    fake.kernel.put(ASLR, "2")
    with Tuning(fake.machine, ASLR_OFF) as tuning:
        assert tuning.before is not None
        assert tuning.before.rebooted
        assert fake.kernel.text(ASLR) == "0"
    assert fake.kernel.text(ASLR) == "2"


@pytest.mark.slow
def test_a_knob_whose_file_is_gone_cannot_be_put_back(fake: Fake) -> None:
    with Tuning(fake.machine, ASLR_OFF) as tuning:
        fake.kernel.path(ASLR).unlink()
    assert tuning.restored is not None
    (missing,) = tuning.restored.missing
    assert missing.setting.place == ASLR
    assert "No such file" in missing.reason


def test_an_error_of_a_knob_in_restore_does_not_keep_the_others(fake: Fake) -> None:
    class Bad(FileKnob):
        def restore(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
            raise RuntimeError("bug")

    place = "proc/sys/vm/swappiness"
    bad = Bad(
        name="bad",
        about="",
        why="",
        effect="small",
        wants=lambda _m, _w: Wants(values={place: "3"}),
    )
    knobs: dict[str, Knob] = {"bad": bad, "aslr": KNOBS["aslr"]}
    wish = Wish(only=("bad", "aslr"), randomize="off")
    with Tuning(fake.machine, wish, knobs=knobs) as tuning:
        pass
    assert tuning.restored is not None
    (missing,) = tuning.restored.missing
    assert "RuntimeError: bug" in missing.reason
    assert list(fake.left()) == [place]


def test_reading_that_fails_is_an_error_of_ours(fake: Fake) -> None:
    with pytest.raises(MissingTool, match="nowhere"):
        KNOBS["aslr"].read(fake.machine, "proc/nowhere")
