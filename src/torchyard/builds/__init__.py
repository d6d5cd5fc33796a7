"""Build PyTorch and its companions from recipes.

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
"""Before the name of a build, where the path of an interpreter could stand."""
