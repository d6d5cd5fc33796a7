"""Variables of the user: which reach a build, which are passed through, and notes on the rest."""

from __future__ import annotations

import pytest

from torchyard.builds.environments.model import (
    SYSTEM_PATH,
    base_variables,
    dropped_notes,
    inherited_variables,
    join_paths,
)


def test_base_is_the_same_whatever_the_shell_has() -> None:
    plain = base_variables({"HOME": "/home/a"})
    full = base_variables(
        {
            "HOME": "/home/a",
            "PATH": "/weird/bin",
            "LANG": "de_DE.UTF-8",
            "LC_ALL": "de_DE.UTF-8",
            "CFLAGS": "-O0",
            "https_proxy": "http://proxy.example:1",
        }
    )
    assert plain == full
    assert dict(full) == {
        "PATH": SYSTEM_PATH,
        "HOME": "/home/a",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
    }


def test_base_without_a_home() -> None:
    assert dict(base_variables({}))["HOME"] == "/"
    assert dict(base_variables({"HOME": ""}))["HOME"] == "/"


@pytest.mark.parametrize(
    "name",
    [
        "TERM",
        "TMPDIR",
        "http_proxy",
        "HTTPS_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "PIP_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_CERT",
        "UV_INDEX_URL",
        "CCACHE_DIR",
        "SCCACHE_BUCKET",
        "CONDARC",
        "MAMBA_ROOT_PREFIX",
    ],
)
def test_passed_through_but_in_no_fingerprint(name: str) -> None:
    environ = {name: "value", "HOME": "/h"}
    assert inherited_variables(environ) == {name: "value"}
    assert name not in dict(base_variables(environ))
    assert dropped_notes(environ) == ()


@pytest.mark.parametrize(
    "name",
    [
        "CC",
        "CXX",
        "CFLAGS",
        "LDFLAGS",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CPATH",
        "CMAKE_PREFIX_PATH",
        "CMAKE_ARGS",
        "USE_CUDA",
        "BUILD_TEST",
        "MAX_JOBS",
        "MAKEFLAGS",
        "TORCH_CUDA_ARCH_LIST",
        "PYTORCH_ROCM_ARCH",
        "CUDA_HOME",
        "ROCM_PATH",
        "CONDA_PREFIX",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        # These would send packages elsewhere or change what is chosen.
        "PIP_TARGET",
        "PIP_CONSTRAINT",
        "PIP_USER",
        "UV_PYTHON",
    ],
)
def test_dropped_and_named(name: str) -> None:
    environ = {name: "secret-value"}
    assert inherited_variables(environ) == {}
    assert name not in dict(base_variables(environ))
    (note,) = dropped_notes(environ)
    assert name in note
    assert "secret-value" not in note
    assert "[environment.variables]" in note


@pytest.mark.parametrize("name", ["EDITOR", "SHELL", "PS1", "LS_COLORS", "PWD", "USEFUL"])
def test_what_no_build_reads_is_dropped_silently(name: str) -> None:
    assert inherited_variables({name: "x"}) == {}
    assert dropped_notes({name: "x"}) == ()


def test_folders_of_the_users_path_are_named() -> None:
    path = f"/home/a/bin:{SYSTEM_PATH}:/usr/bin/:/home/a/bin::/opt/cmake/bin"
    (note,) = dropped_notes({"PATH": path})
    assert "/home/a/bin, /opt/cmake/bin" in note
    assert "environment.path" in note
    assert dropped_notes({"PATH": SYSTEM_PATH}) == ()


def test_joined_path_keeps_the_first_of_each_and_no_empty_one() -> None:
    assert join_paths("/a", "", "/b:/a", ":/c:") == "/a:/b:/c"
    assert join_paths("", "") == ""
    assert join_paths() == ""
