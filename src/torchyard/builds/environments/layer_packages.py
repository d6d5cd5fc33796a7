"""Show the packages of one interpreter to another: python layer_packages.py BASE CONSTRAINTS.

Executed by the interpreter of the new environment. Imports the standard library only, because it is
copied into the folder of the plan. The base is queried and never changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

_QUESTION = """
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
_HELD = ("torch", "torchgen", "triton", "pytorch-triton", "pytorch-triton-rocm")


def main() -> None:
    """Write the .pth file and the constraints."""
    base, constraints = sys.argv[1:]
    # -I: without the folder this is started in and without the user's own packages.
    answer = subprocess.run([base, "-I", "-c", _QUESTION], stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        sys.exit(f"the base interpreter {base} does not run: exit code {answer.returncode}")
    facts = json.loads(answer.stdout)
    if facts["version"] != list(sys.version_info[:2]):
        theirs, ours = (".".join(map(str, v)) for v in (facts["version"], sys.version_info[:2]))
        sys.exit(
            f"the base {base} is Python {theirs} and this environment is Python {ours}: native "
            "packages of one do not load in the other. Set environment.python to the base's version."
        )
    # site.addsitedir and not a plain path line: packages installed in editable mode are found
    # through the .pth files of the base.
    lines = ["import site", *(f"site.addsitedir({path!r})" for path in facts["paths"])]
    target = Path(sysconfig.get_path("purelib")) / "torchyard-base.pth"
    target.write_text("; ".join(lines) + "\n", encoding="utf-8")
    held = [
        f"{name}=={version}\n"
        for name, version in facts["installed"]
        if name.lower().replace("_", "-") in _HELD or name.lower().startswith("nvidia-")
    ]
    Path(constraints).write_text("".join(held), encoding="utf-8")


if __name__ == "__main__":
    main()
