"""Every signature against every log: each log has exactly its own signature as its cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.model import Diagnosis
from torchyard.builds.diagnosis.signature import load_signatures

LOGS = Path(__file__).parent / "logs"
OWNER = {name: signature.id for signature in load_signatures() for name in signature.examples}

# Logs of errors that no signature is for: the line, the tool and the words of the first real error.
UNKNOWN = {
    "unknown-cmake-message.log": (23, "cmake", "The option USE_FROBNICATE needs a frobnicator"),
    "unknown-colours.log": (2, "compiler", "decode.cpp:1:15: error: expected primary-expression"),
    "unknown-extension-inline.log": (6, "compiler", "lltm.cpp:4:3: error: expected"),
    "unknown-extension-syntax.log": (8, "compiler", "lltm.cpp:4:3: error: expected"),
    "unknown-generator.log": (20, "python", "ValueError: no operator named error_code"),
    "unknown-make-parallel.log": (7, "compiler", "s1.cpp:3:68: error: 'missing_1' was not"),
    "unknown-nvcc-syntax.log": (8, "compiler", 'lltm.cu(2): error: expected a ";"'),
}

# Logs of builds that did not fail, full of checks that do, warnings and flags.
CLEAN = {"clean-build.log", "clean-configure.log"}

# Logs in which something that was left out at configure time is the cause of a later failure.
LOSSES = {
    name
    for signature in load_signatures()
    if signature.only_as_cause
    for name in signature.examples
}

# The rows of the table of known failures that the signatures were written from.
TABLE = {
    1: ("compiler-out-of-memory", "nvcc-out-of-memory", "process-killed"),
    2: ("linker-out-of-memory",),
    3: ("cmake-too-new",),
    4: ("cmake-too-old",),
    5: ("cmake-cuda-whole-compilation",),
    6: ("submodules-missing",),
    7: ("libstdcxx-too-old",),
    8: ("host-gcc-too-new",),
    9: ("glibc-math-clash",),
    10: ("nvtoolsext-missing",),
    11: ("cuda-toolkits-conflict",),
    12: ("cuda-arch-unsupported",),
    13: ("relocation-overflow",),
    14: ("gcc-sve-bug",),
    15: ("fbgemm-uninitialized",),
    16: ("hipify-skipped",),
    17: ("rocm-incomplete",),
    18: ("aotriton-download",),
    19: ("nccl-clone-offline", "six-download-offline", "network-wanted"),
    20: ("blas-not-found", "blas-fallback", "lapack-missing"),
    21: ("acl-mismatch",),
    22: ("itt-symbol-missing",),
    23: ("pkg-resources-missing", "distutils-missing"),
    24: ("protobuf-mismatch",),
    25: ("import-from-source",),
    26: ("stale-cmake-cache",),
    27: ("torchvision-operator-missing", "torch-symbol-missing"),
    28: ("cxx-standard-too-old", "compiler-too-old"),
    29: ("disk-full",),
    30: ("setup-py-missing",),
    31: ("git-dubious-ownership", "version-unknown"),
    32: ("sve-prctl-noise",),
}


def read(name: str) -> Diagnosis:
    return diagnose(LOGS / name)


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_the_log_has_its_own_cause_first(name: str) -> None:
    found = read(name)
    if name in CLEAN:
        assert found.causes == ()
        assert found.first_error is None
        assert found.failed_command is None
    elif name in UNKNOWN:
        assert found.root is None, found.causes[0].id
        assert found.first_error is not None
        line, tool, words = UNKNOWN[name]
        assert (found.first_error.line, found.first_error.tool) == (line, tool)
        assert words in found.first_error.text
    else:
        assert found.causes, f"nothing found; first error: {found.first_error}"
        assert found.causes[0].id == OWNER[name]
        if found.causes[0].level in {"fatal", "general"}:
            assert found.root == found.causes[0], found.first_error
        elif name in LOSSES:
            assert found.root == found.causes[0]
            assert found.root.level == "loss"
        else:
            assert found.root is None
            assert not found.failed


@pytest.mark.parametrize("name", sorted(OWNER))
def test_evidence_is_really_at_its_line(name: str) -> None:
    lines = (LOGS / name).read_text(encoding="utf-8").split("\n")
    for evidence in read(name).causes[0].evidence:
        shown = _plain(lines[evidence.line - 1])
        quoted = _plain(evidence.text)
        assert quoted.startswith(("... ", shown[:60]))


def _plain(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return " ".join(text.replace("\u2018", "'").replace("\u2019", "'").split())


def test_every_signature_has_a_log_and_every_log_a_signature() -> None:
    for signature in load_signatures():
        assert signature.examples, f"{signature.id} has no log"
    on_disk = {path.name for path in LOGS.glob("*.log")}
    assert set(OWNER) | set(UNKNOWN) | CLEAN == on_disk
    assert not set(OWNER) & (set(UNKNOWN) | CLEAN)
    named = [name for signature in load_signatures() for name in signature.examples]
    assert len(named) == len(set(named)), "a log is the example of two signatures"


def test_all_rows_of_the_table_are_covered() -> None:
    known = {signature.id for signature in load_signatures()}
    assert sorted(TABLE) == list(range(1, 33))
    for row, ids in TABLE.items():
        assert set(ids) <= known, row


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.name)
def test_logs_say_where_they_come_from_and_nothing_of_the_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(r"# (?:provoked: \S|written by hand after \S)", text)
    # Folders that every system has, and the one that stands for wherever it was built.
    tops = {found[1] for found in re.finditer(r"(?m)(?:^|[ '\"=:(`])/([a-z0-9_.-]+)/", text)}
    usual = {"bin", "build", "etc", "lib", "opt", "proc", "simple", "tmp", "usr", "var"}
    assert tops <= usual


def test_the_first_line_of_a_log_is_ordinary_text() -> None:
    marked = diagnose("# provoked: fatal error: Python.h: No such file or directory\n")
    assert [cause.id for cause in marked.causes] == ["python-headers-missing"]
    assert marked.first_error is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cmake-too-old.log", {"needed": "3.27", "found": "3.25.1"}),
        ("header-missing.log", {"header": "nvjpeg2k/nvjpeg2k.h"}),
        ("library-not-found.log", {"library": "gfortran_none"}),
        ("python-module-missing.log", {"module": "yaml"}),
        ("cuda-arch-unsupported-cmake.log", {"arch": "compute_30"}),
        ("host-gcc-too-new-cmake.log", {"newest": "15"}),
        ("network-fetchcontent.log", {"names": "gitlab.arm.com"}),
        ("libstdcxx-too-old.log", {"version": "GLIBCXX_3.4.32"}),
        ("compiler-killed.log", {"program": "cc1plus"}),
        ("disk-full.log", {"path": "/build/tmp/ccUwuPx9.s"}),
        ("cxx-standard-too-old.log", {"needed": "17"}),
        ("acl-too-old.log", {"found": "20.08", "needed": "21.02"}),
        ("lto-mismatch.log", {"found": "14.0", "needed": "12.0"}),
        ("git-dubious-ownership.log", {"folder": "/build/git/owned"}),
        (
            "cuda-toolkits-conflict.log",
            {
                "one": "12.1.66",
                "two": "12.4.99",
                "first": "/usr/local/cuda/include",
                "second": "/usr/local/cuda-12.4/include",
            },
        ),
    ],
)
def test_values_of_the_log_are_captured(name: str, values: dict[str, str]) -> None:
    cause = read(name).causes[0]
    assert values.items() <= cause.values.items()
    told = " ".join((cause.title, cause.cause, *cause.remedy))
    assert any(value in told for value in values.values())


def test_no_placeholder_is_left_in_any_text() -> None:
    for name in OWNER:
        for cause in read(name).causes:
            told = (cause.title, cause.cause, *cause.remedy, *cause.commands)
            assert not any(re.search(r"\{[a-z_]+\}", text) for text in told), name


@pytest.mark.parametrize(
    ("name", "root", "consequences"),
    [
        ("nvcc-killed.log", "nvcc-out-of-memory", {"process-killed"}),
        ("network-pip.log", "network-wanted", {"pip-no-distribution"}),
        ("submodules-configure.log", "submodules-missing", {"cmake-target-missing"}),
        ("cmake-generator-missing.log", "cmake-generator-missing", {"compiler-missing"}),
        ("cuda-arch-unsupported-cmake.log", "cuda-arch-unsupported", {"compiler-broken"}),
        ("openmp-twice.log", "openmp-twice", {"program-crashed"}),
    ],
)
def test_the_root_comes_before_its_consequences(
    name: str, root: str, consequences: set[str]
) -> None:
    causes = read(name).causes
    assert causes[0].id == root
    assert {cause.id for cause in causes if cause.consequence_of == root} == consequences


@pytest.mark.parametrize(
    ("name", "target", "words", "code"),
    [
        ("compiler-killed.log", "CMakeFiles/operators.dir/attention.cpp.o", "/usr/bin/c++", None),
        ("nvcc-killed.log", "CMakeFiles/flash.dir/flash.cu.o", "/usr/local/cuda/bin/nvcc", 137),
        ("linker-killed.log", "libtorch_cpu.so", "-Wl,-soname,libtorch_cpu.so", None),
        ("unknown-generator.log", "Functions.h", "python3 gen.py Functions.h", None),
        ("compiler-killed-make.log", "CMakeFiles/operators.dir/attention.cpp.o", "", 1),
    ],
)
def test_the_failed_command_is_found(name: str, target: str, words: str, code: int | None) -> None:
    failed = read(name).failed_command
    assert failed is not None
    assert failed.target == target
    assert words in failed.command
    assert failed.exit_code == code


def test_what_a_check_of_cmake_compiles_is_not_a_failed_command() -> None:
    assert read("unknown-cmake-message.log").failed_command is None
