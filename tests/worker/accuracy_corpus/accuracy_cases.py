"""Cases of the corpus: a model, a candidate derived from it, and their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.model import Model, convert
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.workload import BuiltWorkload

Candidate = Callable[[Any], Any]
ENOUGH_BYTES = None
NO_BYTES = 1
"""A limit of memory under which no float64 copy is made."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One candidate on one model."""

    name: str
    file: str
    candidate: str
    """A backend, or the name of a function in `file`."""
    model: Callable[[], BuiltWorkload]
    mode: str = "inference"
    precision: str = "float32"
    baseline_precision: str = "float32"
    step: bool = False
    exact: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    expected: tuple[str, ...] = ()
    seed: int = 1337
    slow: bool = False

    @property
    def backend(self) -> str:
        return self.candidate if self.candidate in BACKENDS else f"{self.file}:{self.candidate}"


BACKENDS = {"eager", "inductor", "aot_eager"}


class Registry:
    """Collects the cases of a file; the same candidate may stand for several."""

    def __init__(self, file: str, expected: tuple[str, ...]) -> None:
        self.file = file
        self.expected = expected
        self.cases: list[Case] = []

    def add(self, candidate: str, model: Callable[[], BuiltWorkload], **settings: Any) -> None:
        words = [candidate, model.__name__]
        words += [str(settings[key]) for key in ("mode", "precision") if key in settings]
        if "baseline_precision" in settings:
            words.append("of-" + settings["baseline_precision"])
        words += ["step"] if settings.get("step") else []
        words += ["no-float64"] if settings.get("exact") is False else []
        words += [name for name, _ in settings.get("options", ())]
        expected = settings.pop("expected", self.expected)
        case = Case(
            name="-".join(words),
            file=self.file,
            candidate=candidate,
            model=model,
            expected=expected,
            **settings,
        )
        self.cases.append(case)

    def on(
        self, *models: Callable[[], BuiltWorkload], **settings: Any
    ) -> Callable[[Candidate], Candidate]:
        """A decorator for a function that makes a candidate of a module."""

        def register(function: Candidate) -> Candidate:
            for model in models:
                self.add(function.__name__, model, **settings)
            return function

        return register


def check_case(case: Case, seed: int | None = None) -> dict[str, Any]:
    """The record of accuracy of the case."""
    case = case if seed is None else replace(case, seed=seed)
    if case.backend == "inductor":
        torch._dynamo.reset()  # dynamo stops compiling code that it has seen too often
    torch.manual_seed(case.seed)
    built = case.model()
    training = case.mode == "training"
    plain = Model(built, training, case.step)
    models = {"float32": plain, "amp": plain}
    for precision in (case.precision, case.baseline_precision):
        if precision not in models:
            dtype = getattr(torch, precision)
            models[precision] = Model(convert(built, dtype), training, case.step)
    baseline = VariantRunner(
        "baseline", "eager", case.baseline_precision, models[case.baseline_precision], "cpu"
    )
    candidate = VariantRunner(
        "candidate",
        case.backend,
        case.precision,
        models[case.precision],
        "cpu",
        dict(case.options),
    )
    limit = ENOUGH_BYTES if case.exact else NO_BYTES
    reference = accuracy.make_reference(baseline, case.seed, limit)
    assert (reference["exact"] is None) or case.exact
    return accuracy.judge(candidate, case.seed, reference)
