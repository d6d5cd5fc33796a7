"""Sandbox command lines: arguments, errors, and the interpreter of a root as a script."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.sandbox.sandbox_commands import (
    PROGRAM,
    PYTHON,
    STANDARD_LIBRARY,
    libraries_of,
    make_root,
    marked,
    needs_cut_network,
    needs_mounts,
    new_mark,
    wait_until,
)
from torchyard.bench.target_checks import inspect_target
from torchyard.builds.sandbox import Sandbox, abilities, root_python_script
from torchyard.core.study import Target
from torchyard.process.ending import WorkerFailure


def test_nothing_asked_is_the_command_itself() -> None:
    argv, environment = Sandbox().command(
        ["cc", "-c", "a.c"], folder="/tmp", variables={"LD_PRELOAD": "x", "http_proxy": "y"}
    )
    assert argv == ["cc", "-c", "a.c"]
    assert environment == {"LD_PRELOAD": "x", "http_proxy": "y"}


@needs_cut_network
def test_only_loader_variables_are_kept_from_the_program() -> None:
    argv, environment = Sandbox(network=False).command(
        ["cc"], folder="/tmp", variables={"LD_PRELOAD": "/a b.so", "LDFLAGS": "-s", "A": "1"}
    )
    assert environment == {"LDFLAGS": "-s", "A": "1"}
    assert "LD_PRELOAD=/a b.so" in argv[: argv.index("--")]
    assert argv[argv.index("--") :] == ["--", "cc"]


def test_root_can_do_it_all() -> None:
    """As root with all rights, and not in a container that takes them away."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    if not effective >> 21 & 1:
        pytest.skip("this process may not administrate the system")
    may = abilities()
    assert may.can_mount
    assert may.can_unshare_network
    assert (may.why_not, may.hint) == ("", "")


_ASK_ABILITIES = """
import json, subprocess
from torchyard.builds.sandbox import Sandbox, abilities
from torchyard.errors import NotAllowed
may = abilities()
answer = {"may": [may.can_mount, may.can_unshare_network], "why": may.why_not, "hint": may.hint}
try:
    Sandbox(root="/srv/root").command(["true"], folder="/", variables={})
except NotAllowed as error:
    answer["root"] = [error.what, error.why, error.hint]
answer["offline"] = Sandbox(network=False).command(["true"], folder="/", variables={"A": "b"})
print(json.dumps(answer))
"""


