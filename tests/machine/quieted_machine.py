"""A fake machine for tests of quieting, and its initial state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import difference
from tests.machine.trees import make_tree
from torchyard.machine.knob import Machine
from torchyard.machine.model import QuietRequest
from torchyard.machine.quieting.journal import journal_folder

ASLR = "proc/sys/kernel/randomize_va_space"
ASLR_OFF = QuietRequest(only=("aslr",), randomize="off")


@dataclass
class Fake:
    """A fake machine and what it was like at first."""

    kernel: FakeKernel
    found: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, folder: Path) -> Fake:
        kernel = FakeKernel(make_tree(kind, folder))
        return cls(kernel, kernel.snapshot())

    @property
    def machine(self) -> Machine:
        return Machine(files=self.kernel)

    @property
    def folder(self) -> Path:
        return journal_folder(self.kernel)

    def left(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """What differs from the beginning, but for the journal's own files.

        Without last newlines: the restore process writes to plain files, which do not add them.
        """
        now = self.kernel.snapshot()
        return difference(_compared(self.found), _compared(now))


def _compared(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {k: v.rstrip(b"\n") for k, v in files.items() if not k.startswith("var/")}
