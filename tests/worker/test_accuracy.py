"""Right is called right, wrong is called wrong, and what cannot be told is never called right."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from desk_with import desk_with, variant, write_file

pytestmark = pytest.mark.torch

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 64)
            self.second = nn.Linear(64, 4)

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            return self.second(hidden), hidden

        def example_inputs(self):
            return (torch.randn(8, 16),)

        def loss(self, output):
            return output[0].square().mean()
"""

BACKENDS = """
    import torch

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.01

    def right(module):
        return lambda x: module(x)

    def scaled(module):
        return lambda x: (module(x)[0] * 1.01, module(x)[1])

    def shifted(module):
        return lambda x: (module(x)[0] + 0.01, module(x)[1])

    def gradient(module):
        return lambda x: (Wrong.apply(module(x)[0]), module(x)[1])

    def not_a_number(module):
        def call(x):
            output, hidden = module(x)
            output = output.clone()
            output[0, 0] = float("nan")
            return output, hidden
        return call

    def all_nan(module):
        return lambda x: (module(x)[0] * float("nan"), module(x)[1])

    def shape(module):
        return lambda x: (module(x)[0][:-1], module(x)[1])

    def missing(module):
        return lambda x: module(x)[:1]

    def nothing(module):
        return lambda x: None

    def whole(module):
        return lambda x: (module(x)[0].long(), module(x)[1])

    def one_element(module):
        def call(x):
            output, hidden = module(x)
            hidden = hidden.clone()
            hidden[3, 7] += 0.5
            return output, hidden
        return call
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


def judge(
    folder: Path,
    code: str,
    backend: str,
    *,
    mode: str = "inference",
    precision: str = "float32",
    step: bool = False,
) -> dict[str, Any]:
    if backend.isidentifier() and backend not in {"eager", "inductor", "aot_eager"}:
        backend = write_file(folder, "backends.py", BACKENDS) + ":" + backend
    candidate = variant("candidate", backend, precision)
    desk = desk_with(code, variant("baseline"), candidate, mode=mode, step=step)
    path = str(folder / "reference.pt")
    desk.reference("baseline", path)
    found: dict[str, Any] = desk.judge("candidate", path)
    return found


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("backend", ["eager", "right", "aot_eager"])
def test_right_results_pass(tmp_path: Path, net: str, mode: str, backend: str) -> None:
    record = judge(tmp_path, net, backend, mode=mode, step=mode == "training")
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
    assert judge(tmp_path, net, "inductor", mode=mode)["status"] == "pass"


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("scaled", "output 0: "),
        ("shifted", "output 0: "),
        ("one_element", "output 1: "),
        ("not_a_number", "output 0: not finite"),
        ("all_nan", "output 0: not finite"),
        ("shape", "output 0: shape (7, 4) instead of (8, 4)"),
        ("missing", "output: 1 tensors instead of 2"),
        ("nothing", "output: 0 tensors instead of 2"),
        ("whole", "output 0: torch.int64 instead of torch.float32"),
    ],
)
def test_wrong_results_fail_and_are_named(
    tmp_path: Path, net: str, backend: str, words: str
) -> None:
    record = judge(tmp_path, net, backend)
    assert record["status"] == "fail", record
    assert words in record["detail"]


def test_the_only_output_being_nan_or_missized_is_a_failure(tmp_path: Path) -> None:
    code = "import torch\ndef make():\n    return torch.nn.Linear(4, 2), torch.ones(3, 4)\n"
    text = "def nan(m):\n    return lambda x: m(x) * float('nan')\ndef cut(m):\n    return lambda x: m(x)[1:]\n"
    path, mine = write_file(tmp_path, "one.py", code), write_file(tmp_path, "mine.py", text)
    for function in ("nan", "cut"):
        assert judge(tmp_path, path, f"{mine}:{function}")["status"] == "fail"


def test_a_wrong_gradient_alone_fails_in_training(tmp_path: Path, net: str) -> None:
    assert judge(tmp_path, net, "gradient")["status"] == "pass"
    record = judge(tmp_path, net, "gradient", mode="training")
    assert record["status"] == "fail"
    assert record["detail"].startswith("gradient")


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
    assert judge(tmp_path, path, f"{mine}:same", mode="training")["status"] == "pass"
    record = judge(tmp_path, path, f"{mine}:halved", mode="training")
    assert record["status"] == "fail"
    assert "gradient 1" in record["detail"]


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
    record = judge(tmp_path, path, f"{mine}:reordered", mode="training")
    assert record["status"] == "pass", record


@pytest.mark.parametrize("precision", ["bfloat16", "amp"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_half_precision_passes_when_its_own_eager_is_as_far(
    tmp_path: Path, net: str, precision: str, mode: str
) -> None:
    record = judge(tmp_path, net, "aot_eager", precision=precision, mode=mode)
    assert record["status"] == "pass", record
    assert record["candidate_rmse"] > 1e-5


def test_half_precision_does_not_excuse_wrong_results(tmp_path: Path, net: str) -> None:
    backend = "def wrong(module):\n    return lambda x: (module(x)[0] * 1.5, module(x)[1])\n"
    mine = write_file(tmp_path, "mine.py", backend) + ":wrong"
    assert judge(tmp_path, net, mine, precision="bfloat16")["status"] == "fail"


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


def test_without_a_float64_reference_the_cosine_is_used_and_said(tmp_path: Path) -> None:
    backends = """
        def near(module):
            return lambda x: module(x) * 1.001
        def far(module):
            return lambda x: module(x).flip(1)
    """
    path = write_file(tmp_path, "refuses.py", REFUSES)
    mine = write_file(tmp_path, "mine.py", backends)
    near, far = (judge(tmp_path, path, f"{mine}:{name}") for name in ("near", "far"))
    for record in (near, far):
        assert record["method"].startswith("cosine at least 0.99")
        assert record["without_reference"] == "TypeError: only singles here"
    assert (near["status"], far["status"]) == ("pass", "fail")


def test_a_random_workload_never_passes(tmp_path: Path) -> None:
    code = """
        import torch
        from torch import nn
        def make():
            net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
            return net, torch.randn(8, 16), lambda output: output.sum()
    """
    path = write_file(tmp_path, "dropout.py", code)
    assert judge(tmp_path, path, "aot_eager")["status"] == "pass"
    for backend in ("eager", "aot_eager"):
        record = judge(tmp_path, path, backend, mode="training")
        assert record["status"] == "random"
        assert "random numbers" in record["detail"]


def test_a_random_shape_is_random_too(tmp_path: Path) -> None:
    code = """
        import torch
        def some(x):
            return x[torch.rand(64) > 0.5]
        def make():
            return some, torch.randn(64)
    """
    assert judge(tmp_path, write_file(tmp_path, "some.py", code), "eager")["status"] == "random"


NOISY = """
    import torch
    class Noisy(torch.nn.Module):
        count = 0
        def forward(self, x):
            self.count += 1
            return x + self.count * 1e-6
    def make():
        return Noisy(), torch.ones(8)
