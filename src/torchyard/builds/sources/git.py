"""A git repository at one revision, with its submodules.

`commit_of`, `is_dirty` and `submodule_commits` query a tree and change nothing, not even the index.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath

from torchyard.builds.plan import Command, WriteFile
from torchyard.builds.recipe import GitSource
from torchyard.builds.record import SourceIdentity
from torchyard.builds.sources.fetch_plan import (
    FetchPlace,
    FetchPlan,
    checked_address,
    move_to_destination,
    nothing_to_update,
    on_this_machine,
    recreate_part_folder,
    without_credentials,
)
from torchyard.errors import UsageError


def commit_of(tree: Path) -> str:
    """Return the checked-out commit; empty if the tree is not the top of a repository."""
    # git would also find a repository in a parent folder.
    if not (tree / ".git").exists():
        return ""
    return git_output(tree, "rev-parse", "--verify", "HEAD^{commit}") or ""


def is_dirty(tree: Path) -> bool:
    """Whether the tree has uncommitted changes or untracked files."""
    return bool(git_output(tree, "status", "--porcelain", "--untracked-files=normal"))


def submodule_commits(tree: Path) -> dict[str, str]:
    """Return path -> checked-out commit of all submodules, recursively, and of clones beside them."""
    print_commit = 'printf "%s\\t%s\\n" "$displaypath" "$(git rev-parse HEAD)"'
    text = git_output(tree, "submodule", "--quiet", "foreach", "--recursive", print_commit) or ""
    pairs = (line.rpartition("\t") for line in text.splitlines())
    commits = {path: commit for path, _, commit in pairs if path}
    # A submodule has a file .git, a clone (NCCL) a folder.
    clones = sorted(item.parent for item in tree.glob("third_party/*/.git") if item.is_dir())
    return commits | {str(clone.relative_to(tree)): commit_of(clone) for clone in clones}


def git_output(tree: Path, *arguments: str) -> str | None:
    """Return the output of git; None if it fails or is not installed."""
    # Read trees of other users, too; these commands execute nothing from the tree.
    argv = ("git", "-c", "safe.directory=*", "-C", str(tree), *arguments)
    try:
        completed = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        return None
    return completed.stdout.strip() if completed.returncode == 0 else None


_COMMIT = re.compile(r"[0-9a-f]{7,64}")
# See git check-ref-format; a leading dash would be an option.
_BAD_REF = re.compile(r"^-|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.$")

_ALL_BRANCHES = "git fetch --tags origin '+refs/heads/*:refs/remotes/origin/*'"
_SHALLOW = """\
git fetch --depth 1 origin {ref} || missing {ref}
git checkout -q --detach FETCH_HEAD"""
# Some servers offer branches and tags only, and none resolves an abbreviated commit.
_SHALLOW_COMMIT = """\
if git fetch --depth 1 origin {ref}; then git checkout -q --detach FETCH_HEAD
else
  echo "the server does not give this commit alone: fetching the whole history"
  {all_branches} || missing {ref}
  git checkout -q --detach {ref} -- || missing {ref}
