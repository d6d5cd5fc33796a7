from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.builds.plan import AptSources
from torchyard.builds.sources.apt import (
    AptEntry,
    MachineApt,
    configuration_text,
    entries_for,
    parse_lines,
    parse_stanzas,
    source_lines,
)
from torchyard.errors import UsageError


def machine(*entries: AptEntry, origins: dict[str, str] | None = None) -> MachineApt:
    return MachineApt(
        entries=entries, configuration=(), origins=origins or {}, files=("/etc/apt/sources.list",)
    )


def entry(uri: str, *suites: str, components: tuple[str, ...] = ("main",)) -> AptEntry:
    return AptEntry(uris=(uri,), suites=suites, components=components)


MAIN = entry("http://m.invalid/debian", "bookworm", "bookworm-updates")
SECURITY = entry("http://m.invalid/security", "bookworm-security")
OTHER = entry("https://other.invalid/repo", "bookworm", components=("stable",))
VENDOR = entry("https://vendor.invalid/apt", "bookworm", components=("main",))


def test_one_line_files() -> None:
    text = """
    # deb http://commented.invalid x main
    deb http://a.invalid/debian bookworm main contrib  # and a remark
    deb-src [arch=arm64 signed-by=/k.gpg check-valid-until=no] http://b.invalid/debian bookworm main
    deb [trusted=yes] http://c.invalid/flat ./
    rubbish
    deb http://short.invalid
    """
    first, second, third = parse_lines(text)
    assert first.uris == ("http://a.invalid/debian",)
    assert first.components == ("main", "contrib")
    assert second.options == {"signed-by": "/k.gpg", "check-valid-until": "no"}
    assert (third.suites, third.components) == (("./",), ())


def test_deb822_files() -> None:
    text = """# a remark
Types: deb deb-src
URIs: http://a.invalid/debian
 http://b.invalid/debian
# in between
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://off.invalid
Suites: x
Components: main


types: deb
uris: http://c.invalid
suites: y
components: main
trusted: yes
"""
    first, second = parse_stanzas(text)
    assert first.uris == ("http://a.invalid/debian", "http://b.invalid/debian")
    assert first.suites == ("bookworm", "bookworm-updates")
    assert first.options["signed-by"].splitlines()[1:3] == [
        "-----BEGIN PGP PUBLIC KEY BLOCK-----",
        ".",
    ]
    assert (second.uris, second.options) == (("http://c.invalid",), {"trusted": "yes"})


def test_the_own_suites() -> None:
    assert entries_for(machine(MAIN, SECURITY), "") == (MAIN, SECURITY)


def test_another_suite_is_searched_beside_the_plain_one() -> None:
    (found,) = entries_for(machine(MAIN, SECURITY), "trixie")
    assert (found.uris, found.suites) == (MAIN.uris, ("trixie",))


def test_another_pocket_is_searched_beside_the_same_pocket() -> None:
    (found,) = entries_for(machine(MAIN, SECURITY), "trixie-security")
    assert (found.uris, found.suites) == (SECURITY.uris, ("trixie-security",))


def test_a_suite_that_is_listed_is_taken_from_there_only() -> None:
    backports = entry("http://b.invalid/debian", "sid")
    (found,) = entries_for(machine(MAIN, backports), "sid")
    assert found.uris == backports.uris


def test_other_publishers_are_left_out() -> None:
    (found,) = entries_for(machine(OTHER, MAIN), "trixie")
    assert found.uris == MAIN.uris, "without `main` it is none of Debian's"
    origins = {"http://m.invalid/debian": "Debian", "https://vendor.invalid/apt": "Vendor"}
    (found,) = entries_for(machine(VENDOR, MAIN, origins=origins), "trixie")
    assert found.uris == MAIN.uris


def test_without_an_index_every_candidate_is_kept() -> None:
    assert len(entries_for(machine(VENDOR, MAIN), "trixie")) == 2


def test_no_entry_at_all_names_the_files() -> None:
    with pytest.raises(UsageError) as caught:
        entries_for(machine(OTHER), "trixie")
    assert "/etc/apt/sources.list" in caught.value.why


def test_deb_and_deb_src_lines_of_one_mirror_become_one() -> None:
    assert len(entries_for(machine(MAIN, MAIN), "trixie")) == 1


def test_a_key_in_the_sources_file_becomes_a_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    block = "\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n.\nabc\n-----END PGP PUBLIC KEY BLOCK-----"
    signed = AptEntry(
        uris=("http://a.invalid",),
        suites=("x",),
        components=("main",),
        options={"signed-by": block},
    )
    action = AptSources(folder=str(tmp_path), suite="x", sources=False)
    key = tmp_path / "etc" / "key-0.asc"
    for _ in range(2):
        (line,) = source_lines(signed, action)
        assert line == f"deb [signed-by={key}] http://a.invalid x main"
    assert key.read_text(encoding="utf-8").splitlines()[1:3] == ["", "abc"]
    assert len(list((tmp_path / "etc").iterdir())) == 1


def test_several_keyrings_are_joined() -> None:
    signed = AptEntry(
        uris=("http://a.invalid",),
        suites=("x", "y"),
        components=("main", "contrib"),
        options={"signed-by": "/a.gpg /b.gpg"},
    )
    action = AptSources(folder="/p", suite="", sources=True)
    assert list(source_lines(signed, action)) == [
        "deb [signed-by=/a.gpg,/b.gpg] http://a.invalid x main contrib",
        "deb-src [signed-by=/a.gpg,/b.gpg] http://a.invalid x main contrib",
        "deb [signed-by=/a.gpg,/b.gpg] http://a.invalid y main contrib",
        "deb-src [signed-by=/a.gpg,/b.gpg] http://a.invalid y main contrib",
    ]


def test_options_that_decide_about_reaching_a_mirror_are_kept() -> None:
    own = MachineApt(
        entries=(MAIN,),
        configuration=(
            ("Acquire::http::Proxy", "http://p.invalid:1"),
            ("Acquire::https::m.invalid::Verify-Peer", "false"),
            ("Acquire::Check-Valid-Until", "false"),
            ("Acquire::Languages::", "none"),
            ("Acquire::IndexTargets::deb::Packages::MetaKey", "x"),
            ("Acquire::IndexTargets::deb::Contents-deb::MetaKey", "x"),
            ("APT::Install-Recommends", "false"),
            ("Dir::State", "var/lib/apt"),
        ),
        origins={},
        files=(),
    )
    text = configuration_text(
        own, Path("/p"), {"http_proxy": "http://q.invalid", "https_proxy": "http://r.invalid"}
    )
    assert 'Acquire::http::Proxy "http://p.invalid:1";' in text
    assert "q.invalid" not in text, "what apt is told comes before the environment"
    assert 'Acquire::https::Proxy "http://r.invalid";' in text
    assert 'Acquire::https::m.invalid::Verify-Peer "false";' in text
    assert 'Acquire::Check-Valid-Until "false";' in text
    assert 'Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";' in text
    assert "Packages::DefaultEnabled" not in text
    assert "Install-Recommends" not in text
    assert 'Dir::State "/p/state";' in text
    assert "var/lib/apt" not in text
