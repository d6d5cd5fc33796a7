"""The syntax tree of a running function, its current statement, and expressions that only compute.

The recompiled source must give exactly the running code. An expression is plain if it consists of literals, plain
tensors and numbers, arithmetic, and calls of the torch functions listed here, which call no code of the program.
"""

import ast
import inspect
import linecache
import math
import types
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch

from torchyard.worker.values.operators import words

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
    """A simple statement of a function and its position."""

    node: ast.stmt
    block: Tuple[ast.stmt, ...]
    place: int
    """Index in the block."""
    around: Tuple[ast.AST, ...]
    """Compound statements that contain the block, outermost first."""


def site_of(frame: FrameType) -> Site:
    """Return the call site of a frame."""
    return Site(frame.f_code, frame.f_lineno, frame.f_lasti)


_trees: Dict[str, Tuple[str, Optional[ast.Module], List[CodeType]]] = {}
_functions: Dict[int, Tuple[CodeType, Optional[Function]]] = {}


def function_of(code: CodeType, module_globals: Dict[str, Any]) -> Optional[Function]:
    """Return the syntax tree of a function or module; None if its source is not certain."""
    entry = _functions.get(id(code))
    if entry is None:
        entry = _functions[id(code)] = (code, _find_function(code, module_globals))
    return entry[1]


def _find_function(code: CodeType, module_globals: Dict[str, Any]) -> Optional[Function]:
    source = "".join(linecache.getlines(code.co_filename, module_globals))
    if not source:
        return None
    parsed = _trees.get(code.co_filename)
    if parsed is None or parsed[0] != source:
        parsed = _trees[code.co_filename] = (source, *_compiled(source, code))
    tree, codes = parsed[1], parsed[2]
    if tree is None or not any(compiled == code for compiled in codes):
        return None
    if code.co_name == "<module>":
        return tree
    functions = [node for node in ast.walk(tree) if _is_function(node, code)]
    return functions[0] if len(functions) == 1 else None  # type: ignore[return-value]


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
    """Return the simple statement that contains a call; None if ambiguous."""
    statements = [one for one in _statements(function) if _covers(one.node, site)]
    return statements[0] if len(statements) == 1 else None


def _statements(node: Any, around: Tuple[ast.AST, ...] = ()) -> Iterator[Statement]:
    """Yield every simple statement of a function, without nested functions and classes."""
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
    """Return the column of the call; available from Python 3.11 on."""
    positions = getattr(site.code, "co_positions", None)
    if positions is None:
        return None
    for number, (line, _, column, _) in enumerate(positions()):
        if number == site.instruction // 2:
            return column if line == site.line else None
    return None


_TENSORS = (torch.Tensor, torch.nn.Parameter)
_NUMBERS = (int, float, bool)
_VALUES = (*_NUMBERS, str, type(None), torch.dtype, torch.device, torch.Size, slice, type(Ellipsis))
_SIGNS = (ast.Add, ast.Sub, ast.Mult, ast.MatMult)
MISSING: Any = object()
"""Marker for a value that is unknown without running code of the program."""
CALLED = words(
    "abs add addmm arange bmm cat contiguous cos detach double empty empty_like exp expand "
    "flatten float full half linspace log matmul maximum mean minimum mm mul neg normal_ ones "
    "ones_like permute rand rand_like randn randn_like relu reshape rsqrt sigmoid sin size "
    "softmax sqrt square squeeze stack sub sum t tanh to transpose unsqueeze view zeros "
    "zeros_like"
)
"""Functions and methods that compute from shapes and values and never raise because of values."""
_TENSOR_FACTS = words("T mT shape dtype device ndim")


