"""From a finding to a patch of the source, or to the reason why none is proposed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from torchyard.values.model import ValueFinding
from torchyard.values.patching.fills import patch_of_write
from torchyard.values.patching.gradients import make_sparse, release_gradients
from torchyard.values.patching.loop_invariants import hoist
from torchyard.values.patching.model import (
    NARROWER_TYPE,
    SPARSE_GRADIENT,
    NotProposed,
    Patch,
)
from torchyard.values.patching.narrower_type import keep_boolean
from torchyard.values.patching.program_sources import program_sources
from torchyard.values.patching.source_file import SourceFile


def patch_of(
    finding: ValueFinding,
    source: SourceFile,
    *,
    main: Path,
    root: Path,
    classes: Collection[str] = (),
) -> Patch:
    """Return the patch of a finding; raise NotProposed where it is not certain to keep the results.

    `main` is the script of the program, `root` its folder.
    """
    if finding.path:
        raise NotProposed("the work is done inside an operator of torch")
    pattern, detail = finding.pattern, finding.detail
    if pattern == "sparse gradient":
        if "rows have a gradient" not in detail:
            raise NotProposed("the tensor is used in parts: there is no mechanical patch")
        if SPARSE_GRADIENT not in classes:
            raise NotProposed(
                "a sparse gradient rounds in another way where an index occurs twice in a batch: it is "
                f"proposed only with `--class {SPARSE_GRADIENT}`"
            )
        return make_sparse(finding, source, program_sources(main, root))
    if finding.place.backward:
        raise NotProposed("the work belongs to a backward pass")
    if detail.startswith("gradient zeroed only to be added to"):
        return release_gradients(finding, source, program_sources(main, root))
    if "zeroed only to be added to" in detail:
        raise NotProposed("adding to zeros turns -0.0 into 0.0: a copy may differ in that bit")
    if pattern in ("dead initialisation", "redundant write"):
        return patch_of_write(finding, source)
    if pattern == "unchanged across steps" or detail.startswith("the same bits as aten::"):
        return hoist(finding, source, program_sources(main, root, known_only=False))
    if pattern == "heavy type":
        if NARROWER_TYPE not in classes:
            raise NotProposed(f"narrower types are proposed only with `--class {NARROWER_TYPE}`")
        return keep_boolean(finding, source)
    raise NotProposed(f"there is no mechanical patch for the pattern {pattern!r}")
