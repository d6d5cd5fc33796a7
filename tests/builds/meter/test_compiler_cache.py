"""Compiler caches: working ones are used and counted, broken ones are reported and left out."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from torchyard.builds.meter.compiler_launcher import (
    CacheChoice,
    CacheCounts,
    cache_statistics,
    choose_cache,
    logged_counts,
    read_counts,
)
from torchyard.errors import UsageError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """An environment with caches of its own, whatever the user has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CCACHE_DIR": str(tmp_path / "ccache"),
        "SCCACHE_DIR": str(tmp_path / "sccache"),
        "SCCACHE_SERVER_PORT": str(port),
        "SCCACHE_IDLE_TIMEOUT": "20",
    }


def with_fake(tmp_path: Path, variables: dict[str, str], **scripts: str) -> dict[str, str]:
    """Only the compiler and the given caches on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cc").symlink_to(shutil.which("cc") or "")
    for name in ("as", "ld", "sh", "sleep", "cat", "touch"):
        (tools / name).symlink_to(shutil.which(name) or "")
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    return {**variables, "PATH": str(tools)}


def test_a_real_ccache_is_chosen_and_hits_are_counted(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")
    decision = choose_cache("auto", variables=variables, base_folder=tmp_path)
    choice = decision.choice
    assert choice is not None
    assert choice.name == "ccache", "the meter sees its compiles"
    assert Path(choice.program).is_absolute()
    assert choice.variables == {"CCACHE_BASEDIR": str(tmp_path)}
    (tmp_path / "a.c").write_text("int a;\n")
    before = read_counts(choice, variables=variables)
    for _ in range(3):
        subprocess.run(
            [choice.program, "cc", "-c", tmp_path / "a.c", "-o", tmp_path / "a.o"],
            env=variables,
            check=True,
            timeout=60,
        )
    statistics = cache_statistics(before, read_counts(choice, variables=variables))
    assert statistics == CacheCounts(hits=2, misses=1)
    assert statistics.rate == pytest.approx(2 / 3)


def test_hits_of_others_who_share_the_cache_do_not_count(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")

    def compile_with(log: Path, number: int) -> None:
        (tmp_path / "a.c").write_text(f"int f(void) {{ return {number}; }}\n")
        subprocess.run(
            ["ccache", "cc", "-c", "a.c", "-o", "a.o"],
            cwd=tmp_path,
            env={**variables, "CCACHE_STATSLOG": str(log)},
            check=True,
        )

    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    compile_with(mine, 1)
    for _ in range(3):
        compile_with(theirs, 1)
    compile_with(mine, 2)
    compile_with(mine, 2)
    if not mine.exists():
        pytest.skip("this ccache writes no such log")
    assert logged_counts(mine) == CacheCounts(hits=1, misses=2)
    assert logged_counts(theirs) == CacheCounts(hits=3, misses=0)


def test_a_log_that_says_nothing(tmp_path: Path) -> None:
    assert logged_counts(tmp_path / "none") is None
    (tmp_path / "log").write_bytes(b"# a.c\nbad_compiler_arguments\n\xff\n")
    assert logged_counts(tmp_path / "log") is None


def test_two_build_folders_share_the_cache(tmp_path: Path, variables: dict[str, str]) -> None:
    """What CCACHE_BASEDIR is for: the same source, another build's folder."""
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")
    choice = choose_cache("ccache", variables=variables, base_folder=tmp_path).choice
    assert choice is not None
    before = read_counts(choice, variables=variables)
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "build").mkdir(parents=True)
        (folder / "a.c").write_text("int shared;\n")
        subprocess.run(
            [choice.program, "cc", "-c", folder / "a.c", "-o", "a.o"],
            env={**variables, **choice.variables},
            cwd=folder / "build",
            check=True,
            timeout=60,
        )
    after = read_counts(choice, variables=variables)
    assert cache_statistics(before, after) == CacheCounts(hits=1, misses=1)


def test_the_users_base_folder_stays(tmp_path: Path, variables: dict[str, str]) -> None:
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")
    decision = choose_cache(
        "ccache", variables={**variables, "CCACHE_BASEDIR": "/srv"}, base_folder=tmp_path
    )
    assert decision.choice is not None
    assert decision.choice.variables == {}


def test_a_real_sccache_when_asked_for(variables: dict[str, str]) -> None:
    if shutil.which("sccache") is None:
        pytest.skip("needs sccache")
    try:
        decision = choose_cache("sccache", variables=variables)
        assert decision.choice is not None, decision.why
        assert decision.choice.name == "sccache"
        counts = read_counts(decision.choice, variables=variables)
        assert counts is not None
        assert counts.hits >= 1
    finally:
        subprocess.run(
            ["sccache", "--stop-server"],
            env=variables,
            check=False,
            timeout=60,
            capture_output=True,
        )


