"""Patches of results that are computed again in every iteration: the statement moves in front of the loop.

The value must follow from the source alone, so that it is the same whenever it is computed and computing it cannot
fail; nothing may change the tensor. The profile says where, the source says whether.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from torchyard.values.model import ValueFinding
from torchyard.values.patching.model import HOISTED, Edit, NotProposed, Patch
from torchyard.values.patching.purity import Invariants, check_scope, check_settings
from torchyard.values.patching.source_file import SourceFile, copy_with_index

_LOOPS = (ast.For, ast.While)


def hoist(finding: ValueFinding, source: SourceFile, sources: Sequence[SourceFile]) -> Patch:
    """Return the patch that computes a result once, before the loop."""
    statement = _assignment(source, finding.place.line)
    target: Any = statement.targets[0]
    loop = _outermost_loop(source, statement)
    source.check_editable(statement)
    check_scope(source, source.scope(statement))
    for one in (source, *sources):
        check_settings(one)
    invariants = Invariants(source, sources)
    _check_used_after(source, statement, target.id)
    invariants.check_never_changed(target.id, target)
    invariants.check_invariant(statement.value, loop)
    edits = _moved(source, statement, loop)
    return Patch(
        kind=HOISTED,
        file=finding.place.file,
        text="computed once before the loop instead of in every iteration",
        edits=edits,
    )


def _assignment(source: SourceFile, line: int) -> ast.Assign:
    candidates = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.stmt)
        and node.lineno <= line <= (node.end_lineno or 0)
        and not hasattr(node, "body")
    ]
    if len(candidates) != 1:
        raise NotProposed(f"line {line} does not belong to exactly one statement")
    (statement,) = candidates
    if not isinstance(source.parents[statement], _LOOPS):
        raise NotProposed("the statement is not directly in a loop of its function")
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
    ):
        raise NotProposed("the result is not assigned to a variable of its own")
    return statement


def _check_used_after(source: SourceFile, statement: ast.stmt, name: str) -> None:
    """Raise NotProposed if code may run that uses a variable, or misses it, before its first assignment."""
    loop: Any = source.parents[statement]
    after = {node for one in loop.body[loop.body.index(statement) + 1 :] for node in ast.walk(one)}
    for node in ast.walk(source.tree):
        used = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if used and node.id == name and node not in after:  # type: ignore[attr-defined]
            raise NotProposed(
                f"{name} is also used elsewhere than behind its assignment in the loop"
            )


def _outermost_loop(source: SourceFile, statement: ast.stmt) -> ast.For | ast.While:
    """Return the outermost of directly nested loops around a statement."""
    loop = source.parents[statement]
    if not isinstance(loop, _LOOPS) or statement not in loop.body or len(loop.body) == 1:
        raise NotProposed("the statement is the only one of its loop, or belongs to its `else`")
    up = source.parents[loop]
    while isinstance(up, _LOOPS) and loop in up.body:
        loop, up = up, source.parents[up]
    return loop


def _moved(source: SourceFile, statement: ast.stmt, loop: ast.For | ast.While) -> tuple[Edit, Edit]:
    """Return the edits that move a statement, with the comments above it, in front of a loop."""
    first, last = source.whole_lines(statement)
    if any(
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
        for node in ast.walk(statement)
        if getattr(node, "end_lineno", 0) != getattr(node, "lineno", 0)
    ):
        raise NotProposed("the statement contains text over several lines")
    indent = source.between(source.line_start(first), source.start(statement))
    while first > loop.lineno + 1 and _is_comment(source, first - 1, indent):
        first -= 1
    outer = source.between(source.line_start(loop.lineno), source.start(loop))
    if outer.strip() or not indent.startswith(outer):
        raise NotProposed("the loop shares its line with other code")
    lines = []
    for number in range(first, last + 1):
        line = source.between(source.line_start(number), source.line_start(number + 1))
        if line.startswith(indent):
            line = outer + line[len(indent) :]
        lines.append(line)
    text = b"".join(lines)
    if not text.endswith(b"\n"):
        text += source.newline
    at = source.line_start(loop.lineno)
    edits = (
        Edit(start=at, end=at, text=text),
        Edit(start=source.line_start(first), end=source.line_start(last + 1), text=b""),
    )
    copy, (up, again, around, moved) = copy_with_index(
        source.tree, [source.parents[statement], loop, source.parents[loop], statement]
    )
    up.body.remove(moved)
    for _, block in ast.iter_fields(around):
        if isinstance(block, list) and again in block:
            block.insert(block.index(again), moved)
            break
    source.check_result(edits, copy)
    return edits


def _is_comment(source: SourceFile, line: int, indent: bytes) -> bool:
    text = source.between(source.line_start(line), source.line_start(line + 1))
    return text.startswith(indent + b"#")