class Names:
    """Values of names in a running function, looked up without running code of the program."""

    def __init__(self, frame: FrameType) -> None:
        self._file = frame.f_code.co_filename
        self._locals: Dict[str, Any] = frame.f_locals
        self._globals: Dict[str, Any] = frame.f_globals
        self._builtins: Dict[str, Any] = frame.f_builtins

    def value(self, node: ast.AST) -> Any:
        """Return the object of a name with attributes; `MISSING` if that requires running code."""
        if isinstance(node, ast.Name):
            for names in (self._locals, self._globals, self._builtins):
                if node.id in names:
                    return names[node.id]
            return MISSING
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            return MISSING if owner is MISSING else _attribute(owner, node.attr)
        return MISSING

    def is_tensor(self, node: ast.AST) -> bool:
        """Return whether the expression is a plain tensor."""
        return type(self.value(node)) in _TENSORS

    def is_number(self, node: ast.AST) -> bool:
        """Return whether the expression is a Python number."""
        return type(self.value(node)) in _NUMBERS

    def torch_function(self, node: ast.AST) -> Optional[str]:
        """Return the name of a torch function implemented in C, such as `zeros` for `torch.zeros`."""
        function = self.value(node)
        if type(function) is not types.BuiltinFunctionType:
            return None
        name = function.__name__
        of_torch = getattr(torch._C._VariableFunctions, name, None) is not None
        return name if of_torch and getattr(torch, name, None) is function else None

    def of_torch(self, node: ast.AST) -> bool:
        """Return whether the expression is a class or function of torch."""
        value = self.value(node)
        module = getattr(value, "__module__", None) if callable(value) else None
        return isinstance(module, str) and (module + ".").startswith("torch.")

    def is_fixed_size(self, node: ast.AST) -> bool:
        """Return whether a size is a literal or a module constant; computed sizes may depend on values."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(self.is_fixed_size(one) for one in node.elts)
        if isinstance(node, ast.Name):
            if node.id in self._locals and self._locals is not self._globals:
                return False
            parsed = _trees.get(self._file)
            value = (
                None if parsed is None or parsed[1] is None else _constant_of(parsed[1], node.id)
            )
            sizes = value if isinstance(value, tuple) else (value,)
            return all(type(one) is int for one in sizes) and value == self._globals.get(node.id)
        return isinstance(node, ast.Constant) and type(node.value) is int

    def is_constant_range(self, node: ast.AST, target: str) -> bool:
        """Return whether it is a `range` of literals, module constants and sizes of the target."""
        return (
            isinstance(node, ast.Call)
            and self.value(node.func) is range
            and not node.keywords
            and all(self.is_fixed_size(one) or _is_size_of(one, target) for one in node.args)
        )


def _constant_of(tree: ast.Module, name: str) -> Any:
    """Return the literal that the module assigns to a name that nothing else binds, else None."""
    bindings = [
        one
        for one in ast.walk(tree)
        if (
            name
            in (getattr(one, "id", None), getattr(one, "arg", None), getattr(one, "name", None))
            and not isinstance(getattr(one, "ctx", None), ast.Load)
        )
        or name in (getattr(one, "asname", None), getattr(one, "rest", None))
        or (isinstance(one, (ast.Global, ast.Nonlocal)) and name in one.names)
    ]
    values = [
        one.value
        for one in tree.body
        if isinstance(one, ast.Assign) and len(one.targets) == 1 and one.targets == bindings
    ]
    try:
        return ast.literal_eval(values[0]) if values else None
    except ValueError:
        return None


def _is_size_of(node: ast.AST, target: str) -> bool:
    """Return whether it is `len(target)`, `target.shape[0]` or `target.size(0)`."""
    owner: Any = None
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            owner = node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            owner = node.func.value if is_literal(node.args[0]) else None
    elif isinstance(node, ast.Subscript) and is_literal(node.slice):
        shape = node.value
        owner = getattr(shape, "value", None) if getattr(shape, "attr", "") == "shape" else None
    return isinstance(owner, ast.Name) and owner.id == target


def is_literal(node: ast.AST, loops: Tuple[str, ...] = ()) -> bool:
    """Return whether a subscript consists of literals and variables of constant loops."""
    if isinstance(node, ast.Constant):
        return node.value is None or node.value is Ellipsis or type(node.value) is int
    if isinstance(node, ast.Name):
        return node.id in loops
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and is_literal(node.operand, loops)
    if isinstance(node, ast.BinOp):
        parts = (node.left, node.right)
        return isinstance(node.op, _SIGNS) and all(is_literal(one, loops) for one in parts)
    if isinstance(node, ast.Tuple):
        return all(is_literal(one, loops) for one in node.elts)
    if isinstance(node, ast.Slice):
        bounds = (node.lower, node.upper, node.step)
        return all(one is None or is_literal(one, loops) for one in bounds)
    if type(node).__name__ in ("Index", "ExtSlice"):  # Python 3.8
        inner = getattr(node, "dims", None) or [getattr(node, "value", node)]
        return all(one is not node and is_literal(one, loops) for one in inner)
    return False


def is_plain(node: ast.AST, names: Names, target: Optional[str] = None) -> bool:
    """Return whether an expression is plain; `target` may be overwritten."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, (ast.Name, ast.Attribute)):
        if target is not None and ast.dump(_load(node)) == ast.dump(_load(_parsed(target))):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _TENSOR_FACTS:
            return is_plain(node.value, names, target)
        return type(names.value(node)) in (*_TENSORS, *_VALUES)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(is_plain(one, names, target) for one in node.elts)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and is_plain(node.operand, names, target)
    if isinstance(node, ast.BinOp):
        parts = (node.left, node.right)
        return _raises_never(node) and all(is_plain(one, names, target) for one in parts)
    if isinstance(node, ast.Subscript):
        return is_literal(node.slice) and is_plain(node.value, names, target)
    if isinstance(node, ast.Call):
        return _is_plain_call(node, names, target)
    return False


