"""Activation scripts in real shells: `env` before, after, twice, and after deactivation."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchyard.builds.activation import activation_script, module_file, split_variables
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.errors import UsageError

SHELLS = [name for name in ("sh", "dash", "bash", "zsh", "ksh", "mksh") if shutil.which(name)]

SPECIAL = 'it\'s "quoted" $HOME `id` \\ end;\n second line * ~'


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """Every shell of the family that this machine has; zsh without the user's start files."""
    return [str(shutil.which(request.param)), *(["-f"] if request.param == "zsh" else [])]


def run(
    shell: list[str], script: str, environ: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run the lines with nothing but `environ`, under the strictest settings."""
    result = subprocess.run(
        [*shell, "-eu", "-c", script], env=environ, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr == b""
    return result


def environments(output: bytes) -> list[dict[str, str]]:
    """The environments that `show` printed, without what the shell itself keeps there."""
    parsed = []
    for block in output.split(b"=====\0")[1:]:
        pairs = (item.split(b"=", 1) for item in block.split(b"\0") if item)
        parsed.append(
            {
                os.fsdecode(name): os.fsdecode(value)
                for name, value in pairs
                if name not in (b"_", b"SHLVL", b"OLDPWD", b"PWD")
            }
        )
    return parsed


SHOW = "show() { printf '=====\\0'; command env -0; }\n"


def write(folder: Path, text: str, name: str = "activate") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    quoted = str(folder / name).replace("'", "'\\''")
    return f". '{quoted}'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / 'plan of o\'neil "x" $y'


def script_for(folder: Path) -> str:
    return activation_script(
        folder,
        (("VIRTUAL_ENV", f"{folder}/env"), ("SPECIAL", SPECIAL), ("EMPTY", "")),
        {
            "PATH": (f"{folder}/env/bin",),
            "LD_LIBRARY_PATH": ("/opt/rocm/lib", f"{folder}/env/lib"),
            "CPATH": (f"{folder}/env/rocm-include", f"{folder}/env/include"),
        },
    )


START = {"PATH": SYSTEM_PATH, "HOME": "/nowhere", "CPATH": "", "EMPTY": "not empty"}


def test_values_and_order(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    (after,) = environments(run(shell, SHOW + source + "show", START).stdout)
    assert after["VIRTUAL_ENV"] == f"{folder}/env"
    assert after["SPECIAL"] == SPECIAL
    assert after["EMPTY"] == ""
    assert after["PATH"] == f"{folder}/env/bin:{SYSTEM_PATH}"
    assert after["LD_LIBRARY_PATH"] == f"/opt/rocm/lib:{folder}/env/lib"
    # An empty entry would mean the folder one happens to be in.
    assert after["CPATH"] == f"{folder}/env/rocm-include:{folder}/env/include"


def test_sourcing_twice_changes_not_one_byte(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    result = run(shell, source + "command env -0\n" + source + source + "command env -0\n:", START)
    half = len(result.stdout) // 2
    assert half > 100
    assert result.stdout[:half] == result.stdout[half:]


def test_deactivate_restores_exactly(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    script = SHOW + "show\n" + source + source + "show\ntorchyard_deactivate\nshow"
    before, during, after = environments(run(shell, script, START).stdout)
    assert before != during
    assert before == after
    assert after["CPATH"] == ""
    assert "LD_LIBRARY_PATH" not in after
    assert not [name for name in after if name.lower().startswith(("torchyard", "_torchyard"))]


def test_deactivate_twice_is_harmless(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    script = SHOW + "show\n" + source + "torchyard_deactivate\ntorchyard_deactivate\nshow"
    before, after = environments(run(shell, script, START).stdout)
    assert before == after


def test_no_own_variable_is_left_in_the_shell(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    result = run(shell, source + "torchyard_deactivate\nset", START)
    left = [
        line
        for line in result.stdout.decode(errors="replace").splitlines()
        if line.startswith(("_torchyard_", "TORCHYARD_")) and "=" in line.split("(")[0]
    ]
    assert left == []


def test_unexported_variable_stays_unexported(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    script = (
        "SPECIAL='only here'\n"
        + source
        + "torchyard_deactivate\n"
        + 'if command printenv SPECIAL; then exit 9; fi\nprintf %s "${SPECIAL}"'
    )
    assert run(shell, script, START).stdout == b"only here"


def test_changes_by_the_user_survive(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    script = (
        SHOW
        + source
        + 'PATH="/mine/before:${PATH}:/mine/after"\n'
        + 'LD_LIBRARY_PATH="${LD_LIBRARY_PATH}:/mine/lib"\n'
        + "torchyard_deactivate\nshow"
    )
    (after,) = environments(run(shell, script, START).stdout)
    assert after["PATH"] == f"/mine/before:{SYSTEM_PATH}:/mine/after"
    assert after["LD_LIBRARY_PATH"] == "/mine/lib"


def test_list_the_user_emptied_is_not_filled_again(shell: list[str], folder: Path) -> None:
    source = write(folder, script_for(folder))
    script = SHOW + source + "LD_LIBRARY_PATH=\ntorchyard_deactivate\nshow"
    (after,) = environments(run(shell, script, START).stdout)
    assert "LD_LIBRARY_PATH" not in after


def test_child_shell_knows_that_it_is_active(shell: list[str], folder: Path) -> None:
    """A terminal opened from an active one sources the file again, from its own start file."""
    source = write(folder, script_for(folder))
    inner = folder / "inner.sh"
    inner.write_text(SHOW + "show\n" + source + "show\ntorchyard_deactivate\nshow\n")
    quoted = " ".join(f"'{part}'" for part in shell)
    inner_path = str(inner).replace("'", "'\\''")
    script = SHOW + "show\n" + source + f"{quoted} -eu '{inner_path}'"
    outside, inherited, again, after = environments(run(shell, script, START).stdout)
    assert inherited == again
    assert after == outside


def test_another_build_takes_over(shell: list[str], folder: Path, tmp_path: Path) -> None:
    first = write(folder, script_for(folder))
    other = tmp_path / "other"
    second = write(other, activation_script(other, (), {"PATH": ("/other/bin",)}))
    script = SHOW + "show\n" + first + second + "show\n" + second + "torchyard_deactivate\nshow"
    before, during, after = environments(run(shell, script, START).stdout)
    assert during["PATH"] == f"/other/bin:{SYSTEM_PATH}"
    assert "VIRTUAL_ENV" not in during
    assert before == after


def test_rewritten_script_takes_effect(shell: list[str], folder: Path) -> None:
    old = write(folder, activation_script(folder, (("KIND", "old"),), {}), "old")
    new = write(folder, activation_script(folder, (("KIND", "new"),), {}), "new")
    script = SHOW + old + new + "show\ntorchyard_deactivate\nshow"
    during, after = environments(run(shell, script, START).stdout)
    assert during["KIND"] == "new"
    assert "KIND" not in after


def test_odd_settings_of_the_shell(shell: list[str], folder: Path) -> None:
    """No globbing, odd separators: what a user's own functions may have left behind."""
    source = write(folder, script_for(folder))
    script = SHOW + "show\nset -f\nIFS=:/\n" + source + "torchyard_deactivate\nshow"
    before, after = environments(run(shell, script, START).stdout)
    assert before == after


def test_functions_reach_programs_of_the_new_path(shell: list[str], folder: Path) -> None:
    program = folder / "env" / "bin" / "whoami"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho ours\n")
    program.chmod(0o755)
    source = write(folder, script_for(folder))
    # Called once before, so that the shell has the system's one in its memory.
    script = "whoami >/dev/null\n" + source + "whoami\ntorchyard_deactivate\nwhoami"
    lines = run(shell, script, START).stdout.decode().split("\n")
    assert lines[0] == "ours"
    assert lines[1] != "ours"


def test_build_in_a_root_refuses_outside(shell: list[str], folder: Path) -> None:
    text = activation_script(
        folder, (), {"PATH": ("/x",)}, root=f"{folder}/root", enter="torchyard build enter 'a b'"
    )
    source = write(folder, text)
    if Path("/etc/torchyard-root").exists():
        pytest.skip("this is inside a root folder")
    script = f'if {source.strip()}; then exit 9; fi\nprintf %s "${{PATH}}"'
    # Not under -e: dash ends at a sourced file that fails, even in a condition.
    result = subprocess.run(
        [*shell, "-u", "-c", script], env=START, capture_output=True, check=False
    )
    assert result.returncode == 0
    assert result.stdout.decode() == SYSTEM_PATH
    assert f"{folder}/root" in result.stderr.decode()
    assert "enter it with: torchyard build enter 'a b'" in result.stderr.decode()


@pytest.mark.parametrize(
    "name", ["A B", "A;id", "1A", "", "TORCHYARD_WAS_PATH", "TORCHYARD_ACTIVE"]
)
def test_bad_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        activation_script(tmp_path, ((name, "x"),), {})
    with pytest.raises(UsageError):
        activation_script(tmp_path, (), {name: ("/x",)})


def test_folder_with_a_colon_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="colon"):
        activation_script(tmp_path, (), {"PATH": ("/a:b/bin",)})


