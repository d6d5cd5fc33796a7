"""The accuracy check with noise, NaN, masks, sparse and complex numbers, and large models."""

from __future__ import annotations

import math
import re
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.accuracy_check import NET, check_accuracy
from tests.worker.in_process_service import make_service, variant, write_file

pytestmark = pytest.mark.torch


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


NOISY = """
    import torch
    class Noisy(torch.nn.Module):
        count = 0
        def forward(self, x):
            self.count += 1
            return x + (self.count % 5) * STEP
    def make():
        return Noisy(), 1 + torch.rand(64)
"""


@pytest.mark.parametrize(("step", "status"), [("1e-7", "pass"), ("1e-3", "nondeterministic")])
def test_noise_between_two_runs_is_measured_and_matters_beyond_rounding(
    tmp_path: Path, step: str, status: str
) -> None:
    code = write_file(tmp_path, "noisy.py", NOISY.replace("STEP", step))
    service = make_service(code, variant("a"), variant("b"))
    path = str(tmp_path / "reference.pt")
    answer = service.reference("a", path)
    assert answer["nondeterminism"] == pytest.approx(float(step), rel=0.2)
    assert not answer["random"]
    record = service.judge("b", path)
    assert record["nondeterminism"] == answer["nondeterminism"]
    assert record["status"] == status, record
    assert record["candidate_nondeterminism"] > 0
    if status != "pass":
        assert "two runs of the baseline differ by up to" in record["detail"]


def test_noise_that_two_runs_do_not_show_is_not_taken_for_randomness(tmp_path: Path) -> None:
    rare = NOISY.replace("(self.count % 5) * STEP", "(self.count > 3) * 1e-3")
    service = make_service(write_file(tmp_path, "rare.py", rare), variant("a"), variant("b"))
    path = str(tmp_path / "reference.pt")
    answer = service.reference("a", path)
    assert answer["nondeterminism"] == pytest.approx(1e-3, rel=0.1)
    assert not answer["random"]
    assert service.judge("b", path)["status"] == "nondeterministic"


def test_noise_does_not_excuse_wrong_results(tmp_path: Path) -> None:
    mine = write_file(tmp_path, "mine.py", "def wrong(m):\n    return lambda x: m(x) * 1.5\n")
    for step in ("1e-6", "1e-3"):
        code = write_file(tmp_path, "noisy.py", NOISY.replace("STEP", step))
        record = check_accuracy(tmp_path, code, f"{mine}:wrong")
        assert record["status"] == "fail"
        assert "more than rounding explains" in record["detail"]


def test_what_two_runs_of_the_baseline_show_too_is_not_called_wrong(tmp_path: Path) -> None:
    """A tenth of noise: no candidate can be close, and none can be called wrong for it."""
    loud = NOISY.replace("(self.count % 5) * STEP", "(self.count % 7) * 0.1")
    record = check_accuracy(tmp_path, write_file(tmp_path, "loud.py", loud), "eager")
    assert record["status"] == "nondeterministic", record


RACY = """
    calls = []
    def noisy(module):
        def call(x):
            calls.append(1)
            output, hidden = module(x)
            return output * (1 + 2e-7 * (len(calls) % 2)), hidden
        return call
    def now_and_then(module):
        def call(x):
            calls.append(1)
            output, hidden = module(x)
            return (output, hidden) if len(calls) % 3 else (output * 2, hidden)
        return call
"""


def test_a_nondeterministic_candidate_is_checked_twice(tmp_path: Path, net: str) -> None:
    mine = write_file(tmp_path, "racy.py", RACY)
    noisy = check_accuracy(tmp_path, net, f"{mine}:noisy")
    assert noisy["nondeterminism"] == 0.0
    assert 0 < noisy["candidate_nondeterminism"] < 1e-5
    assert noisy["status"] == "pass"
    # The first call is not judged, the next is right, the one after it is not.
    wrong = check_accuracy(tmp_path, net, f"{mine}:now_and_then")
    assert wrong["status"] == "fail"
    assert wrong["candidate_nondeterminism"] > 0.01


