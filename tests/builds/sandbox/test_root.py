"""Commands in a root folder: visible files, and nothing left mounted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.sandbox.sandbox_commands import (
    PROGRAM,
    PYTHON,
    folder_for_nobody,
    make_root,
    needs_cut_network,
    needs_mounts,
    needs_root,
    program,
    run,
    run_as_nobody,
    standard_library_folders,
)
from torchyard.builds.sandbox import Sandbox, requested_hosts

pytestmark = needs_mounts


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("tiny") / "root")


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_the_command_runs_in_the_root(root: Path) -> None:
    (root / "etc" / "only-here").write_text("in the root\n", encoding="ascii")
    done = run(Sandbox(root=str(root)), "cat", "/etc/only-here")
    assert (done.stdout, done.stderr, done.returncode) == ("in the root\n", "", 0)


def test_system_folders_are_the_roots_own_and_others_the_machines(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "seen").write_text("from outside\n", encoding="ascii")
    script = f"ls /etc; cat {tmp_path}/seen; echo from inside > {tmp_path}/written"
    done = run(Sandbox(root=str(root)), "sh", "-c", script)
    assert done.stderr == ""
    assert "from outside" in done.stdout
    assert "passwd" not in done.stdout
    assert (tmp_path / "written").read_text(encoding="ascii") == "from inside\n"


def test_every_other_top_folder_of_the_machine_is_there(root: Path) -> None:
    own = {"bin", "boot", "dev", "etc", "lost+found", "proc", "run", "sbin", "sys", "usr", "var"}
    expected = {
        entry.name
        for entry in Path("/").iterdir()
        if entry.is_dir() and entry.name not in own and not entry.name.startswith("lib")
    }
    inside = set(run(Sandbox(root=str(root)), "ls", "/").stdout.split())
    assert expected <= inside
    outside_home = sorted(entry.name for entry in Path("/opt").iterdir())
    assert run(Sandbox(root=str(root)), "ls", "-A", "/opt").stdout.split() == outside_home


def test_devices_processes_and_read_only_sys(root: Path) -> None:
    script = (
        "echo gone > /dev/null; ls /dev/pts /dev/shm > /dev/null && ls /proc/self/fd > /dev/null "
        "&& ls /sys/kernel > /dev/null && cat /proc/self/mountinfo"
    )
    done = run(Sandbox(root=str(root)), "sh", "-c", script)
    assert (done.stderr, done.returncode) == ("", 0)
    lines = [line.split() for line in done.stdout.splitlines()]
    sys_mounts = [line for line in lines if line[4].startswith("/sys")]
    assert sys_mounts
    assert all("ro" in line[5].split(",") for line in sys_mounts)
    # What hung at /boot while the root was put together is gone, and so are the machine's files.
    assert not [line for line in lines if line[4].startswith("/boot")]


def test_the_machine_sees_no_mount_while_it_runs_or_after(root: Path, tmp_path: Path) -> None:
    before = mounts()
    command, environment = Sandbox(root=str(root), network=False).command(
        ["sh", "-c", "echo up; cat"], folder="/", variables={"PATH": "/bin"}
    )
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert mounts() == before
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert mounts() == before


def test_working_folder(root: Path, tmp_path: Path) -> None:
    done = run(Sandbox(root=str(root)), "sh", "-c", "pwd", folder=str(tmp_path))
    assert done.stdout == f"{tmp_path}\n"
    done = run(Sandbox(root=str(root)), "sh", "-c", "pwd", folder="/usr/share/doc/nothing")
    assert done.returncode == 125
    assert "cannot enter the folder /usr/share/doc/nothing: No such file" in done.stderr


def test_writable_shows_a_folder_below_a_system_folder(root: Path) -> None:
    shown = str(PROGRAM.parent) if str(PROGRAM).startswith("/usr/") else "/usr/share/doc"
    if not Path(shown).is_dir() or not any(Path(shown).iterdir()):
        pytest.skip(f"{shown} is empty here")
    hidden = run(Sandbox(root=str(root)), "ls", shown)
    assert hidden.stdout == ""
    done = run(Sandbox(root=str(root), writable=(shown,)), "ls", "-A", shown)
    assert sorted(done.stdout.split()) == sorted(entry.name for entry in Path(shown).iterdir())


def test_writable_that_is_no_folder_is_refused_by_name(root: Path) -> None:
    done = run(Sandbox(root=str(root), writable=("/var/no/such",)), "true")
    assert done.returncode == 125
    assert "cannot show /var/no/such in the root" in done.stderr


def test_a_root_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    done = run(Sandbox(root=str(tmp_path / "none")), "true")
    assert done.returncode == 125
    assert f"cannot enter the root {tmp_path / 'none'}: there is no such folder" in done.stderr


def test_links_of_the_root_lead_into_the_root(tmp_path: Path) -> None:
    """A link from ROOT/opt to an absolute path must not let the machine's folder hang outside."""
    root = make_root(tmp_path / "root")
    (root / "usr" / "elsewhere").mkdir()
    (root / "opt").symlink_to("/usr/elsewhere")
    done = run(Sandbox(root=str(root)), "ls", "-A", "/usr/elsewhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(entry.name for entry in Path("/opt").iterdir())


def test_nothing_is_created_among_the_devices_of_the_machine(root: Path) -> None:
    """As the library of a GPU's driver does, which the next build would take for a GPU."""
    name = f"torchyard-{os.getpid()}"
    script = f"""
        echo x >/dev/null && echo devices are written
        echo x >/dev/shm/{name} && echo memory is shared
        echo x >/dev/{name}"""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    done = run(Sandbox(root=str(root)), "sh", "-c", script)
    Path("/dev/shm", name).unlink(missing_ok=True)
    assert done.stdout == "devices are written\nmemory is shared\n", done.stderr
    assert not Path("/dev", name).exists()
    assert done.returncode != 0


@needs_cut_network
def test_a_name_asked_in_the_root_is_noted_and_its_resolv_conf_stays(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    # As systemd-resolved leaves it: a link into /run, here to a file that is there.
    (root / "run" / "resolve").mkdir(parents=True)
    (root / "run" / "resolve" / "stub.conf").write_text("nameserver 192.0.2.77\n", encoding="ascii")
    (root / "etc" / "resolv.conf").symlink_to("/run/resolve/stub.conf")
    (root / "etc" / "nsswitch.conf").write_text("hosts: files resolve\n", encoding="ascii")
    (root / "etc" / "hosts").write_text("192.0.2.9 kept.example\n", encoding="ascii")
    sandbox = Sandbox(
        root=str(root),
        network=False,
        writable=standard_library_folders(),
        requested_hosts_file=str(tmp_path / "wanted"),
    )
    ask = "import socket,sys\nfor name in sys.argv[1:]:\n try: socket.getaddrinfo(name, 443)\n except OSError as error: print(error)"
    done = run(sandbox, PYTHON, "-I", "-S", "-c", ask, "wanted.example", "kept.example")
    assert done.stdout.count("not known") == 2, done.stderr
    assert requested_hosts(str(tmp_path / "wanted")) == ("wanted.example", "kept.example")
    assert "192.0.2.77" in (root / "run/resolve/stub.conf").read_text(encoding="ascii")


@needs_cut_network
def test_a_name_service_with_the_machines_network_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name service that is asked through a file would answer with the machine's network."""
    root = make_root(tmp_path / "root")
    (root / "run" / "nscd").mkdir(parents=True)
    monkeypatch.chdir(root / "run" / "nscd")  # the path of a socket must be short
    look = "[ -S /run/nscd/socket ] && echo seen || echo hidden"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind("socket")
        assert run(Sandbox(root=str(root)), "sh", "-c", look).stdout == "seen\n"
        offline = Sandbox(root=str(root), network=False)
        assert run(offline, "sh", "-c", look).stdout == "hidden\n"


def test_loader_variables_reach_the_command_and_not_the_program(root: Path, tmp_path: Path) -> None:
    """A libc that is none: whatever loads it dies, so the program must not have seen it."""
    (tmp_path / "libc.so.6").write_text("not a library", encoding="ascii")
    done = run(Sandbox(root=str(root)), "sh", "-c", "echo never", LD_LIBRARY_PATH=str(tmp_path))
    assert done.stdout == ""
    assert "libc.so.6" in done.stderr
    assert done.returncode == 127
    harmless = str(tmp_path / "empty")
    done = run(Sandbox(root=str(root)), "env", LD_LIBRARY_PATH=harmless, OTHER="a b\nc")
    assert f"LD_LIBRARY_PATH={harmless}\n" in done.stdout
    assert "OTHER=a b\nc\n" in done.stdout


def test_a_sandbox_within_a_sandbox(root: Path) -> None:
    """Its / is a mount of its own and no chroot, so that more namespaces can be made inside."""
    package = str(PROGRAM.parents[1])
    outer = Sandbox(root=str(root), writable=(*standard_library_folders(), package))
    inner = program("--own-processes", "--root", str(root), "--", "cat", "/etc/only-inner")
    (root / "etc" / "only-inner").write_text("twice\n", encoding="ascii")
    done = run(outer, *inner)
    assert (done.stdout, done.stderr) == ("twice\n", "")


_HOST_WITH_SHARED_MOUNTS = """
import os, subprocess, sys
from torchyard.builds.sandbox.namespaces import bind, enter_namespaces, mount

jail, *command = sys.argv[1:]
enter_namespaces(0, as_root=True)
mount("none", "/", "none", 0x4000 | 0x100000)  # as systemd does: every mount is seen by all
if jail:
    for name in os.listdir("/"):
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), jail + "/" + name)
        elif os.path.isdir("/" + name):
            os.mkdir(jail + "/" + name)
            bind("/" + name, jail + "/" + name)

def mounts():
    with open("/proc/self/mountinfo") as file:
        return file.read()

before = mounts()
done = subprocess.run(command, preexec_fn=(lambda: os.chroot(jail)) if jail else None)
if mounts() != before:
    sys.exit("mounts leaked")
sys.exit(done.returncode)
"""


@pytest.mark.parametrize("in_chroot", [False, True])
def test_no_mount_leaks_into_a_host_that_shares_mounts(
    root: Path, tmp_path: Path, *, in_chroot: bool
) -> None:
    """In a chroot pivot_root is refused; the other way round must give the same view."""
    if in_chroot and os.geteuid() != 0:
        pytest.skip("Linux gives no user namespace to a process in a chroot")
    jail = tmp_path / "jail"
    jail.mkdir()
    script = tmp_path / "host.py"
    script.write_text(_HOST_WITH_SHARED_MOUNTS, encoding="ascii")
    (root / "etc" / "here").write_text("here\n", encoding="ascii")
    inner = program("--root", str(root), "--", "sh", "-c", "cat /etc/here; ls /boot")
    done = subprocess.run(
        [sys.executable, str(script), str(jail) if in_chroot else "", *inner],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("here\n", "", 0)


@needs_root
def test_an_ordinary_user_in_a_root() -> None:
    """Through a user namespace; inside, the user is root, as package managers demand."""
    with folder_for_nobody() as folder:
        root = make_root(folder / "root", ("sh", "cat", "id"))
        for path in (root, *root.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        done = run_as_nobody(
            *("--own-processes", "--no-network", "--root", str(root)),
            *("--", "sh", "-c", "id -u; echo own > /etc/own; cat /etc/own"),
        )
        assert (done.stdout, done.stderr, done.returncode) == ("0\nown\n", "", 0)
        assert (root / "etc" / "own").stat().st_uid == 65534
