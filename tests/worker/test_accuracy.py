"""The accuracy check: correct results pass, wrong ones fail, and undecidable ones never pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.accuracy_check import BACKENDS, NET, check_accuracy
from tests.worker.in_process_service import make_service, write_file

pytestmark = pytest.mark.torch


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("backend", ["eager", "right", "aot_eager"])
def test_correct_results_pass(tmp_path: Path, net: str, mode: str, backend: str) -> None:
    record = check_accuracy(tmp_path, net, backend, mode=mode, step=mode == "training")
    assert record["status"] == "pass", record
    # outputs; in training also the loss, four gradients and four parameters
    assert record["compared"] == (2 if mode == "inference" else 11)
    assert record["nondeterminism"] == 0.0
    assert 0 < record["baseline_rmse"] < 1e-6
    assert record["max_error"] < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_inductor_passes(tmp_path: Path, net: str, mode: str) -> None:
    assert check_accuracy(tmp_path, net, "inductor", mode=mode)["status"] == "pass"


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("scaled", "output 0: "),
        ("shifted", "output 0: "),
        ("one_element", "output 1: "),
        ("not_a_number", "output 0: 1 of 32 numbers are NaN or infinite in one variant only"),
        ("all_nan", "output 0: 32 of 32 numbers are NaN or infinite in one variant only"),
        ("shape", "output 0: shape (7, 4) instead of (8, 4)"),
        ("missing", "output: 1 tensors instead of 2"),
        ("nothing", "output: 0 tensors instead of 2"),
        ("whole", "output 0: torch.int64 instead of torch.float32"),
    ],
)
def test_wrong_results_fail_and_are_named(
    tmp_path: Path, net: str, backend: str, words: str
) -> None:
    record = check_accuracy(tmp_path, net, backend)
    assert record["status"] == "fail", record
    assert words in record["detail"]


def test_the_only_output_being_nan_or_missized_is_a_failure(tmp_path: Path) -> None:
    code = "import torch\ndef make():\n    return torch.nn.Linear(4, 2), torch.ones(3, 4)\n"
    text = "def nan(m):\n    return lambda x: m(x) * float('nan')\ndef cut(m):\n    return lambda x: m(x)[1:]\n"
    path, mine = write_file(tmp_path, "one.py", code), write_file(tmp_path, "mine.py", text)
    for function in ("nan", "cut"):
        assert check_accuracy(tmp_path, path, f"{mine}:{function}")["status"] == "fail"


def test_a_wrong_gradient_alone_fails_in_training(tmp_path: Path, net: str) -> None:
    assert check_accuracy(tmp_path, net, "gradient")["status"] == "pass"
    record = check_accuracy(tmp_path, net, "gradient", mode="training")
    assert record["status"] == "fail"
    assert record["detail"].startswith("gradient of first.weight: ")


TINY = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.large = nn.Parameter(torch.randn(64))
            self.tiny = nn.Parameter(torch.randn(64))

        def forward(self, x):
            return x * self.large, x * self.tiny

        def example_inputs(self):
            return (torch.randn(8, 64),)

        def loss(self, output):
            return output[0].sum() + SIZE * output[1].sum()
"""


@pytest.mark.parametrize("size", ["1e-3", "1e-9", "1e-15"])
def test_tiny_gradients_cannot_hide_behind_large_ones(tmp_path: Path, size: str) -> None:
    backend = """
        import torch
        class Halved(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, gradient):
                return gradient * 0.5
        def halved(module):
            def call(x):
                large, tiny = module(x)
                return large, Halved.apply(tiny)
            return call
        def same(module):
            return lambda x: module(x)
    """
    path = write_file(tmp_path, "tiny.py", TINY.replace("SIZE", size))
    mine = write_file(tmp_path, "mine.py", backend)
    assert check_accuracy(tmp_path, path, f"{mine}:same", mode="training")["status"] == "pass"
    record = check_accuracy(tmp_path, path, f"{mine}:halved", mode="training")
    assert record["status"] == "fail"
    assert record["detail"].startswith("gradient of tiny: ")


