"""Dockerfiles and Apptainer definitions, parsed by the rules of their tools and run by a real shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.export.image_runs import (
    fake_system,
    instructions,
    run_dockerfile,
    run_section,
    sections,
)
from tests.builds.export.sample_plans import (
    FACTS,
    hand_plan,
    shipped_plan,
    small_plan,
    small_project,
)
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.builds.export import export_plan
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import Command, Plan, WriteFile
from torchyard.errors import UsageError

NEEDS_CMAKE = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ninja") and shutil.which("cc")),
    reason="needs cmake, ninja and a C compiler",
)
ODD_TEXTS = {
    "plain": "one\ntwo\n",
    "no break at the end": "one\ntwo",
    "one line": "one",
    "empty": "",
    "breaks": "\n\n",
    "sections": "%post\n%files\n# comment\n  # more\nRUN x\nBootstrap: docker\n",
    "quotes": 'it\'s "$HOME" `id` \\\n\\ \\\\\n{{ JOBS }} {{{ }}\n',
}
ODD_WORDS = (
    "a b",
    "it's",
    "$HOME",
    "\\",
    "a\nb",
    "\n",
    "",
    "%post",
    "#x",
    "{{ JOBS }}",
    "<<EOF",
    "!",
)


def odd_plan(tmp_path: Path) -> tuple[Plan, ExportFacts]:
    """A plan that writes odd texts below an image folder that really exists here."""
    folder = "/yard/builds/x"
    actions = [
        WriteFile(path=f"{folder}/out/{name}", text=text) for name, text in ODD_TEXTS.items()
    ]
    tell = 'for word; do printf "[%s]" "$word"; done >out/words; printf %s "$OWN" >out/own'
    plan = hand_plan(
        *actions,
        WriteFile(path=f"{folder}/program", text="#!/bin/sh\n", executable=True),
        Command(argv=("sh", "-c", tell, "sh", *ODD_WORDS), variables=(("OWN", "'\n$x"),)),
        Command(argv=("sh", "-c", "env >out/environment")),
        folder=folder,
        variables=(("PATH", SYSTEM_PATH), ("SHARED", "a \"b\" $c 'd' \\ e"), ("BROKEN", "f\n'g'")),
        compiles=True,
    )
    return plan, ExportFacts(home="/yard", image_folder=str(tmp_path / "image"))


def check_odd_results(out: Path, jobs: str) -> None:
    for name, text in ODD_TEXTS.items():
        assert (out / name).read_bytes() == text.encode(), name
    assert (out / "words").read_text() == "".join(f"[{word}]" for word in ODD_WORDS)
    assert (out / "own").read_text() == "'\n$x"
    environment = (out / "environment").read_text()
    assert "SHARED=a \"b\" $c 'd' \\ e\n" in environment
    assert "BROKEN=f\n'g'\n" in environment
    assert f"MAX_JOBS={jobs}\n" in environment
    assert f"CMAKE_BUILD_PARALLEL_LEVEL={jobs}\n" in environment
    assert (out.parent / "program").stat().st_mode & 0o111


def test_a_dockerfile_does_what_the_plan_says(tmp_path: Path) -> None:
    plan, facts = odd_plan(tmp_path)
    (file,) = export_plan(plan, "dockerfile", facts)
    system = fake_system(tmp_path / "system")
    run_dockerfile(file.text, stage="build", system=system, context=tmp_path)
    check_odd_results(tmp_path / "image/by-hand/out", "2")
    assert "apt-get install --yes" in (system / "called").read_text()


def test_an_apptainer_definition_does_what_the_plan_says(tmp_path: Path) -> None:
    plan, facts = odd_plan(tmp_path)
    (file,) = export_plan(plan, "apptainer", facts)
    assert file.name == "by-hand.def"
    run_section(file.text, "post", system=fake_system(tmp_path / "system"), jobs="3")
    check_odd_results(tmp_path / "image/by-hand/out", "3")


@NEEDS_CMAKE
def test_the_stages_of_a_dockerfile_build_a_project(tmp_path: Path) -> None:
    project = small_project(tmp_path / "it's here")
    plan = small_plan(project, Path("/yard"))
    facts = ExportFacts(home="/yard", image_folder=str(tmp_path / "image"))
    (file,) = export_plan(plan, "dockerfile", facts)
    context, system = tmp_path / "context", fake_system(tmp_path / "system")
    shutil.copytree(project, context / "local/generic-source")
    environ = run_dockerfile(file.text, stage="build", system=system, context=context)
    prefix = tmp_path / "image/small/prefix"
    assert environ["PATH"].startswith(f"{prefix}/bin:")
    said = subprocess.run(["tell"], env=environ, capture_output=True, check=True)
    assert said.stdout == b"LOUD\n"
    kept = [rest for word, rest in instructions(file.text) if "--from=build" in rest]
    assert kept == [f'--from=build ["{prefix}", "{prefix}"]']


@NEEDS_CMAKE
def test_an_apptainer_definition_builds_tests_and_cleans_up(tmp_path: Path) -> None:
    project = small_project(tmp_path / "project")
    plan = small_plan(project, Path("/yard"))
    facts = ExportFacts(home="/yard", image_folder=str(tmp_path / "image"))
    (file,) = export_plan(plan, "apptainer", facts)
    system, folder = fake_system(tmp_path / "system"), tmp_path / "image/small"
    (copy,) = sections(file.text)["files"].split("\n    ")[0].strip().splitlines()
    assert copy.split()[1] == f"{folder}/local/generic-source"
    shutil.copytree(project, copy.split()[1])
    run_section(file.text, "post", system=system)
    assert {path.name for path in folder.iterdir()} == {"prefix", "trees"}
    assert list((folder / "trees").iterdir()) == []
    assert run_section(file.text, "test", system=system) == "passed\n"
    environment = sections(file.text)["environment"]
    said = subprocess.run(
        ["sh", "-c", f"{environment}\ntell"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "LOUD\n"
    (folder / "prefix/bin/tell").unlink()
    with pytest.raises(AssertionError):
        run_section(file.text, "test", system=system)


@pytest.mark.parametrize("form", ["dockerfile", "apptainer"])
def test_a_failing_command_fails_the_build(form: str, tmp_path: Path) -> None:
    plan = hand_plan(
        Command(argv=("false",)), Command(argv=("touch", "after")), folder="/yard/builds/x"
    )
    facts = ExportFacts(home="/yard", image_folder=str(tmp_path / "image"))
    (file,) = export_plan(plan, form, facts)
    system = fake_system(tmp_path / "system")
    run: dict[str, Callable[[], object]] = {
        "dockerfile": lambda: run_dockerfile(
            file.text, stage="build", system=system, context=tmp_path
        ),
        "apptainer": lambda: run_section(file.text, "post", system=system),
    }
    with pytest.raises(AssertionError):
        run[form]()
    assert not (tmp_path / "image/by-hand/after").exists()


@pytest.mark.parametrize("form", ["dockerfile", "apptainer"])
def test_a_step_too_long_for_the_format_is_an_error(form: str) -> None:
    plan = hand_plan(
        WriteFile(path="/yard/builds/x/a", text="x" * 200_000), folder="/yard/builds/x"
    )
    with pytest.raises(UsageError, match="too long") as caught:
        export_plan(plan, form, FACTS)
    assert "script" in caught.value.hint


def test_a_variable_of_the_result_with_a_line_break_is_an_error() -> None:
    variables = (("PATH", "/bin"), ("PYTHONPATH", "a\nb"))
    plan = hand_plan(Command(argv=("true",)), variables=variables)
    with pytest.raises(UsageError, match="PYTHONPATH contains a line break"):
        export_plan(plan, "dockerfile", FACTS)


def test_every_step_is_a_layer_and_the_job_count_comes_late(tmp_path: Path) -> None:
    plan = shipped_plan("arm-stack", tmp_path)
    (file,) = export_plan(plan, "dockerfile", FACTS)
    words = [word for word, _ in instructions(file.text)]
    assert words.count("ARG") == 1
    before = file.text.partition("\nARG JOBS=4\n")[0]
    assert "RUN" in before, "what is fetched before stays cached with another job count"
    assert "cmake --build" not in before


SEED_004 = {
    "Arm Compute Library at its release": r"git fetch --depth 1 origin v25\.02\.1",
    "its flags": (
        r"scons.*neon=1.*opencl=0.*openmp=1.*cppthreads=0.*arch=armv8\.2-a.*multi_isa=1"
        r".*build=native.*fixed_format_kernels=1"
    ),
    "OpenBLAS at its release": r"git fetch --depth 1 origin v0\.3\.27",
    "with OpenMP": r"-DUSE_OPENMP=ON",
    "installed": r"cmake --install \S*trees/openblas/build",
    "PyTorch at its release": r"git fetch --depth 1 origin v2\.5\.0",
    "with submodules": r"git submodule update --init --recursive",
    "oneDNN": r"cd third_party/ideep/mkl-dnn.*git fetch --depth 1 origin v3\.7\.1",
    "where ACL is": r"export ACL_ROOT_DIR=\S*/trees/arm-compute-library",
    "MKLDNN": r"export USE_MKLDNN=1",
    "ACL in it": r"export USE_MKLDNN_ACL=1",
    "no CUDA": r"export USE_CUDA=0",
    "MPI": r"export USE_MPI=1",
    "and its packages": r"apt-get install.*libopenmpi-dev",
    "OpenMP": r"export USE_OPENMP=1",
    "a limit of jobs": r"export MAX_JOBS=",
    "wheel of PyTorch": r"python setup\.py bdist_wheel\s+--dist-dir \S*/trees/pytorch\.dist",
    "wheel of torchvision": r"bdist_wheel\s+--dist-dir \S*/trees/torchvision\.dist",
    "wheel of torchaudio": r"bdist_wheel\s+--dist-dir \S*/trees/torchaudio\.dist",
    "wheels in one folder": r'cp "\$2"/\*\.whl "\$3"/.*/wheels',
    "jobs of torchaudio": r"export BUILD_SOX=0.*CMAKE_BUILD_PARALLEL_LEVEL=.*torchaudio\.dist",
    "a freeze file": r"pip freeze",
    "no clones left": r"rm -rf -- .*/trees/pytorch",
}


@pytest.mark.parametrize("what", sorted(SEED_004))
def test_the_arm_stack_has_all_that_a_definition_by_hand_had(what: str, tmp_path: Path) -> None:
    (file,) = export_plan(shipped_plan("arm-stack", tmp_path), "apptainer", FACTS)
    text = file.text.replace("\\\n", "")
    assert re.search(SEED_004[what], text, re.DOTALL)


def test_apptainer_sections_are_short_enough_and_known(tmp_path: Path) -> None:
    plan = shipped_plan("arm-stack", tmp_path)
    (file,) = export_plan(plan, "apptainer", FACTS)
    parts = re.split(r"^%", file.text, flags=re.MULTILINE)
    assert max(len(part.encode()) for part in parts) < 64 * 1024
    said = sections(file.text)
    assert said[""].startswith("Bootstrap: docker\nFrom: ")
    assert "torchyard.component.pytorch 2.5.0 cpu-arm" in said["labels"]
    assert said["arguments"].strip() == "JOBS=4"
    assert said["runscript"].strip().endswith('env/bin/python "$@"')
    free = replace(plan, jobs=0)
    assert "JOBS=0" in export_plan(free, "apptainer", FACTS)[0].text
    assert '[ "$JOBS" != 0 ] || JOBS=$(nproc)' in file.text
