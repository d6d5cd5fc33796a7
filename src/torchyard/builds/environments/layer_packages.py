"""Make the packages of one interpreter visible to another: layer_packages.py BASE CONSTRAINTS.

Executed by the interpreter of the new environment. Standard library only, because it is copied into
the folder of the plan. The base is not changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

_QUERY = """
import importlib.metadata, json, sys
paths = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "paths": paths,
    "installed": sorted({
        (d.metadata["Name"] or "", d.version) for d in importlib.metadata.distributions(path=paths)
    }),
}))
"""
_PINNED = ("torch", "torchgen", "triton", "pytorch-triton", "pytorch-triton-rocm")


def main() -> None:
    """Write the .pth file and the constraints."""
    base, constraints = sys.argv[1:]
    # -I: without the current folder and the user's packages.
    answer = subprocess.run([base, "-I", "-c", _QUERY], stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        sys.exit(f"the base interpreter {base} failed: exit code {answer.returncode}")
    facts = json.loads(answer.stdout)
    if facts["version"] != list(sys.version_info[:2]):
        theirs, ours = (".".join(map(str, v)) for v in (facts["version"], sys.version_info[:2]))
        sys.exit(
            f"the base {base} is Python {theirs}, but this environment is Python {ours}: native "
            "packages of one do not load in the other. Set environment.python to the base's version."
        )
    # site.addsitedir instead of a plain path, so that the .pth files of the base are read, which
    # point to packages installed in editable mode.
    lines = ["import site", *(f"site.addsitedir({path!r})" for path in facts["paths"])]
    target = Path(sysconfig.get_path("purelib")) / "torchyard-base.pth"
    target.write_text("; ".join(lines) + "\n", encoding="utf-8")
    pinned = [
        f"{name}=={version}\n"
        for name, version in facts["installed"]
        if name.lower().replace("_", "-") in _PINNED or name.lower().startswith("nvidia-")
    ]
    Path(constraints).write_text("".join(pinned), encoding="utf-8")


if __name__ == "__main__":
    main()