def test_gradients_that_are_only_rounding_do_not_fail(tmp_path: Path) -> None:
    # GIVEN a bias before a normalisation: its true gradient is zero, what is computed is noise
    code = """
        import torch
        from torch import nn
        def make():
            net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 1))
            return net, torch.randn(64, 32), lambda output: (output ** 2).sum()
    """
    backend = """
        def reordered(module):
            flip = lambda x: module(x.flip(0)).flip(0)
            return flip
    """
    path = write_file(tmp_path, "norm.py", code)
    mine = write_file(tmp_path, "mine.py", backend)
    record = check_accuracy(tmp_path, path, f"{mine}:reordered", mode="training")
    assert record["status"] == "pass", record


@pytest.mark.parametrize("precision", ["bfloat16", "amp"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_short_formats_pass_with_the_error_of_their_rounding(
    tmp_path: Path, net: str, precision: str, mode: str
) -> None:
    record = check_accuracy(tmp_path, net, "aot_eager", precision=precision, mode=mode)
    assert record["status"] == "pass", record
    assert record["candidate_rmse"] > 1e-5


def test_half_precision_does_not_excuse_wrong_results(tmp_path: Path, net: str) -> None:
    backend = "def wrong(module):\n    return lambda x: (module(x)[0] * 1.5, module(x)[1])\n"
    mine = write_file(tmp_path, "mine.py", backend) + ":wrong"
    assert check_accuracy(tmp_path, net, mine, precision="bfloat16")["status"] == "fail"


REFUSES = """
    import torch
    from torch import nn

    class Net(nn.Linear):
        def __init__(self):
            super().__init__(16, 16)
        def forward(self, x):
            if x.dtype is torch.float64:
                raise TypeError("only singles here")
            return super().forward(x)
        def example_inputs(self):
            return (torch.randn(8, 16),)
"""


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        ("module(x.flip(0)).flip(0)", "pass"),
        ("module(x) * 1.001", "fail"),
        ("module(x) * 3", "fail"),
        ("module(x).flip(1)", "fail"),
        ("module(x) * (torch.arange(8) != 3)[:, None]", "fail"),
    ],
)
def test_without_a_float64_reference_the_baseline_is_the_reference(
    tmp_path: Path, candidate: str, status: str
) -> None:
    path = write_file(tmp_path, "refuses.py", REFUSES)
    text = f"import torch\ndef mine(module):\n    return lambda x: {candidate}\n"
    record = check_accuracy(tmp_path, path, write_file(tmp_path, "mine.py", text) + ":mine")
    assert record["status"] == status, record
    assert record["method"].startswith("float32 baseline, ")
    assert record["without_reference"] == "TypeError: only singles here"


DROPOUT = """
    import torch
    from torch import nn
    def make():
        net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5))
        return net, torch.randn(8, 16), lambda output: output.sum()
"""


def test_a_random_workload_is_compared_where_both_draw_the_same_numbers(tmp_path: Path) -> None:
    path = write_file(tmp_path, "dropout.py", DROPOUT)
    for backend in ("eager", "aot_eager"):
        record = check_accuracy(tmp_path, path, backend, mode="training")
        assert record["status"] == "pass", record