def test_none_is_none(variables: dict[str, str]) -> None:
    decision = choose_cache("none", variables=variables)
    assert decision.choice is None
    assert "requested" in decision.why


def test_an_unknown_name_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_cache("cccache", variables=variables)
    assert "sccache" in caught.value.hint


def test_no_cache_installed(tmp_path: Path, variables: dict[str, str]) -> None:
    bare = with_fake(tmp_path, variables)
    decision = choose_cache("auto", variables=bare)
    assert decision.choice is None
    assert decision.why == "ccache is not installed; sccache is not installed"
    assert choose_cache("sccache", variables=bare).why == "sccache is not installed"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'ccache: error: cannot write to cache' >&2; exit 1", "cannot write to cache"),
        ("exit 3", "exit code 3"),
        ("exit 0", "created no object file"),
        ("kill -9 $$", "failed"),
    ],
)
def test_a_broken_cache_is_left_out_with_its_reason(
    tmp_path: Path, variables: dict[str, str], script: str, reason: str
) -> None:
    decision = choose_cache("auto", variables=with_fake(tmp_path, variables, ccache=script))
    assert decision.choice is None
    assert "ccache is not used" in decision.why
    assert reason in decision.why


def test_a_broken_ccache_leaves_the_choice_to_sccache(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    fakes = with_fake(
        tmp_path,
        variables,
        ccache="exit 1",
        sccache='case "$1" in --*) exit 1;; esac; exec "$@"',
    )
    decision = choose_cache("auto", variables=fakes)
    assert decision.choice is not None
    assert decision.choice.name == "sccache"
    assert read_counts(decision.choice, variables=fakes) is None, "its statistics do not work"


def test_a_cache_that_never_hits_is_left_out(tmp_path: Path, variables: dict[str, str]) -> None:
    fake = (
        'case "$1" in --print-stats) '
        "printf 'direct_cache_hit\\t0\\npreprocessed_cache_hit\\t0\\ncache_miss\\t5\\n'; exit;; esac; "
        'exec "$@"'
    )
    decision = choose_cache("ccache", variables=with_fake(tmp_path, variables, ccache=fake))
    assert decision.choice is None
    assert "no cache hit" in decision.why


def test_a_real_ccache_that_may_not_write_is_left_out(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")
    (tmp_path / "file").write_text("")
    decision = choose_cache(
        "ccache", variables={**variables, "CCACHE_DIR": str(tmp_path / "file" / "below")}
    )
    assert decision.choice is None
    assert "ccache" in decision.why


def test_a_compiler_that_fails_is_not_the_caches_fault(variables: dict[str, str]) -> None:
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")
    decision = choose_cache("ccache", variables=variables, compiler="/nonexistent/cc")
    assert decision.choice is None
    assert "even without it" in decision.why


def test_commands_are_put_behind_what_enters_the_root(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    entered = tmp_path / "enter"
    entered.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/entered\nexec "$@"\n')
    entered.chmod(0o755)
    fakes = with_fake(tmp_path, variables, ccache='case "$1" in --*) exit 1;; esac; exec "$@"')
    decision = choose_cache("ccache", variables=fakes, before=(str(entered),))
    assert decision.choice is not None
    lines = (tmp_path / "entered").read_text().splitlines()
    assert lines[0].endswith("command -v ccache")
    assert sum("probe.c" in line for line in lines) == 3


def test_statistics_that_cannot_be_combined() -> None:
    one, less = CacheCounts(hits=5, misses=5), CacheCounts(hits=1, misses=9)
    assert cache_statistics(None, one) is None
    assert cache_statistics(one, None) is None
    assert cache_statistics(one, less) is None, "it was reset in between"
    same = cache_statistics(one, one)
    assert same is not None
    assert same.rate is None


@pytest.mark.parametrize(
    "text", ["", "not json", "{}", '{"stats": {"cache_hits": 3}}', "direct_cache_hit\tx"]
)
@pytest.mark.parametrize("name", ["ccache", "sccache"])
def test_statistics_that_make_no_sense_are_none(tmp_path: Path, text: str, name: str) -> None:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    choice = CacheChoice(name="sccache" if name == "sccache" else "ccache", program=str(program))
    assert read_counts(choice, variables={"PATH": os.environ["PATH"]}) is None