def test_split_keeps_what_a_shell_needs() -> None:
    plain, prepend = split_variables(
        (
            ("PATH", f"/opt/rocm/bin:/plan/env/bin:{SYSTEM_PATH}"),
            ("HOME", "/home/x"),
            ("LANG", "C.UTF-8"),
            ("LC_ALL", "C.UTF-8"),
            ("CONDA_PREFIX", "/plan/env"),
            ("LD_LIBRARY_PATH", "/opt/rocm/lib:/plan/env/lib"),
            ("CPATH", ""),
        )
    )
    assert plain == (("CONDA_PREFIX", "/plan/env"),)
    assert prepend == {
        "PATH": ("/opt/rocm/bin", "/plan/env/bin"),
        "LD_LIBRARY_PATH": ("/opt/rocm/lib", "/plan/env/lib"),
    }


def module_commands() -> list[list[str]]:
    """Environment Modules and Lmod, where this machine has them."""
    lmod = Path("/usr/share/lmod/lmod/libexec/lmod")
    modules = sorted(Path("/usr/lib").glob("*/modulecmd.tcl"))
    return [[str(path), "bash"] for path in (lmod, *modules) if path.exists()]


# Lmod 8 does not load a double quote in a folder.
MODULE_PATHS = {"PATH": ("/b/bin", "/c/bin"), "LD_LIBRARY_PATH": ("/x [z] $w", "/second")}


