"""What a step that was cut off may have left half-made, and the next attempt would take for whole.

Objects are the meter's business: it has a log of them. Here are the copies, of which nobody has one:
setuptools and CMake look at times only, and half a copy is as new as a whole one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from torchyard.core.build_plan import Component

__all__ = ["COPY_AGAIN", "remove_half_copied"]

COPY_AGAIN: Final[Mapping[str, str]] = {"CMAKE_INSTALL_ALWAYS": "1"}
"""CMake takes a file whose time differs by less than a second for installed (seen with 3.25)."""


def remove_half_copied(component: Component) -> tuple[Path, ...]:
    """Remove the folders where setuptools gathers what goes into the wheel; objects stay.

    Not `lib` itself: CMake projects keep libraries there, and setuptools only pure Python.
    """
    if component.recipe.builder != "python":
        return ()
    folder = Path(component.tree, component.recipe.python.build_folder)
    found = [*folder.glob("lib.*"), *folder.glob("bdist.*")]
    if not (folder / "CMakeCache.txt").exists():
        found += folder.glob("lib")
    for path in found:
        with suppress(OSError):  # the step itself will say what is wrong with that folder
            shutil.rmtree(path)
    return tuple(found)
