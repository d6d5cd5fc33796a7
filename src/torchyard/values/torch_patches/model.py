"""Patches of torch's source, the outcome of their checks, and the report that is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from torchyard.core.comparison import Interval

FORMAT: Final = 1


class NotProposed(Exception):
    """No patch of a finding keeps the results for all callers, as far as the source tells; why is the text."""


@dataclass(frozen=True, kw_only=True, order=True)
class SourceEdit:
    """Replacement of a part of a source file; offsets of the unchanged text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class FoundIn:
    """A finding of the sweep that a patch fixes."""

    case: str
    direction: str
    bytes_wasted: int


@dataclass(frozen=True, kw_only=True)
class SampleCheck:
    """Results of sample inputs with both libraries, with garbage in uninitialized memory."""

    operators: tuple[str, ...] = ()
    compared: int = 0
    """Samples whose results and gradients were compared bit for bit."""
    different: tuple[str, ...] = ()
    """Samples with other results."""
    why: str = ""
    """Why nothing was compared."""


@dataclass(frozen=True, kw_only=True)
class SuiteCheck:
    """Tests of the torch source tree, run with both libraries."""

    selected: str = ""
    passed: int = 0
    """With both libraries."""
    skipped: int = 0
    failed_before: int = 0
    """With the unchanged library, whatever the patched one did."""
    broken: tuple[str, ...] = ()
    """Tests that pass with the unchanged library only."""
    why: str = ""
    """Why no test was run."""


@dataclass(frozen=True, kw_only=True)
class CaseComparison:
    """One case of the sweep with both libraries, by `bench`."""

    case: str
    verdict: str = ""
    speedup: float | None = None
    interval: Interval | None = None
    trusted: bool = True
    why: str = ""
    """Why there is no verdict."""


@dataclass(frozen=True, kw_only=True)
class TorchPatch:
    """One place in torch's source with its patch, or why there is none."""

    found_in: tuple[FoundIn, ...]
    operator: str
    """Around the write, such as `mse_loss_backward`."""
    call: str
    """The call that is changed, such as `zeros_like`."""
    function: str = ""
    file: str = ""
    """In the source tree."""
    line: int = 0
    text: str = ""
    """What is changed, in words."""
    edits: tuple[SourceEdit, ...] = ()
    diff: str = ""
    why_not: str = ""
    samples: SampleCheck = field(default_factory=SampleCheck)
    tests: SuiteCheck = field(default_factory=SuiteCheck)
    remaining: tuple[str, ...] = ()
    """Cases in which a sweep of the patched library still has the finding."""
    swept: bool = False
    comparisons: tuple[CaseComparison, ...] = ()

    @property
    def bytes_saved(self) -> int:
        """Bytes of one call that are no longer written, in the largest case."""
        return max((one.bytes_wasted for one in self.found_in), default=0)

    @property
    def verified(self) -> bool:
        """Whether samples were compared, none differs, no test broke and the finding is gone."""
        return (
            bool(self.diff)
            and not self.why_not
            and self.samples.compared > 0
            and not self.samples.different
            and not self.tests.broken
            and self.swept
            and not self.remaining
        )


@dataclass(frozen=True, kw_only=True)
class TorchFixReport:
    """Patches of one build or release of torch."""

    format: int = FORMAT
    sweep: str = ""
    build: str = ""
    torch: str = ""
    patches: tuple[TorchPatch, ...] = ()
    method: str = ""
    """How the two libraries that are compared are made."""
    built: bool = False
    """Whether the patched library was compiled and linked."""
    python: str = ""
    """Interpreter with the patched library."""
    interrupted: bool = False

    @property
    def proposed(self) -> tuple[TorchPatch, ...]:
        """Return the patches that are verified, or that were not built yet."""
        return tuple(
            one
            for one in self.patches
            if one.diff and not one.why_not and (one.verified or not self.built)
        )
