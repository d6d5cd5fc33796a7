"""A record with something in every field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchyard.builds.record import (
    BuildRecord,
    CheckFinding,
    ComponentRecord,
    ImportedModule,
    LinkedLibrary,
    OptionVerdict,
    PackageRecord,
    PatchRecord,
    RecipeIdentity,
    SmokeResult,
    SourceIdentity,
    StepTimes,
    ToolRecord,
    VerifyReport,
    WheelRecord,
)

COMMIT = "134179474539648ba7dee1317959529fbd0e7f89"
GCC = ToolRecord(name="cc", version="12.2.0", path="/usr/bin/cc")

GIT = SourceIdentity(
    kind="git",
    origin="https://git.example.org/pytorch/pytorch",
    version="v2.6.0",
    commit=COMMIT,
    submodules={"third_party/ideep": "1" * 40, "third_party/ideep/mkl-dnn": "2" * 40},
    overridden=("third_party/ideep/mkl-dnn",),
)
DEBIAN = SourceIdentity(
    kind="debian",
    origin="debian:trixie/openblas",
    version="0.3.29+ds-3",
    files={"openblas_0.3.29+ds.orig.tar.xz": "a" * 64, "openblas_0.3.29+ds-3.dsc": "b" * 64},
    patches=("use-arch.patch",),
)

REPORT = VerifyReport(
    component="pytorch",
    findings=(CheckFinding(check="libraries", level="warning", what="w", why="y", fix="m"),),
    imported=ImportedModule(name="torch", version="2.6.0", file="/env/torch/__init__.py"),
    options=(
        OptionVerdict(
            name="BLAS", requested="OpenBLAS", cache="OpenBLAS", config="open", verdict="honoured"
        ),
        OptionVerdict(name="X", requested="1", verdict="ignored"),
    ),
    config={"BLAS_INFO": "open"},
    libraries=(LinkedLibrary(name="libc.so.6", path="/lib/libc.so.6", wanted_by=("libtorch.so",)),),
    loaded=("/lib/libc.so.6",),
    smoke=(SmokeResult(name="matmul", passed=True, duration_s=1.5),),
    duration_s=12.5,
)


def make_record(**changes: Any) -> BuildRecord:
    """A finished build of PyTorch with an OpenBLAS of its own."""
    record = BuildRecord(
        torchyard="1.0",
        name="arm",
        recipe=RecipeIdentity(
            name="arm-stack",
            variant="cpu",
            version="2.6.0",
            settings={"pytorch": {"USE_CUDA": False}},
        ),
        plan_fingerprint="f" * 64,
        components=(
            ComponentRecord(
                name="openblas",
                version="0.3.29",
                recipe="openblas",
                source=DEBIAN,
                toolchain=(GCC,),
                reused="5f" * 32,
                prefix_files=("lib/libopenblas.so.0",),
            ),
            ComponentRecord(
                name="pytorch",
                version="2.6.0",
                recipe="pytorch",
                variant="cpu-arm",
                needs=("openblas",),
                source=GIT,
                patches=(PatchRecord(name="fix.patch", sha256="c" * 64),),
                options={"BLAS": "OpenBLAS", "USE_CUDA": False, "JOBS": 3},
                toolchain=(GCC, ToolRecord(name="ninja", version="1.11.1", path="/usr/bin/ninja")),
                wheels=(
                    WheelRecord(
                        file="torch-2.6.0-cp313-cp313-linux_aarch64.whl",
                        sha256="d" * 64,
                        size_bytes=9,
                    ),
                ),
                verified=REPORT,
            ),
        ),
        times=(
            StepTimes(step="pytorch/fetch", wall_s=3.0),
            StepTimes(
                step="pytorch/build",
                wall_s=7600.0,
                cpu_s=14800.0,
                compiles=1191,
                peak_memory_mib=2300.0,
                cache_hit_rate=0.25,
            ),
        ),
        machine={"cores": "2", "memory": {"GiB": 24.0}},
        packages=(
            PackageRecord(name="numpy", version="2.1.0"),
            PackageRecord(name="PyYAML", version="6.0.2"),
            PackageRecord(name="pip", version="25.0"),
            PackageRecord(name="torch", version="2.6.0", origin="file:///home/torch-2.6.0.whl"),
            PackageRecord(name="six", version="1.16.0", origin="/usr/lib/python3/dist-packages"),
        ),
        python="/builds/arm/bin/python",
        root="/builds/arm/root",
        variables={"LD_LIBRARY_PATH": "/builds/arm/prefix/lib"},
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T05:04:05+00:00",
    )
    return replace(record, **changes)
