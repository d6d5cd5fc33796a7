"""What a tool must know of a target before it runs there, asked without importing torch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.errors import WorkerFailed

__all__ = ["TargetFacts", "ask_target"]

_LIMIT_S: Final = 60.0
# find_spec of a top-level module runs nothing of it. The working folder is taken off the path first:
# a folder called `torch` there is not the target's.
_QUESTION: Final = """
import sys
if sys.path and not sys.path[0]:
    del sys.path[0]
import importlib.util, json
try:
    spec = importlib.util.find_spec("torch")
except (ImportError, ValueError):
    spec = None
places = list(spec.submodule_search_locations or ()) if spec else []
print(json.dumps({"version": list(sys.version_info[:3]), "torch": places[:1],
    "trampoline": hasattr(sys, "activate_stack_trampoline")}))
"""


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """An interpreter and where its torch is."""

    python_version: tuple[int, ...] = ()
    torch_folder: str | None = None
    perf_trampoline: bool = False
    """Whether this Python can tell perf the names of Python functions."""

    @property
    def library_folder(self) -> str | None:
        """Where torch's libraries are."""
        return None if self.torch_folder is None else str(Path(self.torch_folder) / "lib")


def ask_target(python: str, environment: Mapping[str, str]) -> TargetFacts:
    """Start the interpreter once, shortly."""
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        places = answer["torch"]
        return TargetFacts(
            python_version=tuple(int(part) for part in answer["version"]),
            torch_folder=str(places[0]) if places else None,
            perf_trampoline=bool(answer["trampoline"]),
        )
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, KeyError) as error:
        raise WorkerFailed(
            f"the interpreter {python} does not answer",
            why=f"{type(error).__name__}: {error}",
            hint="`torchyard target` tells more about it",
        ) from error
