"""Proofs from the source of the program: the next use of filled memory always overwrites it.

Other values may take a branch that reads the fill, so there must be straight-line code between the fill and the
write that cannot access the memory in any other way:

private: only a local variable refers to the memory, and it does not occur before the write.
adjacent: others may refer to it; then the code in between may only call known functions of torch on plain tensors
in memory that was allocated in the same block: any other tensor might be the filled one.

Writes of pieces with literal subscripts count if they cover every shape (`piece_coverage.py`). Code that is not
recognized proves nothing.
"""

import ast
from types import CodeType, FrameType
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.operators import words
from torchyard.worker.values.proofs.piece_coverage import cover_every_shape
from torchyard.worker.values.proofs.syntax import (
    MISSING,
    Function,
    Names,
    Site,
    Statement,
    function_of,
    is_literal,
    is_plain,
    site_of,
    statement_at,
)

CREATORS = words("zeros ones full zeros_like ones_like full_like")
METHOD_CREATORS = words("new_zeros new_ones new_full")
FILL_METHODS = words("zero_ fill_")
PRIVATE, ADJACENT = "private", "adjacent"
_OVERWRITING_METHODS = FILL_METHODS | words(
    "copy_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_"
)
_NEW = words(
    "abs add addmm arange bmm cat clone cos empty empty_like exp full linspace log matmul maximum mean "
    "minimum mm mul neg ones ones_like rand rand_like randint randn randn_like randperm relu rsqrt sigmoid "
    "sin softmax sqrt square stack sub sum tanh zeros zeros_like"
)
"""Functions and methods whose results share no memory with their arguments."""
_TENSOR_FACTS = words("shape dtype device ndim")
_LEAVES_BLOCK = (
    ast.Return,
    ast.Break,
    ast.Continue,
    ast.Try,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.AsyncFor,
    ast.AsyncWith,
    ast.Global,
    ast.Nonlocal,
    ast.Delete,
)
_INTROSPECTS = words("locals vars eval exec globals _getframe f_locals")
_ALWAYS_EVALUATED = (
    ast.Call,
    ast.Attribute,
    ast.keyword,
    ast.BinOp,
    ast.UnaryOp,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Expr,
    ast.Assign,
    ast.AnnAssign,
    ast.Return,
    ast.Starred,
)


class Claim(NamedTuple):
    """A proof from the source."""

    how: str
    """PRIVATE or ADJACENT."""
    by_shape: bool
    """Whether it also requires that the written pieces cover the shape of this call."""
    in_pieces: bool = False
    """Whether the memory is overwritten piece by piece."""


class _Fill(NamedTuple):
    """A statement that fills memory, and the name of that memory."""

    call: ast.Call
    target: Optional[str]
    """Source text of the name or attribute; None if the fill is used within its own statement."""
    creates: bool


def fill_is_overwritten(fill: Site, frame: FrameType, operator: str) -> Optional[Claim]:
    """Return a claim that the current write, which must cover every element, always precedes any read of the fill."""
    pair = _Pair.of(fill, frame)
    return None if pair is None else pair.overwritten(operator)


def fill_is_repeated(fill: Site, frame: FrameType) -> Optional[Claim]:
    """Return a claim that the current fill of a frame repeats the constant of an earlier fill."""
    pair = _Pair.of(fill, frame)
    return None if pair is None else pair.repeated()


def is_identity(frame: FrameType, operator: str) -> bool:
    """Return whether a frame executes an in-place multiplication or division by a literal 1."""
    function = function_of(frame.f_code, frame.f_globals)
    statement = None if function is None else statement_at(function, site_of(frame))
    if statement is None:
        return False
    node = statement.node
    if isinstance(node, ast.AugAssign):
        signs = {"mul_": ast.Mult, "div_": ast.Div}
        return isinstance(node.op, signs.get(operator, ())) and _is_one(node.value)
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    matching = [one for one in calls if _method(one) == operator]
    return (
        operator in ("mul_", "div_")
        and len(matching) == 1
        and len(matching[0].args) == 1
        and not matching[0].keywords
        and _is_one(matching[0].args[0])
    )


