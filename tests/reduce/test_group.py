"""The operators of a part of an attribution in the captured graph."""

from __future__ import annotations

import pytest

from torchyard.errors import Untrustworthy
from torchyard.reduce.group import units_of_part
from torchyard.reduce.model import Group
from torchyard.why.model import Source

ACT = ("blocks.*", "/a/net.py", 7, "x = F.gelu(self.up(x))")
NORM = ("blocks.*.norm", "/a/norm.py", 3, "return self.norm(x)")
PLACES = [
    [*NORM, ["native_layer_norm"]],
    ["blocks.*.up", *ACT[1:], ["t", "addmm"]],
    [*ACT, ["gelu"]],
    [*NORM, ["native_layer_norm"]],
    [*ACT, ["dropout"]],
]


def group(*places: tuple[tuple[str, str, int, str], str]) -> Group:
    sources = [
        Source(
            phase="backward" if operator.endswith("_backward") else "forward",
            module=module,
            kind="Block",
            file=file,
            line=line,
            text=text,
            operator=operator,
        )
        for (module, file, line, text), operator in places
    ]
    return Group(number=2, name="Block: op", sources=tuple(sources), loss_ns=1e5, share=0.1)


def test_module_line_and_operator_choose_the_units() -> None:
    assert units_of_part(group((ACT, "gelu")), PLACES) == (2,)
    assert units_of_part(group((NORM, "native_layer_norm")), PLACES) == (0, 3)
    fused = group((NORM, "native_layer_norm"), (ACT, "gelu"))
    assert units_of_part(fused, PLACES) == (0, 2, 3)


def test_backward_operators_are_those_of_the_forward_operator() -> None:
    assert units_of_part(group((ACT, "gelu_backward")), PLACES) == (2,)
    assert units_of_part(group((NORM, "native_layer_norm_backward")), PLACES) == (0, 3)


def test_replaced_operators_are_all_of_the_line() -> None:
    assert units_of_part(group((ACT, "erf"), (ACT, "mul")), PLACES) == (2, 4)
    # Another operator of the line is known.
    assert units_of_part(group((ACT, "erf"), (ACT, "gelu")), PLACES) == (2,)


def test_the_folder_of_a_file_may_change() -> None:
    moved = (ACT[0], "/b/net.py", *ACT[2:])
    assert units_of_part(group((moved, "gelu")), PLACES) == (2,)


@pytest.mark.parametrize(
    "place",
    [
        ("layers.*", *ACT[1:]),
        ("blocks.*", "/a/other.py", *ACT[2:]),
        ("blocks.*", "/a/net.py", 8, ACT[3]),
        ("blocks.*", "/a/net.py", 7, "x = F.relu(self.up(x))"),
    ],
    ids=["module", "file", "line", "text"],
)
def test_operators_that_the_program_does_not_have(place: tuple[str, str, int, str]) -> None:
    with pytest.raises(Untrustworthy, match="captured graph has no operator of part 2: Block: op"):
        units_of_part(group((place, "gelu")), PLACES)
