"""The journal: complete before the first write, readable after any exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchyard.errors import NotAllowed, ResultsDamaged
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.quieting.journal import (
    FORMAT_VERSION,
    JOURNAL_FILE,
    JOURNAL_VARIABLE,
    RESTORED_FILE,
    Journal,
    JournalLock,
    JournalState,
    journal_folder,
    read_journal,
)
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.owner import this_process

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
A = Setting(knob="aslr", place="proc/a", found="2", wanted="0")
B = Setting(knob="other", place="proc/b b\n\x00", found='x "y" \udcff', wanted=None)

HEADER = (
    '{"kind": "tune", "format": 1, "mode": "session", "boot": "", "owner": {}, "started": "",'
    ' "settings": 1}\n'
)


def create(folder: Path, *settings: Setting) -> Journal:
    return Journal.create(
        folder,
        mode="session",
        request=QuietRequest(randomize="off"),
        boot="boot-1",
        settings=settings,
    )


def text_of(folder: Path) -> JournalState:
    text = read_journal(folder)
    assert text is not None
    return text


def test_what_was_found_is_read_again(tmp_path: Path) -> None:
    create(tmp_path, A, B).close()
    text = text_of(tmp_path)
    assert text.settings == (A, B)
    assert (text.mode, text.boot, text.owner) == ("session", "boot-1", this_process())
    assert (text.touched, text.returned, text.complete) == (frozenset(), frozenset(), False)
    assert str(os.getpid()) in text.who


def test_no_journal_is_none(tmp_path: Path) -> None:
    assert read_journal(tmp_path) is None
    assert read_journal(tmp_path / "nowhere") is None


def test_events_are_read_again(tmp_path: Path) -> None:
    journal = create(tmp_path, A, B)
    journal.note("writing", A)
    journal.note("refused", A, "no\nluck")
    journal.note("not restored", A, "still none")
    journal.held_by({"pid": 7})
    journal.mark_complete()
    text = text_of(tmp_path)
    assert text.touched == {("aslr", "proc/a")}
    assert text.returned == frozenset()
    assert (text.complete, text.holder) == (True, {"pid": 7})
    journal.note("restored", A)
    assert text_of(tmp_path).returned == {("aslr", "proc/a")}
    journal.note("not restored", A, "again not")
    assert text_of(tmp_path).returned == frozenset()
    journal.archive()
    assert read_journal(tmp_path) is None
    assert (tmp_path / RESTORED_FILE).is_file()


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_left_out_and_written_over(tmp_path: Path, cut: int) -> None:
    journal = create(tmp_path, A, B)
    journal.note("writing", A)
    journal.note("written", A)
    journal.close()
    path = tmp_path / JOURNAL_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert text_of(tmp_path).touched == {("aslr", "proc/a")}
    again = Journal(tmp_path)
    again.note("restored", A)
    again.close()
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert text_of(tmp_path).returned == {("aslr", "proc/a")}


def test_damage_in_the_middle_says_what_to_do(tmp_path: Path) -> None:
    journal = create(tmp_path, A, B)
    journal.note("writing", A)
    journal.close()
    path = tmp_path / JOURNAL_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:9] + b"\n", *lines[2:]]))
    with pytest.raises(ResultsDamaged) as caught:
        read_journal(tmp_path)
    assert caught.value.exit_code == 8
    assert str(path) in caught.value.what
    assert "by hand" in caught.value.hint
    assert "reboot" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]\n[]\n",
        '{"kind": "found"}\n',
        '{"kind": "tune", "format": "1"}\n',
        '{"kind": "tune", "format": 1}\n{"kind": "found"}\n',
        HEADER + '{"kind": "found", "setting": {"knob": 3}}\n{"kind": "tuned"}\n',
    ],
)
def test_what_is_no_journal_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_FILE).write_text(text)
    with pytest.raises(ResultsDamaged):
        read_journal(tmp_path)


def test_a_journal_that_lost_settings_is_damaged(tmp_path: Path) -> None:
    create(tmp_path, A, B).close()
    path = tmp_path / JOURNAL_FILE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(ResultsDamaged) as caught:
        read_journal(tmp_path)
    assert "1 of 2" in caught.value.why


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    create(tmp_path, A).close()
    path = tmp_path / JOURNAL_FILE
    path.write_text(path.read_text().replace('"format": 1', f'"format": {FORMAT_VERSION + 1}'))
    with pytest.raises(ResultsDamaged) as caught:
        read_journal(tmp_path)
    assert "format 2" in caught.value.what
    assert "with that version" in caught.value.hint


def test_unknown_keys_and_events_of_the_same_format_are_read_over(tmp_path: Path) -> None:
    create(tmp_path, A).close()
    path = tmp_path / JOURNAL_FILE
    path.write_text(path.read_text().replace('"knob"', '"new": 1, "knob"') + '{"kind": "new"}\n')
    assert text_of(tmp_path).settings == (A,)


@AS_ROOT
def test_a_journal_of_another_user_is_not_followed(tmp_path: Path) -> None:
    create(tmp_path, A).close()
    os.chown(tmp_path / JOURNAL_FILE, 65534, 65534)
    with pytest.raises(NotAllowed):
        read_journal(tmp_path)


def test_a_journal_that_others_may_write_is_not_followed(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create(tmp_path, A).close()
    finally:
        os.umask(before)
    path = tmp_path / JOURNAL_FILE
    assert path.stat().st_mode & 0o777 == 0o644
    assert text_of(tmp_path).settings == (A,)
    path.chmod(0o666)
    with pytest.raises(NotAllowed, match="others than root"):
        read_journal(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    create(real, A).close()
    (tmp_path / JOURNAL_FILE).symlink_to(real / JOURNAL_FILE)
    with pytest.raises(NotAllowed):
        read_journal(tmp_path)


def test_the_folder_is_below_the_root_or_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JOURNAL_VARIABLE, raising=False)
    assert journal_folder(FileTree(tmp_path)) == tmp_path / "var/lib/torchyard/machine"
    monkeypatch.setenv(JOURNAL_VARIABLE, "/elsewhere")
    assert journal_folder(FileTree(tmp_path)) == Path("/elsewhere")


def test_two_locks_exclude_each_other(tmp_path: Path) -> None:
    first = JournalLock.take(tmp_path / "new")
    assert first is not None
    assert JournalLock.take(tmp_path / "new") is None
    first.release()
    first.release()
    second = JournalLock.take(tmp_path / "new")
    assert second is not None
    second.release()


def test_others_cannot_hold_the_lock(tmp_path: Path) -> None:
    lock = JournalLock.take(tmp_path)
    assert lock is not None
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0
    lock.release()


def test_a_lock_outlives_its_taker_in_a_process_that_got_it(tmp_path: Path) -> None:
    lock = JournalLock.take(tmp_path)
    assert lock is not None
    heir = subprocess.Popen(["sleep", "60"], pass_fds=(lock.descriptor,))
    lock.release()
    assert JournalLock.take(tmp_path) is None
    heir.send_signal(signal.SIGKILL)
    heir.wait()
    again = JournalLock.take(tmp_path, wait_s=5)
    assert again is not None
    again.release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAllowed) as caught:
        JournalLock.take(tmp_path / "file" / "deeper")
    assert str(tmp_path / "file" / "deeper") in caught.value.what
    assert JOURNAL_VARIABLE in caught.value.hint
    assert "nothing was changed" in caught.value.why


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "torchyard-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root and mounts")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_no_half_journal(tiny_disk: Path) -> None:
    lock = JournalLock.take(tiny_disk)
    assert lock is not None
    (tiny_disk / "fill").write_bytes(b"x" * (56 << 10))
    many = [Setting(knob="k", place=f"p{n}", found="f" * 100, wanted="w") for n in range(200)]
    with pytest.raises(NotAllowed) as caught:
        create(tiny_disk, *many)
    assert "No space left" in caught.value.what
    assert "nothing was changed" in caught.value.why
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["fill", "lock"]
    lock.release()


def test_a_note_that_does_not_fit_leaves_whole_lines(tiny_disk: Path) -> None:
    journal = create(tiny_disk, A)
    (tiny_disk / "fill").write_bytes(b"x" * (56 << 10))
    with pytest.raises(NotAllowed) as caught:
        _note_for_ever(journal)
    assert "No space left" in caught.value.what
    assert text_of(tiny_disk).settings == (A,)
    (tiny_disk / "fill").unlink()
    journal.note("restored", A)
    assert text_of(tiny_disk).returned == {("aslr", "proc/a")}
    journal.archive()


def _note_for_ever(journal: Journal) -> None:
    while True:
        journal.note("writing", A, "r" * 50)


def test_a_process_that_dies_while_writing_notes_leaves_a_readable_journal(tmp_path: Path) -> None:
    create(tmp_path, A).close()
    code = (
        "import sys; from pathlib import Path\n"
        "from torchyard.machine.model import Setting\n"
        "from torchyard.machine.quieting.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1])); print('go', flush=True)\n"
        "setting = Setting(knob='aslr', place='proc/a', found='2', wanted='0')\n"
        "while True: journal.note('writing', setting, 'r' * 3000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    while (tmp_path / JOURNAL_FILE).stat().st_size < 100_000:
        pass
    process.kill()
    process.communicate()
    assert text_of(tmp_path).touched == {("aslr", "proc/a")}