class _Pair:
    """A fill and a later write in one function."""

    def __init__(
        self, code: CodeType, function: Function, fill: Statement, write: Statement, names: Names
    ) -> None:
        self._code, self._function, self._names = code, function, names
        self._fill, self._write = fill, write

    @classmethod
    def of(cls, fill: Site, frame: FrameType) -> Optional["_Pair"]:
        code = frame.f_code
        if fill.code is not code or _other_function_modes():
            return None
        function = function_of(code, frame.f_globals)
        if function is None:
            return None
        first, last = statement_at(function, fill), statement_at(function, site_of(frame))
        if first is None or last is None:
            return None
        return cls(code, function, first, last, Names(frame))

    def overwritten(self, operator: str) -> Optional[Claim]:
        """Return a claim that the write overwrites the fill."""
        fill = self._described_fill()
        if fill is None:
            return None
        if fill.target is None:
            return self._within_statement(fill, operator)
        between = self._between(allow_loop=True)
        if between is None:
            return None
        last = self._last()
        if _is_whole_write(last, fill.target, operator, self._names):
            pieces: List[ast.stmt] = []
        else:
            pieces = [one for one in (*between, last) if _mentions(one, fill.target)]
            if not all(self._writes_piece(one, fill.target) for one in pieces):
                return None
        unused = [one for one in between if one not in pieces]
        how = self._reachable_by(fill, unused, last)
        by_shape = bool(pieces) and not cover_every_shape(pieces)
        if how is None or (by_shape and not self._has_fixed_shape(fill)):
            return None
        return Claim(how, by_shape, bool(pieces))

    def repeated(self) -> Optional[Claim]:
        """Return a claim that the write repeats the constant of the fill."""
        fill = self._described_fill()
        if fill is None or fill.target is None:
            return None
        between = self._between(allow_loop=False)
        if between is None:
            return None
        last = self._write.node
        again = _call_on(last, fill.target, FILL_METHODS)
        if again is None:
            return None
        values = [_constant(one, self._names) for one in (fill.call, again)]
        if not self._same_constant(values, (*between, last)):
            return None
        how = self._reachable_by(fill, between, last)
        return None if how is None else Claim(how, by_shape=False)

    def _same_constant(
        self, values: Sequence[Optional[ast.expr]], between: Sequence[ast.stmt]
    ) -> bool:
        """Return whether two fills write the same value for every input: a literal or unchanged number."""
        first, again = values
        if isinstance(first, ast.Constant) and isinstance(again, ast.Constant):
            return bool(first.value == again.value)
        if not isinstance(first, ast.Name) or not isinstance(again, ast.Name):
            return False
        unchanged = self._is_private(first.id) and not any(
            _assigns(one, first.id) for one in between
        )
        return first.id == again.id and unchanged and self._names.is_number(first)

    def _has_fixed_shape(self, fill: _Fill) -> bool:
        """Return whether the created tensor has the same shape in every call."""
        name = self._names.torch_function(fill.call.func)
        if not fill.creates or name not in ("zeros", "ones", "full"):
            return False
        sizes = fill.call.args[:1] if name == "full" else fill.call.args
        return bool(sizes) and all(self._names.is_fixed_size(one) for one in sizes)

    def _described_fill(self) -> Optional[_Fill]:
        node = self._fill.node
        if self._fill.node is self._write.node:
            inner = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
            creations = [one for one in inner if self._creates(one)]
            return _Fill(creations[0], None, creates=True) if len(creations) == 1 else None
        value, target = _assigned(node)
        if value is None:
            return None
        if self._creates(value) and target is not None:
            return _Fill(value, target, creates=True)
        if _method(value) not in FILL_METHODS or not isinstance(value.func, ast.Attribute):
            return None
        filled = _path(value.func.value)
        if filled is None or target not in (None, filled):
            return None
        return _Fill(value, filled, creates=False)

    def _creates(self, call: ast.Call) -> bool:
        if any(one.arg in (None, "out") for one in call.keywords):
            return False
        if _method(call) in METHOD_CREATORS and isinstance(call.func, ast.Attribute):
            return self._names.is_tensor(call.func.value)
        name = self._names.torch_function(call.func)
        return name in CREATORS

    def _within_statement(self, fill: _Fill, operator: str) -> Optional[Claim]:
        """Handle `torch.zeros(n).copy_(x)`: only the write refers to the memory."""
        parents = _parents(self._write.node)
        up = parents.get(fill.call)
        if isinstance(up, ast.Attribute) and up.attr == operator in _OVERWRITING_METHODS:
            call = parents.get(up)
        elif isinstance(up, ast.keyword) and up.arg == "out":
            call = parents.get(up)
            if not isinstance(call, ast.Call) or self._names.torch_function(call.func) is None:
                return None
        else:
            return None
        if not isinstance(call, ast.Call) or not _always(call, parents):
            return None
        return Claim(PRIVATE, by_shape=False) if self._handlers_harmless() else None

    def _between(self, *, allow_loop: bool) -> Optional[Tuple[ast.stmt, ...]]:
        """Return the statements between the two; None unless both are in one block, in this order."""
        first, block = self._fill, self._fill.block
        last = self._last()
        if last not in block or (last is not self._write.node and not allow_loop):
            return None
        end = block.index(last)
        return block[first.place + 1 : end] if end > first.place else None

    def _last(self) -> ast.stmt:
        """Return the statement of the fill's block that contains the write: itself or a loop."""
        block = self._fill.block
        around: List[Any] = [one for one in self._write.around if one in block]
        return around[0] if around else self._write.node

    def _reachable_by(
        self, fill: _Fill, between: Sequence[ast.stmt], last: ast.stmt
    ) -> Optional[str]:
        """Return why nothing else accesses the memory between the two; None if unknown."""
        target = fill.target or ""
        if any(_mentions(one, target) or _leaves(one) for one in between) or _introspects(last):
            return None
        if fill.creates and self._is_private(target) and self._handlers_harmless():
            return PRIVATE
        if not self._names.is_tensor(ast.parse(target, mode="eval").body):
            return None
        plain = all(self._is_plain(one) for one in between)
        if not plain or not self._is_plain_until(last, target):
            return None
        return ADJACENT if self._uses_other_memory((*between, last), target) else None

    def _uses_other_memory(self, nodes: Sequence[ast.stmt], target: str) -> bool:
        """Return whether the tensors that statements use can never be the target or a view of it."""
        paths = {_path(one): one for node in nodes for one in ast.walk(node)}
        used = [
            path
            for path, one in paths.items()
            if path not in (None, target) and self._names.is_tensor(one)
        ]
        return all(self._is_new(str(path)) for path in used) or self._is_only_reference(target)

    def _is_only_reference(self, name: str) -> bool:
        """Return whether no other variable or object can ever refer to the memory of a variable.

        It always holds new memory, and its uses in the function keep no reference and give no view.
        """
        if not self._is_private(name) or _introspects(self._function):
            return False
        parents = _parents(self._function)
        uses = [
            one for one in ast.walk(self._function) if isinstance(one, ast.Name) and one.id == name
        ]
        return all(self._keeps_no_reference(one, parents) for one in uses)

    def _keeps_no_reference(self, use: ast.Name, parents: Any) -> bool:
        up = parents.get(use)
        if not isinstance(use.ctx, ast.Load):
            alone = isinstance(up, ast.Assign) and len(up.targets) == 1
            return alone and self._makes_memory(up.value)
        if isinstance(up, ast.Subscript):
            return up.value is use and isinstance(up.ctx, ast.Store)
        if isinstance(up, (ast.BinOp, ast.UnaryOp)):
            return is_plain(up, self._names)
        call = parents.get(up) if isinstance(up, (ast.Attribute, ast.keyword)) else up
        if isinstance(up, ast.Attribute) and not _calls(call, up):
            return up.attr in _TENSOR_FACTS
        if not isinstance(call, ast.Call):
            return False
        arguments = [*call.args, *(one.value for one in call.keywords)]
        if not all(is_plain(one, self._names) for one in arguments):
            return False
        if isinstance(up, ast.Attribute):
            in_place = up.attr in _OVERWRITING_METHODS
            return up.attr in _NEW or (in_place and isinstance(parents.get(call), ast.Expr))
        if self._names.torch_function(call.func) is None:
            return False
        if isinstance(up, ast.keyword) and up.arg == "out":
            return isinstance(parents.get(call), ast.Expr)
        return self._makes_memory(call)

    def _is_new(self, name: str) -> bool:
        """Return whether a variable always holds new memory to which the filled variable cannot refer.

        Its last assignment stands in the block of the fill. Until the write, it occurs only in plain
        statements, which keep no reference; of a variable that other functions see, all are plain.
        """
        block = self._fill.block
        end = block.index(self._last())
        places = [place for place, one in enumerate(block[:end]) if _assigns(one, name)]
        if not places:
            return False
        node = block[places[-1]]
        alone = isinstance(node, ast.Assign) and len(node.targets) == 1
        if not alone or _path(node.targets[0]) != name or not self._makes_memory(node.value):  # type: ignore[attr-defined]
            return False
        fill = self._fill.place
        after = [
            one for place, one in enumerate(block[:end]) if place > places[-1] and place != fill
        ]
        if self._is_private(name):
            after = [one for one in after if _mentions(one, name)]
        return all(self._is_plain(one) for one in after)

    def _makes_memory(self, node: ast.AST) -> bool:
        """Return whether an expression gives a tensor in new memory."""
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            return is_plain(node, self._names)
        if not isinstance(node, ast.Call) or any(one.arg in (None, "out") for one in node.keywords):
            return False
        called = self._names.torch_function(node.func)
        if called is None and isinstance(node.func, ast.Attribute):
            called = node.func.attr if is_plain(node, self._names) else None
        return called in _NEW

    def _is_private(self, name: str) -> bool:
        return (
            name in self._code.co_varnames
            and name not in self._code.co_cellvars
            and not isinstance(self._function, (ast.Module, ast.Lambda))
        )

    def _handlers_harmless(self) -> bool:
        """Return whether no code of this function can use the memory after an exception."""
        for node in self._fill.around:
            if isinstance(node, (ast.Try, ast.ExceptHandler)) or hasattr(node, "handlers"):
                return False
            if isinstance(node, ast.AsyncWith):
                return False
            if isinstance(node, ast.With) and not all(
                isinstance(item.context_expr, ast.Call)
                and self._names.of_torch(item.context_expr.func)
                for item in node.items
            ):
                return False
        return True

    def _is_plain(self, node: ast.stmt) -> bool:
        """Return whether a statement only computes with plain tensors."""
        if isinstance(node, ast.Pass):
            return True
        if isinstance(node, ast.Assign):
            targets: List[Any] = list(node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        elif isinstance(node, ast.Expr):
            targets = []
        else:
            return False
        named = all(isinstance(one, ast.Name) for one in targets)
        return named and node.value is not None and is_plain(node.value, self._names)

    def _is_plain_until(self, node: ast.stmt, target: str) -> bool:
        """Return whether everything evaluated before the write to the target is plain."""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            return is_plain(node.value, self._names)
        parents = _parents(node)
        written = next((one for one in ast.walk(node) if _path(one) == target), None)
        call = written
        while call is not None and not isinstance(call, ast.Call):
            call = parents.get(call)
        if call is None or not is_plain(call, self._names, target):
            return False
        while not isinstance(call, ast.stmt):
            up = parents[call]
            first = isinstance(up, ast.Call) and up.args[:1] == [call]
            if first and self._names.value(up.func) is MISSING:
                return False
            if not (first or isinstance(up, (ast.Attribute, ast.stmt)) or _calls(up, call)):
                return False
            call = up
        return isinstance(call, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return))

    def _writes_piece(self, node: ast.stmt, target: str, loops: Tuple[str, ...] = ()) -> bool:
        """Return whether a statement is `target[1:3] = x`, or a loop over such assignments."""
        if isinstance(node, ast.For):
            if node.orelse or not isinstance(node.target, ast.Name) or _leaves(node):
                return False
            if not self._names.is_constant_range(node.iter, target):
                return False
            inner = (*loops, node.target.id)
            if any(_assigns(one, name) for one in node.body for name in inner):
                return False
            return all(
                not _mentions(one, target) or self._writes_piece(one, target, inner)
                for one in node.body
            )
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return False
        place = node.targets[0]
        return (
            isinstance(place, ast.Subscript)
            and _path(place.value) == target
            and is_literal(place.slice, loops)
            and not _mentions(node.value, target)
        )


