"""Knobs made of files, and the simplest of them, address space randomization."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from torchyard.errors import MissingTool
from torchyard.machine.knob import (
    FileKnob,
    Knob,
    Machine,
    RequestedValues,
    chosen_word,
    same_text,
    whole_text,
)
from torchyard.machine.knobs import kernel_settings
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.file_tree import FileTree, WriteRefused


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name, text in {"a": "1\n", "b": "[always] madvise never\n", "empty": "\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / kernel_settings.ASLR_PLACE).write_text("2\n")
    return Machine(files=FakeKernel(tmp_path))


def knob(requested: RequestedValues, **more: object) -> FileKnob:
    fields: dict[str, object] = {"name": "k", **more}
    return FileKnob(requested=lambda _machine, _request: requested, **fields)  # type: ignore[arg-type]


def test_values_of_texts() -> None:
    assert whole_text("p", " 1 \n") == "1"
    assert chosen_word("p", "always [madvise] never\n") == "madvise"
    assert chosen_word("p", "plain\n") == "plain"
    assert same_text("p", "1  2\t3", "1 2 3")
    assert not same_text("p", "1", "01")


def test_a_survey_reads_every_file_in_order(machine: Machine) -> None:
    state = knob(
        RequestedValues(values={"b": "never", "a": None}, notes=("n",)), value_of=chosen_word
    ).survey(machine, QuietRequest())
    assert state == KnobState(
        knob="k",
        settings=(
            Setting(knob="k", place="b", found="always", wanted="never"),
            Setting(knob="k", place="a", found="1", wanted=None),
        ),
        notes=("n",),
    )


def test_a_file_that_cannot_be_read_is_a_note_and_all_are_a_reason(machine: Machine) -> None:
    some = knob(RequestedValues(values={"a": "0", "gone": "0"})).survey(machine, QuietRequest())
    assert [setting.place for setting in some.settings] == ["a"]
    assert some.notes == ("skipped, because /gone: No such file or directory",)
    none = knob(RequestedValues(values={"gone": "0"})).survey(machine, QuietRequest())
    assert none.unavailable == "/gone: No such file or directory"
    survey = knob(RequestedValues(values={"a": "0"}, unavailable="not here")).survey(
        machine, QuietRequest()
    )
    assert (survey.unavailable, survey.settings) == ("not here", ())


def test_write_read_and_restore(machine: Machine) -> None:
    it = knob(RequestedValues(values={"b": "never"}), value_of=chosen_word)
    (setting,) = it.survey(machine, QuietRequest()).settings
    it.write(machine, setting)
    assert it.read(machine, "b") == "never"
    it.restore(machine, setting)
    it.restore(machine, setting)
    assert it.read(machine, "b") == "always"
    assert isinstance(machine.files, FakeKernel)
    assert machine.files.accepted == [("b", "never"), ("b", "always")], "not written twice"


def test_a_setting_without_a_wanted_value_is_only_restored(machine: Machine) -> None:
    it = knob(RequestedValues(values={"a": None}))
    (setting,) = it.survey(machine, QuietRequest()).settings
    it.write(machine, setting)
    assert it.read(machine, "a") == "1"
    machine.files.write("a", "9")
    it.restore(machine, setting)
    assert it.read(machine, "a") == "1"


def test_an_empty_value_reaches_the_kernel_as_a_newline(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\n")
    plain = Machine(files=FileTree(tmp_path))
    it = knob(RequestedValues(values={"list": "0-3"}))
    (setting,) = it.survey(plain, QuietRequest()).settings
    assert setting.found == ""
    it.write(plain, setting)
    it.restore(plain, setting)
    assert (tmp_path / "list").read_text() == "\n"


def test_refusals_and_missing_files_are_errors_of_ours(machine: Machine) -> None:
    assert isinstance(machine.files, FakeKernel)
    machine.files.refuse("a", errno.EBUSY)
    it = knob(RequestedValues())
    setting = Setting(knob="k", place="a", found="1", wanted="0")
    with pytest.raises(WriteRefused) as caught:
        it.write(machine, setting)
    assert caught.value.code == errno.EBUSY
    it.restore(machine, setting)  # it is there: nothing to write, nothing to refuse
    with pytest.raises(MissingTool, match="gone"):
        it.read(machine, "gone")
    with pytest.raises(WriteRefused):
        it.restore(machine, Setting(knob="k", place="gone", found="1", wanted="0"))


def test_own_ways_to_compare(machine: Machine) -> None:
    it = knob(
        RequestedValues(), same_value=lambda _place, one, other: int(one, 16) == int(other, 16)
    )
    assert it.same("a", "ff", "000000ff")
    it.restore(machine, Setting(knob="k", place="a", found="00000001", wanted="0"))
    assert isinstance(machine.files, FakeKernel)
    assert machine.files.accepted == []


@pytest.mark.parametrize(("word", "value"), [("on", "2"), ("off", "0")])
def test_address_randomisation_as_asked(machine: Machine, word: str, value: str) -> None:
    state = kernel_settings.ASLR_KNOB.survey(machine, QuietRequest(randomize=word))  # type: ignore[arg-type]
    (setting,) = state.settings
    assert (setting.place, setting.found, setting.wanted) == (
        kernel_settings.ASLR_PLACE,
        "2",
        value,
    )


def test_address_randomisation_is_left_alone_unless_asked_for(machine: Machine) -> None:
    it: Knob = kernel_settings.ASLR_KNOB
    assert not it.described.default
    state = it.survey(machine, QuietRequest())
    assert (state.settings, state.unavailable) == ((), "")
    assert "--aslr" in state.notes[0]
