"""Quieting of fake machines: selected knobs, order, refusals, and restore."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.quieted_machine import ASLR, ASLR_OFF, Fake
from tests.machine.trees import KINDS, make_tree
from torchyard.errors import NotAllowed, UsageError
from torchyard.machine.knob import FileKnob, Knob, Machine, RequestedValues
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.model import KnobState, QuietRequest
from torchyard.machine.quieting.apply_settings import (
    QuietSession,
    chosen_knobs,
    dry_run,
    needs_gpus,
    survey,
)
from torchyard.machine.quieting.journal import (
    JOURNAL_FILE,
    JOURNAL_VARIABLE,
    RESTORED_FILE,
    read_journal,
)
from torchyard.machine.system.file_tree import FileTree


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
    names = chosen_knobs(QuietRequest())
    assert "aslr" not in names
    assert all(KNOBS[name].described.default and KNOBS[name].profile == "cpu" for name in names)
    assert all(KNOBS[name].reach != "process" for name in names)
    assert not needs_gpus(QuietRequest())
    assert needs_gpus(QuietRequest(profiles=("gpu",)))
    both = chosen_knobs(QuietRequest(profiles=("cpu", "gpu")))
    assert set(names) < set(both)


def test_only_also_and_without() -> None:
    assert chosen_knobs(QuietRequest(only=("aslr",))) == ["aslr"]
    assert chosen_knobs(QuietRequest(only=("aslr", "swap"), without=("swap",))) == ["aslr"]
    assert set(chosen_knobs(QuietRequest(also=("aslr",)))) == {
        *chosen_knobs(QuietRequest()),
        "aslr",
    }
    assert "turbo" not in chosen_knobs(QuietRequest(without=("turbo",)))


@pytest.mark.parametrize(
    "quiet_request",
    [
        QuietRequest(only=("govenor",)),
        QuietRequest(also=("govenor",)),
        QuietRequest(without=("govenor",)),
    ],
)
def test_an_unknown_knob_is_named_with_the_nearest(quiet_request: QuietRequest) -> None:
    with pytest.raises(UsageError, match="govenor") as caught:
        chosen_knobs(quiet_request)
    assert "governor" in caught.value.hint


def test_a_knob_that_raises_is_unavailable(fake: Fake) -> None:
    def bad(machine: Machine, request: QuietRequest) -> RequestedValues:
        raise ValueError("boom")

    knob = FileKnob(name="bad", requested=bad)
    (state,) = survey(fake.machine, QuietRequest(), knobs={"bad": knob})
    assert state == KnobState(knob="bad", unavailable="ValueError: boom")


# A whole tune.


QUICK_KINDS = ("intel-pstate", "cgroup-v1")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK_KINDS else pytest.mark.slow) for kind in KINDS],
)
def test_every_knob_is_restored_byte_for_byte(kind: str, tmp_path: Path) -> None:
    fake = Fake.of(kind, tmp_path)
    request = QuietRequest(also=("aslr",), randomize="off", huge_pages="never")
    with QuietSession(fake.machine, request) as session:
        assert session.applied.refused == ()
        assert session.applied.written
        changed = set(fake.left())
        assert {change.setting.place for change in session.applied.written} & changed
    assert session.restored is not None
    assert session.restored.missing == ()
    assert fake.left() == {}
    assert not (fake.folder / JOURNAL_FILE).exists()
    assert (fake.folder / RESTORED_FILE).exists()


def test_writes_are_in_order_and_restored_in_theirs(tmp_path: Path) -> None:
    fake = Fake.of("intel-pstate", tmp_path)
    with QuietSession(fake.machine, QuietRequest()):
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
    tuned = dry_run(fake.machine, QuietRequest(also=("aslr",), randomize="off"))
    assert fake.left() == {}
    assert fake.kernel.accepted == []
    assert not fake.folder.exists()
    assert {state.knob for state in tuned.knobs} >= {"governor", "aslr"}
    assert tuned.written == ()


def test_the_body_is_restored_when_it_fails(fake: Fake) -> None:
    with suppress(ZeroDivisionError), QuietSession(fake.machine, ASLR_OFF):
        assert fake.kernel.text(ASLR) == "0"
        raise ZeroDivisionError
    assert fake.left() == {}


@pytest.mark.parametrize(
    "count", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 4, 12))]
)
def test_quieting_that_ends_at_any_write_is_restored_by_the_restore_process(
    count: int, tmp_path: Path
) -> None:
    """The kernel ends the tune at a write, and its own restore at once, too.

    Without SMT and the latency device: plain files, to which the restore process writes, do not answer as
    Linux does.
    """
    fake = Fake.of("intel-pstate", tmp_path)
    fake.kernel.dies_after = count
    with pytest.raises(KeyboardInterrupt):
        QuietSession(fake.machine, QuietRequest(without=("smt", "idle-latency"))).apply()
    assert len(fake.kernel.accepted) == count
    assert read_journal(fake.folder) is None
    assert fake.left() == {}


# What the machine does not take.


def test_a_refused_write_is_reported_and_quieting_continues(fake: Fake) -> None:
    fake.kernel.refuse(ASLR, errno.EPERM)
    with QuietSession(
        fake.machine, QuietRequest(only=("aslr", "perf-rate"), randomize="off")
    ) as session:
        (refused,) = session.applied.refused
        assert refused.setting.place == ASLR
        assert "Operation not permitted" in refused.reason
        assert len(session.applied.written) == 2
    assert fake.left() == {}


class Deaf(FakeKernel):
    """Takes a value of ASLR and does nothing."""

    def write(self, path: str, value: str) -> None:
        if path != ASLR:
            super().write(path, value)


@pytest.mark.slow
def test_a_write_that_has_no_effect_is_refused(tmp_path: Path) -> None:
    machine = Machine(files=Deaf(make_tree("arm-bare", tmp_path)))
    with QuietSession(machine, ASLR_OFF) as session:
        (change,) = session.applied.changes
    assert (change.state, change.reason) == (
        "refused",
        "the kernel accepted the write, but the value is '2'",
    )


def test_a_knob_undone_by_a_later_one_is_reported(fake: Fake) -> None:
    knobs = dict(_pair_of_knobs())
    with QuietSession(fake.machine, QuietRequest(), knobs=knobs) as session:
        states = {change.setting.knob: change for change in session.applied.changes}
    assert states["second"].state == "written"
    assert states["first"].state == "refused"
    assert "another knob changed it to '1'" in states["first"].reason
    assert fake.left() == {}


def _pair_of_knobs() -> list[tuple[str, Knob]]:
    """Two knobs of one file: the second undoes what the first wrote."""

    def knob(name: str, value: str) -> Knob:
        def requested(machine: Machine, request: QuietRequest) -> RequestedValues:
            return RequestedValues(values={ASLR: value})

        return FileKnob(name=name, requested=requested)

    return [("first", knob("first", "0")), ("second", knob("second", "1"))]


def test_nothing_is_written_without_root(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    live = Machine(files=FileTree())
    with pytest.raises(NotAllowed) as caught:
        QuietSession(live, ASLR_OFF).apply()
    assert "--user" in caught.value.hint
    assert "--dry-run" in caught.value.hint
    assert caught.value.exit_code == 4


def test_nothing_is_written_when_the_journal_cannot_be_kept(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "file" / "sub"))
    with pytest.raises(NotAllowed, match="cannot write a journal"):
        QuietSession(fake.machine, ASLR_OFF).apply()
    assert fake.kernel.accepted == []
