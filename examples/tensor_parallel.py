"""Tensor parallelism of the feed-forward networks of models/gpt, as a function of the user.

    torchyard bench models/gpt --ranks 2 --mode training --time 5m \
        --baseline examples/tensor_parallel.py:whole+same-batch \
        --candidate examples/tensor_parallel.py:split+same-batch

All ranks get the same batch. `split` gives each rank a part of the weights, `whole` all of them.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def whole(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module unchanged: every rank computes everything."""
    return module


def split(module: torch.nn.Module) -> torch.nn.Module:
    """Split the first linear layer of each feed-forward network by columns, the second by rows."""
    device = next(module.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan = {"feed.0": ColwiseParallel(), "feed.2": RowwiseParallel()}
    for block in module.blocks:
        parallelize_module(block, mesh, plan)
    return module
