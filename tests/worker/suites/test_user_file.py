"""User files: every form of a user's own workload, and every error."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchyard.worker import suites
from torchyard.worker.suites import user_file
from torchyard.worker.workload import BuiltWorkload, CannotBuild

ROOT = Path(__file__).parents[3]
FILES = ROOT / "tests" / "data" / "user_files"
FORMS, WRONG = FILES / "forms.py", FILES / "wrong.py"

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def made(
    name: str, mode: str = "inference", batch_size: int | None = None, **wishes: Any
) -> BuiltWorkload:
    return suites.build("file", name, mode, batch_size, wishes)


def refusal(
    name: str, mode: str = "inference", batch_size: int | None = None, **wishes: Any
) -> tuple[str, str]:
    with pytest.raises(CannotBuild) as caught:
        made(name, mode, batch_size, **wishes)
    return str(caught.value), caught.value.hint


def run(built: BuiltWorkload) -> Any:
    return built.module(*built.args, **built.kwargs)


def test_make_is_the_default() -> None:
    built = made(str(FORMS))
    assert tuple(run(built).shape) == (2, 3)
    assert built.loss is None
    assert tuple(run(made(f"{FORMS}:make", "inference", 7, width=9)).shape) == (7, 3)


def test_functions_become_modules() -> None:
    import torch

    for name, expected in (("plain", [2.0, 2.0]), ("named", [1.0, 1.0]), ("nested", [5.0, 5.0])):
        built = made(f"{FORMS}:{name}")
        assert isinstance(built.module, torch.nn.Module)
        assert run(built).tolist() == expected


def test_inputs_may_be_a_tensor_a_tuple_or_a_dict() -> None:
    assert len(made(f"{FORMS}:make").args) == 1
    assert len(made(f"{FORMS}:plain").args) == 2
    assert set(made(f"{FORMS}:named").kwargs) == {"left", "right"}
    nested = made(f"{FORMS}:nested")
    assert (len(nested.args), len(nested.args[0]), nested.args[1]) == (2, 2, 5)


def test_third_value_is_the_loss_and_mode_is_passed() -> None:
    built = made(f"{FORMS}:triple", "training")
    assert built.loss is not None
    built.loss(run(built)).backward()
    assert built.loss_name == "the file's own"
    assert made(f"{FORMS}:triple", "inference").loss is None


def test_the_class_form_brings_loss_optimiser_and_flops() -> None:
    import torch

    built = made(f"{FORMS}:Parts", "training", 6)
    assert tuple(run(built).shape) == (6, 3)
    assert built.loss is not None
    assert built.optimizer is not None
    built.loss(run(built)).backward()
    assert isinstance(built.optimizer(list(built.module.parameters())), torch.optim.Adam)
    assert built.flops == 144.0


def test_the_module_form() -> None:
    import torch

    built = made(f"{FORMS}:Net", "training", width=8)
    assert built.module.training
    assert tuple(run(built).shape) == (5, 2)
    assert built.loss is not None
    assert built.optimizer is not None
    assert isinstance(built.optimizer(list(built.module.parameters())), torch.optim.SGD)


def test_keyword_arguments_take_everything() -> None:
    assert tuple(run(made(f"{FORMS}:anything", "inference", 3, width=5)).shape) == (3, 1)


def test_files_beside_it_can_be_imported_either_way(tmp_path: Path) -> None:
    assert tuple(run(made(f"{FORMS}:from_beside")).shape) == (1, 1)
    (tmp_path / "neighbour.py").write_text("import torch\nfunction = torch.neg")
    file = tmp_path / "relative.py"
    file.write_text(
        "import torch\nfrom .neighbour import function\ndef make(): return function, torch.ones(1)"
    )
    assert run(made(str(file))).tolist() == [-1.0]


def test_a_relative_path_counts_from_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILES)
    assert tuple(run(made("forms.py")).shape) == (2, 3)
    assert tuple(run(made("./forms.py:Parts")).shape) == (3, 3)


def test_everything_goes_to_the_device() -> None:
    built = suites.build("file", str(FORMS), device="meta")
    assert built.args[0].device.type == "meta"
    assert all(each.device.type == "meta" for each in built.module.parameters())


def test_inputs_keep_requires_grad(tmp_path: Path) -> None:
    file = tmp_path / "w.py"
    file.write_text("import torch\ndef make(): return torch.exp, torch.ones(2, requires_grad=True)")
    (tensor,) = made(str(file)).args
    assert tensor.requires_grad
    assert tensor.is_leaf


def test_the_example_of_the_documentation() -> None:
    example = str(ROOT / "examples" / "my_workload.py")
    built = made(example, "training", 4, width=32)
    assert built.loss is not None
    built.loss(run(built)).backward()
    assert built.flops == 2 * 4 * (32 * 128 + 128 * 10)
    # The page shows the file itself, so the two cannot drift apart.
    page = (ROOT / "docs" / "howto" / "your-own-workload.md").read_text(encoding="utf-8")
    source = Path(example).read_text(encoding="utf-8")
    assert source[source.index("class Wide") :] in page


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/a/b.py", ("/a/b.py", "")),
        ("/a/b.py:make", ("/a/b.py", "make")),
        ("/a:b/c.py", ("/a:b/c.py", "")),
        ("/a:b/c.py:Net", ("/a:b/c.py", "Net")),
        ("/a.py:b/c.py", ("/a.py:b/c.py", "")),
    ],
)
def test_names_are_split_at_the_last_colon(name: str, expected: tuple[str, str]) -> None:
    assert user_file.split_name(name) == expected


def test_a_missing_file() -> None:
    message, hint = refusal("/nowhere/model.py:make")
    assert message == "the file /nowhere/model.py does not exist"
    assert "path" in hint
    assert "'model.txt' is not a Python file" in refusal("model.txt")[0]


def test_no_workload_in_the_file() -> None:
    message, hint = refusal(str(FILES / "beside.py"))
    assert message.endswith("beside.py has no function make() and no class that is a workload")
    assert "def make()" in hint


def test_several_workloads_in_the_file() -> None:
    message, hint = refusal(str(FILES / "several.py"))
    assert message.endswith("several.py has several workloads: First, Second")
    assert hint.endswith("several.py:First")
    assert made(f"{FILES / 'several.py'}:Second").args == ()


def test_a_name_that_is_not_in_the_file() -> None:
    message, hint = refusal(f"{FORMS}:mak")
    assert "forms.py has no function or class 'mak'; did you mean make?" in message
    assert "FILE.py:NAME" in hint
    assert "has no function or class 'LIMIT'" in refusal(f"{WRONG}:LIMIT")[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "returned None, not a pair"),
        ("too_many", "returned a tuple of 4, not a pair"),
        ("Bare", "returned an object of type Bare, not a pair"),
        ("no_module", "the module of"),
        ("no_inputs", "are an object of type str"),
        ("number_keys", "are an object of type dict"),
    ],
)
def test_invalid_return_values(name: str, words: str) -> None:
    message, hint = refusal(f"{WRONG}:{name}")
    assert f"wrong.py:{name}" in message
    assert words in message
    assert hint


def test_user_errors_have_file_and_line() -> None:
    message, _ = refusal(f"{WRONG}:raises")
    line = WRONG.read_text().splitlines().index('    raise ValueError(f"width {width} is odd")') + 1
    assert message == f"{WRONG}:raises raised ValueError: width 3 is odd (line {line})"


def test_running_out_of_memory_stays_what_it_is() -> None:
    with pytest.raises(MemoryError):
        made(f"{WRONG}:exhausts")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ndef make(:\n", "SyntaxError"),
        ("import no_such_package_here\n", "ModuleNotFoundError: No module named 'no_such"),
        ("\nraise SystemExit(3)\n", "SystemExit: 3 (line 2)"),
    ],
)
def test_a_file_that_does_not_load(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    message, _ = refusal(str(file))
    assert message.startswith(f"{file} could not be loaded: ")
    assert words in message
    assert "(line " in message
    assert "torchyard_user_file_broken" not in sys.modules


def test_parameters_must_be_in_the_signature() -> None:
    message, hint = refusal(f"{FORMS}:make", widht=3)
    assert "forms.py:make has no parameter 'widht'; did you mean width?" in message
    assert "width" in hint
    message, hint = refusal(f"{FORMS}:plain", width=3)
    assert hint == "it has no parameters"
    assert "has no argument batch_size" in refusal(f"{FORMS}:plain", "inference", 4)[0]
    assert "requires width" in refusal(f"{FORMS}:needs")[0]


def test_training_needs_a_loss_and_something_to_train() -> None:
    message, hint = refusal(f"{FORMS}:make", "training")
    assert "forms.py:make has no loss" in message
    assert "loss(output)" in hint
    message, hint = refusal(f"{WRONG}:frozen", "training")
    assert "no trainable parameter" in message


@pytest.mark.slow
def test_a_user_file_survives_compilation_in_a_fresh_process() -> None:
    code = f"""
import json, torch
from torchyard.worker import suites
built = suites.build("file", {f"{FORMS}:Parts"!r})
compiled = torch.compile(built.module, backend="eager")
print(json.dumps(list(compiled(**built.kwargs).shape)))
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert json.loads(completed.stdout) == [3, 3]
