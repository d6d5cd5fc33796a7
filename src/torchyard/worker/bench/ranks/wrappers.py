"""DistributedDataParallel and FSDP2 around a module, as the options of a variant say."""

from typing import Any, Dict, List

import torch

from torchyard.worker.bench.options import DDP, FSDP2, Scalar, settings_of
from torchyard.worker.workload import CannotBuild


def wrapped(module: Any, options: Dict[str, Scalar], device: str) -> Any:
    """Return the module as the options wrap it; without such an option, the module itself."""
    ddp, fsdp2 = settings_of(options, DDP), settings_of(options, FSDP2)
    if ddp is not None:
        return _ddp(module, ddp, device)
    if fsdp2 is not None:
        return _fsdp2(module, fsdp2, device)
    return module


def _ddp(module: Any, settings: Dict[str, Scalar], device: str) -> Any:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CannotBuild(
            "the workload has no parameters to train, and DistributedDataParallel needs some",
            hint="choose a workload with parameters",
        )
    index = torch.device(device).index
    device_ids = [index] if torch.device(device).type == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(
        module, device_ids=device_ids, **dict(settings)
    )


def _fsdp2(module: Any, settings: Dict[str, Scalar], device: str) -> Any:
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise CannotBuild(
            "torch " + torch.__version__ + " has no fully_shard", hint="use torch 2.6 or newer"
        ) from error
    count = torch.distributed.get_world_size()
    mesh = init_device_mesh(torch.device(device).type, (count,))
    for layer in layers_of(module):
        fully_shard(layer, mesh=mesh, **dict(settings))
    return fully_shard(module, mesh=mesh, **dict(settings))


def layers_of(module: Any) -> List[Any]:
    """Return the elements of the outermost lists of layers, each of which becomes one unit."""
    layers: List[Any] = []
    for child in module.children():
        elements = [one for one in child.children() if next(one.parameters(), None) is not None]
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and len(elements) > 1:
            layers += elements
        else:
            layers += layers_of(child)
    return layers
