"""Whether assignments to pieces of a tensor cover it, whatever its shape.

Literal subscripts count: `t[:] = x`; `t[:, 0::2] = x` with `t[:, 1::2] = y`; `t[:k] = x` with `t[k:] = y`.
"""

import ast
from typing import Any, List, Optional, Sequence, Tuple

_Bounds = Tuple[Optional[int], Optional[int], Optional[int]]
_ALL: _Bounds = (None, None, None)


def cover_every_shape(pieces: Sequence[ast.stmt]) -> bool:
    """Return whether assignments to pieces of a tensor cover it for all sizes."""
    subscripts = [_subscript(one) for one in pieces]
    slices = [one for one in subscripts if one is not None]
    if len(slices) != len(pieces):
        return False
    if any(all(bounds == _ALL for bounds in one) for one in slices):
        return True
    places = {len(one) for one in slices}
    if len(places) != 1:
        return False
    varied = [place for place in range(places.pop()) if any(one[place] != _ALL for one in slices)]
    return len(varied) == 1 and _cover([one[varied[0]] for one in slices])


def _cover(bounds: List[_Bounds]) -> bool:
    """Return whether slices of one dimension cover it for all sizes."""
    steps = {step for _, _, step in bounds}
    step = steps.pop() if len(steps) == 1 else None
    if step is not None and all(end is None for _, end, _ in bounds):
        return step > 0 and {start or 0 for start, _, _ in bounds} == set(range(step))
    ends = [end for start, end, step in bounds if start in (None, 0) and step is None]
    starts = [start for start, end, step in bounds if end is None and step is None]
    return any(end is not None and end in starts for end in ends)


def _subscript(node: ast.stmt) -> Optional[Tuple[_Bounds, ...]]:
    """Return the slices of an assignment to a piece; None if they are not literal."""
    place: Any = node.targets[0] if isinstance(node, ast.Assign) else None
    index = getattr(place, "slice", None)
    if type(index).__name__ == "Index":  # Python 3.8
        index = index.value  # type: ignore[union-attr]
    parts = getattr(index, "elts", None) or getattr(index, "dims", None) or [index]
    slices: List[_Bounds] = []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is Ellipsis and len(parts) == 1:
            slices.append(_ALL)
            continue
        if not isinstance(part, ast.Slice):
            return None
        bounds = [_number(one) for one in (part.lower, part.upper, part.step)]
        if any(one is False for one in bounds):
            return None
        slices.append((bounds[0], bounds[1], bounds[2]))
    return tuple(slices)


def _number(node: Optional[ast.expr]) -> Any:
    """Return a literal integer, None if absent, and False for anything else."""
    if node is None:
        return None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if type(inner) is int else False
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return False