def check_pair(folder: Path, make: str, backend: str) -> dict[str, Any]:
    """One line that makes the pair of function and input, one that makes the candidate's answer."""
    code = write_file(folder, "made.py", f"import torch\ndef make():\n    return {make}\n")
    mine = write_file(
        folder, "answer.py", f"import torch\ndef mine(m):\n    return lambda x: {backend}\n"
    )
    return check_accuracy(folder, code, f"{mine}:mine")


@pytest.mark.parametrize(
    ("candidate", "status", "words"),
    [
        ("m(x)", "unchecked", "NaN in both variants: output 0 (2 of 64)"),
        ("m(x).nan_to_num()", "fail", "2 of 64 numbers are NaN or infinite in one variant only"),
        ("torch.where(m(x).isnan(), torch.inf, m(x))", "fail", "in one variant only"),
        ("m(x) + 1", "fail", "more than rounding explains"),
    ],
)
def test_nan_in_both_variants_does_not_pass(
    tmp_path: Path, candidate: str, status: str, words: str
) -> None:
    make = "torch.sqrt, torch.arange(64.0) - 2"
    record = check_pair(tmp_path, make, candidate)
    assert record["status"] == status, record
    assert words in record["detail"]


@pytest.mark.parametrize(("candidate", "status"), [("m(x)", "pass"), ("-m(x)", "fail")])
def test_infinities_must_be_the_same_ones(tmp_path: Path, candidate: str, status: str) -> None:
    """Attention masks are full of them."""
    make = "(lambda x: torch.where(x > 60, -torch.inf, 0 * x)), torch.arange(64.0)"
    assert check_pair(tmp_path, make, candidate)["status"] == status


@pytest.mark.parametrize(
    ("candidate", "status"),
    [("m(x)", "pass"), ("m(x) & (x != 500)", "fail"), ("m(x) & (x > 600)", "fail")],
)
def test_masks_must_be_equal(tmp_path: Path, candidate: str, status: str) -> None:
    record = check_pair(tmp_path, "(lambda x: x > 200), torch.arange(1000.0)", candidate)
    assert record["status"] == status, record
    assert status == "pass" or "of 1000 booleans differ, the first at [" in record["detail"]


@pytest.mark.parametrize(("candidate", "status"), [("m(x)", "pass"), ("m(x) * 2", "fail")])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_results_are_compared(tmp_path: Path, candidate: str, status: str) -> None:
    for form in ("to_sparse", "to_sparse_csr"):
        make = f"(lambda x: x.{form}()), torch.eye(8)"
        assert check_pair(tmp_path, make, candidate)["status"] == status


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
    assert check_accuracy(tmp_path, path, "eager", mode="training")["status"] == "pass"
    record = check_accuracy(tmp_path, path, backend, mode="training")
    assert record["status"] == "fail"
    assert record["detail"].startswith("gradient of weight: ")


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
    record = check_accuracy(tmp_path, write_file(tmp_path, "turn.py", code), "aot_eager")
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
    record = check_accuracy(tmp_path, write_file(tmp_path, "half.py", code), mine, mode="training")
    assert record["status"] == "pass", record


BIG = """
    import torch
    def make():
        return torch.nn.Linear(4096, 4096, bias=False), torch.randn(1, 4096)
"""


def test_float64_copy_that_does_not_fit_is_skipped_with_a_reason(tmp_path: Path) -> None:
    """64 MiB of weights become 128; the process may take 40 more than it has."""
    service = make_service(write_file(tmp_path, "big.py", BIG), variant("a"), variant("b"))
    service.runner("a").first_call()
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    path = str(tmp_path / "reference.pt")
    service.reference("a", path, held + (40 << 20))
    record = service.judge("b", path)
    assert record["status"] == "pass"
    assert re.fullmatch(
        r"a float64 copy needs about 0\.1\d GiB, and 0\.0\d GiB are available",
        record["without_reference"],
    )
    service.reference("a", path, held + (8 << 30))
    assert "without_reference" not in service.judge("b", path)


def test_the_limits_of_the_process_itself_count(tmp_path: Path) -> None:
    from torchyard.worker.host_memory import allocatable_bytes

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used + (256 << 20), hard))
    try:
        free = allocatable_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert free is not None
    assert abs(free - (256 << 20)) < 32 << 20