def _other_function_modes() -> bool:
    """Return whether a torch function mode of the program is active."""
    if not torch._C._len_torch_function_stack():
        return False
    modes = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    return modes is None or not all(type(one).__module__.startswith("torch.") for one in modes())


def _calls(node: Optional[ast.AST], func: ast.AST) -> bool:
    return isinstance(node, ast.Call) and node.func is func


def _is_whole_write(node: ast.stmt, target: str, operator: str, names: Names) -> bool:
    """Return whether a statement mentions the target once, as the output of a known operator."""
    if isinstance(node, ast.For):
        return False
    call = _call_on(node, target, _OVERWRITING_METHODS)
    if call is not None:
        return _method(call) == operator
    parents = _parents(node)
    mentions = [one for one in ast.walk(node) if _path(one) == target]
    if len(mentions) != 1:
        return False
    keyword = parents.get(mentions[0])
    call_node = parents.get(keyword) if keyword is not None else None
    return (
        isinstance(keyword, ast.keyword)
        and keyword.arg == "out"
        and isinstance(call_node, ast.Call)
        and names.torch_function(call_node.func) is not None
        and _always(call_node, parents)
    )


def _call_on(node: ast.stmt, target: str, methods: Any) -> Optional[ast.Call]:
    """Return the only method call on the target, if the statement mentions it nowhere else."""
    parents = _parents(node)
    mentions = [one for one in ast.walk(node) if _path(one) == target]
    if len(mentions) != 1:
        return None
    attribute = parents.get(mentions[0])
    call = parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
    if not isinstance(call, ast.Call) or call.func is not attribute:
        return None
    return call if _method(call) in methods and _always(call, parents) else None


