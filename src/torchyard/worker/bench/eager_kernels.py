"""Let Inductor call the eager kernels of some operators instead of generating code for them."""

import contextlib
from typing import Any, Dict, Iterator, List, Tuple

import torch

from torchyard.worker.workload import CannotBuild


def overloads_of(names: str) -> List[Any]:
    """Return all overloads of operators such as `native_layer_norm,gelu`; raise CannotBuild."""
    overloads: List[Any] = []
    for name in names.split(","):
        packet = getattr(torch.ops.aten, name.strip(), None)
        if packet is None:
            raise CannotBuild(
                "torch " + torch.__version__ + " has no operator aten::" + name.strip(),
                hint="use names of ATen operators, such as native_layer_norm",
            )
        overloads += [getattr(packet, overload) for overload in packet.overloads()]
    return overloads


@contextlib.contextmanager
def eager_kernels(names: str) -> Iterator[None]:
    """Remove decompositions and lowerings of the operators while this variant compiles and runs."""
    from torch._inductor import config, decomposition, lowering

    overloads = overloads_of(names)
    tables: List[Dict[Any, Any]] = [decomposition.decompositions]
    select = getattr(decomposition, "select_decomp_table", None)
    if select is not None and select() is not decomposition.decompositions:
        tables.append(select())
    saved: List[Tuple[Dict[Any, Any], Any, Any]] = []
    with contextlib.ExitStack() as stack:
        # Graphs before lowering are the same with and without the option: caches must not be shared.
        if hasattr(config, "cache_key_tag"):
            stack.enter_context(config.patch(cache_key_tag="eager kernels: " + names))
        else:
            stack.enter_context(config.patch(fx_graph_cache=False))
        functorch = torch._functorch.config
        if hasattr(functorch, "enable_autograd_cache"):
            stack.enter_context(functorch.patch(enable_autograd_cache=False))
        try:
            for overload in overloads:
                saved += [
                    (table, overload, table.pop(overload, None))
                    for table in (*tables, lowering.lowerings)
                ]
                lowering.lowerings[overload] = lowering.fallback_handler(overload)
            yield
        finally:
            for overload in overloads:
                lowering.fallbacks.discard(overload)
            for table, overload, value in saved:
                if value is None:
                    table.pop(overload, None)
                else:
                    table[overload] = value
