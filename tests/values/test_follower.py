"""Surveyed steps that are followed by the compiled observer: the same is found as by the mode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from torchyard.worker.values.aside_mode import topmost_mode  # noqa: E402
from torchyard.worker.values.follow_library import FollowLibrary  # noqa: E402
from torchyard.worker.values.options import Options  # noqa: E402
from torchyard.worker.values.outside import libraries_outside  # noqa: E402
from torchyard.worker.values.session import Session  # noqa: E402

pytestmark = pytest.mark.torch

Step = Callable[[int], None]
Maker = Callable[[], Step]


def transformer() -> Step:
    """In place and not, views, a fused kernel, random numbers, gradients that are zeroed."""
    torch.manual_seed(0)
    first = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    last = nn.Sequential(
        nn.Linear(32, 16), nn.LayerNorm(16), nn.ReLU(inplace=True), nn.Dropout(0.2)
    )
    parameters = [*first.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    words, wanted = torch.randn(8, 8, 32), torch.randint(0, 16, (64,))

    def step(number: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        hidden = first(words)
        if number in (8, 12):
            hidden = hidden + torch.zeros_like(hidden).cumsum(0)
        nn.functional.cross_entropy(last(hidden).reshape(-1, 16), wanted).backward()
        optimizer.step()

    return step


def convolutions() -> Step:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
    )
    head = nn.Linear(8 * 7 * 7, 4)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
    pictures = torch.randn(4, 3, 16, 16)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(model(pictures)), torch.zeros(4, 4))
        loss.backward()
        optimizer.step()

    return step


def autocast() -> Step:
    """Casts are called from within the operators that autocast wraps."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    rows = torch.randn(16, 32)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(rows)
            product = torch.bmm(rows.unsqueeze(0), rows.t().unsqueeze(0)) * out.sum()
            product.float().pow(2).mean().backward()
        optimizer.step()

    return step


