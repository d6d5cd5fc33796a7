"""Whether the checks of `torchyard values fix SWEEP --rebuild` notice wrong patches of torch.

    python benchmarks/torch_patch_traps.py BUILD
    python benchmarks/torch_patch_traps.py PYTHON --source TREE

Removes fills that torch needs, as if a sweep had called them wasted, builds libraries with these patches and compares
them with the unchanged one on sample inputs. Each patch must be noticed; patches of one function are in different
libraries. BUILD is a finished build of PyTorch 2.6.

Exit code 1 if a wrong patch passes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchyard.values.model import Certainty, Proof
from torchyard.values.operator_sweep.model import (
    CaseState,
    NativeCall,
    OperatorCase,
    OperatorFinding,
)
from torchyard.values.torch_patches.candidates import DEAD, SourceTree, edited, patches_of
from torchyard.values.torch_patches.checks import compare_samples, install_test_packages
from torchyard.values.torch_patches.model import SampleCheck, SourceEdit, TorchPatch
from torchyard.values.torch_patches.patched_build import PatchedBuild
from torchyard.values.torch_patches.patched_wheel import NotReplaceable, PatchedWheel
from torchyard.worker.values.operator_cases import all_cases

TRAPS = [
    ("adaptive_avg_pool2d", "adaptive_avg_pool2d_backward_out_cpu_template", "zero_"),
    ("adaptive_avg_pool3d", "adaptive_avg_pool3d_backward_cpu", "zeros_like"),
    ("adaptive_max_pool2d", "adaptive_max_pool2d_backward_out_cpu", "zero_"),
    ("adaptive_max_pool3d", "adaptive_max_pool3d_backward_out_cpu", "zero_"),
    ("avg_pool2d", "avg_pool2d_backward_out_cpu", "zero_"),
    ("embedding", "embedding_dense_backward_cpu", "zeros"),
    ("embedding_bag.max", "_embedding_bag_dense_backward_cpu_max", "zeros"),
    ("embedding_bag.sum", "_embedding_bag_dense_backward_cpu", "zeros"),
    ("fractional_max_pool2d", "fractional_max_pool2d_backward_cpu", "zero_"),
    ("fractional_max_pool3d", "fractional_max_pool3d_backward_out_cpu_template", "zero_"),
    ("max_pool2d", "max_pool2d_with_indices_backward_out_cpu", "zero_"),
    ("max_pool3d", "max_pool3d_with_indices_backward_out_cpu_template", "zero_"),
    ("max_unpool2d", "max_unpooling2d_forward_out_cpu", "zero_"),
    ("max_unpool3d", "max_unpooling3d_forward_out_cpu", "zero_"),
    ("multilabel_margin_loss", "multilabel_margin_loss_backward_out_cpu_template", "zero_"),
    ("nll_loss", "nll_loss_backward_out_cpu_template", "zero_"),
    ("nll_loss2d", "nll_loss2d_backward_out_cpu_template", "zero_"),
    ("one_hot", "one_hot", "zeros"),
    ("block_diag", "block_diag", "zeros"),
    ("diag_embed", "diag_embed", "zeros"),
    ("pad.reflect1d", "reflection_pad1d_backward_out_cpu", "zero_"),
    ("pad.reflect2d", "reflection_pad2d_backward_cpu", "zeros_like"),
    ("pad.reflect3d", "reflection_pad3d_backward_out_cpu", "zero_"),
    ("pad.replicate1d", "replication_pad1d_backward_out_cpu", "zero_"),
    ("pad.replicate2d", "replication_pad2d_backward_cpu", "zeros_like"),
    ("pad.replicate3d", "replication_pad3d_backward_cpu", "zeros_like"),
    ("interpolate.bicubic2d", "upsample_bicubic2d_backward_out_cpu", "zero_"),
    ("interpolate.bilinear2d", "upsample_bilinear2d_backward_out_cpu", "zero_"),
    ("interpolate.linear1d", "upsample_linear1d_backward_out_cpu", "zero_"),
    ("interpolate.trilinear3d", "upsample_trilinear3d_backward_out_cpu", "zero_"),
]
"""(case, function, call): without the fill the results are wrong."""


def case_of(name: str, function: str, called: str) -> OperatorCase:
    """Return a case with a finding that is false."""
    finding = OperatorFinding(
        direction="backward",
        pattern=DEAD,
        operator="aten::fill_",
        path=(f"aten::{name}",),
        native=1,
        calls=(NativeCall(called=called, functions=(f"at::native::{function}()",)),),
        proof=Proof(certainty=Certainty.PROVEN),
    )
    return OperatorCase(case=name, state=CaseState.DONE, findings=(finding,))


def rounds(patches: list[TorchPatch]) -> list[list[TorchPatch]]:
    """Divide the patches so that two of one function are never in one library."""
    calls = {case.name: case.call for case in all_cases()}
    groups: list[list[TorchPatch]] = []
    for patch in patches:
        call = calls[patch.found_in[0].case]
        for group in groups:
            if all(calls[one.found_in[0].case] != call for one in group):
                group.append(patch)
                break
        else:
            groups.append([patch])
    return groups


def differing(
    build: PatchedBuild | PatchedWheel, patches: list[TorchPatch], packages: Path
) -> list[SampleCheck]:
    """Return the comparison of samples for each patch, all of them in one library."""
    tree = SourceTree(root=build.tree)
    edits: dict[str, list[SourceEdit]] = {}
    for patch in patches:
        edits.setdefault(patch.file, []).extend(patch.edits)
    sources = {name: edited(tree.text(Path(name)), several) for name, several in edits.items()}
    folder = build.patches_folder / "traps"
    unchanged = build.unchanged(sorted(sources), folder, say=print)
    target = build.build(sources, folder, say=print)
    return compare_samples(patches, unchanged, target, folder, packages)


def main() -> int:
    """Build all wrong patches, and print which the samples notice."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("torch-patch-traps"))
    arguments = parser.parse_args()
    build: PatchedBuild | PatchedWheel
    if arguments.source:
        build = PatchedWheel(arguments.build, arguments.source, arguments.folder.resolve())
    else:
        build = PatchedBuild(arguments.build)
    patches = patches_of([case_of(*trap) for trap in TRAPS], SourceTree(root=build.tree))
    for patch in patches:
        if patch.why_not:
            print(f"no edit: {patch.found_in[0].case}: {patch.why_not}")
    patches = [patch for patch in patches if patch.edits]
    build.patches_folder.mkdir(exist_ok=True)
    packages, why = install_test_packages(build.target, build.patches_folder, print)
    if why:
        print(f"without torch's sample inputs: {why}")
    noticed = 0
    for group in rounds(patches):
        checks = None
        while checks is None:
            try:
                checks = differing(build, group, packages)
            except NotReplaceable as error:
                print(f"not built: {error.what}")
                patches = [one for one in patches if one.file != error.file]
                group[:] = [one for one in group if one.file != error.file]
        for patch, check in zip(group, checks, strict=True):
            noticed += bool(check.different)
            count = check.compared + len(check.different)
            word = "noticed" if check.different else "PASSED"
            case = patch.found_in[0].case
            print(f"{word:8} {case}: {len(check.different)} of {count} samples differ", flush=True)
    print(f"{noticed} of {len(patches)} wrong patches noticed")
    return 0 if noticed == len(patches) else 1


if __name__ == "__main__":
    sys.exit(main())
