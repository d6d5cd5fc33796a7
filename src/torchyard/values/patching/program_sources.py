"""The Python files of a program, found through its imports: what other code could use a gradient."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Final

from torchyard.values.patching.model import NotProposed
from torchyard.values.patching.source_file import SourceFile

_MOST_FILES: Final = 300
_TRUSTED: Final = frozenset({"torch", "numpy", "tqdm", "torchvision", "matplotlib", "__future__"})
"""Packages that use gradients only where a program asks them to."""


def program_sources(main: Path, root: Path, *, known_only: bool = True) -> list[SourceFile]:
    """Return the files that a program imports from its folder.

    With `known_only`, raise NotProposed for packages whose use of gradients is not known.
    """
    sources: dict[Path, SourceFile] = {}
    waiting = [main]
    while waiting:
        path = waiting.pop()
        if path in sources:
            continue
        if len(sources) >= _MOST_FILES:
            raise NotProposed("the program has too many files to check")
        source = sources[path] = SourceFile.read(path)
        for name in _imported(source, path, root):
            found = _files_of(name, root)
            package = name.split(".")[0]
            known = bool(found) or package in _TRUSTED or package in sys.stdlib_module_names
            if known_only and not known:
                raise NotProposed(
                    f"the program imports {package}, whose use of gradients is not known"
                )
            waiting += found
    return list(sources.values())


def _imported(source: SourceFile, path: Path, root: Path) -> list[str]:
    names = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                folder = path.parent
                for _ in range(node.level - 1):
                    folder = folder.parent
                if not folder.is_relative_to(root):
                    raise NotProposed("the program imports files outside of its folder")
                parts = [*folder.relative_to(root).parts, *([module] if module else [])]
                module = ".".join(parts)
            names += [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
    return names


def _files_of(name: str, root: Path) -> list[Path]:
    """Return the files in the program's folder that an import executes."""
    files, folder = [], root
    for part in name.split("."):
        paths = (folder / f"{part}.py", folder / part / "__init__.py")
        files += [path for path in paths if path.is_file()]
        folder = folder / part
        if not folder.is_dir() and not files:
            break
    return files