def own_function() -> Step:
    """An autograd function in Python, a part without gradients, and one of many results."""

    class Twice(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(_context: Any, given: Any) -> Any:
            return given * 2

        @staticmethod
        def backward(_context: Any, *grads: Any) -> Any:
            return grads[0] * 2

    torch.manual_seed(3)
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        parts = Twice.apply(weight).split(16)
        with torch.no_grad():
            scale = torch.stack([part.sum() for part in parts])
        best, _ = torch.cat(parts).max(1)
        (best * scale.mean()).sum().backward()
        optimizer.step()

    return step


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Where sessions look for it."""
    assert FollowLibrary(hurry=True).wait(600)


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    """It refuses bfloat16 on some machines; torch then warns, and leaves it off for good."""
    was = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(was)


def profile(make: Maker, *, follow: bool, steps: int = 14, **options: Any) -> Session:
    session = Session(Options(prove=False, least_bytes=256, **options), follow=follow)
    if session.library is not None:
        assert session.library.wait()
    step = make()
    session.start()
    try:
        for number in range(steps):
            step(number)
    finally:
        session.stop()
    return session


def found(session: Session) -> list[tuple[Any, ...]]:
    return [
        (one.pattern, one.operator, one.place.file, one.place.line, one.place.module, one.count)
        for one in session.findings.all()
    ]


def followed_steps(session: Session) -> list[bool]:
    """Remember of each step whether the follower saw it."""
    seen: list[bool] = []
    calls = session.watch._calls
    end = calls.end_step

    def noted(surveyed: bool) -> bool:
        seen.append(calls.following)
        return end(surveyed)

    calls.end_step = noted  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("make", [transformer, convolutions, autocast, own_function])
def test_the_same_is_found_and_counted(make: Maker) -> None:
    python, compiled = profile(make, follow=False), profile(make, follow=True)
    assert found(compiled) == found(python)
    assert compiled.watch.counts.as_dict() == python.watch.counts.as_dict()
    assert not compiled.notes


@pytest.mark.parametrize("make", [transformer, convolutions, autocast, own_function])
def test_steps_are_followed_to_their_end_without_the_mode(make: Maker) -> None:
    session = Session(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step, seen = make(), followed_steps(session)
    session.start()
    for number in range(7):
        step(number)
    assert seen == [False, False, False, True, True, True, True]
    assert (
        session.watch._calls._followed is not None
    )  # one was, from the first to the last operator
    # Something new in the last step makes the next one a close one, with the mode.
    assert (topmost_mode() is None) == session.watch._calls.following
    session.stop()
    assert topmost_mode() is None


def test_the_follower_is_no_reason_to_doubt_a_proof() -> None:
    profile(convolutions, follow=True, steps=7)
    assert not [name for name in libraries_outside() if name.startswith("follow-")]


def test_steps_are_left_out_at_no_cost() -> None:
    python = profile(transformer, follow=False, steps=24, every=3)
    compiled = profile(transformer, follow=True, steps=24, every=3)
    assert found(compiled) == found(python)
    assert compiled.watch.counts.steps_left_out == python.watch.counts.steps_left_out > 8


def test_an_operator_that_raises_is_not_the_end() -> None:
    def make() -> Step:
        inner = transformer()

        def step(number: int) -> None:
            if number == 9:
                with pytest.raises(RuntimeError):
                    torch.mm(torch.ones(64, 3), torch.ones(2, 64))
            inner(number)

        return step

    session = profile(make, follow=True)
    assert found(session)
    assert not session.notes


def test_a_mode_of_the_program_keeps_its_turn() -> None:
    """The watch gets out of the stack of modes and in again while the program has one there."""
    called: list[str] = []

    class Mine(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    def make() -> Step:
        inner = transformer()

        def step(number: int) -> None:
            if number == 7:
                with Mine():
                    inner(number)  # the step ends in here
                    count = len(called)
                torch.ones(8).add(1)
                assert len(called) == count
            else:
                inner(number)

        return step

    session = profile(make, follow=True)
    assert called
    assert topmost_mode() is None
    assert not session.notes


def test_a_program_that_compiles_keeps_the_mode() -> None:
    session = Session(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step, seen = transformer(), followed_steps(session)
    session.start()
    torch.compile(lambda x: x + 1, backend="eager")
    for number in range(6):
        step(number)
    session.stop()
    assert seen == [False] * 6


def test_backward_passes_in_threads_of_their_own_keep_the_mode() -> None:
    session = Session(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step, seen = transformer(), followed_steps(session)
    session.start()
    session._several_threads = True  # as with two GPUs
    for number in range(6):
        step(number)
    session.stop()
    assert seen == [False] * 6


def test_autocast_for_another_device_hides_nothing() -> None:
    def make() -> Step:
        inner = autocast()

        def step(number: int) -> None:
            # Autocast for a GPU is on, and does not wrap products on the CPU.
            torch.set_autocast_enabled("cuda", True)
            try:
                torch.mm(torch.ones(32, 32), torch.ones(32, 32))
                inner(number)
            finally:
                torch.set_autocast_enabled("cuda", False)

        return step

    python, compiled = profile(make, follow=False), profile(make, follow=True)
    assert compiled.watch.counts.as_dict() == python.watch.counts.as_dict()
    assert found(compiled) == found(python)


def test_two_sessions_in_turn_hear_of_their_own_operators() -> None:
    first = profile(transformer, follow=True)
    second = profile(convolutions, follow=True)
    assert found(first) == found(profile(transformer, follow=True))
    assert found(second) == found(profile(convolutions, follow=True))


def test_a_forked_child_is_left_alone() -> None:
    session = Session(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step = transformer()
    session.start()
    for number in range(7):
        step(number)
    child = os.fork()
    if child == 0:
        position = session.watch._calls._follower.position()  # type: ignore[union-attr]
        torch.ones(4096).add_(1)
        same = session.watch._calls._follower.position() == position  # type: ignore[union-attr]
        os._exit(0 if same and session.watch.off else 3)
    _, status = os.waitpid(child, 0)
    step(8)
    session.stop()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_mistake_of_ours_does_not_end_the_program() -> None:
    session = Session(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step = transformer()
    session.start()
    for number in range(4):
        step(number)

    def broken(*_: Any) -> None:
        raise ValueError("broken")

    session.watch._calls._enter = broken  # type: ignore[method-assign,assignment]
    for number in range(4, 9):
        step(number)
    session.stop()
    assert any("ValueError: broken" in note for note in session.notes)


def test_without_a_compiler_python_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library = FollowLibrary(str(tmp_path / "cache"))
    assert library.load(make=True) is None
    assert not library.wait()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_short_program_compiles_nothing(tmp_path: Path) -> None:
    session = Session(Options(prove=False, least_bytes=256), cache=str(tmp_path))
    step = transformer()
    session.start()
    for number in range(10):
        step(number)
    session.stop()
    assert not list(tmp_path.glob("follow-*")) + list(tmp_path.glob("tmp*"))


def test_a_compiler_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "c++"
    wrong.write_text("#!/bin/sh\nexit 1\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CXX", str(wrong))
    monkeypatch.setattr("torchyard.worker.values.follow_library._compilers", lambda: [str(wrong)])
    library = FollowLibrary(str(tmp_path / "cache"))
    assert not library.wait()
    assert list((tmp_path / "cache").iterdir()) == []