"""


def test_noise_between_two_runs_is_measured_and_never_passes(tmp_path: Path) -> None:
    desk = desk_with(write_file(tmp_path, "noisy.py", NOISY), variant("a"), variant("b"))
    path = str(tmp_path / "reference.pt")
    said = desk.reference("a", path)
    assert said["nondeterminism"] == pytest.approx(1e-6, rel=0.1)
    assert not said["random"]
    record = desk.judge("b", path)
    assert record["nondeterminism"] == said["nondeterminism"]
    assert record["status"] == "nondeterministic"
    assert "two runs of the baseline differ by up to" in record["detail"]
    assert "of the candidate" in record["detail"]


def test_noise_does_not_excuse_wrong_results(tmp_path: Path) -> None:
    mine = write_file(tmp_path, "mine.py", "def wrong(m):\n    return lambda x: m(x) * 1.5\n")
    record = judge(tmp_path, write_file(tmp_path, "noisy.py", NOISY), f"{mine}:wrong")
    assert record["status"] == "fail"
    assert "from the float64 reference" in record["detail"]


def test_what_two_runs_of_the_baseline_show_too_is_not_called_wrong(tmp_path: Path) -> None:
    """A tenth of noise: no candidate can be close, and none can be called wrong for it."""
    loud = NOISY.replace("self.count * 1e-6", "(self.count % 7) * 0.1")
    record = judge(tmp_path, write_file(tmp_path, "loud.py", loud), "eager")
    assert record["status"] == "nondeterministic", record


def test_a_candidate_that_differs_from_itself_never_passes(tmp_path: Path, net: str) -> None:
    racy = """
        calls = []
        def racy(module):
            def call(x):
                calls.append(1)
                output, hidden = module(x)
                return output * (1 + 1e-7 * len(calls)), hidden
            return call
    """
    mine = write_file(tmp_path, "racy.py", racy)
    record = judge(tmp_path, net, f"{mine}:racy")
    assert record["nondeterminism"] == 0.0
    assert record["status"] == "nondeterministic"
    assert record["detail"].startswith("two runs of the candidate differ")


def test_results_without_a_finite_number_are_unchecked(tmp_path: Path) -> None:
    code = "import torch\ndef make():\n    return torch.log, -torch.ones(8)\n"
    record = judge(tmp_path, write_file(tmp_path, "nan.py", code), "eager")
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
    assert judge(tmp_path, whole_path, "eager")["status"] == "pass"
    assert "whole numbers differ" in judge(tmp_path, whole_path, f"{mine}:rolled")["detail"]
    assert judge(tmp_path, waves_path, f"{mine}:near")["status"] == "pass"
    assert judge(tmp_path, waves_path, f"{mine}:rolled")["status"] == "fail"


def judge_pair(folder: Path, make: str, backend: str) -> dict[str, Any]:
    """One line that makes the pair of function and input, one that makes the candidate's answer."""
    code = write_file(folder, "made.py", f"import torch\ndef make():\n    return {make}\n")
    mine = write_file(
        folder, "answer.py", f"import torch\ndef mine(m):\n    return lambda x: {backend}\n"
    )
    return judge(folder, code, f"{mine}:mine")


