"""Edits of sources: exact, minimal, and refused where the meaning of the code is not certain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchyard.values.model import Certainty, Place, Proof, ValueFinding
from torchyard.values.patching.candidates import patch_of
from torchyard.values.patching.model import Edit, NotProposed
from torchyard.values.patching.source_file import SourceFile


def proven(
    operator: str, line: int, file: Path, pattern: str = "dead initialisation"
) -> ValueFinding:
    """Return a proven finding at a line."""
    return ValueFinding(
        pattern=pattern,
        operator=f"aten::{operator}",
        place=Place(file=str(file), line=line),
        proof=Proof(certainty=Certainty.PROVEN),
    )


def patched(
    folder: Path,
    content: bytes,
    operator: str,
    line: int,
    pattern: str = "dead initialisation",
) -> bytes:
    """Return the content of a file after the patch of a finding."""
    file = folder / "program.py"
    file.write_bytes(content)
    source = SourceFile.read(file)
    patch = patch_of(proven(operator, line, file, pattern), source, main=file, root=folder)
    return source.edited(patch.edits)


@pytest.mark.parametrize(
    ("call", "operator", "expected"),
    [
        (b"torch.zeros(3)", "zeros", b"torch.empty(3)"),
        (b"torch.zeros (3)", "zeros", b"torch.empty (3)"),
        (b"torch . zeros(3)", "zeros", b"torch . empty(3)"),
        (b"torch.\\\n  zeros(3)", "zeros", b"torch.\\\n  empty(3)"),
        (b"(torch.zeros)(3)", "zeros", b"(torch.empty)(3)"),
        (b"torch.ones(*sizes, dtype=d)", "ones", b"torch.empty(*sizes, dtype=d)"),
        (b"torch.ones_like(x, memory_format=m)", "ones_like", b"torch.empty_like(x, memory_format=m)"),
        (b"x.new_ones(3)", "new_ones", b"x.new_empty(3)"),
        (b"x.new_full((3,), 2)", "new_full", b"x.new_empty((3,))"),
        (b"f(x)[0].new_zeros(3)", "new_zeros", b"f(x)[0].new_empty(3)"),
        (b"torch.full_like(x, 2)", "full_like", b"torch.empty_like(x)"),
        (b"torch.full_like(x, fill_value=2, dtype=d)", "full_like", b"torch.empty_like(x, dtype=d)"),
        (b"torch.full((3,), True)", "full", b"torch.empty((3,), dtype=torch.bool)"),
        (b"torch.full((3,), 2.5,)", "full", b"torch.empty((3,),)"),
        (b'torch.full((3,), -float("inf"))', "full", b"torch.empty((3,))"),
        (b"torch.full((3,), 1, device=d)", "full", b"torch.empty((3,), device=d, dtype=torch.int64)"),
        (b"torch.full((3,), 1, dtype=d)", "full", b"torch.empty((3,), dtype=d)"),
        (b"torch.full(fill_value=1.0, size=(3,))", "full", b"torch.empty(size=(3,))"),
    ],
)  # fmt: skip
def test_only_the_call_changes(tmp_path: Path, call: bytes, operator: str, expected: bytes) -> None:
    before = b"import torch\n\nb = " + call + "  # Größe ✓\n".encode() + b"b.copy_(x)\n"
    after = patched(tmp_path, before, operator, 3 if b"\n" not in call else 4)
    assert after == before.replace(call, expected)


@pytest.mark.parametrize(
    ("text", "operator", "reason"),
    [
        (b"a, b = torch.zeros(3), torch.zeros(3)", "zeros", "several calls"),
        (b"b = torch.zeros(3, out=c)", "zeros", "arguments"),
        (b"b = torch.zeros(3, **k)", "zeros", "arguments"),
        (b"b = torch.full((3,), value)", "full", "type of the value"),
        (b"b = torch.full((3,), f())", "full", "computed by a call"),
        (b"b = torch.full(*arguments)", "full", "not certain"),
        (b"b = torch.full((3,), (1))", "full", "not edited"),
        (b"b = torch.full((3,),  # size\n  1)", "full", "comment"),
        (b"b = make_zeros(3)", "zeros", "no call of zeros"),
        (b"b = other.zeros(3)", "zeros", "no call of zeros"),
        (b"torch = object(); b = torch.zeros(3)", "zeros", "no call of zeros"),
        (b"def f(torch): return torch.zeros(3)", "zeros", "no call of zeros"),
        (b"[torch for torch in y]; b = torch.zeros(3)", "zeros", "no call of zeros"),
        (b"torch.zeros = f; b = torch.zeros(3)", "zeros", "no call of zeros"),
        (b'setattr(torch, "zeros", f); b = torch.zeros(3)', "zeros", "replaces attributes"),
        (b"from m import *; b = torch.zeros(3)", "zeros", "no call of zeros"),
        (b"@d\ndef f(): return torch.zeros(3)", "zeros", "decorator"),
        (b"@d\nclass C:\n  def f(): return torch.zeros(3)", "zeros", "decorator"),
    ],
)
def test_calls_of_uncertain_meaning_are_refused(
    tmp_path: Path, text: bytes, operator: str, reason: str
) -> None:
    line = 2 + text.count(b"\n") - (b"size" in text)
    with pytest.raises(NotProposed, match=reason):
        patched(tmp_path, b"import torch\n" + text + b"\n", operator, line)


def test_an_imported_function_gets_its_import(tmp_path: Path) -> None:
    before = b"from torch import (\n    zeros,\n)\n\nb = zeros(3)\nc = zeros(4)\n"
    after = patched(tmp_path, before, "zeros", 5)
    assert after == b"from torch import (\n    empty, zeros,\n)\n\nb = empty(3)\nc = zeros(4)\n"


def test_an_imported_function_uses_an_existing_import(tmp_path: Path) -> None:
    before = b"from torch import empty as made, zeros as z\nb = z(3)\n"
    assert patched(tmp_path, before, "zeros", 2) == before.replace(b"z(3)", b"made(3)")


@pytest.mark.parametrize(
    "text",
    [
        b"from torch import zeros\nempty = True\nb = zeros(3)\n",
        b"from torch import zeros\ndef f(empty): pass\nb = zeros(3)\n",
        b"if x:\n    from torch import zeros\nb = zeros(3)\n",
    ],
)
def test_an_import_that_is_not_possible_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(NotProposed):
        patched(tmp_path, text, "zeros", 3)


@pytest.mark.parametrize(
    ("before", "line", "operator", "after"),
    [
        (b"a = 1\nb.zero_()  # why\nc = 2\n", 2, "zero_", b"a = 1\nc = 2\n"),
        (b"a = 1\nb.zero_()", 2, "zero_", b"a = 1\n"),
        (b"if a:\n    b.zero_()  # why\nc = 2\n", 2, "zero_", b"if a:\n    pass  # why\nc = 2\n"),
        (b"b.fill_(\n    0\n)\nc = 2\n", 1, "fill_", b"c = 2\n"),
        (b"if a:\n\tb.zero_()\n\tc()\n", 2, "zero_", b"if a:\n\tc()\n"),
        (b"b *= 1\nc = 2\n", 1, "mul_", b"c = 2\n"),
        (b"b = torch.zeros(3).zero_()\n", 1, "zero_", b"b = torch.zeros(3)\n"),
        (b"f(torch.zeros(3).zero_(), 2)\n", 1, "zero_", b"f(torch.zeros(3), 2)\n"),
        (b"b[0] = 1\nb.zero_()\nc = b + 2\n", 2, "zero_", b"b[0] = 1\nc = b + 2\n"),
    ],
)
def test_a_write_is_left_out(
    tmp_path: Path, before: bytes, line: int, operator: str, after: bytes
) -> None:
    start = b"import torch\nb = torch.zeros(3)\n"
    if b"b = " in before:
        start = b"import torch\n\n"
    result = patched(tmp_path, start + before, operator, line + 2, "redundant write")
    assert result == start + after


@pytest.mark.parametrize(
    "text",
    [
        b"a = 1; b.zero_()\n",
        b"b.zero_(); a = 1\n",
        b"if a: b.zero_()\n",
        b"b.fill_(f())\n",
        b"f().zero_()\n",
        b"c = b.zero_()\n",
        b"b[f()] *= 1\n",
        b"b.mul_(1) if a else c.mul_(1)\n",
        b"self.b.zero_()\na = 1\n",
        b"b.zero_()\nb = torch.zeros(3).t()\n",
        b"b.zero_()\nb = f(3)\n",
        b"b.zero_()\nb = torch.zeros(3)\nc = b\n",
        b"b.zero_()\nb = torch.zeros(3)\nc = b.t()\n",
        b"b.zero_()\nb = torch.zeros(3)\nf(b)\n",
        b"b.zero_()\nb = torch.zeros(3)\nc = b.add_(1)\n",
    ],
)
def test_a_write_with_other_effects_is_kept(tmp_path: Path, text: bytes) -> None:
    operator = "mul_" if b"mul" in text or b"*" in text else "fill_" if b"fill" in text else "zero_"
    start = b"import torch\n" if b"b = " in text else b"import torch\nb = torch.zeros(3)\n"
    with pytest.raises(NotProposed):
        patched(tmp_path, start + text, operator, start.count(b"\n") + 1, "redundant write")


def test_line_ends_and_byte_order_mark_are_kept(tmp_path: Path) -> None:
    before = b"\xef\xbb\xbfimport torch\r\nb = torch.zeros(3)\r\nb.copy_(x)\r\n"
    assert patched(tmp_path, before, "zeros", 2) == before.replace(b"zeros", b"empty")


@pytest.mark.parametrize(
    "content",
    [
        b"# coding: latin-1\nimport torch\nb = torch.zeros(3)\n",
        b"import torch\rb = torch.zeros(3)\r\nc = 1\n",
        b"import torch\nb = torch.zeros(3\n",
        b"import torch\n\xff\nb = torch.zeros(3)\n",
        b"import torch\0\n",
    ],
)
def test_files_that_cannot_be_edited_safely_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotProposed):
        patched(tmp_path, content, "zeros", 3)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program.py")
    with pytest.raises(NotProposed, match="no file"):
        SourceFile.read(tmp_path / "program.py")


def test_findings_that_are_not_proven_have_no_patch(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import torch\nb = torch.zeros(3)\n")
    for certainty in (Certainty.TESTED, Certainty.LIKELY, Certainty.INPUT_DEPENDENT):
        finding = ValueFinding(
            pattern="dead initialisation",
            operator="aten::zeros",
            place=Place(file=str(file), line=2),
            proof=Proof(certainty=certainty),
        )
        with pytest.raises(NotProposed, match="not proven"):
            patch_of(finding, SourceFile.read(file), main=file, root=tmp_path)


def test_overlapping_edits_are_refused(tmp_path: Path) -> None:
    source = SourceFile(tmp_path / "a.py", b"a = 1\n")
    with pytest.raises(NotProposed, match="overlaps"):
        source.edited([Edit(start=0, end=3, text=b""), Edit(start=2, end=4, text=b"")])


def test_the_diff_of_a_file_without_a_last_line_end(tmp_path: Path) -> None:
    source = SourceFile(tmp_path / "a.py", b"a = 1\nb = 2")
    diff = source.diff([Edit(start=10, end=11, text=b"3")], "a.py")
    assert diff == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n\\ No newline at end of file\n"
        "+b = 3\n\\ No newline at end of file\n"
    )


LOOP = b"""import torch