def _always(node: ast.AST, parents: Any) -> bool:
    """Return whether an expression is evaluated whenever its statement is."""
    up = parents.get(node)
    while up is not None:
        if not isinstance(up, _ALWAYS_EVALUATED):
            return False
        up = parents.get(up)
    return True


def _assigned(node: ast.stmt) -> Tuple[Optional[ast.Call], Optional[str]]:
    """Return the call that a statement consists of, and the name assigned to its result."""
    value, target = getattr(node, "value", None), None
    if isinstance(node, ast.Assign):
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return None, None
        target = node.targets[0].id
    elif isinstance(node, ast.AnnAssign):
        if not isinstance(node.target, ast.Name):
            return None, None
        target = node.target.id
    elif not isinstance(node, ast.Expr):
        return None, None
    return (value, target) if isinstance(value, ast.Call) else (None, None)


def _constant(call: ast.Call, names: Names) -> Optional[ast.expr]:
    """Return the value that a fill writes, as an expression."""
    name = names.torch_function(call.func) or _method(call) or ""
    for word, value in (("zero", 0), ("ones", 1)):
        if word in name:
            return ast.Constant(value=value)
    values = list(call.args[1:] if "full" in name else call.args)
    values += [one.value for one in call.keywords if one.arg in ("fill_value", "value")]
    return values[0] if values else None