@pytest.mark.parametrize(
    ("candidate", "status", "words"),
    [
        ("m(x)", "unchecked", "NaN on both sides: output 0 (2 of 64)"),
        ("m(x).nan_to_num()", "fail", "not finite where the baseline is"),
        ("torch.where(m(x).isnan(), torch.inf, m(x))", "fail", "NaN or infinity"),
        ("m(x) + 1", "fail", "from the float64 reference"),
    ],
)
def test_nan_on_both_sides_is_no_pass(
    tmp_path: Path, candidate: str, status: str, words: str
) -> None:
    make = "torch.sqrt, torch.arange(64.0) - 2"
    record = judge_pair(tmp_path, make, candidate)
    assert record["status"] == status, record
    assert words in record["detail"]


@pytest.mark.parametrize(("candidate", "status"), [("m(x)", "pass"), ("-m(x)", "fail")])
def test_infinities_must_be_the_same_ones(tmp_path: Path, candidate: str, status: str) -> None:
    """Attention masks are full of them."""
    make = "(lambda x: torch.where(x > 60, -torch.inf, 0 * x)), torch.arange(64.0)"
    assert judge_pair(tmp_path, make, candidate)["status"] == status


@pytest.mark.parametrize(
    ("candidate", "status"),
    [("m(x)", "pass"), ("m(x) & (x != 500)", "pass"), ("m(x) & (x > 600)", "fail")],
)
def test_masks_must_overlap(tmp_path: Path, candidate: str, status: str) -> None:
    record = judge_pair(tmp_path, "(lambda x: x > 200), torch.arange(1000.0)", candidate)
    assert record["status"] == status, record
    assert status == "pass" or "of its mask overlaps" in record["detail"]


@pytest.mark.parametrize(("candidate", "status"), [("m(x)", "pass"), ("m(x) * 2", "fail")])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_results_are_compared(tmp_path: Path, candidate: str, status: str) -> None:
    for form in ("to_sparse", "to_sparse_csr"):
        make = f"(lambda x: x.{form}()), torch.eye(8)"
        assert judge_pair(tmp_path, make, candidate)["status"] == status