def test_less_precision_is_measured_by_eager_code_of_the_same(tmp_path: Path, net: str) -> None:
    """An option that computes in less precision is no excuse for a backend that errs more."""
    wrong = "def wrong(module):\n    return lambda x: (module(x)[0] * 1.5, module(x)[1])\n"
    mine = write_file(tmp_path, "mine.py", wrong) + ":wrong"
    path = str(tmp_path / "reference.pt")
    service = make_service(
        net,
        variant("a"),
        variant("b", matmul_precision="medium"),
        variant("c", mine, matmul_precision="medium"),
    )
    service.reference("a", path)
    assert service.judge("b", path)["status"] == "pass"
    assert service.judge("c", path)["status"] == "fail"


def test_convolutions_on_a_gpu_are_compared_at_tf32_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from torchyard.worker import devices
    from torchyard.worker.bench.accuracy.judge import coarser, rounding_of

    def rounding(precision: str, device: str, module: Any, **options: Any) -> str:
        model = SimpleNamespace(module=module)
        hardware = devices.device_of(device)
        runner = SimpleNamespace(
            precision=precision, hardware=hardware, model=model, options=options
        )
        return rounding_of(runner)

    convolves, multiplies = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), torch.nn.Linear(3, 4)
    monkeypatch.setattr(devices._torch_cuda, "get_device_capability", lambda _index: (9, 0))
    assert rounding("float32", "cuda:0", convolves) == "tf32"
    assert rounding("float32", "cuda", multiplies) == "float32"
    assert rounding("float32", "cuda", multiplies, tf32=True) == "tf32"
    assert rounding("float32", "cpu", convolves) == "float32"
    assert rounding("float32", "cpu", multiplies, **{"matmul-precision": "medium"}) == "amp"
    assert rounding("amp", "cuda", convolves) == "amp-float16"
    assert rounding("amp", "cpu", convolves) == "amp"
    monkeypatch.setattr(devices._torch_cuda, "get_device_capability", lambda _index: (7, 0))
    assert rounding("float32", "cuda", convolves) == "float32"
    monkeypatch.setattr(devices._torch_cuda, "get_device_capability", lambda _index: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert rounding("float32", "cuda", convolves) == "float32"
    assert coarser("bfloat16", "float32") == coarser("float32", "bfloat16") == "bfloat16"


def test_the_distance_of_results_is_independent_of_the_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from torchyard.worker.bench.accuracy import tensors
    from torchyard.worker.bench.accuracy.timed_results import distance

    generator = torch.Generator().manual_seed(1)
    right = torch.randn(7, 13, generator=generator)
    left = right + 1e-3 * torch.randn(7, 13, generator=generator)
    gap, size = (left - right).double(), right.double()
    expected = [float(gap.norm() / size.norm()), float(gap.abs().max() / size.abs().max())]
    infinite = right.clone()
    infinite[3, 4] = math.inf
    both = left.clone()
    both[3, 4] = math.inf
    for piece in (1, 10, 1 << 22):
        monkeypatch.setattr(tensors, "PIECE", piece)
        assert distance(left, right) == pytest.approx(expected)
        assert distance(right, right) == [0.0, 0.0]
        assert all(map(math.isfinite, distance(both, infinite)))
        for wrong in (infinite, right * math.nan, right.double(), right[:6]):
            assert distance(wrong, right) == [math.inf, math.inf]
        assert distance(right, 0 * right) == [math.inf, math.inf]


@pytest.mark.parametrize("width", [63, 64, 65])
def test_the_typical_error_is_not_that_of_one_wrong_column(width: int) -> None:
    """Otherwise the wrong column would pass as a lower precision of the whole tensor."""
    import torch

    from torchyard.worker.bench.accuracy.tolerances import Scale, profile

    torch.manual_seed(0)
    reference = 1 + torch.rand((1 << 16, width), dtype=torch.float64)
    scale = Scale(reference, 2.0**-23)
    scale.add(reference + 1e-7 * torch.randn_like(reference))
    numbers = reference + 1e-7 * torch.randn_like(reference)
    numbers[:, 0] += 1e-5 * torch.randn(1 << 16, dtype=torch.float64)
    assert 0.3 < profile(numbers, scale, "cpu").typical < 3.0


SINGLE = """
    import torch
    class Single(torch.nn.Module):
        def forward(self, x):
            return FORMULA
    def make():
        return Single(), 1 + torch.rand(64)
    def near(module):
        return lambda x: module(x) * (1 + STEPS * torch.finfo(torch.float32).eps)
"""


@pytest.mark.parametrize("formula", ["x.sum()", "x[0].clone()", "(x[:1] * x[1:2])"])
def test_a_single_number_is_near_only_where_the_full_check_accepts_it(
    tmp_path: Path, formula: str
) -> None:
    from torchyard.worker.bench.accuracy.timed_results import SINGLE_STEPS, Verifier

    def verifier_of(steps: float) -> tuple[Any, Any, Verifier]:
        text = SINGLE.replace("FORMULA", formula).replace("STEPS", str(steps))
        # A name of its own: Python takes a file of the same size and second from its cache.
        code = write_file(tmp_path, f"single_{int(10 * steps)}.py", text)
        service = make_service(f"{code}:make", variant("a"), variant("b", f"{code}:near"))
        verifier = Verifier(service.runner("b"), 1, None)
        right = service.runner("a").results(1)[0]
        verifier.accept(right, right)
        return service, right, verifier

    service, right, verifier = verifier_of(SINGLE_STEPS - 0.5)
    assert verifier.is_near(service.runner("b").results(1)[0], right)
    path = str(tmp_path / "reference.pt")
    service.reference("a", path)
    assert service.judge("b", path)["status"] != "fail"
    service, right, verifier = verifier_of(2 * SINGLE_STEPS)
    assert not verifier.is_near(service.runner("b").results(1)[0], right)


def test_rounding_steps_are_not_near_in_a_tensor_of_several_numbers(net: str) -> None:
    import torch

    from torchyard.worker.bench.accuracy.timed_results import Verifier

    service = make_service(net, variant("a"), variant("b"))
    verifier = Verifier(service.runner("b"), 1, None)
    right = {"output": [torch.tensor([1e4, 1e-4])]}
    verifier.accept(right, right)
    assert verifier.is_near({"output": [right["output"][0].clone()]}, right)
    assert not verifier.is_near({"output": [torch.tensor([1e4, 2e-4])]}, right)


def test_a_timed_result_that_passed_the_full_check_adds_no_margin(net: str) -> None:
    import torch

    from torchyard.worker.bench.accuracy.timed_results import Verifier

    def result(difference: float) -> dict[str, list[Any]]:
        return {"output": [torch.tensor([1.0, 2.0 + difference])]}

    verifier = Verifier(make_service(net, variant("a"), variant("b")).runner("b"), 1, None)
    verifier.accept(result(0.01), result(0.0))
    assert verifier.is_near(result(0.02), result(0.0))
    assert not verifier.is_near(result(0.08), result(0.0))
    verifier.accept(result(0.08), result(0.0), margin=1.0)
    assert verifier.is_near(result(0.07), result(0.0))
    assert not verifier.is_near(result(0.1), result(0.0))


def test_no_difference_from_zero_is_near_after_one_was_accepted(net: str) -> None:
    import torch

    from torchyard.worker.bench.accuracy.timed_results import Verifier

    zeros, tiny = ({"output": [torch.full((4,), value)]} for value in (0.0, 1e-30))
    verifier = Verifier(make_service(net, variant("a"), variant("b")).runner("b"), 1, None)
    verifier.accept(tiny, zeros)
    assert verifier.is_near(zeros, zeros)
    assert not verifier.is_near({"output": [torch.ones(4)]}, zeros)


def test_equal_results_are_checked_once_and_others_again(net: str, tmp_path: Path) -> None:
    from torchyard.worker.bench.accuracy import judge as accuracy

    service = make_service(net, variant("a"), variant("b"))
    reference = accuracy.make_reference(service.runner("a"), 1)
    runner = service.runner("b")
    results = runner.results(1)[0]
    first = accuracy.judge(runner, 1, reference, results=results)
    assert accuracy.judge(runner, 1, reference, results=results) == first
    wrong = {group: [one * 1.5 for one in tensors] for group, tensors in results.items()}
    assert first["status"] == "pass"
    assert accuracy.judge(runner, 1, reference, results=wrong)["status"] == "fail"
    assert accuracy.judge(runner, 1, reference, results=results)["status"] == "pass"
