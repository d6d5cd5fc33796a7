"""The exported script, really run: a CMake project, odd names, downloads, failures, a root folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.export.sample_plans import hand_component, hand_plan, small_plan, small_project
from torchyard.builds.environments.model import SYSTEM_PATH, inherited_variables
from torchyard.builds.export import export_plan
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import Action, Command, Download, Plan, SdistDownload, Verify, WriteFile
from torchyard.builds.recipe import Recipe, SmokeTest, VerifyTable

NEEDS_CMAKE = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ninja") and shutil.which("cc")),
    reason="needs cmake, ninja and a C compiler",
)
SHELLS = [name for name in ("dash", "bash", "ksh", "busybox") if shutil.which(name)]


def write_script(plan: Plan, folder: Path, home: Path | None = None) -> Path:
    (file,) = export_plan(plan, "script", ExportFacts(home=str(home or folder)))
    path = folder / file.name
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8")
    assert file.executable
    return path


def run(script: Path, *, shell: str = "sh", **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    return subprocess.run(
        [*argv, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], **environ},
        timeout=120,
    )


@NEEDS_CMAKE
def test_a_project_is_built_and_the_second_run_does_nothing(tmp_path: Path) -> None:
    project = small_project(tmp_path / "it's a $project")
    home = tmp_path / "my yard"
    script = write_script(small_plan(project, home), tmp_path / "exported", home)
    first = run(script, CFLAGS="-DNOT_SEEN", CC="/not/there")
    assert first.returncode == 0, first.stderr
    folder = home / "builds" / "small"
    said = subprocess.run(
        [folder / "prefix/bin/tell"],
        capture_output=True,
        text=True,
        check=True,
        env={"LD_LIBRARY_PATH": str(folder / "prefix/lib")},
    )
    assert said.stdout == "LOUD\n"
    assert not (folder / "meter").exists(), "the meter is Torchyard's own"
    objects = {path: path.stat().st_mtime_ns for path in folder.rglob("*.o")}
    assert objects
    second = run(script)
    assert second.returncode == 0, second.stderr
    steps = [line for line in second.stdout.splitlines() if line.startswith("already done: ")]
    assert len(steps) == first.stdout.count("\n== ")
    assert "\n== " not in second.stdout
    assert objects == {path: path.stat().st_mtime_ns for path in folder.rglob("*.o")}


@NEEDS_CMAKE
def test_a_changed_plan_does_the_changed_steps_again(tmp_path: Path) -> None:
    project, home = small_project(tmp_path / "project"), tmp_path / "yard"
    script = write_script(small_plan(project, home), tmp_path / "exported", home)
    assert run(script).returncode == 0
    quiet = write_script(small_plan(project, home, LOUD=False), tmp_path / "exported", home)
    again = run(quiet)
    assert again.returncode == 0, again.stderr
    assert "already done: generic/fetch" in again.stdout
    assert "== generic/configure" in again.stdout
    told = subprocess.run(
        [home / "builds/small/trees/generic/build/tell"], capture_output=True, check=True
    )
    assert told.stdout == b"quiet\n"


@NEEDS_CMAKE
def test_a_failed_step_ends_the_script_and_is_done_again(tmp_path: Path) -> None:
    project, home = small_project(tmp_path / "project"), tmp_path / "yard"
    good = (project / "small.c").read_text()
    (project / "small.c").write_text("this is no C\n")
    script = write_script(small_plan(project, home), tmp_path / "exported", home)
    failed = run(script)
    assert failed.returncode != 0
    assert "generic/install" not in failed.stdout
    (home / "builds/small/trees/generic/small.c").write_text(good)
    fixed = run(script)
    assert fixed.returncode == 0, fixed.stderr
    assert "already done: generic/configure" in fixed.stdout
    assert "== generic/build" in fixed.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_writes_the_same_odd_texts(shell: str, tmp_path: Path) -> None:
    texts = {
        "plain": "one\ntwo\n",
        "no line break at the end": "one\ntwo",
        "empty": "",
        "marks": "END_OF_FILE\nEND_OF_FILE_1\n$HOME `id` \\ ' \" %s {{ x }}\n",
        "only breaks": "\n\n\n",
        "odd $name 'of' \"a\" file\\": "%post\n#!/bin/sh\n\ttab\r\n",
    }
    words = ("a b", "it's", '"', "$HOME", "`id`", "\\", "line\nbreak", "", "-n", "*", "~", "é", "#")
    folder = tmp_path / "build here"
    actions: list[Action] = [
        *(WriteFile(path=str(folder / "out" / name), text=text) for name, text in texts.items()),
        Command(
            argv=("sh", "-c", 'for word; do printf "[%s]" "$word"; done >words', "sh", *words),
            folder=str(folder / "out"),
        ),
        Command(argv=("sh", "-c", 'printf %s "$ODD" >odd'), variables=(("ODD", "\n'$x\n"),)),
        WriteFile(path=str(folder / "exit"), text="#!/bin/sh\necho ran >ran\n", executable=True),
        Command(argv=("exit",), variables=(("PATH", f"{folder}:{SYSTEM_PATH}"),)),
    ]
    plan = hand_plan(*actions, folder=folder, variables=(("PATH", SYSTEM_PATH), ("TEXT", "a\n'b")))
    ended = run(write_script(plan, tmp_path / "exported"), shell=shell)
    assert ended.returncode == 0, ended.stderr
    for name, text in texts.items():
        assert (folder / "out" / name).read_bytes() == text.encode()
    assert (folder / "out/words").read_text() == "".join(f"[{word}]" for word in words)
    assert (folder / "odd").read_text() == "\n'$x\n"
    assert (folder / "ran").read_text() == "ran\n", "a program named as a word of the shell"
    assert os.access(folder / "exit", os.X_OK)


def test_variables_of_a_step_are_all_it_gets(tmp_path: Path) -> None:
    plan = hand_plan(
        Command(argv=("sh", "-c", "env >seen")),
        folder=tmp_path / "build",
        variables=(("PATH", SYSTEM_PATH), ("TWICE", "first"), ("TWICE", "last")),
        compiles=True,
    )
    script = write_script(plan, tmp_path / "exported")
    environ = {
        "CC": "clang",
        "LD_LIBRARY_PATH": "/x",
        "VIRTUAL_ENV": "/v",
        "PIP_TARGET": "/t",
        "PIP_INDEX_URL": "x",
        "https_proxy": "p",
        "MULTI": "a\nHOME=b",
        "UID": "5",
    }
    ended = run(script, JOBS="7", **environ)
    assert ended.returncode == 0, ended.stderr
    pairs = (line.partition("=") for line in (tmp_path / "build/seen").read_text().splitlines())
    seen = {name: value for name, _, value in pairs}
    kept = {name: value for name, value in environ.items() if name in inherited_variables(environ)}
    assert kept == {"PIP_INDEX_URL": "x", "https_proxy": "p"}
    for name in ("PWD", "OLDPWD", "_", "SHLVL"):
        seen.pop(name, None)
    assert seen == {
        "PATH": SYSTEM_PATH,
        "TWICE": "last",
        "MAX_JOBS": "7",
        "CMAKE_BUILD_PARALLEL_LEVEL": "7",
        "JOBS": "7",
        **kept,
    }


def test_the_script_passes_on_what_the_runner_passes_on(tmp_path: Path) -> None:
    groups = (
        "TERM TMPDIR USER LOGNAME NETRC SSH_AUTH_SOCK GIT_CONFIG_GLOBAL GIT_DIR",
        "http_proxy HTTPS_PROXY no_proxy ALL_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS CCACHE_DIR SCCACHE_DIR CONDARC",
        "PIP_CERT PIP_TARGET PIP_PREFIX PIP_USER PIP_CONSTRAINT PIP_NO_DEPS PIP_PRE PIP_ UV_INDEX",
        "UV_PYTHON UV_OVERRIDE CONDA_PKGS_DIRS CONDA_PREFIX MAMBA_ROOT_PREFIX RATTLER_CACHE_DIR",
        "PIXI_HOME PIXI_CACHE_DIR PIXI_OTHER XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME",
        "CC CXX CFLAGS MAKEFLAGS PYTHONPATH MAX_JOBS CMAKE_GENERATOR USE_CUDA TORCH_CUDA_ARCH_LIST",
    )
    names = [name for group in groups for name in group.split()]
    environ = dict.fromkeys(names, "value")
    plan = hand_plan(Command(argv=("sh", "-c", "env >seen")), folder=tmp_path / "build")
    ended = run(write_script(plan, tmp_path / "exported"), **environ)
    assert ended.returncode == 0, ended.stderr
    seen = (tmp_path / "build/seen").read_text()
    passed = {name for name in names if f"\n{name}=value" in f"\n{seen}"}
    assert passed == set(inherited_variables(environ))


def test_a_download_is_checked(tmp_path: Path) -> None:
    archive = tmp_path / "an archive's.tar"
    archive.write_bytes(b"good")
    target = tmp_path / "yard/downloads" / "a $file.tar"
    right = hashlib.sha256(b"good").hexdigest()

    def plan(url: str, sha256: str) -> Plan:
        action = Download(url=url, path=str(target), sha256=sha256)
        return hand_plan(action, folder=tmp_path / "build")

    wrong = run(write_script(plan(str(archive), "0" * 64), tmp_path / "exported"))
    assert wrong.returncode != 0
    assert "FAILED" in wrong.stdout + wrong.stderr
    assert not target.exists()
    ended = run(write_script(plan(archive.as_uri(), right), tmp_path / "exported"))
    assert ended.returncode == 0, ended.stderr
    assert target.read_bytes() == b"good"


@pytest.fixture
def fake_pip(tmp_path: Path) -> Path:
    """A `python` whose pip leaves one archive, named as the index likes."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "$*" >>"$0.log"\nif [ "$3" = freeze ]; then exit; fi\n'
        'while [ "$1" != --dest ]; do shift; done\nmkdir -p "$2"; printf sdist >"$2/Odd_Name.tar.gz"\n'
    )
    python.chmod(0o755)
    return python


