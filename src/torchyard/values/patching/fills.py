"""Patches of writes: memory that is allocated without filling it, and writes that are left out.

Only for findings that `values` has proven for every input: the source and the definitions of the operators imply
that no element is read before it is written, or that the write changes no bit.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from torchyard.values.model import Certainty, ValueFinding
from torchyard.values.patching.model import (
    DROPPED_WRITE,
    UNINITIALIZED,
    Edit,
    NotProposed,
    Patch,
)
from torchyard.values.patching.purity import Invariants
from torchyard.values.patching.source_file import SourceFile, copy_with_index, path_of

T = TypeVar("T", bound=ast.AST)
_FUNCTIONS: Final = {
    "zeros": "empty",
    "ones": "empty",
    "full": "empty",
    "zeros_like": "empty_like",
    "ones_like": "empty_like",
    "full_like": "empty_like",
}
_METHODS: Final = {"new_zeros": "new_empty", "new_ones": "new_empty", "new_full": "new_empty"}
CREATORS: Final = {**_FUNCTIONS, **_METHODS}
_OPERATORS: Final = {"mul_": ast.Mult, "div_": ast.Div}
_FILLS: Final = frozenset({"zero_", "fill_"})
DROPPED: Final = _FILLS | {"mul_", "div_"}
_FILL_VALUE: Final = "fill_value"
_VALUE_PLACE: Final = 1
_UNSAFE_KEYWORDS: Final = frozenset({"out", "layout", "names"})


def patch_of_write(
    finding: ValueFinding, source: SourceFile, sources: Sequence[SourceFile]
) -> Patch:
    """Return the patch of a dead initialisation or a redundant write."""
    if finding.proof.certainty is not Certainty.PROVEN:
        raise NotProposed(
            f"{finding.proof.certainty.value}, not proven: {finding.proof.why or 'not tested'}"
        )
    name = finding.operator.removeprefix("aten::")
    if finding.pattern == "dead initialisation" and name in CREATORS:
        return _without_fill(finding, source, name, Invariants(source, sources))
    if name in DROPPED:
        return _without_write(finding, source, name)
    raise NotProposed(f"there is no patch for {name}")


def _without_fill(
    finding: ValueFinding, source: SourceFile, name: str, invariants: Invariants
) -> Patch:
    call = _only(
        [
            one
            for one in source.calls_at(finding.place.line)
            if _called_method(one) == name
            if name in _METHODS or source.meaning(one.func) == f"torch.{name}"
        ]
        + [
            one
            for one in source.calls_at(finding.place.line)
            if isinstance(one.func, ast.Name) and source.meaning(one.func) == f"torch.{name}"
        ],
        name,
        finding.place.line,
    )
    source.check_editable(call)
    _check_keywords(call)
    _check_numbers(source, call, invariants)
    new = CREATORS[name]
    edits: list[Edit] = []
    copy, (node,) = copy_with_index(source.tree, [call])
    if isinstance(call.func, ast.Attribute):
        end = source.end(call.func)
        edits.append(Edit(start=end - len(name), end=end, text=new.encode()))
        node.func.attr = new
    elif isinstance(call.func, ast.Name):
        imported, more = _imported_empty(source, call.func, new, copy)
        edits += [
            Edit(start=source.start(call.func), end=source.end(call.func), text=imported.encode()),
            *more,
        ]
        node.func.id = imported
    if "full" in name:
        edits += _without_value(source, call, node, with_dtype=name == "full")
    source.check_result(edits, copy)
    return Patch(
        kind=UNINITIALIZED,
        file=finding.place.file,
        text="memory allocated without filling it: every element is overwritten before it is read",
        edits=tuple(edits),
    )


def _check_numbers(source: SourceFile, call: ast.Call, invariants: Invariants) -> None:
    """Raise NotProposed if other code may change numbers of the module on which the proof relies."""
    numbers = {
        target.id
        for statement in source.tree.body
        if isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Call)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    loops = [one.iter for one in ast.walk(source.scope(call)) if isinstance(one, ast.For)]
    used = {
        one.id for part in (call, *loops) for one in ast.walk(part) if isinstance(one, ast.Name)
    }
    for name in sorted(numbers & used):
        invariants.check_not_shared(name)
    if numbers & used and source.mentions("globals", "__globals__", "modules"):
        raise NotProposed("the file may change its variables in other ways")


def _imported_empty(
    source: SourceFile, func: ast.Name, new: str, copy: Any
) -> tuple[str, list[Edit]]:
    """Return the name of `torch.empty` in a file with `from torch import zeros`, and how to import it."""
    for name, meaning in source.imports.items():
        if meaning == f"torch.{new}":
            return name, []
    if source.mentions(new):
        raise NotProposed(f"the name {new} has another meaning in this file")
    for number, statement in enumerate(source.tree.body):
        if not isinstance(statement, ast.ImportFrom) or statement.level:
            continue
        for place, alias in enumerate(statement.names):
            if (alias.asname or alias.name) == func.id:
                edit = Edit(start=source.start(alias), end=source.start(alias), text=b"")
                copy.body[number].names.insert(place, ast.alias(name=new))
                return new, [Edit(start=edit.start, end=edit.end, text=f"{new}, ".encode())]
    raise NotProposed(f"{func.id} is not imported at the top of the file")


def _without_value(
    source: SourceFile, call: ast.Call, copy: ast.Call, *, with_dtype: bool
) -> list[Edit]:
    """Remove the value that `full` writes; its type, if no other is given, becomes an argument."""
    value: ast.expr | ast.keyword
    named = [one for one in call.keywords if one.arg == _FILL_VALUE]
    if named:
        value = named[0]
        copy.keywords.pop(call.keywords.index(named[0]))
    else:
        if len(call.args) <= _VALUE_PLACE or any(isinstance(one, ast.Starred) for one in call.args):
            raise NotProposed("the value that is written is not certain")
        value = call.args[_VALUE_PLACE]
        copy.args.pop(_VALUE_PLACE)
    edit = _without_argument(source, call, value)
    dtype = _dtype(source, call, value) if with_dtype else ""
    if not dtype:
        return [edit]
    kind: Any = ast.parse(f"f({dtype})", mode="eval").body
    copy.keywords += kind.keywords
    last = max(source.end(one) for one in (*call.args, *call.keywords) if one is not value)
    if last <= source.start(value):
        # The value was the last argument: the type takes its place.
        return [Edit(start=source.start(value), end=source.end(value), text=dtype.encode())]
    return [edit, Edit(start=last, end=last, text=f", {dtype}".encode())]


def _without_argument(source: SourceFile, call: ast.Call, argument: ast.expr | ast.keyword) -> Edit:
    everything = sorted([*call.args, *call.keywords], key=source.start)
    place = everything.index(argument)
    value = argument.value if isinstance(argument, ast.keyword) else argument
    if not _has_no_effect(value, source):
        raise NotProposed("the value that is written is computed by a call")
    if place:
        start, end = source.end(everything[place - 1]), source.end(argument)
    elif len(everything) > 1:
        start, end = source.start(argument), source.start(everything[1])
    else:
        raise NotProposed("the call has no size")
    if b"#" in source.between(start, end):
        raise NotProposed("a comment stands between the arguments")
    return Edit(start=start, end=end, text=b"")


def _dtype(source: SourceFile, call: ast.Call, value: ast.expr | ast.keyword) -> str:
    """Return the keyword for the type that `full` takes from its value; empty for the default type."""
    if any(one.arg == "dtype" for one in call.keywords):
        return ""
    node = value.value if isinstance(value, ast.keyword) else value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if isinstance(node, ast.Call) and source.meaning(node.func) == "float":
        return ""
    number = node.value if isinstance(node, ast.Constant) else None
    if isinstance(number, float):
        return ""
    if not isinstance(number, (bool, int)):
        raise NotProposed("the type of the value that is written is not certain")
    if not isinstance(call.func, ast.Attribute):
        raise NotProposed("the type of the tensor follows from the value that is written")
    kind = "bool" if isinstance(number, bool) else "int64"
    return f"dtype={path_of(call.func.value)}.{kind}"


def _without_write(finding: ValueFinding, source: SourceFile, name: str) -> Patch:
    line = finding.place.line
    calls = [one for one in source.calls_at(line) if _called_method(one) == name]
    augmented = [
        one
        for one in ast.walk(source.tree)
        if isinstance(one, ast.AugAssign)
        and one.lineno <= line <= (one.end_lineno or 0)
        and isinstance(one.op, _OPERATORS.get(name, ()))
    ]
    writes: list[ast.Call | ast.AugAssign] = [*calls, *augmented]
    write = _only(writes, name, line)
    source.check_editable(write)
    text = "the write left out: it changes nothing"
    if finding.pattern == "dead initialisation":
        text = "the fill left out: every element is overwritten before it is read"
    if isinstance(write, ast.AugAssign):
        if not path_of(write.target) or not _has_no_effect(write.value, source):
            raise NotProposed("the written tensor is computed by an expression")
        edit = drop_statement(source, write)
    else:
        arguments = [*write.args, *(one.value for one in write.keywords)]
        if not all(_has_no_effect(one, source) for one in arguments):
            raise NotProposed("the arguments of the write are computed by calls")
        edit = _without_call(source, write, name)
    return Patch(kind=DROPPED_WRITE, file=finding.place.file, text=text, edits=(edit,))


def _without_call(source: SourceFile, write: ast.Call, name: str) -> Edit:
    func: Any = write.func
    receiver, statement = func.value, source.parents[write]
    if not isinstance(statement, ast.Expr):
        return _without_chained(source, write, receiver)
    if not path_of(receiver):
        raise NotProposed("the written tensor is computed by an expression")
    if name in _FILLS:
        # The profile proves it for the tensors that it saw: another variable must not refer to this one.
        if not isinstance(receiver, ast.Name):
            raise NotProposed(f"other references to {path_of(receiver)} are possible")
        if not _is_new(source, statement, receiver.id):
            Invariants(source).check_only_reference(receiver.id)
    return drop_statement(source, statement)


def _is_new(source: SourceFile, write: ast.stmt, name: str) -> bool:
    """Return whether the memory was allocated just before the write, so that nothing else can refer to it."""
    block = source.block(write)
    for statement in reversed(block[: block.index(write)]):
        mentions = [
            one for one in ast.walk(statement) if isinstance(one, ast.Name) and one.id == name
        ]
        if mentions:
            made = statement.value if isinstance(statement, ast.Assign) else None
            return (
                isinstance(statement, ast.Assign)
                and statement.targets == mentions
                and isinstance(made, ast.Call)
                and source.meaning(made.func) in {f"torch.{one}" for one in (*_FUNCTIONS, "empty")}
            )
    return False


def _without_chained(source: SourceFile, write: ast.Call, receiver: ast.expr) -> Edit:
    """Turn `x = torch.zeros(n).zero_()` into `x = torch.zeros(n)`."""
    if not isinstance(receiver, ast.Call):
        raise NotProposed("the result of the write is used")
    made = source.meaning(receiver.func).rpartition(".")
    if made[0] != "torch" or made[2] not in (*_FUNCTIONS, "empty"):
        raise NotProposed("the written tensor is computed by an expression")
    edit = Edit(start=source.end(receiver), end=source.end(write), text=b"")
    if b"#" in source.between(edit.start, edit.end):
        raise NotProposed("a comment stands within the call")
    copy, (up, call) = copy_with_index(source.tree, [source.parents[write], write])
    for name, value in ast.iter_fields(up):
        if value is call:
            setattr(up, name, call.func.value)
        elif isinstance(value, list) and call in value:
            value[value.index(call)] = call.func.value
    source.check_result([edit], copy)
    return edit


def drop_statement(source: SourceFile, statement: ast.stmt) -> Edit:
    """Return the edit that removes a statement with its lines."""
    block = source.block(statement)
    first, last = source.whole_lines(statement)
    copy, (up, again) = copy_with_index(source.tree, [source.parents[statement], statement])
    start, end = source.line_start(first), source.line_start(last + 1)
    text = b""
    if len(block) == 1:
        start, end, text = source.start(statement), source.end(statement), b"pass"
    for value in (value for _, value in ast.iter_fields(up) if isinstance(value, list)):
        for number, one in enumerate(value):
            if one is again:
                value[number : number + 1] = [ast.Pass()] if text else []
                break
    edit = Edit(start=start, end=end, text=text)
    source.check_result([edit], copy)
    return edit


def _only(nodes: Sequence[T], name: str, line: int) -> T:
    if not nodes:
        raise NotProposed(f"line {line} has no call of {name} that can be identified by its name")
    if len(nodes) > 1:
        raise NotProposed(f"line {line} has several calls of {name}")
    return nodes[0]


def _called_method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _check_keywords(call: ast.Call) -> None:
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in _UNSAFE_KEYWORDS:
            raise NotProposed("the call has arguments whose effect is not certain")


def _has_no_effect(node: ast.expr, source: SourceFile) -> bool:
    """Return whether an argument can be left out: evaluating it does nothing else."""
    if isinstance(node, ast.Call):
        constant = all(isinstance(one, ast.Constant) for one in node.args)
        return source.meaning(node.func) == "float" and constant and not node.keywords
    if isinstance(node, ast.UnaryOp):
        return _has_no_effect(node.operand, source)
    return isinstance(node, (ast.Constant, ast.Name)) or bool(source.meaning(node))
