"""Which expressions always give the same tensor, and which uses of a tensor cannot change it.

Everything is decided from names whose meaning is certain; what is not recognized counts as a change.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final

from torchyard.values.patching.model import NotProposed
from torchyard.values.patching.source_file import Scope, SourceFile


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEW: Final = _words(
    "abs add addmm all allclose amax amin any argmax argmin argsort atan2 bincount bmm "
    "bitwise_and bitwise_not bitwise_or cat ceil clamp clone concat cos cosh count_nonzero "
    "cross cumprod cumsum diag diag_embed div dot eq equal erf exp expm1 flip floor "
    "floor_divide fmod ge gt heaviside hypot inverse isfinite isinf isnan kron le lerp "
    "linalg_norm log log10 log1p log2 logical_and logical_not logical_or logsumexp lt "
    "masked_fill matmul max maximum mean median min minimum mm mul mv ne neg norm outer pow "
    "prod quantile reciprocal remainder repeat repeat_interleave roll round rsqrt rsub "
    "sigmoid sign sin sinh softmax log_softmax sort sqrt square stack std sub sum take tan "
    "tanh tensordot tile topk trace tril triu trunc unique var vander where"
)
"""Functions and methods whose results share no memory with their arguments."""
_VIEWS: Final = _words(
    "broadcast_to contiguous cpu detach diagonal double expand expand_as flatten float half "
    "int long bool bfloat16 movedim narrow permute reshape select squeeze swapaxes t to "
    "transpose type_as unflatten unfold unsqueeze view view_as"
)
"""Methods whose results may share the memory of their tensor."""
_CREATED: Final = _words(
    "arange empty_like eye full full_like hann_window linspace logspace meshgrid ones "
    "ones_like tensor tril_indices triu_indices zeros zeros_like"
)
_RANDOM: Final = _words("rand randn randint randperm")
_FUNCTIONAL: Final = _words(
    "cosine_similarity cross_entropy gelu l1_loss layer_norm linear mse_loss normalize "
    "one_hot scaled_dot_product_attention silu smooth_l1_loss"
)
_FACTS: Final = _words("shape dtype device ndim is_cuda requires_grad")
_VIEW_ATTRIBUTES: Final = frozenset({"T", "mT"})
_READS: Final = _words("dim element_size is_contiguous item nelement numel size stride tolist")
_SHOWS: Final = frozenset({"print", "len", "str", "repr", "float", "int", "bool"})
_MATH: Final = frozenset({"math.pi", "math.e", "math.inf", "torch.pi", "torch.inf"})
_MATH_CALLS: Final = frozenset({"math.sqrt", "math.log", "math.exp", "math.cos", "math.sin"})
_LONGEST_SHOWN: Final = 40
_REACH_MODULES: Final = _words(
    "__main__ modules globals __globals__ f_globals import_module __dict__ gc"
)
"""Names with which a file can reach the variables of another one, besides importing it."""
_SETTINGS: Final = _words(
    "set_default_dtype set_default_device set_default_tensor_type set_flush_denormal "
    "set_num_threads set_num_interop_threads set_float32_matmul_precision "
    "use_deterministic_algorithms set_deterministic_debug_mode backends "
    "set_autocast_enabled set_autocast_cpu_enabled set_autocast_gpu_enabled set_autocast_dtype "
    "set_autocast_cpu_dtype set_autocast_gpu_dtype set_rng_state"
)
"""Names of settings on which results of the same expression depend."""
_ARITHMETIC: Final = (ast.BinOp, ast.Compare)
_OPERATOR_METHODS: Final = tuple(
    f"__{prefix}{name}__"
    for name in sorted(_words("add sub mul matmul truediv floordiv mod pow and or xor"))
    for prefix in ("", "r", "i")
)
"""Methods with which a class of the program could keep an operand."""
_BAD_KEYWORDS: Final = frozenset({"out", "generator", "requires_grad", "inplace"})


_METHODS_OF_OTHERS: Final = (_NEW - {"add"}) | {"copy_", "add_", "mul_", "sub_", "masked_fill_"}
"""Methods of tensors that only read their arguments; `add` may be that of a set."""


class Invariants:
    """Decides about the expressions of one file."""

    def __init__(self, source: SourceFile, others: Sequence[SourceFile] = ()) -> None:
        self._source = source
        self._others = [one for one in others if one.path != source.path]
        """Other files of the program, which may change variables of this one."""
        self._active: set[str] = set()
        self._checked_targets: set[ast.AST] = set()
        """Assignments whose own target is checked in the same way: they may keep a view."""
        self._writes_allowed = False
        """Whether only other references matter, and writes through this one do not."""

    def check_invariant(self, node: ast.AST, before: ast.stmt) -> None:
        """Raise NotProposed unless an expression has the same value in every run, also before a statement."""
        problem = self._why_not_invariant(node, before)
        if problem:
            raise NotProposed(problem)

    def check_never_changed(self, name: str, own: ast.AST) -> None:
        """Raise NotProposed unless `own` alone binds a name and no use can change its tensor."""
        bindings = self._source.bindings.get(name, [])
        if len(bindings) != 1 or bindings[0] is not own:
            raise NotProposed(f"{name} is assigned in several places")
        if not self._writes_allowed:
            self._checked_targets.add(self._source.parents[own])
        for node in ast.walk(self._source.tree):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                problem = self._why_changing(node, name)
                if problem:
                    raise NotProposed(problem)
        self.check_not_shared(name)

    def check_not_shared(self, name: str) -> None:
        """Raise NotProposed if a variable may be used other than by its name in this file."""
        own = self._source.path.stem
        for node in ast.walk(self._source.tree):
            if isinstance(node, ast.Constant) and node.value == name:
                raise NotProposed(f"{name} is also used by its name as text")
            if isinstance(node, ast.alias) and node.name in (own, "__main__"):
                raise NotProposed(f"the file imports itself: {name} may be changed")
        for one in self._others:
            if one.mentions(name) and one.mentions(own, *_REACH_MODULES):
                raise NotProposed(f"{name} may be changed in {one.path.name}")

    def check_only_reference(self, name: str) -> None:
        """Raise NotProposed unless a variable always holds new memory that no other variable can refer to."""
        bindings = self._source.bindings.get(name, [])
        statement = self._source.parents.get(bindings[0]) if len(bindings) == 1 else None
        made = statement.value if isinstance(statement, ast.Assign) else None
        meaning = self._source.meaning(made.func) if isinstance(made, ast.Call) else ""
        owner, _, function = meaning.rpartition(".")
        if (
            not isinstance(statement, ast.Assign)
            or statement.targets != bindings
            or owner != "torch"
            or function not in _CREATED | _RANDOM | {"empty"}
        ):
            raise NotProposed(f"{name} may refer to the memory of another tensor")
        self._writes_allowed = True
        try:
            self.check_never_changed(name, bindings[0])
        except NotProposed as why:
            raise NotProposed(f"other references to {name} are possible: {why}") from why
        finally:
            self._writes_allowed = False

    def _why_not_invariant(self, node: ast.AST, before: ast.stmt) -> str:
        source = self._source
        parts: list[ast.AST] = []
        if isinstance(node, ast.Constant):
            return ""
        if isinstance(node, ast.Name):
            return self._why_not_fixed(node, before)
        if isinstance(node, ast.Attribute):
            meaning = source.meaning(node)
            if meaning in _MATH or (meaning.startswith("torch.") and _is_dtype(node.attr)):
                return ""
            if node.attr not in _FACTS | _VIEW_ATTRIBUTES:
                return f"it depends on {_shown(node)}, which may change"
            parts = [node.value]
        elif isinstance(node, (ast.Tuple, ast.List)):
            parts = list(node.elts)
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            parts = [node.value, node.slice]
        elif isinstance(node, ast.Slice):
            parts = [one for one in (node.lower, node.upper, node.step) if one is not None]
        elif isinstance(node, ast.Call):
            if not self._is_pure_call(node):
                return f"it calls {_shown(node.func)}, which may have effects or give other results"
            parts = [*node.args, *(one.value for one in node.keywords)]
            if isinstance(node.func, ast.Attribute) and not source.meaning(node.func):
                parts.append(node.func.value)
        else:
            return "it is an expression of a kind that is not analysed"
        problems = (self._why_not_invariant(one, before) for one in parts)
        return next((problem for problem in problems if problem), "")

    def _is_pure_call(self, call: ast.Call) -> bool:
        if any(one.arg is None or one.arg in _BAD_KEYWORDS for one in call.keywords):
            return False
        if any(isinstance(one, ast.Starred) for one in call.args):
            return False
        meaning = self._source.meaning(call.func)
        if meaning:
            owner, _, name = meaning.rpartition(".")
            if meaning in _MATH_CALLS:
                return True
            if meaning in ("float", "int"):
                return all(_is_literal(one) for one in call.args)
            if owner == "torch.nn.functional":
                return name in _FUNCTIONAL
            return owner == "torch" and name in (_NEW | _CREATED | _VIEWS)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return method in (_NEW | _VIEWS | {"size", "numel", "dim"})

    def _why_not_fixed(self, node: ast.Name, before: ast.stmt) -> str:
        """Return why the value of a name may change; empty for constants and tensors that never change."""
        source, name = self._source, node.id
        bindings = source.bindings.get(name, [])
        if not bindings and source.meaning(node):
            return ""
        if len(bindings) != 1:
            return f"it depends on {name}, which is assigned in several places"
        if isinstance(bindings[0], ast.arg):
            return f"it depends on {name}, an argument, which may change"
        statement = source.parents.get(bindings[0])
        if not isinstance(statement, ast.Assign) or statement.targets != [bindings[0]]:
            return f"it depends on {name}, which may change"
        if not self._is_set_before(statement, before):
            return f"it depends on {name}, which is assigned in the loop or elsewhere"
        if _is_literal(statement.value):
            try:
                self.check_not_shared(name)
            except NotProposed as why:
                return str(why)
            return ""
        if name in self._active:
            return f"it depends on {name}, which may change"
        self._active.add(name)
        try:
            value = statement.value
            if not (isinstance(value, ast.Call) and self._is_random(value)):
                problem = self._why_not_invariant(value, statement)
                if problem:
                    return problem
            self.check_never_changed(name, bindings[0])
        except NotProposed as why:
            return str(why)
        finally:
            self._active.discard(name)
        return ""

    def _is_random(self, call: ast.Call) -> bool:
        """Return whether a call gives random numbers of a constant shape."""
        owner, _, name = self._source.meaning(call.func).rpartition(".")
        constant = all(_is_literal(one) for one in call.args) and not call.keywords
        return owner == "torch" and name in _RANDOM and constant

    def _is_set_before(self, statement: ast.stmt, before: ast.stmt) -> bool:
        """Return whether an assignment always precedes a statement."""
        source = self._source
        scope = source.scope(statement)
        if isinstance(scope, ast.Module) and not isinstance(source.scope(before), ast.Module):
            return source.parents[statement] is scope and _is_literal(statement.value)  # type: ignore[attr-defined]
        if scope is not source.scope(before):
            return False
        around = [before, *source.ancestors(before)]
        block = source.block(statement)
        return any(one is later for later in block[block.index(statement) + 1 :] for one in around)

    def _why_changing(self, node: ast.expr, name: str) -> str:
        """Return why a use of a tensor may change it, or keep another reference to it."""
        source = self._source
        up = source.parents[node]
        if up in self._checked_targets:
            return ""
        if isinstance(up, ast.Attribute):
            call = source.parents[up]
            if up.attr in _FACTS and isinstance(up.ctx, ast.Load):
                return ""
            if up.attr in _VIEW_ATTRIBUTES and isinstance(up.ctx, ast.Load):
                return self._why_changing(up, name)
            if not (isinstance(call, ast.Call) and call.func is up):
                return f"{name}.{up.attr} is used in a way that is not analysed"
            if any(one.arg in _BAD_KEYWORDS for one in call.keywords):
                return f"{name}.{up.attr} may change it"
            if up.attr in _NEW | _READS:
                return ""
            if self._writes_allowed and up.attr.endswith("_") and not up.attr.startswith("_"):
                return self._why_changing(call, name)  # returns the tensor itself
            if up.attr in _VIEWS:
                return self._why_changing(call, name)
            return f"{name}.{up.attr} may change it"
        if isinstance(up, _ARITHMETIC) or (
            isinstance(up, ast.UnaryOp) and isinstance(up.op, (ast.USub, ast.Invert))
        ):
            return self._why_kept_by_operator(name)
        if isinstance(up, ast.AugAssign):
            if up.value is not node:
                return f"{name} is changed in place"
            if not self._is_number_or_tensor(up.target):
                return f"{name} may be stored by `{_shown(up)}`"
            return self._why_kept_by_operator(name)
        if isinstance(up, ast.keyword):
            call = source.parents[up]
            if not isinstance(call, ast.Call):
                return f"{name} is passed as {up.arg}"
            if up.arg == "out" and self._writes_allowed and self._is_new_of_torch(call):
                return self._why_changing(call, name)
            if up.arg in _BAD_KEYWORDS:
                return f"{name} is passed as {up.arg}"
            return self._why_passed(call, name)
        if isinstance(up, ast.Call) and up.func is not node:
            return self._why_passed(up, name)
        if isinstance(up, ast.FormattedValue):
            return ""
        if isinstance(up, ast.Subscript):
            if up.slice is node:
                return self._why_kept_as_key(up, name)
            if not isinstance(up.ctx, ast.Load):
                return "" if self._writes_allowed else f"{name} is changed in place"
            return self._why_changing(up, name)
        if isinstance(up, (ast.Tuple, ast.Slice)) and isinstance(source.parents[up], ast.Subscript):
            outer: Any = source.parents[up]
            if outer.slice is not up:
                return f"{name} is stored elsewhere"
            return self._why_kept_as_key(outer, name)
        if isinstance(up, ast.List):
            call = source.parents[up]
            if isinstance(call, ast.Call) and up in call.args:
                return self._why_passed(call, name)
        if isinstance(up, (ast.Return, ast.Yield)):
            return f"{name} is returned: the caller may change it"
        if isinstance(up, ast.Expr):
            return ""
        return f"{name} is stored elsewhere, where it may be changed"

    def _why_kept_by_operator(self, name: str) -> str:
        """Return why an operator may keep a reference to its operand: classes of the program may define it."""
        for one in (self._source, *self._others):
            if any(method in one.bindings for method in _OPERATOR_METHODS):
                return f"{name} may be stored by an operator that {one.path.name} defines"
        return ""

    def _why_kept_as_key(self, place: ast.Subscript, name: str) -> str:
        stored = not isinstance(place.ctx, ast.Load) or self._source.mentions("defaultdict")
        if stored and not self._is_number_or_tensor(place.value):
            return f"{name} may be stored as a key"
        return ""

    def _is_number_or_tensor(self, node: ast.expr) -> bool:
        """Return whether an expression is never a list or a dictionary: every value assigned to it is computed."""
        if isinstance(node, ast.Attribute):
            return node.attr in _VIEW_ATTRIBUTES
        if isinstance(node, (ast.Call, ast.BinOp)):
            return self._is_computed(node)
        if isinstance(node, ast.Subscript):
            return self._is_number_or_tensor(node.value)
        if not isinstance(node, ast.Name):
            return False
        for binding in self._source.bindings.get(node.id, [None]):
            up = self._source.parents.get(binding) if binding is not None else None
            if isinstance(up, ast.Assign) and up.targets == [binding]:
                if not self._is_computed(up.value):
                    return False
            elif not isinstance(up, ast.AugAssign):
                return False
        return True

    def _is_computed(self, node: ast.expr) -> bool:
        """Return whether a value is a literal number, arithmetic or the result of a torch function or method."""
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
            return not any(isinstance(one, (ast.List, ast.ListComp)) for one in parts)
        if isinstance(node, ast.Call):
            meaning = self._source.meaning(node.func)
            if meaning:
                return meaning.startswith("torch.") and meaning != "torch.load"
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return method in (_NEW | _VIEWS) - {"add", "sort", "split"}
        return isinstance(node, ast.Constant)

    def _is_new_of_torch(self, call: ast.Call) -> bool:
        owner, _, function = self._source.meaning(call.func).rpartition(".")
        return owner == "torch" and function in _NEW

    def _why_passed(self, call: ast.Call, name: str) -> str:
        meaning = self._source.meaning(call.func)
        owner, _, function = meaning.rpartition(".")
        if any(one.arg in _BAD_KEYWORDS for one in call.keywords):
            return f"{name} is passed to {_shown(call.func)}, which may change it"
        if meaning in _SHOWS:
            return ""
        if owner == "torch" and function in _NEW:
            return ""
        if owner == "torch" and function in _VIEWS:
            return self._why_changing(call, name)
        if owner == "torch.nn.functional" and function in _FUNCTIONAL:
            return ""
        if (
            not meaning
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _METHODS_OF_OTHERS
            and all(call.func.attr not in one.bindings for one in (self._source, *self._others))
        ):
            return ""  # an argument of a method of another tensor is only read
        return f"{name} is passed to {_shown(call.func)}, which may change it"


def check_scope(source: SourceFile, scope: Scope) -> None:
    """Raise NotProposed if code of a function may be suspended or inspect its variables."""
    for node in ast.walk(scope):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            raise NotProposed("the function may be suspended in the loop")
    word = source.mentions(
        *("locals", "globals", "vars", "eval", "exec", "dir", "__enter__", "settrace", "_getframe"),
        *("enter_context", "__globals__", "__dict__", "modules"),
    )
    if word:
        raise NotProposed(f"the file uses {word}: its variables may be used in other ways")


def check_settings(source: SourceFile) -> None:
    """Raise NotProposed if a file may change settings of torch other than once, when it starts."""
    at_start = {
        one
        for statement in source.tree.body
        if isinstance(statement, (ast.Expr, ast.Assign, ast.Import, ast.ImportFrom))
        for one in ast.walk(statement)
    }
    for node in ast.walk(source.tree):
        word = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "name", "")
        if word in _SETTINGS and node not in at_start:
            raise NotProposed(f"the program uses {word}: results may change between iterations")


def _is_dtype(name: str) -> bool:
    return name in {
        *("float16", "float32", "float64", "bfloat16", "half", "float", "double", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "long", "int", "short", "complex64"),
        *("strided", "contiguous_format", "channels_last"),
    }


def _is_literal(node: ast.AST) -> bool:
    """Return whether a value consists of numbers and text of the source."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right)
    return isinstance(node, ast.Tuple) and all(_is_literal(one) for one in node.elts)


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
