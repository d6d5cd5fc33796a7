"""Patch of a mask that is stored as floating-point numbers: it stays boolean. Only on request.

A comparison gives nothing but true and false, so the range is certain; that no use depends on the wider type is
checked by the uses in the source and by the results of the program.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from torchyard.values.model import ValueFinding
from torchyard.values.patching.model import NARROWER_TYPE, Edit, NotProposed, Patch
from torchyard.values.patching.source_file import SourceFile, copy_with_index

_FACTORS: Final = 2
_CONVERSIONS: Final = frozenset({"float", "double", "half", "bfloat16"})


def keep_boolean(finding: ValueFinding, source: SourceFile) -> Patch:
    """Return the patch that leaves out the conversion of a mask."""
    if not finding.detail.endswith("exactly bool"):
        raise NotProposed(
            "a narrower type may overflow or round with other values: only masks are changed"
        )
    line = finding.place.line
    calls = [call for call in source.calls_at(line) if _is_conversion(call)]
    if len(calls) != 1:
        raise NotProposed(f"line {line} does not have exactly one conversion to a floating type")
    (call,) = calls
    func: Any = call.func
    source.check_editable(call)
    if not isinstance(func.value, ast.Compare):
        raise NotProposed(
            "the values are not the result of a comparison: their range is not certain"
        )
    statement = source.parents[call]
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
    ):
        raise NotProposed("the mask is not assigned to a variable of its own")
    lines = _lines_of_uses(source, statement.targets[0])
    _check_types(finding, lines)
    edit = Edit(start=source.end(func) - len(func.attr) - 1, end=source.end(call), text=b"")
    copy, (up, again) = copy_with_index(source.tree, [statement, call])
    up.value = again.func.value
    source.check_result([edit], copy)
    return Patch(
        kind=NARROWER_TYPE,
        file=finding.place.file,
        text="the mask stays boolean instead of becoming floating-point numbers",
        edits=(edit,),
    )


def _is_conversion(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in _CONVERSIONS
        and not call.args
        and not call.keywords
    )


def _lines_of_uses(source: SourceFile, target: ast.Name) -> set[int]:
    """Return the lines with products of the mask; raise NotProposed if it is used otherwise."""
    lines: set[int] = set()
    if len(source.bindings[target.id]) != 1:
        raise NotProposed(f"{target.id} is assigned in several places")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and node.value == target.id:
            raise NotProposed(f"{target.id} is also used by its name as text")
        if not (isinstance(node, ast.Name) and node.id == target.id and node is not target):
            continue
        up = source.parents[node]
        product = up if isinstance(up, ast.BinOp) and isinstance(up.op, ast.Mult) else None
        if product is None or _is_constant_factor(product, node):
            raise NotProposed(f"{target.id} is used other than as a factor of tensors")
        if product.lineno in lines and not _is_always_evaluated(source, product, target):
            raise NotProposed(f"line {product.lineno} has several products with {target.id}")
        lines.add(product.lineno)
    return lines


def _is_always_evaluated(source: SourceFile, product: ast.BinOp, target: ast.Name) -> bool:
    """Return whether a product is computed whenever the mask is."""
    for around in source.ancestors(product):
        if isinstance(around, ast.stmt):
            assignment: Any = source.parents[target]
            return any(one is around for one in source.block(assignment))
        if isinstance(around, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension, ast.Compare)):
            return False
        if isinstance(around, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return False
    return False


def _check_types(finding: ValueFinding, lines: set[int]) -> None:
    """Raise NotProposed unless all factors had the type of the mask: the product would get another type."""
    calls = [
        call
        for call in finding.recipe.get("calls", ())
        if call["role"] == "reads" and call["operator"] == "aten::mul"
    ]
    products = [call["shapes"] for call in calls]
    unseen = lines - {call["line"] for call in calls if not call["backward"]}
    if unseen:
        raise NotProposed(f"the product in line {min(unseen)} did not run: its type is not known")
    if any(shapes.count("[") < _FACTORS for shapes in products):
        raise NotProposed("the mask is multiplied with a number: the product would be an integer")
    types = {
        part.partition("[")[0] for shapes in products for part in shapes.split() if "[" in part
    }
    if types != {finding.dtype}:
        raise NotProposed(
            f"the mask is multiplied with tensors of other types ({', '.join(sorted(types)) or 'unknown'})"
        )


def _is_constant_factor(product: ast.BinOp, mask: ast.Name) -> bool:
    other = product.left if product.right is mask else product.right
    return isinstance(other, ast.Constant) or (isinstance(other, ast.Name) and other.id == mask.id)
