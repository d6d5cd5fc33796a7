"""A torchbench checkout: location, models, and metadata, without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchyard.worker.suites.torchbench.checkout import (
    TORCHBENCH_VARIABLE,
    UnreadableMetadata,
    find_checkout,
    listing,
    parse_metadata,
    read_metadata,
)
from torchyard.worker.workload import CannotBuild

TREE = Path(__file__).parents[1] / "torchbench_tree"

REAL_FORMS = """\
# As the files of the real project are written.
devices:
  NVIDIA A100-SXM4-40GB:
    eval_batch_size: 8
  cpu: {empty}
eval_benchmark: true
eval_deterministic: False
factor: 0.5
quoted: 'a: b # c'
nothing:
not_implemented:
- device: cpu
  test: train
- jit: true   # no scripted form
-   test: eval
    device: "cuda"
words:
  - one
  - 2
  - 'a: b'
""".replace("{empty}", "~")


def test_the_forms_of_real_files() -> None:
    assert parse_metadata(REAL_FORMS) == {
        "devices": {"NVIDIA A100-SXM4-40GB": {"eval_batch_size": 8}, "cpu": None},
        "eval_benchmark": True,
        "eval_deterministic": False,
        "factor": 0.5,
        "quoted": "a: b # c",
        "nothing": None,
        "not_implemented": [
            {"device": "cpu", "test": "train"},
            {"jit": True},
            {"test": "eval", "device": "cuda"},
        ],
        "words": ["one", 2, "a: b"],
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n"])
def test_empty_metadata(text: str) -> None:
    assert parse_metadata(text) == {}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: [1, 2]\n", 2, "unsupported"),
        ("a: {b: 1}\n", 1, "unsupported"),
        ("a: &x 1\n", 1, "unsupported"),
        ("a: |\n  text\n", 1, "unsupported"),
        ("a: 1\na: 2\n", 2, "duplicate key"),
        ("a\n", 1, "not `key: value`"),
        ("a:1\n", 1, "not `key: value`"),
        ("a: 'it''s'\n", 1, "quoted string"),
        ("a: 1\n   b: 2\n", 2, "indentation"),
        ("a:\n\t- b\n", 2, "tab"),
        ("a:\n-\n", 2, "without a value"),
        ("a: b: c\n", 1, "second `key:`"),
        ("a: 'b' c\n", 1, "quoted string"),
    ],
)
def test_unsupported_yaml_names_the_line(text: str, line: int, said: str) -> None:
    with pytest.raises(UnreadableMetadata, match=said) as caught:
        parse_metadata(text, "m.yaml")
    assert str(caught.value).startswith(f"m.yaml, line {line}: ")


def test_a_list_is_no_metadata() -> None:
    with pytest.raises(UnreadableMetadata, match="a list where a mapping"):
        parse_metadata("- a\n- b\n")


def test_missing_metadata_is_empty(tmp_path: Path) -> None:
    assert read_metadata(str(tmp_path / "metadata.yaml")) == {}


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
    (model / "metadata.yaml").write_text("a: [1]\n")
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
