"""Channels last: the same tensors with the channels innermost in memory. Runs inside the target.

Tensors of four dimensions are images, of five volumes: so are the weights of convolutions over them.
"""

from typing import Any

import torch

from torchyard.worker.built import Built, CannotBuild, flatten, map_tensors

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def to_channels_last(tensor: Any) -> Any:
    """The tensor with its channels innermost, or itself when it has none."""
    wanted = FORMATS.get(tensor.dim())
    if wanted is None or tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().contiguous(memory_format=wanted).requires_grad_(tensor.requires_grad)


def put_channels_last(built: Built) -> None:
    """Change inputs and parameters of the workload; CannotBuild when none is an image or a volume."""
    module = built.module
    inputs = flatten(built.args) + flatten(built.kwargs)
    if not any(t.dim() in FORMATS for t in [*inputs, *module.parameters(), *module.buffers()]):
        raise CannotBuild(
            "channels-last changes nothing here: no input or weight has four or five dimensions",
            hint="leave the option out for this workload",
        )
    built.args = map_tensors(built.args, to_channels_last)
    built.kwargs = map_tensors(built.kwargs, to_channels_last)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = to_channels_last(tensor.data)
