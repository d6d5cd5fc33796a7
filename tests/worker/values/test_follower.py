"""Surveyed steps followed by the compiled observer: the same findings as with the dispatch mode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.worker.values.followed_programs import (  # noqa: E402
    Maker,
    Step,
    autocast,
    checkpointed,
    convolutions,
    followed_steps,
    found,
    own_function,
    profile,
    transformer,
)
from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402
from torchyard.worker.values.redispatch import topmost_mode  # noqa: E402
from torchyard.worker.values.surveys.follower import FollowLibrary  # noqa: E402
from torchyard.worker.values.unobserved import untracked_libraries  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Where sessions look for it."""
    assert FollowLibrary(high_priority=True).wait(600)


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    """It refuses bfloat16 on some machines; torch then warns, and leaves it off for good."""
    was = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(was)


@pytest.mark.parametrize("make", [transformer, convolutions, autocast, own_function])
def test_the_follower_finds_and_counts_the_same(make: Maker) -> None:
    python, compiled = profile(make, follow=False), profile(make, follow=True)
    assert found(compiled) == found(python)
    assert compiled.mode.counts.as_dict() == python.mode.counts.as_dict()
    assert not compiled.notes


@pytest.mark.parametrize("make", [transformer, convolutions, autocast, own_function, checkpointed])
def test_steps_are_followed_to_their_end_without_the_mode(make: Maker) -> None:
    session = ProfilingSession(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step, seen = make(), followed_steps(session)
    session.start()
    for number in range(7):
        step(number)
    assert seen == [False, False, False, True, True, True, True]
    assert session.mode._calls._followed is not None  # one was, from the first to the last operator
    # Something new in the last step makes the next one a close one, with the mode.
    assert (topmost_mode() is None) == session.mode._calls.following
    session.stop()
    assert topmost_mode() is None


def test_the_follower_is_no_reason_to_doubt_a_proof() -> None:
    profile(convolutions, follow=True, steps=7)
    assert not [name for name in untracked_libraries() if name.startswith("follow-")]


@pytest.mark.parametrize("follow", [False, True])
def test_a_step_that_is_interrupted_is_irregular_and_the_next_ones_are_surveyed(
    follow: bool,
) -> None:
    """As when a CUDA graph is captured: nothing of the rest of the step may be observed."""
    session = ProfilingSession(Options(prove=False, least_bytes=256), follow=follow)
    assert session.library is None or session.library.wait()
    step, surveyed = transformer(), []
    session.start()
    for number in range(12):
        if number in (5, 9):
            torch.ones(64, 64).exp()
            surveyed.append(session.mode.surveying)
            session.mode.interrupt_survey()
            assert not session.mode._calls.following
        step(number)
    followed = session.mode.counts.steps_surveyed
    session.stop()
    assert True in surveyed
    assert followed >= 4
    assert session.mode.step == 13
    assert not session.notes
    assert topmost_mode() is None


def test_steps_are_left_out_at_no_cost() -> None:
    python = profile(transformer, follow=False, steps=24, every=3)
    compiled = profile(transformer, follow=True, steps=24, every=3)
    assert found(compiled) == found(python)
    assert compiled.mode.counts.steps_left_out == python.mode.counts.steps_left_out > 8


def test_a_dispatch_mode_of_the_program_still_runs() -> None:
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
    session = ProfilingSession(Options(prove=False, least_bytes=256))
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
    session = ProfilingSession(Options(prove=False, least_bytes=256))
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
    assert compiled.mode.counts.as_dict() == python.mode.counts.as_dict()
    assert found(compiled) == found(python)


def test_two_consecutive_sessions_observe_their_own_operators() -> None:
    first = profile(transformer, follow=True)
    second = profile(convolutions, follow=True)
    assert found(first) == found(profile(transformer, follow=True))
    assert found(second) == found(profile(convolutions, follow=True))


def test_a_forked_child_is_left_alone() -> None:
    session = ProfilingSession(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step = transformer()
    session.start()
    for number in range(7):
        step(number)
    child = os.fork()
    if child == 0:
        position = session.mode._calls._follower.position()  # type: ignore[union-attr]
        torch.ones(4096).add_(1)
        same = session.mode._calls._follower.position() == position  # type: ignore[union-attr]
        os._exit(0 if same and session.mode.off else 3)
    _, status = os.waitpid(child, 0)
    step(8)
    session.stop()
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_internal_error_does_not_end_the_program() -> None:
    session = ProfilingSession(Options(prove=False, least_bytes=256))
    assert session.library is not None
    assert session.library.wait()
    step = transformer()
    session.start()
    for number in range(4):
        step(number)

    def broken(*_: Any) -> None:
        raise ValueError("broken")

    session.mode._calls._enter = broken  # type: ignore[method-assign,assignment]
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
    session = ProfilingSession(Options(prove=False, least_bytes=256), cache=str(tmp_path))
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
    monkeypatch.setattr("torchyard.worker.values.surveys.follower._compilers", lambda: [str(wrong)])
    library = FollowLibrary(str(tmp_path / "cache"))
    assert not library.wait()
    assert list((tmp_path / "cache").iterdir()) == []
