"""The syntax tree of a function that is running, and the statement that it is at.

The source is compiled again and must give the very code that runs: a file that was edited, or code
that was rewritten, has no tree. Knows nothing of tensors.
"""

import ast
import linecache
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module]
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BLOCKS = ("body", "orelse", "finalbody")
_FUTURE_FLAGS = 0x1FE0000
"""CO_FUTURE_* of `code.h`."""


class Site(NamedTuple):
    """A call in a running function."""

    code: CodeType
    line: int
    instruction: int


class Statement(NamedTuple):
    """A simple statement of a function, and where it stands."""

    node: ast.stmt
    block: Tuple[ast.stmt, ...]
    place: int
    """In the block."""
    around: Tuple[ast.AST, ...]
    """Compound statements that contain the block, outermost first."""


def site_of(frame: FrameType) -> Site:
    """Where a frame is."""
    return Site(frame.f_code, frame.f_lineno, frame.f_lasti)


_trees: Dict[str, Tuple[str, Optional[ast.Module], List[CodeType]]] = {}
_functions: Dict[int, Tuple[CodeType, Optional[Function]]] = {}


def function_of(code: CodeType, module_globals: Dict[str, Any]) -> Optional[Function]:
    """The tree of a function or module; None when its source is not known for sure."""
    kept = _functions.get(id(code))
    if kept is None:
        kept = _functions[id(code)] = (code, _find_function(code, module_globals))
    return kept[1]


def _find_function(code: CodeType, module_globals: Dict[str, Any]) -> Optional[Function]:
    source = "".join(linecache.getlines(code.co_filename, module_globals))
    if not source:
        return None
    known = _trees.get(code.co_filename)
    if known is None or known[0] != source:
        known = _trees[code.co_filename] = (source, *_compiled(source, code))
    tree, codes = known[1], known[2]
    if tree is None or not any(made == code for made in codes):
        return None
    if code.co_name == "<module>":
        return tree
    found = [node for node in ast.walk(tree) if _is_function(node, code)]
    return found[0] if len(found) == 1 else None  # type: ignore[return-value]


def _compiled(source: str, code: CodeType) -> Tuple[Optional[ast.Module], List[CodeType]]:
    try:
        tree = ast.parse(source)
        flags = code.co_flags & _FUTURE_FLAGS
        module = compile(source, code.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None, []
    return tree, list(_nested(module))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _nested(value)


def _is_function(node: ast.AST, code: CodeType) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != code.co_name:
        return False
    first = min([node.lineno] + [one.lineno for one in node.decorator_list])
    return first == code.co_firstlineno


def statement_at(function: Function, site: Site) -> Optional[Statement]:
    """The simple statement that a call belongs to; None when it cannot be told."""
    found = [one for one in _statements(function) if _covers(one.node, site)]
    return found[0] if len(found) == 1 else None


def _statements(node: Any, around: Tuple[ast.AST, ...] = ()) -> Iterator[Statement]:
    """Every simple statement of a function, without those of functions and classes inside."""
    for name in _BLOCKS:
        block = getattr(node, name, ())
        if not isinstance(block, list):
            continue
        for index, one in enumerate(block):
            if isinstance(one, _SCOPES):
                continue
            if hasattr(one, "body") or hasattr(one, "cases"):
                yield from _statements(one, (*around, one))
            else:
                yield Statement(one, tuple(block), index, around)
    for handler in getattr(node, "handlers", ()):
        yield from _statements(handler, (*around, handler))
    for case in getattr(node, "cases", ()):
        yield from _statements(case, (*around, case))


def _covers(node: ast.stmt, site: Site) -> bool:
    end_line = node.end_lineno or node.lineno
    if not node.lineno <= site.line <= end_line:
        return False
    column = _column(site)
    if column is None:
        return True
    start = (node.lineno, node.col_offset)
    return start <= (site.line, column) < (end_line, node.end_col_offset or 0)


def _column(site: Site) -> Optional[int]:
    """Where in its line the call begins, from Python 3.11 on."""
    positions = getattr(site.code, "co_positions", None)
    if positions is None:
        return None
    for number, (line, _, column, _) in enumerate(positions()):
        if number == site.instruction // 2:
            return column if line == site.line else None
    return None
