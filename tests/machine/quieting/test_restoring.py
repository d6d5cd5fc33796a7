"""Restore of fake machines: changes by others, refusals, and a reboot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.quieted_machine import ASLR, ASLR_OFF, Fake
from torchyard.errors import MissingTool, NotAllowed, NothingToDo, StepFailed
from torchyard.machine.knob import FileKnob, Knob, Machine, RequestedValues
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.quieting.apply_settings import QuietSession, apply_until_restore
from torchyard.machine.quieting.journal import JOURNAL_FILE, read_journal
from torchyard.machine.quieting.restoring import recover, restore


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake.of("arm-bare", tmp_path)


def test_a_second_quieting_is_refused_while_one_is_in_force(fake: Fake) -> None:
    with QuietSession(fake.machine, ASLR_OFF):
        other = QuietSession(fake.machine, ASLR_OFF)
        with pytest.raises(NotAllowed) as caught:
            other.apply()
        assert f"process {os.getpid()}" in caught.value.what
        assert "torchyard machine restore" in caught.value.hint
        with pytest.raises(NotAllowed):
            restore(fake.machine)
        assert recover(fake.machine) is None
        assert fake.kernel.text(ASLR) == "0"
    assert fake.left() == {}


def test_persistent_quieting_lasts_until_restore(fake: Fake) -> None:
    tuned = apply_until_restore(fake.machine, ASLR_OFF)
    assert [change.setting.place for change in tuned.written] == [ASLR]
    assert fake.kernel.text(ASLR) == "0"
    assert recover(fake.machine) is None, "a standing tune is left alone"
    with pytest.raises(NotAllowed, match="already quieted"):
        apply_until_restore(fake.machine, ASLR_OFF)
    restored = restore(fake.machine)
    assert restored.complete
    assert fake.left() == {}
    with pytest.raises(NothingToDo):
        restore(fake.machine)


@pytest.mark.slow
def test_persistent_quieting_without_writes_leaves_no_journal(fake: Fake) -> None:
    tuned = apply_until_restore(fake.machine, QuietRequest(only=("aslr",), randomize="on"))
    assert [change.state for change in tuned.changes] == ["already so"]
    assert read_journal(fake.folder) is None


def test_what_somebody_else_changed_is_noted_and_restored(fake: Fake) -> None:
    with QuietSession(fake.machine, ASLR_OFF) as session:
        fake.kernel.put(ASLR, "1")
    assert session.restored is not None
    (item,) = session.restored.settings
    assert (item.state, item.meanwhile) == ("restored", "1")
    assert fake.left() == {}


def test_what_was_found_and_never_written_is_left_to_others(fake: Fake) -> None:
    place = "proc/sys/vm/swappiness"
    watched = FileKnob(
        name="watched",
        requested=lambda _machine, _request: RequestedValues(values={place: None}),
    )
    knobs = {"aslr": KNOBS["aslr"], "watched": watched}
    request = QuietRequest(only=("aslr", "watched"), randomize="off")
    with QuietSession(fake.machine, request, knobs=knobs) as session:
        fake.kernel.put(place, "7")
    assert fake.kernel.text(place) == "7"
    assert session.restored is not None
    assert [item.setting.place for item in session.restored.settings] == [ASLR]


def test_what_cannot_be_restored_stays_in_the_journal(fake: Fake) -> None:
    request = QuietRequest(only=("aslr", "perf-rate"), randomize="off")
    with QuietSession(fake.machine, request) as session:
        fake.kernel.refuse(ASLR, errno.EIO)
    assert session.restored is not None
    (missing,) = session.restored.missing
    assert missing.setting.place == ASLR
    assert "Input/output error" in missing.reason
    # The rest is back, and is not touched by the next try.
    assert list(fake.left()) == [ASLR]
    fake.kernel.put("proc/sys/kernel/perf_event_max_sample_rate", "777")
    with pytest.raises(StepFailed, match="randomize_va_space"):
        QuietSession(fake.machine, request).apply()
    fake.kernel.refusals.clear()
    restored = restore(fake.machine)
    assert [item.setting.place for item in restored.settings] == [ASLR]
    assert list(fake.left()) == ["proc/sys/kernel/perf_event_max_sample_rate"]


@pytest.mark.slow
def test_a_limit_refused_at_first_is_restored_at_the_second_try(fake: Fake) -> None:
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
    with QuietSession(machine, ASLR_OFF) as session:
        pass
    assert session.restored is not None
    assert session.restored.complete
    assert fake.left() == {}


def test_a_removed_journal_does_not_prevent_the_restore(fake: Fake) -> None:
    with QuietSession(fake.machine, ASLR_OFF) as session:
        (fake.folder / JOURNAL_FILE).unlink()
    assert session.restored is not None
    assert session.restored.complete
    assert fake.left() == {}


@pytest.mark.slow
def test_a_damaged_journal_does_not_prevent_the_restore(fake: Fake) -> None:
    with QuietSession(fake.machine, ASLR_OFF) as session:
        (fake.folder / JOURNAL_FILE).write_text("no\njournal\n")
    assert session.restored is not None
    assert fake.left() == {}


@pytest.mark.slow
def test_a_knob_that_this_version_lacks_is_named(fake: Fake) -> None:
    apply_until_restore(fake.machine, ASLR_OFF)
    path = fake.folder / JOURNAL_FILE
    path.write_text(path.read_text().replace('"aslr"', '"future"'))
    restored = restore(fake.machine)
    (missing,) = restored.missing
    assert "no knob 'future'" in missing.reason
    assert read_journal(fake.folder) is not None


def test_after_a_reboot_nothing_is_written(fake: Fake) -> None:
    apply_until_restore(fake.machine, ASLR_OFF)
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
def test_quieting_after_a_reboot_needs_no_restore(fake: Fake) -> None:
    apply_until_restore(fake.machine, ASLR_OFF)
    fake.kernel.put("proc/sys/kernel/random/boot_id", "another-boot")
    fake.kernel.put(ASLR, "2")
    with QuietSession(fake.machine, ASLR_OFF) as session:
        assert session.before is not None
        assert session.before.rebooted
        assert fake.kernel.text(ASLR) == "0"
    assert fake.kernel.text(ASLR) == "2"


@pytest.mark.slow
def test_a_knob_whose_file_is_gone_cannot_be_restored(fake: Fake) -> None:
    with QuietSession(fake.machine, ASLR_OFF) as session:
        fake.kernel.path(ASLR).unlink()
    assert session.restored is not None
    (missing,) = session.restored.missing
    assert missing.setting.place == ASLR
    assert "No such file" in missing.reason


def test_an_error_of_a_knob_in_restore_does_not_keep_the_others(fake: Fake) -> None:
    class Bad(FileKnob):
        def restore(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
            raise RuntimeError("bug")

    place = "proc/sys/vm/swappiness"
    bad = Bad(
        name="bad",
        requested=lambda _m, _w: RequestedValues(values={place: "3"}),
    )
    knobs: dict[str, Knob] = {"bad": bad, "aslr": KNOBS["aslr"]}
    request = QuietRequest(only=("bad", "aslr"), randomize="off")
    with QuietSession(fake.machine, request, knobs=knobs) as session:
        pass
    assert session.restored is not None
    (missing,) = session.restored.missing
    assert "RuntimeError: bug" in missing.reason
    assert list(fake.left()) == [place]


def test_reading_that_fails_is_an_error_of_ours(fake: Fake) -> None:
    with pytest.raises(MissingTool, match="nowhere"):
        KNOBS["aslr"].read(fake.machine, "proc/nowhere")


def test_persistent_quieting_whose_end_cannot_be_recorded_is_restored(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that fills up in the middle: fsync is where it shows."""
    synced = os.fsync
    calls: list[str] = []

    def full_at_the_end(descriptor: int) -> None:
        calls.append(fake.kernel.text(ASLR))
        # The journal itself and its folder are kept; the third time is the end of the tune.
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_end)
    with pytest.raises(NotAllowed, match="No space"):
        apply_until_restore(fake.machine, ASLR_OFF)
    monkeypatch.undo()
    assert calls == ["2", "2", "0"], "on disk before the first write"
    assert fake.left() == {}
    assert read_journal(fake.folder) is None
