"""From a finding to a patch of the source, or to the reason why none is proposed.

Whether other code could use a gradient is decided from all Python files that the program imports.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from torchyard.values.model import ValueFinding
from torchyard.values.patching.fills import patch_of_write
from torchyard.values.patching.gradients import make_sparse, release_gradients
from torchyard.values.patching.loop_invariants import hoist
from torchyard.values.patching.model import (
    NARROWER_TYPE,
    SPARSE_GRADIENT,
    NotProposed,
    Patch,
)
from torchyard.values.patching.narrower_type import keep_boolean
from torchyard.values.patching.source_file import SourceFile

_MOST_FILES: Final = 300
_TRUSTED: Final = frozenset({"torch", "numpy", "tqdm", "torchvision", "matplotlib", "__future__"})
"""Packages that use gradients only where a program asks them to."""
_OBSERVES: Final = (
    *("TorchDispatchMode", "TorchFunctionMode", "__torch_dispatch__", "__torch_function__"),
    *("FlopCounterMode", "symbolic_trace", "make_fx", "settrace", "setprofile", "get_objects"),
    *("currentframe", "_getframe", "_current_frames", "f_locals", "f_back", "tb_frame", "gi_frame"),
    *("getsource", "getsourcelines", "__code__", "linecache"),
)
"""Names with which a program sees its source, its operators, or the variables of other functions."""


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
            files = _files_of(name, root)
            package = name.split(".")[0]
            is_known = bool(files) or package in _TRUSTED or package in sys.stdlib_module_names
            if known_only and not is_known:
                raise NotProposed(
                    f"the program imports {package}, whose use of gradients is not known"
                )
            waiting += files
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


def patch_of(
    finding: ValueFinding,
    source: SourceFile,
    *,
    main: Path,
    root: Path,
    classes: Collection[str] = (),
) -> Patch:
    """Return the patch of a finding; raise NotProposed where it is not certain to keep the results.

    `main` is the script of the program, `root` its folder.
    """
    if any(share.process for share in finding.processes):
        raise NotProposed(
            "the work is done in child processes or several ranks: results are compared in the main process only"
        )
    if finding.path:
        raise NotProposed("the work is done inside an operator of torch")
    pattern, detail = finding.pattern, finding.detail
    sources = program_sources(main, root, known_only=False)
    for one in sources:
        word = one.mentions(*_OBSERVES)
        if word:
            raise NotProposed(
                f"the program uses {word}: its output may depend on its operators or source"
            )
    if pattern == "sparse gradient":
        if "rows have a gradient" not in detail:
            raise NotProposed("the tensor is used in parts: there is no mechanical patch")
        if SPARSE_GRADIENT not in classes:
            raise NotProposed(
                "a sparse gradient rounds in another way where an index occurs twice in a batch: it is "
                f"proposed only with `--class {SPARSE_GRADIENT}`"
            )
        return make_sparse(finding, source, program_sources(main, root))
    if finding.place.backward:
        raise NotProposed("the work belongs to a backward pass")
    if detail.startswith("gradient zeroed only to be added to"):
        return release_gradients(finding, source, program_sources(main, root))
    if "zeroed only to be added to" in detail:
        raise NotProposed("adding to zeros turns -0.0 into 0.0: a copy may differ in that bit")
    if pattern in ("dead initialisation", "redundant write"):
        return patch_of_write(finding, source, sources)
    if pattern == "unchanged across steps" or detail.startswith("the same bits as aten::"):
        return hoist(finding, source, sources)
    if pattern == "heavy type":
        if NARROWER_TYPE not in classes:
            raise NotProposed(f"narrower types are proposed only with `--class {NARROWER_TYPE}`")
        return keep_boolean(finding, source)
    raise NotProposed(f"there is no mechanical patch for the pattern {pattern!r}")
