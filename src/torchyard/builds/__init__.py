"""Build PyTorch and companion libraries from recipes.

A recipe (`recipe`, `recipe_file`, `recipes/*.toml`) becomes a plan (`planner`, `builders`): steps
made of commands, files and downloads. `doctor` predicts whether the plan can work, `running`
executes it step by step in a `sandbox` and measures every compile (`meter`), `diagnosis` explains a
failure, `verify` checks the result, and `record` keeps what the build was made of. `export` writes
a plan as a script or a container definition.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BUILD_PREFIX"]

BUILD_PREFIX: Final = "build:"
"""Prefix of a build name that is given in place of an interpreter path."""
