"""The script that creates a root folder, with fakes of the programs it calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.builds import environments

SCRIPT = Path(environments.__path__[0], "make_root.sh")
TOOLS = (
    *("awk", "cat", "chmod", "cp", "dirname", "env", "grep"),
    *("mkdir", "mv", "rm", "sed", "sh", "touch", "unshare"),
)
INDEX = """\
https://docker.example/linux/debian/|bookworm|Docker CE
http://mirror.example/debian-security/|bookworm-security|Debian-Security
http://mirror.example/debian/|bookworm-updates|Debian
http://mirror.example/debian/|bookworm|Debian"""
# Makes what the script expects a Debian to have; refuses a folder that is not empty, as the real one.
MMDEBSTRAP = """
for last; do before=${previous-}; previous=$last; done
target=$before
[ ! -e "$target/leftover" ] || { echo "not empty" >&2; exit 3; }
mkdir -p "$target/etc/apt/trusted.gpg.d" "$target/usr/sbin"
"""

APT_CONFIG = """cat <<'END'
APT::Architecture "arm64";
Acquire::Check-Valid-Until "false";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3142";
Acquire::http::Proxy-Auto-Detect "/usr/bin/auto-proxy";
Acquire::Languages "";
Acquire::Languages:: "none";
Dir::State "var/lib/apt";
END"""

MakeProgram = Callable[..., Path]
Calls = Callable[[str], list[str]]


class FakeMachine:
    """A machine with the usual tools and an apt that knows the mirrors of `INDEX`."""

    def __init__(self, programs: Path, make_program: MakeProgram) -> None:
        self.programs = programs
        self.make_program = make_program
        for tool in TOOLS:
            found = shutil.which(tool)
            if found is None:
                pytest.skip(f"{tool} is not here")
            (programs / tool).symlink_to(found)
        # The real apt fills the fields in; the fake has them filled and cuts out what is asked for.
        make_program(
            "apt-get",
            f"""case $3 in
                *LABEL*) cat '{programs}/index' ;;
                *) awk -F'|' '{{ print $1, "main" }}' '{programs}/index' ;;
            esac""",
        )
        make_program("apt-config", APT_CONFIG)
        self.set_index(INDEX)

    def set_index(self, index: str) -> None:
        (self.programs / "index").write_text(index + "\n")

    def run(
        self, root: Path, *, mirror: str = "", areas: tuple[str, ...] = (), **more: str
    ) -> subprocess.CompletedProcess[str]:
        packages = "ca-certificates,python3"
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), str(root), "trixie", mirror, packages, *areas],
            env={"PATH": str(self.programs), **more},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(programs: Path, make_program: MakeProgram) -> FakeMachine:
    return FakeMachine(programs, make_program)


def test_whole_root(tmp_path: Path, machine: FakeMachine, calls: Calls) -> None:
    machine.make_program(
        "mmdebstrap", MMDEBSTRAP + f"cp '{tmp_path}/a plan/root.apt.conf' '{tmp_path}/seen'\n"
    )
    root = tmp_path / "a plan" / "root"
    result = machine.run(root)
    assert result.returncode == 0, result.stderr
    (call,) = calls("mmdebstrap")
    assert call.startswith("--variant=apt ")
    assert "--include=ca-certificates,python3 -- " in call
    assert call.endswith(f"trixie {root}.part deb http://mirror.example/debian/ trixie main")

    assert (root / "etc/apt/sources.list").read_text() == (
        "deb http://mirror.example/debian/ trixie main\n"
        "deb-src http://mirror.example/debian/ trixie main\n"
    )
    assert (root / "etc/torchyard-root").read_text() == "trixie\n"
    assert os.access(root / "usr/sbin/policy-rc.d", os.X_OK)
    for name in ("resolv.conf", "hosts"):
        if Path("/etc", name).is_file():
            assert (root / "etc" / name).read_bytes() == Path("/etc", name).read_bytes()
    # Nothing half-made, no keys and no settings stay beside it.
    assert [path.name for path in root.parent.iterdir()] == ["root"]

    options = (tmp_path / "seen").read_text()
    assert 'Acquire::http::Proxy "http://proxy.example:3142";' in options
    assert 'Acquire::Check-Valid-Until "false";' in options
    assert 'Acquire::Languages:: "none";' in options
    for other in ("Auto-Detect", "Architecture", "Dir::", 'Acquire::http "";'):
        assert other not in options


def test_archive_areas(tmp_path: Path, machine: FakeMachine, calls: Calls) -> None:
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    result = machine.run(tmp_path / "root", areas=("main", "contrib", "non-free"))
    assert result.returncode == 0, result.stderr
    (call,) = calls("mmdebstrap")
    assert call.endswith("deb http://mirror.example/debian/ trixie main contrib non-free")
    lists = (tmp_path / "root/etc/apt/sources.list").read_text()
    assert "deb-src http://mirror.example/debian/ trixie main contrib non-free\n" in lists


