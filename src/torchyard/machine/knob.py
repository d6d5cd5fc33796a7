"""What a knob is: one machine setting that can be read, and maybe written and put back.

One module per knob in `knobs/`, each with one instance called KNOB, all listed in `knobs/__init__.py`.
A knob knows nothing of the journal and of other knobs; order is in `knob_order.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import NotAllowed
from torchyard.machine.file_tree import FileTree

if TYPE_CHECKING:
    from torchyard.machine.gpu.library import GpuLibraries

__all__ = ["Knob", "LeftAlone", "Machine", "Reach"]

Reach = Literal["machine", "held", "process"]
"""machine: stays until it is written again; held: as long as a process of ours lives; process: of
one process and its children (what `tune --user` may use)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Everything a knob and a fact may touch."""

    files: FileTree = field(default_factory=FileTree)
    gpus: GpuLibraries | None = None
    """None when GPUs are not looked at."""


class LeftAlone(NotAllowed):
    """What `write` raises for a place that needs no write now, such as one of an offline processor.

    No failure of the tune: it is told with its reason. `restore` still has to bring the place back.
    """


class Knob(Protocol):
    """One machine setting."""

    @property
    def name(self) -> str:
        """As in `--only governor`."""

    @property
    def about(self) -> str:
        """What it is, in half a line."""

    @property
    def why(self) -> str:
        """Why its benchmark value makes numbers steadier, and what it costs."""

    @property
    def profile(self) -> Profile:
        """Which profile it belongs to."""

    @property
    def effect(self) -> Effect:
        """How much of the noise is at stake, at most."""

    @property
    def reach(self) -> Reach:
        """How long a written value stays."""

    @property
    def needs_root(self) -> bool:
        """Whether only root may write it."""

    @property
    def default(self) -> bool:
        """Whether a tune without `--only` uses it. False for those that change what is measured."""

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """What is there and what it would be set to. Reads only, needs no root, never raises."""

    def read(self, machine: Machine, place: str) -> str:
        """The present value of a place, in the form of `Setting.found`; raises TorchyardError."""

    def write(self, machine: Machine, setting: Setting) -> None:
        """Bring the wanted value about; raises TorchyardError when the kernel refuses."""

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back the found value. Also right when `write` never ran, ran half, or ran twice."""

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values mean the same (`ff` and `000000ff`; clocks within a step)."""