def _is_plain_call(node: ast.Call, names: Names, target: Optional[str]) -> bool:
    arguments = [*node.args, *(one.value for one in node.keywords)]
    if not all(is_plain(one, names, target) for one in arguments):
        return False
    if any(one.arg is None for one in node.keywords):
        return False
    called = names.torch_function(node.func)
    if called is not None:
        return called in CALLED or any(one.arg == "out" for one in node.keywords)
    if not isinstance(node.func, ast.Attribute) or not is_plain(node.func.value, names, target):
        return False
    method = node.func.attr
    written = target is not None and ast.dump(_load(node.func.value)) == ast.dump(
        _load(_parsed(target))
    )
    if method not in CALLED and not written:
        return False
    return isinstance(getattr(torch.Tensor, method, None), types.MethodDescriptorType)


def _raises_never(node: ast.BinOp) -> bool:
    if isinstance(node.op, _SIGNS):
        return True
    divisor = node.right
    return (
        isinstance(node.op, ast.Div)
        and isinstance(divisor, ast.Constant)
        and isinstance(divisor.value, (int, float))
        and math.isfinite(divisor.value)
        and divisor.value != 0
    )


def _attribute(owner: Any, name: str) -> Any:
    """Return a stored attribute; properties and other computed attributes are `MISSING`."""
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, MISSING)
    kind: Any = type(owner)
    if kind.__getattribute__ is not object.__getattribute__:
        return MISSING
    if inspect.getattr_static(kind, name, MISSING) is not MISSING:
        return MISSING
    stored = getattr(owner, "__dict__", {})
    if name in stored:
        return stored[name]
    if isinstance(owner, torch.nn.Module) and kind.__getattr__ is torch.nn.Module.__getattr__:
        for part in ("_buffers", "_parameters", "_modules"):
            if name in stored.get(part, ()):
                return stored[part][name]
    return MISSING


def _parsed(target: str) -> ast.AST:
    return ast.parse(target, mode="eval").body


def _load(node: ast.AST) -> ast.AST:
    """Return a name or attribute in load context."""
    if isinstance(node, ast.Name):
        return ast.Name(id=node.id, ctx=ast.Load())
    if isinstance(node, ast.Attribute):
        inner: Any = _load(node.value)
        return ast.Attribute(value=inner, attr=node.attr, ctx=ast.Load())
    return node
