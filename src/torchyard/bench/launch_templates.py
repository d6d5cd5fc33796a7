"""Which template a launch is forked from, and what a template imports.

Forked launches share the memory of their template: the positions of libraries and Python's objects.
The launches of a session therefore rotate over several templates, and each launch draws new offsets
of its stack, heap and mappings after the fork. All processes of a launch use templates with the same
number, which have the same layout, like processes of a launch without templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from torchyard.core.study import MeasureSettings, Variant, Workload
from torchyard.errors import StepFailed
from torchyard.machine.system.cores import available_cores
from torchyard.process.start import LaunchSpec, NoTemplate
from torchyard.process.templates import TemplateSource
from torchyard.process.worker_process import WorkerGroup, WorkerProcess
from torchyard.worker.bench.backend_names import uses_dynamo, uses_inductor

ProcessKey = tuple[str, str]
Specs = dict[ProcessKey, list[LaunchSpec]]

TEMPLATES: Final = 3
"""Number of templates over which the launches of a session rotate."""
FORK_AFTER: Final = 2
"""Launches without forking before templates are started: large effects are decided by then."""
MIN_FORKED: Final = 4
"""Number of further launches from which on starting templates pays off."""
_PACKAGES: Final = {
    "huggingface": ("transformers",),
    "timm": ("timm",),
    "torchvision": ("torchvision",),
}
_ALWAYS: Final = ("torch", "torchyard.worker.bench.service", "torchyard.worker.bench.peak")
_DYNAMO: Final = ("torch._dynamo",)
_INDUCTOR: Final = ("torch._inductor.compile_fx",)
IMPORT_ORDER: Final = (
    *_ALWAYS,
    *(name for names in _PACKAGES.values() for name in names),
    *_DYNAMO,
    *_INDUCTOR,
)
"""All modules that a template may import."""


def modules_of(workload: Workload, variants: Sequence[Variant]) -> tuple[str, ...]:
    """Return the modules that a process of these variants imports in any case, in its order."""
    dynamo = any(uses_dynamo(one.backend) for one in variants)
    inductor = any(uses_dynamo(one.backend) and uses_inductor(one.backend) for one in variants)
    return (
        *_ALWAYS,
        *_PACKAGES.get(workload.suite, ()),
        *(_DYNAMO if dynamo else ()),
        *(_INDUCTOR if inductor else ()),
    )


def may_fork(settings: MeasureSettings, variants: Sequence[Variant]) -> bool:
    """Whether launches of these variants are forked from templates.

    By default only if all variants share a process: the layouts of two templates differ permanently,
    and launches forked from them would measure that difference.
    """
    if settings.start != "auto":
        return settings.start == "fork"
    return len({variant.process_key for variant in variants}) == 1


class LaunchTemplates:
    """Forks the processes of launches from the templates of a pool."""

    def __init__(self, pool: TemplateSource, settings: MeasureSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._why_not: dict[Path, str] = {}
        """Templates that failed to fork a worker."""

    def find(
        self,
        number: int,
        specs_of: Callable[[int], Specs],
        modules: Mapping[ProcessKey, tuple[str, ...]],
    ) -> dict[ProcessKey, list[Path | str]]:
        """Return the template of each process of the launch with this number, or why there is none.

        `specs_of` returns the specifications of the template with a number. Templates of the next
        launches are started in parallel, if there are enough cores: a later start would disturb or
        delay a measurement.
        """
        first = number % TEMPLATES
        specs = specs_of(first)
        ahead = max(1, available_cores() // sum(map(len, specs.values())))
        last = min(first + ahead, TEMPLATES) if number < TEMPLATES else first + 1
        pairs: dict[tuple[str, ...], list[tuple[ProcessKey, LaunchSpec]]] = {}
        for template in range(first, last):
            for key, several in specs_of(template).items():
                pairs.setdefault(modules[key], []).extend((key, spec) for spec in several)
        templates: dict[ProcessKey, list[Path | str]] = {key: [] for key in specs}
        for names, some in pairs.items():
            sockets = self._pool.sockets([spec for _, spec in some], names)
            for (key, _), socket in zip(some, sockets, strict=True):
                templates[key].append(socket)
        return {key: sockets[: len(specs[key])] for key, sockets in templates.items()}

    def start(
        self,
        group: WorkerGroup,
        spec: LaunchSpec,
        forked: LaunchSpec,
        template: Path | str,
        *,
        log_path: Path,
    ) -> tuple[WorkerProcess, str]:
        """Fork a worker, or start it by `spec`; return it and why it was not forked."""
        why_not = template if isinstance(template, str) else self._why_not.get(template, "")
        if isinstance(template, Path) and not why_not:
            try:
                return group.start(forked, log_path=log_path, template=template), ""
            except NoTemplate as error:
                why_not = self._why_not[template] = str(error)
        if self._settings.start == "fork":
            raise StepFailed(
                f"{spec.name} cannot be forked from a template process",
                why=why_not,
                hint="use --start auto to start an interpreter instead",
            )
        return group.start(spec, log_path=log_path), why_not