@pytest.mark.parametrize("command", module_commands(), ids=lambda command: Path(command[0]).name)
def test_module_file(command: list[str], tmp_path: Path) -> None:
    text = 'it\'s "quoted" $HOME `id` [exit 3] \\ end; {'
    (tmp_path / "mine").write_text(module_file("mine", (("SPECIAL", text),), MODULE_PATHS))
    load = f'eval "$({" ".join(command)} load mine)"\n'
    unload = f'eval "$({" ".join(command)} unload mine)"\n'
    done = subprocess.run(
        ["bash", "-c", SHOW + load + "show\n" + unload + "show"],
        env={**START, "MODULEPATH": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    loaded, unloaded = environments(done.stdout)
    assert loaded["SPECIAL"] == text
    assert loaded["PATH"] == f"/b/bin:/c/bin:{SYSTEM_PATH}"
    assert loaded["LD_LIBRARY_PATH"] == "/x [z] $w:/second"
    assert unloaded["PATH"] == SYSTEM_PATH
    assert not unloaded.keys() & {"SPECIAL", "LD_LIBRARY_PATH"}


@pytest.mark.skipif(shutil.which("tclsh") is None, reason="needs tclsh")
def test_module_file_in_tcl(tmp_path: Path) -> None:
    values = {
        "SPECIAL": SPECIAL,
        "EMPTY": "",
        "CODE": '[exec touch x] $env(HOME) "; exit 3',
        "D": "\\",
    }
    (tmp_path / "mine").write_text(module_file('a "name"', tuple(values.items()), MODULE_PATHS))
    program = (
        "proc module-whatis {text} {}\n"
        'proc setenv {name value} {puts -nonewline "$name=$value\\0"}\n'
        'proc prepend-path {name value} {puts -nonewline "$name=$value\\0"}\n'
        "source mine\n"
    )
    (tmp_path / "run.tcl").write_text(program)
    done = subprocess.run(["tclsh", "run.tcl"], cwd=tmp_path, capture_output=True, check=True)
    seen = [item.decode() for item in done.stdout.split(b"\0")[:-1]]
    folders = [f"{k}={v}" for k, vs in MODULE_PATHS.items() for v in reversed(vs)]
    assert seen == [*(f"{name}={value}" for name, value in values.items()), *folders]
    assert not (tmp_path / "x").exists()