def test_an_sdist_comes_through_pip(tmp_path: Path, fake_pip: Path) -> None:
    folder = tmp_path / "build"
    component = replace(
        hand_component(folder, python=str(fake_pip)), source=str(tmp_path / "sources/thing")
    )
    files = tmp_path / "sources/thing.part/files"
    action = SdistDownload(
        name="thing",
        version="1.0",
        path=str(files / "thing-1.0.sdist"),
        sha256=hashlib.sha256(b"sdist").hexdigest(),
    )
    make = Command(argv=("mkdir", "-p", str(files)))
    plan = hand_plan(make, action, folder=folder, component=component)
    ended = run(write_script(plan, tmp_path / "exported"))
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in files.iterdir()] == ["thing-1.0.sdist"]
    asked = fake_pip.with_name("python.log").read_text().splitlines()[0]
    assert asked.startswith("-m pip download --no-deps --no-binary thing --dest ")
    assert asked.endswith(" -- thing==1.0")


def test_an_sdist_for_a_root_is_fetched_by_the_machine(tmp_path: Path, fake_pip: Path) -> None:
    component = replace(
        hand_component(tmp_path, python=str(fake_pip)), source="/yard/sources/thing"
    )
    action = SdistDownload(name="thing", version="1", path="/yard/sources/thing.part/files/x")
    plan = hand_plan(action, folder=tmp_path, component=component)
    inside = (Command(argv=("true",)),)
    rooted = replace(plan.steps[0], name="thing/other", actions=inside, root="/yard/root")
    text = write_script(replace(plan, steps=(*plan.steps, rooted)), tmp_path).read_text()
    assert f"{fake_pip} -m pip download" not in text
    (file,) = export_plan(plan, "script", ExportFacts(home="/yard"))
    assert f"{fake_pip} -m pip download" in file.text


def verified(tmp_path: Path, *snippets: str) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "build"
    smoke = tuple(SmokeTest(name=f"test {n}", python=text) for n, text in enumerate(snippets))
    recipe = Recipe(name="thing", verify=VerifyTable(import_name="json", smoke=smoke))
    component = hand_component(folder, recipe, python=sys.executable)
    action = Verify(component="thing", report=str(folder / "report.json"))
    return run(write_script(hand_plan(action, folder=folder, component=component), tmp_path / "x"))


def test_smoke_tests_run_in_an_empty_folder(tmp_path: Path) -> None:
    good = 'import os\nassert os.listdir(".") == []\nprint("it\'s", "fine")\n'
    ended = verified(tmp_path, good)
    assert ended.returncode == 0, ended.stderr
    assert "it's fine" in ended.stdout
    assert "freeze.txt" in {path.name for path in (tmp_path / "build").iterdir()}


def test_a_failed_smoke_test_fails_the_script(tmp_path: Path) -> None:
    ended = verified(tmp_path, "assert False, 'not well'")
    assert ended.returncode != 0
    assert "not well" in ended.stderr
