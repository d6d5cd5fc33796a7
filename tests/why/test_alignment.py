from __future__ import annotations

from tests.why.synthetic import row, source
from torchyard.why.alignment import UNATTRIBUTED, align
from torchyard.why.model import OperatorRow

NORM = source("norm", "native_layer_norm", line=3)
ADD = source("", "add", line=4)
LINEAR = source("up", "addmm", line=5)


def names(
    baseline: list[OperatorRow], candidate: list[OperatorRow], *, iteration_us: float = 100.0
) -> set[frozenset[str]]:
    """Return the operators of each group."""
    groups = align(baseline, candidate, 1e3 * iteration_us)
    roots = {groups.group_of(one) for one in (*baseline, *candidate) if one.sources}
    return {frozenset(member[-1] for member in groups.members(root)) for root in roots}


def test_operators_of_both_sides_are_one_group() -> None:
    baseline = [row("aten::native_layer_norm", NORM), row("aten::addmm", LINEAR)]
    candidate = [row("cpp_fused_0", NORM), row("aten::addmm", LINEAR)]
    assert names(baseline, candidate) == {
        frozenset({"native_layer_norm"}),
        frozenset({"addmm"}),
    }


def test_a_fused_kernel_joins_its_operators() -> None:
    baseline = [row("layer_norm", NORM), row("add", ADD), row("addmm", LINEAR)]
    candidate = [row("cpp_fused_add_native_layer_norm_0", ADD, NORM), row("addmm", LINEAR)]
    assert names(baseline, candidate) == {
        frozenset({"native_layer_norm", "add"}),
        frozenset({"addmm"}),
    }


def test_other_operators_of_the_same_line_are_compared_with_each_other() -> None:
    baseline = [row("addmm", LINEAR, us=50.0)]
    candidate = [row("mm", source("up", "mm", line=5), us=50.0)]
    assert names(baseline, candidate) == {frozenset({"addmm", "mm"})}


def test_an_added_operator_stays_alone() -> None:
    added = source("act", "exp", line=9)
    baseline = [row("addmm", LINEAR, us=50.0)]
    candidate = [row("addmm", LINEAR, us=50.0), row("exp", added, us=20.0)]
    assert names(baseline, candidate) == {frozenset({"addmm"}), frozenset({"exp"})}


def test_lines_of_different_files_are_matched_by_their_text() -> None:
    first = source("", "mul", line=3, file="/a.py")
    second = source("", "mul", line=3, file="/b.py")
    moved = source("", "mul", line=8, file="/b.py")
    assert names([row("mul", first)], [row("mul", second)]) == {frozenset({"mul"})}
    groups = align([row("mul", first)], [row("mul", moved)], 1.0)
    assert len(groups.sources) == 2


def test_rows_without_sources_are_unattributed() -> None:
    groups = align([row("copy_")], [], 1.0)
    assert groups.group_of(row("copy_")) == UNATTRIBUTED
