"""Create a conda environment with py-rattler: `--file ENVIRONMENT.YML --prefix FOLDER`.

A program for machines without a conda client; it runs in the environment of Torchyard. It reads
the files that `conda.environment_yaml` writes, whose strings are JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path


def read_environment(text: str) -> dict[str, list[str]]:
    """Return channels and dependencies of an environment file."""
    lists: dict[str, list[str]] = {}
    key = ""
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith((" ", "#")):
            key = line[:-1]
        elif line.startswith("  - "):
            lists.setdefault(key, []).append(json.loads(line[4:]))
    return lists


async def create(text: str, prefix: Path) -> int:
    """Solve the specifications, download the packages and link them into the prefix."""
    # Only this program has the dependency.
    from rattler import Channel, VirtualPackage, install, solve
    from rattler.exceptions import SolverError

    lists = read_environment(text)
    channels = [Channel(name) for name in lists["channels"] if name != "nodefaults"]
    try:
        records = await solve(
            sources=channels,
            specs=lists["dependencies"],
            virtual_packages=VirtualPackage.detect(),
        )
    except SolverError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for record in sorted(records, key=lambda item: item.name.normalized):
        name = record.name.normalized
        sys.stdout.write(f"{name} {record.version} {record.build} {record.channel}\n")
    await install(records=records, target_prefix=prefix)
    return 0


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--prefix", type=Path, required=True)
    arguments = parser.parse_args()
    text = arguments.file.read_text(encoding="utf-8")
    return asyncio.run(create(text, arguments.prefix))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the end of the interpreter: threads of py-rattler 0.28 may crash in it after a complete
    # installation (seen in 1 of 8 runs).
    os._exit(code)
