"""Check a user's Python file before a run: it can be read and parsed, and binds the requested name.

The file is parsed, not imported. Names that only running the file shows (`from x import *`,
`globals()`, ...) are left to the worker.
"""

from __future__ import annotations

import ast
import symtable
import warnings
from importlib.util import decode_source
from pathlib import Path
from typing import Final

from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError
from torchyard.files.safe_reading import read_document

_DYNAMIC_NAMES: Final = frozenset({"globals", "locals", "vars", "exec", "eval", "setattr"})
_DYNAMIC_ATTRIBUTES: Final = frozenset({"modules", "__dict__"})


def check_user_file(path: Path, name: str, *, where: str, same_python: bool) -> None:
    """Raise UsageError if the file is unusable or does not bind `name`; an empty name is not checked.

    `same_python` says that a target has this Python. The syntax of another Python may be newer, so
    that a file which cannot be parsed here is left to the worker.
    """
    try:
        source = read_document(path)
    except OSError as error:
        raise UsageError(
            f"{where}: {path} cannot be read",
            why=error.strerror or str(error),
            hint="give a Python file that you may read",
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = decode_source(source)
            tree = ast.parse(text, str(path))
            compile(tree, str(path), "exec", dont_inherit=True)
            bound_names = _bound_names(tree, symtable.symtable(text, str(path), "exec"))
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, encoding
        if not same_python:
            return
        line = error.lineno if isinstance(error, SyntaxError) else None
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"{where}: {path} has a syntax error" + (f" in line {line}" if line else ""),
            why=message,
            hint=f"fix the file; `python -m py_compile {path}` shows the position",
        ) from error
    except (RecursionError, MemoryError):
        return
    if name and bound_names is not None and name not in bound_names:
        public = [each for each in bound_names if not each.startswith("_")]
        defined = [each for each in public if not bound_names[each]]
        raise UsageError(
            f"{where}: {path} has no function or class {name!r}",
            hint=nearest_hint(name, defined or public),
        )


def _bound_names(tree: ast.Module, table: symtable.SymbolTable) -> dict[str, bool] | None:
    """Return the names bound at module level, and whether each is imported.

    None if only running the file shows them.
    """
    names = {
        symbol.get_name(): symbol.is_imported()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names.update(dict.fromkeys(node.names, False))
        elif (
            (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
            or (isinstance(node, ast.Name) and node.id in _DYNAMIC_NAMES)
            or (isinstance(node, ast.Attribute) and node.attr in _DYNAMIC_ATTRIBUTES)
        ):
            return None
    return None if "__getattr__" in names else names
