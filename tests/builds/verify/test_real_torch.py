"""The complete verification of an installed torch wheel, which must pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.builds.verify.sample_components import make_component, run_here
from torchyard.builds import recipe as grammar
from torchyard.builds.verify.verification import perform_verify

pytestmark = pytest.mark.torch


def test_a_good_torch_passes_and_a_wrong_request_is_found(tmp_path: Path) -> None:
    component = make_component(
        tmp_path,
        python=sys.executable,
        import_name="torch",
        libraries=("torch/lib/libtorch*.so", "torch/_C*.so"),
        options={"CMAKE_BUILD_TYPE": "Release", "USE_OPENMP": True, "USE_MPI": True},
        smoke=(
            grammar.SmokeTest(
                name="matmul",
                python="import torch\nassert (torch.ones(8, 8) @ torch.ones(8, 8) == 8).all()",
            ),
        ),
    )
    report = perform_verify(component, root="", run=run_here)
    verdicts = {one.name: one.verdict for one in report.options}
    assert verdicts == {
        "CMAKE_BUILD_TYPE": "honoured",
        "USE_OPENMP": "honoured",
        "USE_MPI": "overridden",
    }
    failures = [finding.what for finding in report.findings if finding.level == "failure"]
    assert failures == ["USE_MPI=ON was requested but overridden"]
    assert all(result.passed for result in report.smoke)
    linked = {library.name: library.path for library in report.libraries}
    assert linked["libtorch_cpu.so"].endswith("/torch/lib/libtorch_cpu.so")
    assert all(linked.values()), "everything is found"
    assert report.imported is not None
    assert report.config["TORCH_VERSION"] == report.imported.version.partition("+")[0]
