"""Patches of C++ source: right ones are proposed, tempting wrong ones are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.values.torch_patches.native_corpus import PATCHED, REFUSED, NativeProgram
from torchyard.values.model import Certainty, Proof
from torchyard.values.operator_sweep.model import (
    CaseState,
    NativeCall,
    OperatorCase,
    OperatorFinding,
)
from torchyard.values.torch_patches.candidates import (
    SourceTree,
    edited,
    patches_of,
    resolved_functions,
)
from torchyard.values.torch_patches.model import NotProposed, SourceEdit, TorchPatch
from torchyard.values.torch_patches.native_source import blanked, source_name

FILE = Path("aten/src/ATen/native/F.cpp")


def tree_of(tmp_path: Path, text: str) -> SourceTree:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return SourceTree(root=tmp_path)


def finding_of(program: NativeProgram) -> OperatorFinding:
    call = NativeCall(called=program.called, functions=(program.function,))
    redundant = program.pattern == "redundant write"
    second = NativeCall(called="zero_", functions=("at::native::elsewhere()",))
    return OperatorFinding(
        direction="forward",
        pattern=program.pattern,
        operator="aten::fill_",
        path=("aten::f", "aten::zero_"),
        bytes_wasted=4096,
        native=1,
        calls=(second, call) if redundant else (call,),
        proof=Proof(certainty=Certainty.PROVEN),
    )


def case_of(*findings: OperatorFinding, name: str = "f") -> OperatorCase:
    return OperatorCase(case=name, state=CaseState.DONE, findings=findings)


def only_patch(program: NativeProgram, tmp_path: Path) -> TorchPatch:
    tree = tree_of(tmp_path, program.text)
    (patch,) = patches_of([case_of(finding_of(program))], tree)
    return patch


@pytest.mark.parametrize("program", PATCHED, ids=lambda program: program.name)
def test_patch_is_proposed(program: NativeProgram, tmp_path: Path) -> None:
    patch = only_patch(program, tmp_path)
    assert patch.why_not == ""
    assert edited(program.text, patch.edits) == program.after
    assert patch.file == str(FILE)
    assert program.called in program.text.splitlines()[patch.line - 1]
    assert patch.diff.startswith(f"--- a/{FILE}\n+++ b/{FILE}\n@@")


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.name)
def test_wrong_patch_is_not_proposed(program: NativeProgram, tmp_path: Path) -> None:
    patch = only_patch(program, tmp_path)
    assert not patch.edits
    assert program.why in patch.why_not


def test_of_two_equal_writes_the_first_is_patched(tmp_path: Path) -> None:
    text = """\