@pytest.mark.parametrize(
    ("candidate", "status", "words"),
    [
        ("(torch.rand(1), m(x))[1]", "random", "means and variances over 8 draws agree"),
        ("m[0](x)", "fail", "its variance is 0 times that of eager code"),
        ("m[0](x) * (torch.rand(8, 64) < 0.5)", "fail", "times that of eager code"),
    ],
)
def test_other_random_numbers_are_compared_by_statistics_and_never_pass(
    tmp_path: Path, candidate: str, status: str, words: str
) -> None:
    path = write_file(tmp_path, "dropout.py", DROPOUT)
    text = f"import torch\ndef mine(m):\n    return lambda x: {candidate}\n"
    mine = write_file(tmp_path, "mine.py", text) + ":mine"
    record = check_accuracy(tmp_path, path, mine, mode="training")
    assert record["status"] == status, record
    assert words in record["detail"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inductor_is_compiled_for_the_check_to_draw_what_eager_draws(tmp_path: Path) -> None:
    path = write_file(tmp_path, "dropout.py", DROPOUT)
    record = check_accuracy(tmp_path, path, "inductor", mode="training")
    assert record["status"] == "pass", record
    assert record["method"].endswith("compiled for the check with inductor.fallback_random")


def test_a_random_shape_is_random_too(tmp_path: Path) -> None:
    code = """
        import torch
        def some(x):
            return x[torch.rand(64) > 0.5]
        def make():
            return some, torch.randn(64)
    """
    path = write_file(tmp_path, "some.py", code)
    text = "import torch\ndef mine(m):\n    return lambda x: (torch.rand(1), m(x))[1]\n"
    mine = write_file(tmp_path, "mine.py", text) + ":mine"
    assert check_accuracy(tmp_path, path, "eager")["status"] == "pass"
    assert check_accuracy(tmp_path, path, mine)["status"] == "random"


@pytest.mark.parametrize(("factor", "status"), [("1.0000001", "pass"), ("1.001", "fail")])
def test_a_model_that_computes_something_else_in_float64_is_compared_with_the_baseline(
    tmp_path: Path, factor: str, status: str
) -> None:
    code = """
        import torch
        class Odd(torch.nn.Linear):
            def forward(self, x):
                y = super().forward(x)
                return y * 1.5 if y.dtype is torch.float32 else y
        def make():
            return Odd(16, 16), torch.randn(64, 16)
    """
    mine = write_file(tmp_path, "mine.py", f"def mine(m):\n    return lambda x: m(x) * {factor}\n")
    record = check_accuracy(tmp_path, write_file(tmp_path, "odd.py", code), mine + ":mine")
    assert record["status"] == status, record
    assert record["without_reference"] == "the workload computes something else in float64"


def test_results_without_a_finite_number_are_unchecked(tmp_path: Path) -> None:
    code = "import torch\ndef make():\n    return torch.log, -torch.ones(8)\n"
    record = check_accuracy(tmp_path, write_file(tmp_path, "nan.py", code), "eager")
    assert record["status"] == "unchecked"
    assert "no finite number" in record["detail"]


def test_whole_and_complex_numbers_are_compared(tmp_path: Path) -> None:
    whole = "import torch\ndef make():\n    return torch.argsort, torch.randn(64)\n"
    waves = "import torch\ndef make():\n    return torch.fft.fft, torch.randn(64)\n"
    mine = write_file(
        tmp_path,
        "mine.py",
        "def rolled(m):\n    return lambda x: m(x).roll(1)\n"
        "def near(m):\n    return lambda x: m(x) * (1 + 1e-7)\n",
    )
    whole_path = write_file(tmp_path, "whole.py", whole)
    waves_path = write_file(tmp_path, "waves.py", waves)
    assert check_accuracy(tmp_path, whole_path, "eager")["status"] == "pass"
    assert "integers differ" in check_accuracy(tmp_path, whole_path, f"{mine}:rolled")["detail"]
    assert check_accuracy(tmp_path, waves_path, f"{mine}:near")["status"] == "pass"
    assert check_accuracy(tmp_path, waves_path, f"{mine}:rolled")["status"] == "fail"


OTHER_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.worker.in_process_service import make_service, variant
service = make_service(sys.argv[2], variant("c", sys.argv[4]), mode="training")
print(json.dumps(service.judge("c", sys.argv[3])))
"""


@pytest.mark.slow
def test_the_reference_travels_between_processes(tmp_path: Path, net: str) -> None:
    path = str(tmp_path / "reference.pt")
    make_service(net, mode="training").reference("eager", path)
    assert [file.name for file in tmp_path.glob("reference*")] == ["reference.pt"]
    mine = write_file(tmp_path, "backends.py", BACKENDS)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", OTHER_PROCESS, root, net, path, f"{mine}:gradient"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    record = json.loads(completed.stdout)
    assert record["status"] == "fail"
    assert record["compared"] == 7
