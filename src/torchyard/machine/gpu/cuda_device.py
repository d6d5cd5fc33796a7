"""Which of NVML's GPUs torch means by `cuda:1`.

CUDA counts the GPUs it is shown (CUDA_VISIBLE_DEVICES), the fastest first unless CUDA_DEVICE_ORDER
says otherwise; NVML counts all of them, by their place on the PCI bus. What is not sure is not
guessed: the clock of the wrong card is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchyard.machine.gpu.answer import Answer, ask

__all__ = ["nvml_handle"]


def nvml_handle(nvml: Any, device: str, environment: Mapping[str, str]) -> Answer[Any]:
    """The handle of torch's device, or why it is not known which one it is."""
    number = int(device.partition(":")[2] or 0)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        shown = [name.strip() for name in visible.split(",")]
        if number >= len(shown):
            return Answer(because=f"CUDA_VISIBLE_DEVICES={visible} shows no device {number}")
        if not shown[number].isdigit():
            return _by_uuid(nvml, shown[number])
        number = int(shown[number])
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(_names(nvml)) > 1:
        return Answer(
            because="GPUs of several types, which CUDA counts by speed and NVML by place: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return ask(nvml, "nvmlDeviceGetHandleByIndex", of=(number,))


def _by_uuid(nvml: Any, start: str) -> Answer[Any]:
    """CUDA takes the beginning of an identity, as long as it fits one GPU."""
    fits: list[Any] = []
    if start.startswith("GPU-"):
        for handle in _handles(nvml):
            uuid = ask(nvml, "nvmlDeviceGetUUID", of=(handle,)).value
            text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            if text.startswith(start):
                fits.append(handle)
    if len(fits) == 1:
        return Answer(value=fits[0])
    return Answer(because=f"CUDA_VISIBLE_DEVICES names {start}, which is not one whole GPU here")


def _names(nvml: Any) -> set[str]:
    return {str(ask(nvml, "nvmlDeviceGetName", of=(handle,)).value) for handle in _handles(nvml)}


def _handles(nvml: Any) -> list[Any]:
    count = ask(nvml, "nvmlDeviceGetCount").value or 0
    found = [ask(nvml, "nvmlDeviceGetHandleByIndex", of=(index,)) for index in range(int(count))]
    return [handle.value for handle in found if handle.value is not None]
