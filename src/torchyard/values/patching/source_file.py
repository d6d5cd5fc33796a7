"""A source file of the user: its syntax tree, what its names mean, and edits that keep everything else.

Names are resolved without running code: only names that the whole file binds by imports of torch have a meaning.
"""

from __future__ import annotations

import ast
import copy
import difflib
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from torchyard.values.patching.model import Edit, NotProposed

_BOM: Final = b"\xef\xbb\xbf"
_MOST_BYTES: Final = 4 << 20
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Module
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_HARMLESS_DECORATORS: Final = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.enable_grad"}
    | {"staticmethod", "classmethod", "property", "dataclasses.dataclass", "functools.wraps"}
    | {"abc.abstractmethod", "typing.override", "functools.cached_property"}
)
_BLOCKS: Final = ("body", "orelse", "finalbody")


class SourceFile:
    """A parsed file; raises NotProposed if it cannot be edited safely."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        self._bom = _BOM if data.startswith(_BOM) else b""
        body = data[len(self._bom) :]
        if len(data) > _MOST_BYTES:
            raise NotProposed("the file is too large")
        if b"\r" in body.replace(b"\r\n", b""):
            raise NotProposed("the file has line ends of several kinds")
        try:
            if tokenize.detect_encoding(io.BytesIO(data).readline)[0] not in ("utf-8", "utf-8-sig"):
                raise NotProposed("the file is not encoded in UTF-8")
            body.decode("utf-8")
            self.tree = ast.parse(body)
        except (SyntaxError, ValueError) as error:
            raise NotProposed("the file cannot be parsed") from error
        self._body = body
        self._starts = [0]
        for line in body.split(b"\n")[:-1]:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Read a regular file."""
        try:
            if not path.is_file():
                raise NotProposed(f"there is no file {path.name}")
            return cls(path, path.read_bytes())
        except OSError as error:
            raise NotProposed(f"{path.name} cannot be read: {error.strerror}") from error

    @property
    def newline(self) -> bytes:
        """Return the line end of the file."""
        return b"\r\n" if b"\r\n" in self._body else b"\n"

    def start(self, node: ast.AST) -> int:
        """Return the offset of the first byte of a node."""
        return self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Return the offset after the last byte of a node."""
        return self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and a column in bytes."""
        return self._starts[line - 1] + column

    def line_start(self, line: int) -> int:
        """Return the offset of a line; of the end for the line after the last."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self._body)

    def between(self, start: int, end: int) -> bytes:
        """Return bytes of the source."""
        return self._body[start:end]

    def edited(self, edits: Sequence[Edit]) -> bytes:
        """Return the content of the file with all edits; overlapping ones raise NotProposed."""
        parts, at = [self._bom], 0
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            if edit.start < at:
                raise NotProposed("its patch overlaps with that of another finding")
            parts += [self._body[at : edit.start], edit.text]
            at = edit.end
        return b"".join([*parts, self._body[at:]])

    def diff(self, edits: Sequence[Edit], name: str) -> str:
        """Return a unified diff."""
        before, after = (
            io.StringIO(data.decode("utf-8"), newline="\n").readlines()
            for data in (self.data, self.edited(edits))
        )
        lines = []
        for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
            lines.append(line)
            if not line.endswith("\n"):
                lines.append("\n\\ No newline at end of file\n")
        return "".join(lines)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the list of statements that a statement is in."""
        parent = self.parents[statement]
        for name in _BLOCKS:
            block = getattr(parent, name, None)
            if isinstance(block, list) and any(one is statement for one in block):
                return block
        raise NotProposed("the statement is in a block of an unknown kind")

    def scope(self, node: ast.AST) -> Scope:
        """Return the function, class or module that a node belongs to."""
        current = self.parents.get(node)
        while current is not None and not isinstance(
            current, (*_FUNCTIONS, ast.ClassDef, ast.Module)
        ):
            current = self.parents.get(current)
        return current if current is not None else self.tree

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def calls_at(self, line: int) -> list[ast.Call]:
        """Return the calls whose source includes a line."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
        ]

    @cached_property
    def bindings(self) -> dict[str, list[ast.AST]]:
        """Return the nodes that bind each name, in any scope of the file."""
        found: dict[str, list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            for name in _bound_names(node):
                found[name].append(node)
        return found

    @cached_property
    def imports(self) -> dict[str, str]:
        """Return the meaning of names that only imports bind: `t` -> `torch`."""
        meanings: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    meanings[name].add(alias.name if alias.asname else name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    path = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                    meanings[alias.asname or alias.name].add(path)
        return {
            name: meaning.pop()
            for name, meaning in meanings.items()
            if len(meaning) == 1
            and all(isinstance(one, (ast.Import, ast.ImportFrom)) for one in self.bindings[name])
        }

    @cached_property
    def has_star_import(self) -> bool:
        """Return whether a name may come from a star import."""
        return any(
            alias.name == "*"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )

    def meaning(self, node: ast.AST) -> str:
        """Return the full name of an expression (`torch.nn.Embedding`); empty if it is not certain."""
        if self.has_star_import:
            return ""
        if isinstance(node, ast.Name):
            if node.id in self.bindings:
                return self.imports.get(node.id, "")
            return node.id if node.id in _BUILTINS else ""
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value)
            name = f"{owner}.{node.attr}" if owner else ""
            return "" if name in self._assigned_attributes else name
        return ""

    @cached_property
    def _assigned_attributes(self) -> frozenset[str]:
        """Return names of attributes of modules that the file replaces (`torch.zeros = mine`)."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                path = _path(node)
                first, _, rest = path.partition(".")
                if first in self.imports and rest:
                    names.add(f"{self.imports[first]}.{rest}")
        return frozenset(names)

    def mentions(self, *words: str) -> str:
        """Return the first of some words that occurs as a name, attribute, argument, import or string."""
        for word in words:
            if word in self._words:
                return word
        return ""

    @cached_property
    def _words(self) -> frozenset[str]:
        words: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, (ast.arg, ast.keyword)) and node.arg:
                words.add(node.arg)
            elif isinstance(node, ast.alias):
                words.update(node.name.split("."))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                words.add(node.name)
        return frozenset(words)

    def check_editable(self, node: ast.AST) -> None:
        """Raise NotProposed if code around a node may depend on its source, or run it in another way."""
        if self.has_star_import:
            raise NotProposed("the file has a star import: the meaning of its names is not certain")
        if any(
            isinstance(one, ast.Call)
            and self.meaning(one.func) in ("setattr", "unittest.mock.patch", "mock.patch")
            and one.args
            and self.meaning(one.args[0]).startswith("torch")
            for one in ast.walk(self.tree)
        ):
            raise NotProposed("the program replaces attributes of torch")
        for around in self.ancestors(node):
            if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for decorator in around.decorator_list:
                    called = decorator.func if isinstance(decorator, ast.Call) else decorator
                    if self.meaning(called) not in _HARMLESS_DECORATORS:
                        raise NotProposed(
                            f"{around.name} has a decorator, which may use its source or its results"
                        )

    def check_result(self, edits: Sequence[Edit], expected: ast.AST) -> None:
        """Raise NotProposed unless the edited file has exactly the expected syntax tree."""
        try:
            tree = ast.parse(self.edited(edits).removeprefix(_BOM))
        except (SyntaxError, ValueError) as error:
            raise NotProposed("the call is written in a form that is not edited") from error
        if ast.dump(tree) != ast.dump(expected):
            raise NotProposed("the call is written in a form that is not edited")

    def whole_lines(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the first and last line of a statement that shares its lines with comments only."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        before = self.between(self.line_start(first), self.start(statement))
        after = self.between(self.end(statement), self.line_start(last + 1)).strip()
        if before.strip() or (after and not after.startswith(b"#")):
            raise NotProposed("the statement shares its line with other code")
        return first, last


def copy_with_index(tree: ast.AST, nodes: Iterable[ast.AST]) -> tuple[Any, list[Any]]:
    """Return a copy of a tree and the copies of some of its nodes."""
    places = {node: number for number, node in enumerate(ast.walk(tree))}
    numbers = [places[node] for node in nodes]
    again = copy.deepcopy(tree)
    copies = list(ast.walk(again))
    return again, [copies[number] for number in numbers]


def _path(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _path(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


path_of = _path
_BUILTINS: Final = frozenset(
    [
        "abs",
        "bool",
        "complex",
        "dict",
        "enumerate",
        "eval",
        "exec",
        "exit",
        "filter",
        "float",
        "format",
        "globals",
        "getattr",
        "int",
        "isinstance",
        "len",
        "list",
        "locals",
        "map",
        "max",
        "min",
        "open",
        "print",
        "range",
        "repr",
        "reversed",
        "round",
        "setattr",
        "sorted",
        "staticmethod",
        "classmethod",
        "property",
        "str",
        "sum",
        "super",
        "tuple",
        "type",
        "vars",
        "zip",
    ]
)


def _bound_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        yield from [node.name] if node.name else []
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names
