from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from tests.builds.verify.sample_components import make_component, make_target, make_venv, run_here
from torchyard.builds import recipe as grammar
from torchyard.builds.plan import Component
from torchyard.builds.record import VerifyReport
from torchyard.builds.verify.project_tests import exit_text
from torchyard.builds.verify.target_python import (
    has_device,
    list_packages,
    probe_environment,
    probe_module,
)
from torchyard.builds.verify.verification import open_target, perform_verify
from torchyard.errors import StepFailed


@pytest.fixture
def venv(tmp_path: Path) -> tuple[str, Path]:
    return make_venv(tmp_path / "env")


def add_package(site: Path, name: str = "part", version: str = "1.2.3", code: str = "") -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(f"__version__ = {version!r}\n{code}")


def verify(component: Component) -> VerifyReport:
    return perform_verify(component, root="", run=run_here, smoke_limit_s=20.0)


def test_a_good_module(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    add_package(site)
    component = make_component(tmp_path, python=python, import_name="part", version="1.2.3")
    report = verify(component)
    assert report.good
    assert report.findings == ()
    assert report.imported is not None
    assert report.imported.version == "1.2.3"
    assert report.imported.file == str(site / "part/__init__.py")
    assert list((tmp_path / "wheels").parent.glob(".verify-*")) == [], "the work folder is removed"


def test_the_source_tree_does_not_help(
    tmp_path: Path, venv: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in the working folder and on PYTHONPATH is what a careless check would import."""
    python, _ = venv
    component = make_component(tmp_path, python=python, import_name="part")
    add_package(Path(component.tree))
    monkeypatch.chdir(component.tree)
    monkeypatch.setenv("PYTHONPATH", component.tree)
    report = verify(component)
    assert not report.good
    assert report.findings[0].what == "part cannot be imported"
    assert "No module named 'part'" in report.findings[0].why


def test_a_path_file_into_the_tree_is_detected(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    component = make_component(tmp_path, python=python, import_name="part")
    add_package(Path(component.tree))
    (site / "tree.pth").write_text(component.tree + "\n")
    report = verify(component)
    assert [finding.what for finding in report.findings] == [
        "part is imported from the source tree, not from the environment"
    ]


def test_an_editable_install_is_meant_to_be_in_the_tree(
    tmp_path: Path, venv: tuple[str, Path]
) -> None:
    python, site = venv
    table = grammar.PythonTable(install="editable")
    component = make_component(
        tmp_path, python=python, import_name="part", builder="python", python_table=table
    )
    add_package(Path(component.tree))
    (site / "tree.pth").write_text(component.tree + "\n")
    assert verify(component).good


def test_another_copy_than_the_one_built(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    component = make_component(tmp_path, python=python, import_name="part")
    add_package(tmp_path / "elsewhere")
    (site / "other.pth").write_text(str(tmp_path / "elsewhere") + "\n")
    report = verify(component)
    assert not report.good
    assert "not the copy that was built" in report.findings[0].what
    assert component.wheels in report.findings[0].fix


def test_a_left_over_folder_is_not_a_module(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    (site / "part/lib").mkdir(parents=True)
    report = verify(make_component(tmp_path, python=python, import_name="part"))
    assert not report.good
    assert report.findings[0].what == "part imports as an empty namespace package"


@pytest.mark.parametrize(
    ("wanted", "said", "fits"),
    [
        ("2.6.0", "2.6.0", True),
        ("2.6.0", "2.6.0+cpu", True),
        ("2.6.0", "2.6.0a0+git1234", True),
        ("2.6", "2.6.1", True),
        ("2.6.0", "2.60.0", False),
        ("2.6.0", "2.13.0", False),
        ("main", "2.13.0", True),
    ],
)
def test_versions(
    tmp_path: Path, venv: tuple[str, Path], wanted: str, said: str, fits: bool
) -> None:
    python, site = venv
    add_package(site, version=said)
    report = verify(make_component(tmp_path, python=python, import_name="part", version=wanted))
    assert report.good, "another version is a warning"
    assert (report.findings == ()) is fits


def test_the_version_of_the_distribution_is_used_without_one_in_the_module(
    tmp_path: Path, venv: tuple[str, Path]
) -> None:
    python, site = venv
    (site / "plain.py").write_text("")
    info = site / "plain_dist-4.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-dist\nVersion: 4.5\n")
    (info / "top_level.txt").write_text("plain\n")
    assert probe_module(make_target(tmp_path, python), "plain").version == "4.5"


def test_a_module_that_crashes_the_interpreter(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    add_package(site, code="import os; os.abort()")
    report = verify(make_component(tmp_path, python=python, import_name="part"))
    assert not report.good
    assert report.imported is None
    assert report.findings[0].what == "part cannot be imported"


def test_a_crash_when_the_interpreter_ends(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    add_package(site, code="import atexit, os; atexit.register(os.abort)")
    report = verify(make_component(tmp_path, python=python, import_name="part"))
    assert not report.good
    assert "the interpreter crashes at exit" in report.findings[0].what


def test_a_module_that_hangs(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    add_package(site, code="import time; time.sleep(60)")
    module = probe_module(make_target(tmp_path, python), "part", limit_s=1.0)
    assert module.failure == "timed out after 1 s"


def test_noise_on_import_does_not_hide_the_answer(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    add_package(site, code="import os; os.write(1, b'no newline at the end')")
    assert probe_module(make_target(tmp_path, python), "part").version == "1.2.3"


def test_smoke_tests_pass_fail_crash_and_hang(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    add_package(site)
    smoke = (
        grammar.SmokeTest(name="good", python="import part\nassert part.__version__"),
        grammar.SmokeTest(name="bad", python="import part\nraise SystemExit('the answer is 41')"),
        grammar.SmokeTest(name="crash", python="import os\nos.kill(os.getpid(), 11)"),
        grammar.SmokeTest(name="hang", python="while True:\n    pass"),
    )
    component = make_component(tmp_path, python=python, import_name="part", smoke=smoke)
    report = perform_verify(component, root="", run=run_here, smoke_limit_s=6.0)
    assert [(result.name, result.passed) for result in report.smoke] == [
        ("good", True),
        ("bad", False),
        ("crash", False),
        ("hang", False),
    ]
    assert [finding.what for finding in report.findings] == [
        "smoke test 'bad' failed (exit code 1)",
        "smoke test 'crash' failed (signal SIGSEGV)",
        "smoke test 'hang' timed out after 6 s",
    ]
    assert "the answer is 41" in report.findings[0].why
    assert 'File "<torchyard check>", line' in report.findings[2].why, "it says where it hung"


def test_smoke_tests_wait_for_an_import(tmp_path: Path, venv: tuple[str, Path]) -> None:
    smoke = (grammar.SmokeTest(name="any", python="pass"),)
    component = make_component(tmp_path, python=venv[0], import_name="part", smoke=smoke)
    report = verify(component)
    assert report.smoke == ()
    assert len(report.findings) == 1, "one cause, one finding"


def test_the_target_s_own_variables_are_kept(tmp_path: Path, venv: tuple[str, Path]) -> None:
    def run(argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return run_here(argv, {"ACTIVATED": "yes", **variables})

    smoke = (grammar.SmokeTest(name="any", python="import os; assert os.environ['ACTIVATED']"),)
    component = make_component(tmp_path, python=venv[0], smoke=smoke)
    assert perform_verify(component, root="", run=run).good


def test_packages_of_the_environment(tmp_path: Path, venv: tuple[str, Path]) -> None:
    python, site = venv
    for name, version in (("Zeta", "1.0"), ("alpha", "2.0+cpu")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "Zeta-1.0.dist-info/direct_url.json").write_text('{"url": "file:///w/z.whl"}')
    with open_target(make_component(tmp_path, python=python), run_here) as target:
        assert target is not None
        packages = list_packages(target)
    assert [(one.name, one.version, one.origin) for one in packages] == [
        ("alpha", "2.0+cpu", ""),
        ("Zeta", "1.0", "file:///w/z.whl"),
    ]


def test_an_interpreter_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no libpython here >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(StepFailed, match="did not report its folders") as caught:
        probe_environment(make_target(tmp_path, str(broken)))
    assert "no libpython here" in caught.value.why


def test_a_component_without_an_interpreter(tmp_path: Path) -> None:
    with open_target(make_component(tmp_path), run_here) as target:
        assert target is None
    assert verify(make_component(tmp_path, import_name="part")).good


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path, venv: tuple[str, Path]) -> None:
    component = make_component(tmp_path, python=venv[0])
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StepFailed, match="cannot make a folder"):
            verify(component)
    finally:
        tmp_path.chmod(0o700)


def test_endings_as_text() -> None:
    assert exit_text(-6) == "signal SIGABRT"
    assert exit_text(139) == "signal SIGSEGV"
    assert exit_text(-99) == "signal 99"
    assert exit_text(3) == "exit code 3"


@pytest.mark.parametrize(("device", "file"), [("cuda", "nvidiactl"), ("rocm", "kfd")])
def test_a_missing_device_skips_its_smoke_tests(
    tmp_path: Path, venv: tuple[str, Path], device: Literal["cuda", "rocm"], file: str
) -> None:
    smoke = (grammar.SmokeTest(name="device", python="raise SystemExit(1)", device=device),)
    component = make_component(tmp_path, python=venv[0], smoke=smoke)
    devices = tmp_path / "dev"
    devices.mkdir()

    def report() -> VerifyReport:
        return perform_verify(component, root="", run=run_here, device_folder=devices)

    first = report()
    assert first.good
    assert [(one.passed, one.skipped) for one in first.smoke] == [
        (False, f"this machine has no {device} device")
    ]
    (devices / file).touch()
    assert not report().good, "a device that does not work is a failure"


def test_a_device_file_without_a_driver_is_no_device(tmp_path: Path) -> None:
    """The library of the driver makes one when a program asks it for devices."""
    used = {
        int(line.split()[0])
        for line in Path("/proc/devices").read_text().splitlines()
        if line[:3].strip().isdigit()
    }
    free = next(number for number in range(100, 255) if number not in used)
    try:
        os.mknod(tmp_path / "nvidiactl", stat.S_IFCHR | 0o666, os.makedev(free, 255))
    except PermissionError:
        pytest.skip("may not make device files")
    assert not has_device("cuda", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_device("cuda", tmp_path)
