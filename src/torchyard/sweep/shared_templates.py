"""Template processes and compiled artifacts that the cells of a local sweep share.

Cells are separate processes that inherit the driver's environment, which says where both are. The
driver owns the templates: they end with it, however it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torchyard.bench.launch_templates import IMPORT_ORDER, modules_of
from torchyard.process.templates import TemplatePool
from torchyard.sweep.folder import SweepFolder

__all__ = ["shared_templates"]


@contextmanager
def shared_templates(folder: SweepFolder) -> Iterator[None]:
    """Serve templates to the cells that are started inside the block, unless they run elsewhere."""
    plan = folder.plan
    forks = any(cell.study.settings.start != "fresh" for cell in plan.cells)
    if plan.executor.name != "local" or not forks or sys.platform != "linux":
        yield
        return
    names = dict.fromkeys(
        name
        for cell in plan.cells
        for workload in cell.study.workloads
        for name in modules_of(workload, cell.study.variants)
    )
    modules = sorted(names, key=IMPORT_ORDER.index)
    with TemplatePool(cache=folder.folder / "cache", modules=modules) as pool:
        variables = pool.serve()
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                os.environ.pop(name, None)