void f_out(const Tensor& input, Tensor& result) {
  result.zero_();
  accumulate(result);
}
Tensor f(const Tensor& input) {
  auto result = at::zeros_like(input);
  f_out(input, result);
  return result;
}
"""
    program = replace(PATCHED[0], text=text, pattern="redundant write")
    patch = only_patch(program, tmp_path)
    assert (patch.text, patch.line) == ("zeros_like -> empty_like", 6)


INLINED = next(one for one in REFUSED if one.name.startswith("the fill of an inlined function"))


@pytest.mark.parametrize(("index", "line"), [(0, 3), (1, 10)])
def test_calls_that_were_all_observed_are_distinguished_by_their_order(
    index: int, line: int, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, INLINED.text)
    callers = (INLINED.function, "at::native::elsewhere()", INLINED.function)
    call = NativeCall(
        called="zero_", functions=(INLINED.function,), number=2 * index, callers=callers
    )
    (patch,) = patches_of([case_of(replace(finding_of(INLINED), calls=(call,)))], tree)
    assert (patch.line, patch.why_not) == (line, "")


@pytest.mark.parametrize("count", [1, 3])
def test_calls_that_were_not_observed_once_each_are_not_distinguished(
    count: int, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, INLINED.text)
    call = NativeCall(
        called="zero_", functions=(INLINED.function,), callers=(INLINED.function,) * count
    )
    (patch,) = patches_of([case_of(replace(finding_of(INLINED), calls=(call,)))], tree)
    assert "2 calls of zero_ in f are possible" in patch.why_not


def test_findings_at_one_place_are_one_patch(tmp_path: Path) -> None:
    finding = finding_of(PATCHED[0])
    larger = replace(finding, bytes_wasted=8192)
    cases = [case_of(finding, name="f"), case_of(larger, name="f.sum")]
    (patch,) = patches_of(cases, tree_of(tmp_path, PATCHED[0].text))
    assert [found.case for found in patch.found_in] == ["f", "f.sum"]
    assert patch.bytes_saved == 8192


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"proof": Proof(certainty=Certainty.LIKELY)}, "likely, neither proven nor tested"),
        ({"calls": ()}, "was not recorded"),
        ({"pattern": "redundant write"}, "first of the two writes"),
        (
            {"calls": (NativeCall(called="zeros_like", functions=("at::native::unknown()",)),)},
            "no call of zeros_like was found in the source (unknown)",
        ),
    ],
)
def test_finding_without_a_patch(changes: dict[str, object], why: str, tmp_path: Path) -> None:
    finding = replace(finding_of(PATCHED[0]), **changes)  # type: ignore[arg-type]
    (patch,) = patches_of([case_of(finding)], tree_of(tmp_path, PATCHED[0].text))
    assert why in patch.why_not


def test_finding_that_occurs_only_under_the_profiler_has_no_patch(tmp_path: Path) -> None:
    finding = replace(finding_of(PATCHED[0]), native=0)
    assert patches_of([case_of(finding)], tree_of(tmp_path, PATCHED[0].text)) == []


def test_sources_of_other_devices_are_not_patched(tmp_path: Path) -> None:
    path = tmp_path / "aten/src/ATen/native/cuda/F.cpp"
    path.parent.mkdir(parents=True)
    path.write_text(PATCHED[0].text)
    (patch,) = patches_of([case_of(finding_of(PATCHED[0]))], SourceTree(root=tmp_path))
    assert not patch.edits


def test_bytes_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"// Universit\xe9\n" + PATCHED[0].text.encode())
    (patch,) = patches_of([case_of(finding_of(PATCHED[0]))], SourceTree(root=tmp_path))
    after = edited(SourceTree(root=tmp_path).text(FILE), patch.edits)
    assert after.encode(errors="surrogateescape").startswith(b"// Universit\xe9\n#include")


def test_overlapping_edits_are_refused() -> None:
    edits = [SourceEdit(start=0, end=3, text="x"), SourceEdit(start=2, end=4, text="y")]
    with pytest.raises(NotProposed, match="overlaps"):
        edited("abcdef", edits)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("at::native::mse_loss_backward(at::Tensor const&, long)", "mse_loss_backward"),
        (
            "at::native::structured_avg_pool3d_out_cpu::impl(at::Tensor const&)",
            "avg_pool3d_out_cpu",
        ),
        ("at::native::(anonymous namespace)::f<long, 3>(at::Tensor&)", "f"),
        ("void at::native::(anonymous namespace)::g<float>(int) [clone .isra.0]", "g"),
        ("at::native::C::method(int) const", "method"),
        ("at::native::h(std::function<void (long)> const&)", "h"),
        ("<unknown function>", ""),
    ],
)
def test_name_in_source_of_a_symbol(symbol: str, name: str) -> None:
    assert source_name(symbol) == name


def test_comments_and_literals_are_blanked_in_place() -> None:
    text = 'a; // b {\n/* c\n} */ d("}\\"{", \'{\', R"x({)x"); e = 1\'000;'
    clean = blanked(text)
    assert len(clean) == len(text)
    assert "{" not in clean
    assert "}" not in clean
    assert clean.count("\n") == text.count("\n")
    assert "e = 1'000;" in clean


def test_offsets_without_a_library_stay_unresolved(tmp_path: Path) -> None:
    missing = f"{tmp_path}/libnone.so+0x10"
    assert resolved_functions([missing, "at::native::f(int)"]) == {}