def test_sparse_gradients_are_compared(tmp_path: Path) -> None:
    code = """
        import torch
        def make():
            table = torch.nn.Embedding(50, 4, sparse=True)
            return table, torch.tensor([1, 7, 7, 30]), lambda output: (output ** 2).sum()
    """
    mine = "def twice(m):\n    return lambda x: m(x) * 1.5 - m(x).detach() * 0.5\n"
    path = write_file(tmp_path, "table.py", code)
    backend = write_file(tmp_path, "mine.py", mine) + ":twice"
    assert judge(tmp_path, path, "eager", mode="training")["status"] == "pass"
    record = judge(tmp_path, path, backend, mode="training")
    assert record["status"] == "fail"
    assert record["detail"].startswith("gradient 0: ")


def test_complex_parameters_keep_their_imaginary_part_in_float64(tmp_path: Path) -> None:
    code = """
        import torch
        class Turn(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.by = torch.nn.Parameter(torch.randn(16, dtype=torch.complex64))
            def forward(self, x):
                return torch.fft.fft(x) * self.by
        def make():
            return Turn(), torch.randn(4, 16)
    """
    record = judge(tmp_path, write_file(tmp_path, "turn.py", code), "aot_eager")
    assert record["status"] == "pass", record
    assert record["baseline_rmse"] < 1e-5


def test_a_gradient_of_none_is_one_of_zeros(tmp_path: Path) -> None:
    code = """
        import torch
        class Half(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            def forward(self, x):
                return self.used(x)
        def make():
            return Half(), torch.randn(2, 4), lambda output: output.sum()
    """
    backend = "def zeros(m):\n    return lambda x: m(x) + 0 * m.unused(x)\n"
    mine = write_file(tmp_path, "mine.py", backend) + ":zeros"
    record = judge(tmp_path, write_file(tmp_path, "half.py", code), mine, mode="training")
    assert record["status"] == "pass", record


BIG = """
    import torch
    def make():
        return torch.nn.Linear(4096, 4096, bias=False), torch.randn(1, 4096)
"""


def test_a_copy_that_does_not_fit_is_not_made_and_that_is_said(tmp_path: Path) -> None:
    """64 MiB of weights become 128; the process may take 40 more than it has."""
    desk = desk_with(write_file(tmp_path, "big.py", BIG), variant("a"), variant("b"))
    desk._side("a").first_call()
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    path = str(tmp_path / "reference.pt")
    desk.reference("a", path, held + (40 << 20))
    record = desk.judge("b", path)
    assert record["status"] == "pass"
    assert re.fullmatch(
        r"a float64 copy needs about 0\.1\d GiB, and 0\.0\d GiB are free",
        record["without_reference"],
    )
    desk.reference("a", path, held + (8 << 30))
    assert "without_reference" not in desk.judge("b", path)


def test_the_limits_of_the_process_itself_count(tmp_path: Path) -> None:
    from torchyard.worker.float64_reference import free_bytes

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used + (256 << 20), hard))
    try:
        free = free_bytes("cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert free is not None
    assert abs(free - (256 << 20)) < 32 << 20


def test_less_precision_is_measured_by_eager_code_of_the_same(tmp_path: Path, net: str) -> None:
    """An option that computes in less precision is no excuse for a backend that errs more."""
    wrong = "def wrong(module):\n    return lambda x: (module(x)[0] * 1.5, module(x)[1])\n"
    mine = write_file(tmp_path, "mine.py", wrong) + ":wrong"
    path = str(tmp_path / "reference.pt")
    desk = desk_with(
        net,
        variant("a"),
        variant("b", matmul_precision="medium"),
        variant("c", mine, matmul_precision="medium"),
    )
    desk.reference("a", path)
    assert desk.judge("b", path)["status"] == "pass"
    assert desk.judge("c", path)["status"] == "fail"


OTHER_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from desk_with import desk_with, variant
desk = desk_with(sys.argv[2], variant("c", sys.argv[4]), mode="training")
print(json.dumps(desk.judge("c", sys.argv[3])))
"""


@pytest.mark.slow
def test_the_reference_travels_between_processes(tmp_path: Path, net: str) -> None:
    path = str(tmp_path / "reference.pt")
    desk_with(net, mode="training").reference("eager", path)
    assert [file.name for file in tmp_path.glob("reference*")] == ["reference.pt"]
    mine = write_file(tmp_path, "backends.py", BACKENDS)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", OTHER_PROCESS, here, net, path, f"{mine}:gradient"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    assert record["status"] == "fail"
    assert record["compared"] == 7
