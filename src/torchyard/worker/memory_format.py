"""Channels last: the same tensors with the channels innermost in memory. Runs inside the target.

Tensors of four dimensions are images, of five volumes: so are the weights of convolutions over them.
"""

from typing import Any

import torch

from torchyard.worker.built import Built, CannotBuild, map_tensors

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def put_channels_last(built: Built) -> None:
    """Change inputs and parameters of the workload; CannotBuild when none is an image or a volume."""
    changed = []

    def change(tensor: Any) -> Any:
        wanted = FORMATS.get(tensor.dim())
        if wanted is None or tensor.layout is not torch.strided:
            return tensor
        changed.append(tensor.dim())
        return tensor.detach().contiguous(memory_format=wanted).requires_grad_(tensor.requires_grad)

    built.args = map_tensors(built.args, change)
    built.kwargs = map_tensors(built.kwargs, change)
    with torch.no_grad():
        for parameter in built.module.parameters():
            parameter.data = change(parameter.data)
        for buffer in built.module.buffers():
            buffer.data = change(buffer.data)
    if not changed:
        raise CannotBuild(
            "channels-last changes nothing here: no input or weight has four or five dimensions",
            hint="leave the option out for this workload",
        )