fi"""
# Refs such as pull requests are not branches; a commit may be present already.
_WHOLE = """\
{all_branches} || missing {ref}
if git fetch origin {ref}; then git checkout -q --detach FETCH_HEAD
else git checkout -q --detach {ref} -- || missing {ref}; fi"""
_MISSING = """\
missing() {{
  if git ls-remote -q origin HEAD >/dev/null 2>&1
  then echo "the repository has no revision $1: correct "{key} >&2
  else echo "the repository cannot be read: see git's own message above" >&2; fi
  exit 1
}}"""
_SUBMODULES = "git submodule update --init --recursive"
_SHALLOW_SUBMODULES = f"""\
{_SUBMODULES} --depth 1 || {{
  echo "no shallow submodules from this server: fetching them whole"
  git submodule deinit -q --force --all
  rm -rf .git/modules
  {_SUBMODULES}
}}"""
_UPDATE = """\
set -eu
tip=$(git -C {tree} ls-remote origin {head} | cut -f 1)
if [ -z "$tip" ]; then echo {no_branch}; exit 0; fi
if [ "$tip" = "$(git -C {tree} rev-parse HEAD)" ]; then echo {at_tip}; exit 0; fi
rm -rf {part}
cp -a --reflink=auto {tree} {part}
( cd {part}
{steps}
)
rm -rf {tree}
mv -T {part} {tree}"""


def fetch_actions(table: GitSource, place: FetchPlace) -> FetchPlan:
    """Return the actions: empty repository, revision, submodules, overrides."""
    url = _check(table, place.where)
    return FetchPlan(
        kind="git",
        summary=f"git {without_credentials(url)} at {table.ref}",
        actions=(
            *recreate_part_folder(place.destination),
            _git_command(place.part, "init", "-q"),
            _git_command(place.part, "remote", "add", "--", "origin", url),
            _script(place.part, _steps(table, place.where)),
            *move_to_destination(place, place.part),
        ),
    )


def update_actions(table: GitSource, place: FetchPlace) -> FetchPlan:
    """Return the actions that move the checkout to the tip of its branch, if it is on one."""
    url = _check(table, place.where)
    if _COMMIT.fullmatch(table.ref) or table.ref.startswith("refs/tags/"):
        return nothing_to_update("git", f"{table.ref} is not a branch")
    checkout = f"{without_credentials(url)} at {table.ref}"
    more = place.complete(place.part)
    downloads = [shlex.join(action.argv) for action in more if isinstance(action, Command)]
    script = _UPDATE.format(
        tree=shlex.quote(str(place.destination)),
        part=shlex.quote(str(place.part)),
        # `ls-remote main` would also match `refs/heads/other/main`.
        head=shlex.quote(table.ref if table.ref.startswith("refs/") else f"refs/heads/{table.ref}"),
        no_branch=shlex.quote(f"nothing to update: {table.ref} is no branch"),
        at_tip=shlex.quote(f"nothing to update: {checkout} is at the tip"),
        # A submodule that was removed in the new revision leaves its folder behind.
        steps="\n".join((*_steps(table, place.where), "git clean -ffdxq", *downloads)),
    )
    return FetchPlan(
        kind="git",
        summary=f"update git {checkout}",
        actions=(
            *(action for action in more if isinstance(action, WriteFile)),
            _script(place.destination.parent, [script]),
        ),
    )


def source_identity(table: GitSource, destination: Path) -> SourceIdentity:
    """Return the checked-out commits of the tree and all submodules."""
    return SourceIdentity(
        kind="git",
        origin=without_credentials(table.url),
        version=table.ref,
        commit=commit_of(destination),
        submodules=submodule_commits(destination),
        overridden=tuple(table.overrides),
    )


def _steps(table: GitSource, where: str) -> list[str]:
    """Return shell code that checks out the revision in the current folder."""
    update = _SHALLOW_SUBMODULES if table.shallow else _SUBMODULES
    lines = [
        "set -eu",
        _MISSING.format(key=shlex.quote(f"{where}.ref")),
        _checkout(table.ref, shallow=table.shallow),
    ]
    if table.submodules:
        # The URLs may differ between revisions.
        lines += ["git submodule --quiet sync --recursive", update]
    for path, ref in table.overrides.items():
        key = f"{where}.overrides"
        none = shlex.quote(f"no submodule at {path}: correct {key}")
        quoted = shlex.quote(path)
        lines += [
            # In a plain folder git would use the enclosing repository.
            f"[ -e {quoted}/.git ] || {{ echo {none} >&2; exit 1; }}",
            f"( cd {quoted}",
            _MISSING.format(key=shlex.quote(f'{key}."{path}"')),
            _checkout(ref, shallow=table.shallow),
            f"{_SUBMODULES} )",
        ]
    return lines


def _checkout(ref: str, *, shallow: bool) -> str:
    commit = _COMMIT.fullmatch(ref) is not None
    text = (_SHALLOW_COMMIT if commit else _SHALLOW) if shallow else _WHOLE
    return text.format(ref=shlex.quote(ref), all_branches=_ALL_BRANCHES)


def _check(table: GitSource, where: str) -> str:
    url = checked_address(
        table.url,
        f"{where}.url",
        hint="use git's credential helpers (`git help credentials`) or ssh",
    )
    refs = {"ref": table.ref} | {
        f'overrides."{path}"': ref for path, ref in table.overrides.items()
    }
    for key, ref in refs.items():
        if not ref or _BAD_REF.search(ref):
            raise UsageError(
                f"{where}.{key} is {ref!r}, which is not a valid revision",
                hint="give a branch, a tag or a commit",
            )
    for path in table.overrides:
        parts = PurePosixPath(path)
        safe = re.fullmatch(r"[A-Za-z0-9._+/ -]+", path) and not path.startswith("-")
        if not safe or parts.is_absolute() or ".." in parts.parts or str(parts) == ".":
            raise UsageError(
                f"{where}.overrides has {path!r}, which is not a valid submodule path",
                hint="give the path below the source tree, such as `third_party/ideep/mkl-dnn`",
            )
    if table.overrides and not table.submodules:
        raise UsageError(
            f"{where}.overrides requires {where}.submodules", hint=f"set {where}.submodules = true"
        )
    return url


def _git_command(folder: Path, *arguments: str) -> Command:
    return _without_prompt(on_this_machine("git", *arguments, folder=folder))


def _script(folder: Path, lines: list[str]) -> Command:
    return _without_prompt(on_this_machine("sh", "-c", "\n".join(lines), folder=folder))


def _without_prompt(command: Command) -> Command:
    """Make git fail instead of prompting for a password."""
    return Command(
        argv=command.argv,
        folder=command.folder,
        variables=(*command.variables, ("GIT_TERMINAL_PROMPT", "0")),
        inside_root=False,
    )