@pytest.mark.parametrize(
    ("index", "mirror"),
    [
        (INDEX, "http://mirror.example/debian/"),
        # No index was ever fetched: apt leaves the field as it was asked for.
        (INDEX.replace("|Debian", "|$(LABEL)"), "http://mirror.example/debian/"),
        ("http://own.example/repo/|bookworm|$(LABEL)", "http://own.example/repo/"),
        ("http://a.example/ubuntu/|noble|Ubuntu", "http://a.example/ubuntu/"),
    ],
)
def test_choice_of_the_mirror(
    index: str, mirror: str, tmp_path: Path, machine: FakeMachine, calls: Calls
) -> None:
    machine.set_index(index)
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    assert machine.run(tmp_path / "root").returncode == 0
    assert f"deb {mirror} trixie main" in calls("mmdebstrap")[0]


def test_mirror_of_the_recipe(tmp_path: Path, machine: FakeMachine, calls: Calls) -> None:
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    assert machine.run(tmp_path / "root", mirror="http://own.example/d").returncode == 0
    assert calls("mmdebstrap")[0].endswith("deb http://own.example/d trixie main")


@pytest.mark.parametrize(
    "index", ["", "https://docker.example/|bookworm|Docker CE", "cdrom://x/|bookworm|Debian"]
)
def test_no_mirror(index: str, tmp_path: Path, machine: FakeMachine) -> None:
    machine.set_index(index)
    result = machine.run(tmp_path / "root")
    assert result.returncode == 1
    assert "has no mirror: set environment.debian-root.mirror" in result.stderr
    assert not (tmp_path / "root").exists()


def test_partial_root_is_recreated(tmp_path: Path, machine: FakeMachine) -> None:
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    root = tmp_path / "root"
    (tmp_path / "root.part" / "leftover").mkdir(parents=True)
    result = machine.run(root)
    assert result.returncode == 0, result.stderr
    assert not (root / "leftover").exists()
    assert not (tmp_path / "root.part").exists()


def test_failure_keeps_the_root_that_was_there(tmp_path: Path, machine: FakeMachine) -> None:
    machine.make_program("mmdebstrap", MMDEBSTRAP + "exit 25\n")
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").touch()
    assert machine.run(root).returncode != 0
    assert [path.name for path in root.iterdir()] == ["old"]
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    assert machine.run(root).returncode == 0
    assert not (root / "old").exists()


def test_debootstrap_where_there_is_nothing_better(
    tmp_path: Path, machine: FakeMachine, calls: Calls
) -> None:
    machine.make_program("debootstrap", MMDEBSTRAP)
    root = tmp_path / "root"
    result = machine.run(root)
    assert result.returncode == 0, result.stderr
    (call,) = calls("debootstrap")
    assert call.startswith("--variant=minbase ")
    assert call.endswith(f"trixie {root}.part http://mirror.example/debian/")
    options = (root / "etc/apt/apt.conf.d/99torchyard").read_text()
    assert 'Acquire::http::Proxy "http://proxy.example:3142";' in options
    assert (root / "etc/dpkg/dpkg.cfg.d/99torchyard").read_text() == "force-unsafe-io\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("root")] == ["root"]


def test_neither_program(tmp_path: Path, machine: FakeMachine) -> None:
    result = machine.run(tmp_path / "root")
    assert result.returncode == 1
    assert "apt-get install mmdebstrap" in result.stderr


def test_certificates_of_the_user_are_copied(tmp_path: Path, machine: FakeMachine) -> None:
    """Those in system folders only: home folders are seen in a root anyway."""
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    outside = tmp_path / "own.pem"
    outside.write_text("certificate")
    root = tmp_path / "root"
    result = machine.run(
        root,
        SSL_CERT_FILE="/etc/hostname",
        REQUESTS_CA_BUNDLE=str(outside),
        PIP_CERT="/etc/none",
    )
    assert result.returncode == 0, result.stderr
    if Path("/etc/hostname").is_file():
        assert (root / "etc/hostname").read_bytes() == Path("/etc/hostname").read_bytes()
    assert not list(root.rglob("own.pem"))


@pytest.mark.parametrize("below", ["root", "root.part"])
def test_folder_with_a_mount_is_not_removed(
    below: str, tmp_path: Path, machine: FakeMachine
) -> None:
    """Somebody's home folder may be mounted in there: removing would empty it."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting needs the rights of root")
    machine.make_program("mmdebstrap", MMDEBSTRAP)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").touch()
    folder = tmp_path / "a plan" / below
    (folder / "home").mkdir(parents=True)
    result = subprocess.run(
        [
            *("unshare", "-m", "sh", "-euc"),
            'mount --make-rprivate /; mount --bind "$1" "$2/home"; PATH=$3 exec sh "$4" "$5" trixie "" x',
            *("sh", str(precious), str(folder), str(machine.programs), str(SCRIPT)),
            str(tmp_path / "a plan" / "root"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "unmount the folders listed above" in result.stderr
    assert "precious" not in result.stderr
    assert (precious / "thesis").exists()
    assert not (machine.programs / "mmdebstrap.calls").exists(), (
        "said before the long work, not after"
    )


def test_script_is_plain_sh() -> None:
    """No shell's own extensions: it runs wherever the plan is exported to."""
    for shell in ("dash", "bash", "sh"):
        if shutil.which(shell):
            subprocess.run([shell, "-n", str(SCRIPT)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-s", "sh", str(SCRIPT)], check=True)