for i in range(3):
    mask = torch.ones(8, 8).tril()
    print((x @ mask).sum())
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"print((x @ mask).sum())", b"model(x, mask)"),
        (b"print((x @ mask).sum())", b"model(x, attn_mask=mask)"),
        (b"print((x @ mask).sum())", b"kept.append(mask)"),
        (b"print((x @ mask).sum())", b"kept.add(mask)"),
        (b"print((x @ mask).sum())", b"self.mask = mask"),
        (b"print((x @ mask).sum())", b"for row in mask: row.zero_()"),
        (b"print((x @ mask).sum())", b"mask.requires_grad_()"),
        (b"print((x @ mask).sum())", b"mask[0] = 1"),
        (b"print((x @ mask).sum())", b"mask.t()[0].fill_(1)"),
        (b"print((x @ mask).sum())", b"mask.data.fill_(1)"),
        (b"print((x @ mask).sum())", b"other = mask"),
        (b"print((x @ mask).sum())", b"f = lambda: mask"),
        (b"print((x @ mask).sum())", b"torch.add(x, 1, out=mask)"),
        (b"print((x @ mask).sum())", b"torch.nn.functional.relu(mask, True)"),
        (b"print((x @ mask).sum())", b"globals()['mask'].zero_()"),
        (b"print((x @ mask).sum())", b"exec('mask.zero_()')"),
        (b"print((x @ mask).sum())", b"mask = mask * 2"),
        (b"print((x @ mask).sum())", b"del mask"),
        (b"torch.ones(8, 8).tril()", b"torch.randn(8, 8).tril()"),
        (b"torch.ones(8, 8).tril()", b"torch.ones(8, i).tril()"),
        (b"torch.ones(8, 8).tril()", b"torch.ones(8, 8, requires_grad=True).tril()"),
        (b"torch.ones(8, 8).tril()", b"torch.ones(8, 8, generator=g).tril()"),
        (b"torch.ones(8, 8).tril()", b"make(8, 8).tril()"),
        (b"torch.ones(8, 8).tril()", b"torch.ones(n(), 8).tril()"),
        (b"torch.ones(8, 8).tril()", b"self.weight.tril()"),
        (b"torch.ones(8, 8).tril()", b"torch.ones(8, 8).tril_()"),
        (b"torch.ones(8, 8).tril()", b"torch.dropout(torch.ones(8, 8), 0.5, True)"),
        (b"    mask = torch", b"    if x: mask = torch"),
        (b"    mask = torch", b"    mask = other = torch"),
        (b"    mask = torch", b"    mask: object = torch"),
        (b"    mask = torch", b"    a = 1; mask = torch"),
    ],
)  # fmt: skip
def test_a_statement_that_may_differ_stays_in_its_loop(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    assert old in LOOP
    with pytest.raises(NotProposed):
        patched(tmp_path, LOOP.replace(old, new), "tril", 4, "unchanged across steps")


def test_a_statement_moves_in_front_of_all_its_loops(tmp_path: Path) -> None:
    before = (
        b"import torch\n\nSIZE = 8\nwhile x:\n\tfor i in y:\n\t\tz = f(i)\n"
        b"\t\tmask = (\n\t\t\ttorch.ones(SIZE, SIZE)  # all\n\t\t).tril()\n\t\tprint(z @ mask.T)\n"
    )
    after = (
        b"import torch\n\nSIZE = 8\nmask = (\n\ttorch.ones(SIZE, SIZE)  # all\n).tril()\n"
        b"while x:\n\tfor i in y:\n\t\tz = f(i)\n\t\tprint(z @ mask.T)\n"
    )
    assert patched(tmp_path, before, "tril", 7, "unchanged across steps") == after


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("indent", [b"    ", b"\t", b"\t  "])
def test_form_feeds_tabs_and_line_ends_are_kept(
    tmp_path: Path, newline: bytes, indent: bytes
) -> None:
    lines = [
        b"# -*- coding: utf-8 -*-",
        b"import torch",
        b"\x0c",
        b"for step in range(3):",
        indent + b"# \xe2\x80\xa8 separates lines elsewhere \x0c \x1d",
        indent + b"mask = torch.ones(4, 4).tril() ; # lower",
        indent + b"print(mask)",
    ]
    file = tmp_path / "program.py"
    file.write_bytes(newline.join([*lines, b""]))
    source = SourceFile.read(file)
    finding = proven("tril", 6, file, "unchanged across steps")
    if newline == b"\n":
        with pytest.raises(NotProposed, match="shares its line"):
            patch_of(finding, source, main=file, root=tmp_path)
    lines[5] = lines[5].replace(b" ;", b"")
    file.write_bytes(newline.join([*lines, b""]))
    source = SourceFile.read(file)
    patch = patch_of(finding, source, main=file, root=tmp_path)
    moved = [one.removeprefix(indent) for one in lines[4:6]]
    expected = [*lines[:3], *moved, lines[3], *lines[6:], b""]
    assert source.edited(patch.edits) == newline.join(expected)
    diff = source.diff(patch.edits, "program.py").encode()
    assert {line[:1] for line in diff.split(b"\n")[:-1]} <= {b"-", b"+", b"@", b" "}
    assert diff.count(b"\n+" + moved[1]) == 1
    assert b"No newline" not in diff