def _mentions(node: ast.AST, target: str) -> bool:
    """Return whether a name or attribute occurs in a syntax tree."""
    first = target.split(".", maxsplit=1)[0]
    if "." in target:
        return any(_path(one) == target for one in ast.walk(node)) or _assigns(node, first)
    return any(isinstance(one, ast.Name) and one.id == first for one in ast.walk(node))


def _assigns(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load)
        for one in ast.walk(node)
    )


def _leaves(node: ast.AST) -> bool:
    """Return whether a statement may leave the block, suspend, or inspect variables."""
    return any(isinstance(one, _LEAVES_BLOCK) for one in ast.walk(node)) or _introspects(node)


def _introspects(node: ast.AST) -> bool:
    names = [getattr(one, "id", None) or getattr(one, "attr", None) for one in ast.walk(node)]
    return any(name in _INTROSPECTS for name in names)


def _path(node: ast.AST) -> Optional[str]:
    """Return a name with attributes as text (`self.buffer`); None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _path(node.value)
        return None if inner is None else "%s.%s" % (inner, node.attr)
    return None


def _method(call: ast.Call) -> Optional[str]:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _is_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 1


def _parents(node: ast.AST) -> Any:
    return {child: up for up in ast.walk(node) for child in ast.iter_child_nodes(up)}
