"""Make one folder equal to another where they differ, and leave identical files untouched.

    sync_tree.py list SOURCE LISTED             write the names of the files in SOURCE to LISTED
    sync_tree.py sync NEW TREE LISTED STATE     bring TREE to the contents of NEW, and remove NEW;
                                                LISTED then holds the names in NEW

Identical files keep their time stamps, so that nothing built from them is rebuilt; files that
differ get the present time. Of the files that only TREE has, those named in LISTED are removed: the
rest was built. STATE is removed before the first change, because it says that TREE was built, which
then no longer holds.

Executed as a program by path: standard library only.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def list_files(source: Path, listed: Path) -> None:
    """Write the names of all files of a source to `listed`."""
    _write_list(listed, _files(source))


def _write_list(listed: Path, names: Iterable[Path]) -> None:
    part = listed.with_name(listed.name + ".part")
    part.write_bytes(b"\0".join(os.fsencode(str(name)) for name in names))
    part.replace(listed)


def sync(new: Path, tree: Path, listed: Path, state: Path) -> int:
    """Make the tree equal to `new`; return the number of changed and removed files."""
    names = set(_files(new))
    before: set[Path] = set()
    if listed.exists():
        before = {Path(os.fsdecode(name)) for name in listed.read_bytes().split(b"\0") if name}
    changed = [name for name in sorted(names) if not _same(new / name, tree / name)]
    removed = [name for name in sorted(before - names) if os.path.lexists(tree / name)]
    if changed or removed:
        state.unlink(missing_ok=True)
    for name in removed:
        _remove(tree / name)
        with suppress(OSError):  # keep folders that are not empty
            for folder in name.parents[:-1]:
                (tree / folder).rmdir()
    for name in changed:
        for folder in reversed(name.parents[:-1]):
            if not (tree / folder).is_dir() or (tree / folder).is_symlink():
                _remove(tree / folder)  # was a file or a link
        _put(new / name, tree / name)
    for folder in _git_folders(new):
        # Replaced as a whole: git metadata is never compiled and must be consistent.
        destination = tree / folder.relative_to(new)
        destination.parent.mkdir(parents=True, exist_ok=True)
        _remove(destination)
        folder.rename(destination)
    # Last, so that an interrupted update still knows which files to remove.
    _write_list(listed, sorted(names))
    shutil.rmtree(new)
    return len(changed) + len(removed)


def first_edit(source: Path, tree: Path) -> str:
    """Return the first file of the source that differs in the tree; empty if there is none.

    Files missing from the tree are not edits.
    """
    for name in _files(source) if tree.is_dir() else ():
        if os.path.lexists(tree / name) and not _same(source / name, tree / name):
            return str(name)
    return ""


def _files(top: Path) -> Iterator[Path]:
    """Yield the relative paths of files and links below a folder, without `.git` folders."""
    for folder, folders, files in os.walk(top):
        if ".git" in folders:
            folders.remove(".git")
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        yield from ((here / name).relative_to(top) for name in (*files, *links))


def _git_folders(top: Path) -> list[Path]:
    git_folders = []
    for folder, folders, _ in os.walk(top):
        if ".git" in folders:
            folders.remove(".git")
            git_folders.append(Path(folder, ".git"))
    return git_folders


def _same(new: Path, old: Path) -> bool:
    try:
        before, now = old.lstat(), new.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(now.st_mode):
        return False
    if stat.S_ISLNK(now.st_mode):
        return new.readlink() == old.readlink()
    if not stat.S_ISREG(now.st_mode):
        return True
    if stat.S_IMODE(before.st_mode) & 0o111 != stat.S_IMODE(now.st_mode) & 0o111:
        return False
    if before.st_size != now.st_size:
        return False
    # Not by time: archives often have the same time stamp for all files.
    return _same_bytes(new, old)


def _same_bytes(new: Path, old: Path) -> bool:
    with new.open("rb") as one, old.open("rb") as other:
        while True:
            chunk = one.read(_CHUNK_BYTES)
            if chunk != other.read(_CHUNK_BYTES):
                return False
            if not chunk:
                return True


def _put(new: Path, old: Path) -> None:
    """Copy a file or a link atomically, with the present time."""
    old.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old)
    part = old.with_name(old.name + ".new")
    _remove(part)
    if new.is_symlink():
        part.symlink_to(new.readlink())
    else:
        shutil.copyfile(new, part)
        shutil.copymode(new, part)
    part.replace(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _main() -> None:
    what, *words = sys.argv[1:]
    paths = [Path(word) for word in words]
    if what == "list":
        list_files(paths[0], paths[1])
    else:
        count = sync(*paths)
        sys.stdout.write(f"{count} files changed or removed\n")


if __name__ == "__main__":
    _main()
