"""System programs for fake machines: swapon, swapoff, systemctl, as real executables.

They lie in `.kernel/programs` below the root of a fake machine and change its files as the real
ones make the kernel change them. What they are called with is in `.kernel/calls`.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HEAD = """#!{python} -IS
import json, sys
from pathlib import Path

root = Path(__file__).resolve().parents[2]
name, arguments = Path(__file__).name, sys.argv[1:]
with (root / ".kernel/calls").open("a") as file:
    file.write(" ".join([name, *arguments]) + "\\n")
refused = root / ".kernel" / ("refuse " + name)
if refused.exists():
    sys.exit(f"{{name}}: {{refused.read_text()}}")
"""

_SWAP = """
table, known = root / "proc/swaps", root / ".kernel/swap areas"
head, *rows = table.read_text().splitlines()
rows = [row.split() for row in rows]
areas = json.loads(known.read_text()) if known.exists() else {}
areas.update({row[0]: row[1:3] for row in rows})
path = arguments[-1].replace("\\\\", "\\\\134").replace(" ", "\\\\040")
on = [row[0] for row in rows]
counted = [int(row[4]) for row in rows if int(row[4]) < 0]
if name == "swapoff":
    if path not in on:
        sys.exit(f"swapoff: {path}: swapoff failed: Invalid argument")
    gone = int(rows.pop(on.index(path))[4])
    for row in rows:
        # mm/swapfile.c: those that were counted after it move up.
        if gone < 0 and int(row[4]) < gone:
            row[4] = str(int(row[4]) + 1)
else:
    if path in on or path not in areas:
        sys.exit(f"swapon: {path}: swapon failed: Device or resource busy")
    asked = arguments[arguments.index("-p") + 1] if "-p" in arguments else None
    priority = asked if asked is not None else str(min(counted, default=-1) - 1)
    rows.append([path, *areas[path], "0", priority])
known.write_text(json.dumps(areas))
table.write_text("".join([head + "\\n"] + [
    f"{row[0]:<40}{row[1]}\\t{row[2]}\\t\\t{row[3]}\\t\\t{row[4]}\\n" for row in rows
]))
"""

_SYSTEMCTL = """
verb, unit = arguments
store = root / ".kernel/stopped" / unit
if verb == "stop":
    for group in root.glob("proc/[0-9]*/cgroup"):
        if f"/{unit}\\n" in group.read_text():
            store.mkdir(parents=True)
            group.parent.rename(store / group.parent.name)
elif verb == "start":
    for process in store.iterdir():
        process.rename(root / "proc" / process.name)
    store.rmdir()
"""


def put_programs(root: Path) -> None:
    """Give a fake machine its programs."""
    folder = root / ".kernel/programs"
    folder.mkdir(parents=True)
    head = _HEAD.format(python=sys.executable)
    for name, rest in {"swapon": _SWAP, "swapoff": _SWAP, "systemctl": _SYSTEMCTL}.items():
        program = folder / name
        program.write_text(head + rest)
        program.chmod(0o755)


def refuse_program(root: Path, name: str, reason: str) -> None:
    """Make one of them fail from now on."""
    (root / ".kernel" / f"refuse {name}").write_text(reason)


def calls(root: Path) -> list[str]:
    """Command lines so far."""
    file = root / ".kernel/calls"
    return file.read_text().splitlines() if file.exists() else []
