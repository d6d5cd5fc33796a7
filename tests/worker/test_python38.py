"""The worker supports Python 3.8, in syntax and library use."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchyard.worker

WORKER = Path(torchyard.worker.__file__).parent
FILES = sorted(WORKER.rglob("*.py"))
OLDEST = (3, 8)

# Standard library that came after 3.8, as far as a name alone gives it away.
NEWER_MODULES = {"tomllib", "zoneinfo", "graphlib", "compression", "annotationlib"}
NEWER_NAMES = {
    "removeprefix",
    "removesuffix",
    "pairwise",
    "batched",
    "to_thread",
    "TaskGroup",
    "ExceptionGroup",
    "BaseExceptionGroup",
    "add_note",
    "bit_count",
    "randbytes",
    "unparse",
    "packages_distributions",
    "stdlib_module_names",
    "orig_argv",
    "is_relative_to",
    "aclosing",
    "StrEnum",
}
NEWER_KEYWORDS = {"strict": {"zip"}, "slots": {"dataclass"}, "kw_only": {"dataclass", "field"}}
NEWER_TYPING = {"Annotated", "ParamSpec", "TypeAlias", "TypeGuard", "Self", "Never", "override"}
BUILT_IN_GENERICS = {"list", "dict", "tuple", "set", "frozenset", "type"}


def too_new(tree: ast.AST) -> Iterator[str]:
    """What in a file needs a Python after 3.8 when it runs."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in NEWER_MODULES:
                    yield f"line {line}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if (node.module or "").partition(".")[0] in NEWER_MODULES:
                yield f"line {line}: from {node.module}"
            for name in sorted(names & (NEWER_NAMES | NEWER_TYPING)):
                yield f"line {line}: {name}"
        elif isinstance(node, ast.Attribute) and node.attr in NEWER_NAMES:
            yield f"line {line}: .{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for keyword in node.keywords:
                if node.func.id in NEWER_KEYWORDS.get(keyword.arg or "", set()):
                    yield f"line {line}: {node.func.id}({keyword.arg}=...)"
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id in BUILT_IN_GENERICS
        ):
            yield f"line {line}: {node.value.id}[...] outside a string"
        elif isinstance(node, ast.arg | ast.AnnAssign | ast.FunctionDef):
            annotation = node.returns if isinstance(node, ast.FunctionDef) else node.annotation
            for part in ast.walk(annotation) if annotation is not None else ():
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr):
                    yield f"line {line}: X | Y in an annotation"


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(WORKER)))
def test_syntax_and_library_of_python_38(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=OLDEST)
    assert list(too_new(tree)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import tomllib", "import tomllib"),
        ("from itertools import pairwise", "pairwise"),
        ("'a.py'.removesuffix('.py')", ".removesuffix"),
        ("zip(a, b, strict=True)", "zip(strict=...)"),
        ("def f(x: list[int]): ...", "list[...]"),
        ("def f() -> int | None: ...", "X | Y"),
        ("x: int | None = 1", "X | Y"),
        ("from typing import Self", "Self"),
    ],
)
def test_the_check_can_fail(text: str, words: str) -> None:
    assert any(words in each for each in too_new(ast.parse(text)))


@pytest.mark.parametrize("text", ["match x:\n    case 1: pass", "with (a as b, c as d): pass"])
def test_the_parser_refuses_newer_syntax(text: str) -> None:
    ast.parse(text)
    with pytest.raises(SyntaxError):
        ast.parse(text, feature_version=OLDEST)


def old_python() -> str | None:
    """A Python 3.8 on the path that works; version managers leave names that do not."""
    interpreter = shutil.which("python3.8")
    if interpreter is None:
        return None
    completed = subprocess.run(
        [interpreter, "--version"], capture_output=True, text=True, check=False
    )
    return (
        interpreter
        if completed.returncode == 0 and completed.stdout.startswith("Python 3.8")
        else None
    )


def test_python_38_itself_compiles_every_file() -> None:
    python = old_python()
    if python is None:
        pytest.skip("no working python3.8 on the path")
    code = (
        "import sys\nfor path in sys.argv[1:]:\n    compile(open(path, 'rb').read(), path, 'exec')"
    )
    command = [python, "-c", code, *map(str, FILES)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
