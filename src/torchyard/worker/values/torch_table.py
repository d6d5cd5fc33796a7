"""Rows of operators from a finished torch.profiler, whatever version of torch it is of."""

from typing import Any, Dict, List

MOST_SHAPES = 3
_LEFT_OUT = (
    "ProfilerStep",
    "[memory]",
    "PyTorch Profiler",
    "Activity Buffer Request",
    "Buffer Flush",
)


def operator_rows(profile: Any, by_shape: bool) -> List[Dict[str, Any]]:
    """Operators and kernels with their times in ns, the costliest by self time first."""
    shapes: Dict[str, List[Dict[str, Any]]] = {}
    if by_shape:
        for event in profile.key_averages(group_by_input_shape=True):
            text = _shape_text(getattr(event, "input_shapes", None))
            if text:
                shapes.setdefault(str(event.key), []).append(
                    {"shapes": text, "calls": int(event.count), "self_cost": _self_ns(event)}
                )
    rows = []
    for event in profile.key_averages():
        name = str(event.key)
        if name.startswith(_LEFT_OUT):
            continue
        costliest = sorted(shapes.get(name, ()), key=lambda one: -one["self_cost"])
        rows.append(
            {
                "name": name,
                "calls": int(event.count),
                "on_device": _on_device(event),
                "self_cost": _ns(event, "self_cpu_time_total"),
                "total_cost": _ns(event, "cpu_time_total"),
                "self_device_cost": _device_self_ns(event),
                "total_device_cost": _ns(event, "device_time_total", "cuda_time_total"),
                "memory_bytes": int(_number(event, "cpu_memory_usage")),
                "device_memory_bytes": int(
                    _number(event, "device_memory_usage", "cuda_memory_usage")
                ),
                "shapes": costliest[:MOST_SHAPES],
            }
        )
    return sorted(rows, key=lambda row: -(row["self_cost"] + row["self_device_cost"]))


def _on_device(event: Any) -> bool:
    """Whether it is a kernel or a copy, whose time its operator has as well."""
    kind = getattr(getattr(event, "device_type", None), "name", "CPU")
    return kind != "CPU"


def _self_ns(event: Any) -> float:
    return _ns(event, "self_cpu_time_total") + _device_self_ns(event)


def _device_self_ns(event: Any) -> float:
    return _ns(event, "self_device_time_total", "self_cuda_time_total")


def _ns(event: Any, *names: str) -> float:
    """Torch says microseconds."""
    return _number(event, *names) * 1000.0


def _number(event: Any, *names: str) -> float:
    """The first of these that this torch has."""
    for name in names:
        value = getattr(event, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


def _shape_text(shapes: Any) -> str:
    """`32x64, 10`; empty for an operator without tensors."""
    parts = []
    for shape in shapes or ():
        if isinstance(shape, (list, tuple)) and shape:
            plain = all(isinstance(size, int) for size in shape)
            parts.append("x".join(map(str, shape)) if plain else str(shape))
    return ", ".join(parts)
