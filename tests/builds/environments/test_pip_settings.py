"""Settings of pip that uv would ignore."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.builds.environments.venv import pip_setting_locations, uv_has_own_index


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    return tmp_path


def places(home: Path, **more: str) -> list[str]:
    """Without what this machine itself has in /etc/pip.conf."""
    found = pip_setting_locations({"HOME": str(home), **more})
    return [place for place in found if not place.startswith("/etc/")]


def test_nothing_set(home: Path) -> None:
    assert places(home) == []
    assert places(home, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_FIND_LINKS="") == []


@pytest.mark.parametrize(
    "name", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT"]
)
def test_variables_are_named_without_their_values(name: str, home: Path) -> None:
    assert places(home, **{name: "https://user:secret@example.invalid/"}) == [name]


@pytest.mark.parametrize("where", [".config/pip/pip.conf", ".pip/pip.conf"])
def test_files_are_named_without_their_values(where: str, home: Path) -> None:
    file = home / where
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        "[global]\nindex-url = https://u:secret@example.invalid/\ntimeout = 9\n"
        "[install]\nfind_links =\n    /a\n    /b\n"
    )
    (place,) = places(home)
    assert place == f"{file}: find-links, index-url"


def test_file_without_anything_that_matters(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\ntimeout = 60\n[list]\nindex-url = x\n")
    assert places(home) == []


def test_other_places_of_the_file(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "pip"
    elsewhere.mkdir(parents=True)
    (elsewhere / "pip.conf").write_text("[global]\nno-index = true\n")
    named = tmp_path / "named.conf"
    named.write_text("[global]\ncert = /x.pem\n")
    by_folder = places(home, XDG_CONFIG_HOME=str(elsewhere.parent))
    assert by_folder == [f"{elsewhere / 'pip.conf'}: no-index"]
    assert places(home, XDG_CONFIG_DIRS=f"rel:{elsewhere.parent}") == by_folder
    assert places(home, PIP_CONFIG_FILE=str(named)) == [f"{named}: cert"]


def test_files_can_be_switched_off(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nno-index = true\n")
    environ = {"HOME": str(home), "PIP_CONFIG_FILE": "/dev/null"}
    assert pip_setting_locations(environ) == ()


@pytest.mark.parametrize("content", [b"no section\n", b"[global]\n\xff\xfe=1\n", b"[a]\n[a]\n"])
def test_a_broken_file_is_left_to_pip(content: bytes, home: Path) -> None:
    (home / ".config/pip/pip.conf").write_bytes(content)
    assert places(home) == []


def test_uv_with_configured_package_locations() -> None:
    assert uv_has_own_index({"UV_INDEX_URL": "x"})
    assert uv_has_own_index({"UV_FIND_LINKS": "/wheels"})
    assert not uv_has_own_index({"UV_INDEX_URL": "", "UV_CACHE_DIR": "/c"})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[[index]]\nurl = 'https://example.invalid'\n", True),
        ("[pip]\nno-index = true\nfind-links = ['/wheels']\n", True),
        ("offline = true\n[pip]\nstrict = true\n", False),
        ("pip = 3\n", False),
        ("not toml", False),
    ],
)
def test_file_of_uv(content: str, told: bool, home: Path) -> None:
    file = home / ".config" / "uv" / "uv.toml"
    file.parent.mkdir()
    file.write_text(content)
    assert uv_has_own_index({"HOME": str(home)}) is told
    assert uv_has_own_index({"HOME": "/nowhere", "UV_CONFIG_FILE": str(file)}) is told