@pytest.mark.parametrize("as_user", [False, True])
def test_where_namespaces_are_refused(*, as_user: bool) -> None:
    """A real refusal: a user namespace in which no other namespace may be made."""
    for tool in ("unshare", "setpriv"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not here")
    forbid = "for kind in user mnt net pid; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done"
    drop = "setpriv --bounding-set -all --inh-caps -all" if as_user else ""
    done = subprocess.run(
        [
            *("unshare", "-U", "-r", "sh", "-c", f'{forbid}; exec {drop} "$@"', "sh"),
            *(sys.executable, "-c", _ASK_ABILITIES),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no such namespace here: {done.stderr}")
    answer = json.loads(done.stdout)
    step = "make a user namespace" if as_user else "make a private namespace"
    assert answer["may"] == [False, False]
    assert answer["why"] == f"cannot {step}: No space left on device"
    assert answer["hint"] == "as root: sysctl -w user.max_user_namespaces=1000"
    assert answer["root"] == [
        "this user cannot enter the root folder /srv/root",
        answer["why"],
        answer["hint"],
    ]
    # A network that cannot be cut is left, and the caller says so.
    assert answer["offline"] == [["true"], {"A": "b"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--no-netwrok", "x", "--", "true"), "unknown option --no-netwrok"),
        (("--root",), "--root has no value"),
    ],
)
def test_wrong_arguments_of_the_program(arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [PYTHON, "-I", "-S", str(PROGRAM), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert said in done.stderr


@pytest.mark.parametrize("name", ["sandbox_program", "supervisor", "namespaces"])
def test_the_program_supports_python_3_8(name: str) -> None:
    text = PROGRAM.with_name(f"{name}.py").read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    assert "from __future__ import annotations" in text


def test_the_program_imports_only_its_own_modules() -> None:
    """It is started by location, in an interpreter that has no Torchyard installed."""
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-X", "importtime", str(PROGRAM), "--root"],
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    ours = {name for name in loaded if name.startswith("torchyard")}
    assert ours == {f"torchyard.builds.sandbox.{name}" for name in ("namespaces", "supervisor")}
    assert not loaded & {"typing", "pathlib", "subprocess", "argparse", "site"}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a tiny root, as one file outside of it."""
    if not abilities().can_mount:
        pytest.skip(f"no private mounts here: {abilities().why_not}")
    if PYTHON.startswith("/usr/") or STANDARD_LIBRARY.startswith("/usr/"):
        pytest.skip("this interpreter lies in a system folder, which a root has of its own")
    folder = tmp_path_factory.mktemp("script")
    root = make_root(folder / "it's a root")
    file = folder / "python in root"
    file.write_text(
        root_python_script(root=str(root), python=PYTHON, variables={"IN_ROOT": "a \"b\" $c\n'd'"}),
        encoding="utf-8",
    )
    file.chmod(0o755)
    (root / "etc" / "only-in-root").touch()
    return file


def ask(script: Path, text: str, *arguments: str, **more: object) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        [str(script), "-I", "-c", text, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **more,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_script_is_the_interpreter_of_the_root(script: Path, tmp_path: Path) -> None:
    text = "import os, sys, json; print(json.dumps([sys.argv, os.getcwd(), os.environ['IN_ROOT'], os.environ['OUTSIDE'], os.listdir('/etc')]))"
    said = ask(script, text, "", "a b", "$HOME", "--", "'", cwd=tmp_path, env={"OUTSIDE": "x\ny"})
    argv, folder, in_root, outside, etc = json.loads(said)
    assert argv == ["-c", "", "a b", "$HOME", "--", "'"]
    assert folder == str(tmp_path)
    assert in_root == "a \"b\" $c\n'd'"
    assert outside == "x\ny"
    assert etc == ["only-in-root"]


def test_script_in_a_folder_that_the_root_lacks(script: Path) -> None:
    assert ask(script, "import os; print(os.getcwd())", cwd="/usr/share") == "/\n"


def test_script_keeps_loader_variables_from_the_machine(script: Path, tmp_path: Path) -> None:
    """A preloaded library must be one of the interpreter's own libraries, under that name."""
    text = "import os; print(os.environ['LD_LIBRARY_PATH'], 'LD_PRELOAD' in os.environ)"
    assert ask(script, text, env={"LD_LIBRARY_PATH": str(tmp_path)}) == f"{tmp_path} False\n"


def test_script_stays_the_process_that_was_started(script: Path) -> None:
    """Number, pipes, signals and exit codes are those of the interpreter itself."""
    read, write = os.pipe()
    text = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(77))\n"
        f"os.write({write}, b'%d' % os.getpid())\n"
        f"os.close({write})\n"
        "while True: signal.pause()\n"
    )
    with subprocess.Popen([str(script), "-I", "-c", text], pass_fds=(write,)) as process:
        os.close(write)
        with os.fdopen(read) as pipe:
            assert pipe.read() == str(process.pid)
        process.send_signal(signal.SIGUSR2)
    assert process.returncode == 77


def test_script_dies_with_its_parent_on_request(script: Path) -> None:
    """A worker is started by a trampoline that sets PR_SET_PDEATHSIG; entering must keep it."""
    mark = new_mark()
    controller = (
        "import ctypes, os, subprocess, sys\n"
        "die = lambda: ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
        "child = subprocess.Popen(sys.argv[1:], preexec_fn=die, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print('up', flush=True); child.wait()\n"
    )
    line = [str(script), "-I", "-u", "-c", "print('up'); import signal; signal.pause()"]
    with subprocess.Popen(
        [sys.executable, "-c", controller, *line],
        env={**os.environ, "MARK": mark},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert len(marked(mark)) == 2
        process.kill()
    assert wait_until(lambda: marked(mark) == [])


def test_script_as_a_target_without_torch(script: Path) -> None:
    """The worker starts, sends messages through its pipes and reports what it lacks."""
    with pytest.raises(WorkerFailure) as caught:
        inspect_target(Target(name="rooted", python=str(script)))
    assert caught.value.kind == "no-torch", caught.value


@pytest.mark.torch
@needs_mounts
def test_script_as_a_target_with_torch(tmp_path: Path) -> None:
    """The controller's own torch, seen from a root that has nothing but the libraries it links."""
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__path__[0])"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if not torch:
        pytest.skip("no torch here")
    if any(path.startswith("/usr/") for path in (PYTHON, torch, STANDARD_LIBRARY)):
        pytest.skip("this interpreter lies in a system folder, which a root has of its own")
    root = make_root(tmp_path / "root")
    extensions = [
        *Path(torch).rglob("*.so*"),
        *Path(STANDARD_LIBRARY).glob("lib-dynload/*.so"),
        *Path(torch).parent.glob("numpy/**/*.so"),
        *Path(torch).parent.glob("numpy.libs/*.so*"),
    ]
    for library in libraries_of([str(path) for path in extensions]):
        place = root / library.lstrip("/")
        if library.startswith(("/usr/", "/lib")) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, place)
    file = tmp_path / "python"
    file.write_text(
        root_python_script(root=str(root), python=sys.executable, variables={}), encoding="utf-8"
    )
    file.chmod(0o755)
    facts = inspect_target(Target(name="rooted", python=str(file)))
    assert facts["torch"]
