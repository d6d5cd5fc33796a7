"""A torchbench checkout: location, models, and metadata, without torch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from torchyard.worker.suites.torchbench.checkout import (
    TORCHBENCH_VARIABLE,
    UnreadableMetadata,
    find_checkout,
    listing,
    read_rules,
)
from torchyard.worker.suites.torchbench.model import NetworkWanted, fetches, no_network
from torchyard.worker.workload import CannotBuild

TREE = Path(__file__).parents[1] / "torchbench_tree"

REAL_FORMS = """\
# As the files of the real project are written.
devices:
  NVIDIA A100-SXM4-40GB:
    eval_batch_size: 8
quoted: 'a: b # c'
not_implemented:
- device: cpu
  test: train
  # It has no scripted form.
- jit: true   # as it is
-   test: 'eval'
    device: "cuda"
words:
  - one: 2
"""


def rules_of(folder: Path, text: str) -> list[dict[str, object]]:
    (folder / "metadata.yaml").write_text(text)
    return read_rules(str(folder / "metadata.yaml"))


@pytest.mark.parametrize("indent", ["", "  "])
def test_the_forms_of_real_files(tmp_path: Path, indent: str) -> None:
    head, key, tail = REAL_FORMS.partition("not_implemented:\n")
    rules, words, rest = tail.partition("words:")
    indented = "".join(indent + line for line in rules.splitlines(keepends=True))
    assert rules_of(tmp_path, head + key + indented + words + rest) == [
        {"device": "cpu", "test": "train"},
        {"jit": True},
        {"test": "eval", "device": "cuda"},
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "not_implemented:\n", "a: [1]\n"])
def test_metadata_without_rules(tmp_path: Path, text: str) -> None:
    assert rules_of(tmp_path, text) == []
    assert read_rules(str(tmp_path / "missing.yaml")) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("not_implemented: [1]\n", 1),
        ("a: 1\nnot_implemented:\n- {jit: true}\n", 3),
        ("not_implemented:\n  jit: true\n", 2),
        ("not_implemented:\n- jit: true\n- device:\n", 3),
        ("not_implemented:\n- jit: true: 1\n", 2),
        ("not_implemented:\n-\n", 2),
        ("not_implemented:\n- jit\n", 2),
    ],
)
def test_rules_in_other_forms_name_the_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(UnreadableMetadata, match=f"metadata.yaml, line {line}: "):
        rules_of(tmp_path, text)


def test_models_are_folders_with_a_package() -> None:
    tree = find_checkout(str(TREE))
    names = [model.name for model in tree.models()]
    assert names[-1] == "aborts"
    assert names[:-1] == sorted(names[:-1])
    canary = tree.find("aborts")
    assert canary is not None
    assert canary.package == "torchbenchmark.canary_models.aborts"
    assert tree.find("package") is None
    assert tree.find("__pycache__") is None


def test_listing_says_what_is_known_without_loading(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in listing(find_checkout(str(TREE)))}
    assert rows["with_install"]["install"] is True
    assert rows["aborts"]["canary"] is True
    assert rows["cpu_train_refused"]["not_implemented"][0] == {"device": "cpu", "test": "train"}
    model = tmp_path / "torchbenchmark" / "models" / "odd"
    model.mkdir(parents=True)
    (tmp_path / "torchbenchmark" / "__init__.py").touch()
    (model / "__init__.py").touch()
    (model / "metadata.yaml").write_text("not_implemented: [1]\n")
    (row,) = listing(find_checkout(str(tmp_path)))
    assert "line 1" in row["metadata_trouble"]


def test_models_take_precedence_over_canary_models(tmp_path: Path) -> None:
    for holder in ("models", "canary_models", "models/fb"):
        model = tmp_path / "torchbenchmark" / holder / "twice"
        model.mkdir(parents=True)
        (model / "__init__.py").touch()
    (tmp_path / "torchbenchmark" / "__init__.py").touch()
    (found,) = find_checkout(str(tmp_path)).models()
    assert found.package == "torchbenchmark.models.twice"


def test_checkout_is_found_by_path_variable_or_import(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkout(str(TREE)).root == str(TREE)
    assert find_checkout(str(TREE / "torchbenchmark")).root == str(TREE)
    monkeypatch.setenv(TORCHBENCH_VARIABLE, str(TREE))
    assert find_checkout().root == str(TREE)
    monkeypatch.delenv(TORCHBENCH_VARIABLE)
    monkeypatch.delitem(sys.modules, "torchbenchmark", raising=False)
    monkeypatch.setattr(sys, "path", [str(TREE)])
    assert find_checkout().root == str(TREE)


def test_missing_checkout_error_has_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(TORCHBENCH_VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "torchbenchmark", raising=False)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(TREE)])
    with pytest.raises(CannotBuild, match="no checkout of pytorch/benchmark") as caught:
        find_checkout()
    assert TORCHBENCH_VARIABLE in caught.value.hint
    with pytest.raises(CannotBuild, match="it has no torchbenchmark"):
        find_checkout(str(tmp_path))


FETCHING = [
    ["wget", "https://a.invalid/x"],
    ["/usr/bin/curl", "-L", "https://a.invalid/x"],
    ["git", "clone", "https://a.invalid/x"],
    ["git", "-C", "folder", "pull"],
    [sys.executable, "-m", "pip", "install", "x"],
    ["pip", "install", "x"],
]
STAYING = [["git", "rev-parse", "HEAD"], ["ls"], [sys.executable, "-c", "1"], []]


@pytest.mark.parametrize("words", FETCHING)
def test_programs_that_fetch(words: list[str]) -> None:
    assert fetches(words)


@pytest.mark.parametrize("words", STAYING)
def test_programs_that_do_not(words: list[str]) -> None:
    assert not fetches(words)


def test_a_download_fails_at_once_and_names_the_server_and_not_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    with no_network() as attempts, pytest.raises(urllib.error.URLError, match="network is off"):
        urllib.request.urlopen("https://weights.invalid/tiny.pt", timeout=30)
    assert attempts.names == ["weights.invalid"]
    assert os.environ["https_proxy"] == "http://proxy.invalid:3128"


def test_an_address_is_refused_as_a_name_is() -> None:
    with no_network() as attempts:
        with socket.socket() as plain, pytest.raises(OSError, match="network is off"):
            plain.connect(("192.0.2.1", 80))
        with socket.socket() as plain, pytest.raises(OSError, match="network is off"):
            plain.connect_ex(("192.0.2.2", 80))
        with pytest.raises(OSError, match="network is off"):
            socket.gethostbyname("a.invalid")
    assert str(attempts) == "192.0.2.1, 192.0.2.2, a.invalid"


def test_this_machine_can_be_reached() -> None:
    with no_network() as attempts, socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=10):
            pass
        first, second = socket.socketpair()
        first.close()
        second.close()
    assert attempts.names == []


@pytest.mark.parametrize(
    "command",
    [["wget", "https://a.invalid/x"], "cd / && curl https://a.invalid/x", b"wget"],
)
def test_programs_are_not_started(command: list[str] | str | bytes) -> None:
    with no_network() as attempts, pytest.raises(OSError, match="network is off"):
        subprocess.run(command, shell=isinstance(command, str), check=True)
    assert len(attempts.names) == 1
    assert "a.invalid" in str(attempts) or command == b"wget"


def test_a_shell_command_is_not_started() -> None:
    with no_network() as attempts, pytest.raises(OSError, match="network is off"):
        os.system("true; wget https://a.invalid/x")  # noqa: S605
    assert str(attempts) == "wget https://a.invalid/x"


def test_other_programs_run() -> None:
    with no_network() as attempts:
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
        assert os.system("true") == 0  # noqa: S605
    assert attempts.names == []


def test_retry_loop_is_ended() -> None:
    tries: list[int] = []

    def retry() -> None:
        while True:
            tries.append(1)
            with suppress(Exception):
                socket.getaddrinfo("a.invalid", 80)

    with no_network(), pytest.raises(NetworkWanted, match=r"a\.invalid"):
        retry()
    assert len(tries) == 6


def test_server_of_an_offline_library_is_reported() -> None:
    class LocalEntryNotFoundError(FileNotFoundError):
        pass

    outer = OSError("could not load it")
    outer.__cause__ = LocalEntryNotFoundError("not in the cache")
    with no_network() as attempts:
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        attempts.note_cause(outer)
    assert str(attempts) == "huggingface.co"


def test_network_functions_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")

    def everything() -> tuple[object, ...]:
        inherited = "connect" in vars(socket.socket)
        return (
            *(socket.getaddrinfo, socket.gethostbyname, socket.socket.connect, inherited),
            *(socket.socket.connect_ex, subprocess.Popen.__init__, os.system, dict(os.environ)),
        )

    before = everything()
    with no_network():
        assert everything() != before
    assert everything() == before
    with pytest.raises(ValueError, match="its own"), no_network():
        raise ValueError("its own")
    assert everything() == before
