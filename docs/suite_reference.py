# ruff: noqa: INP001  # beside the pages, not a package
"""Generate the reference page about suite lists; used by generate.py."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.worker.catalog import LISTS, ListedWorkload
from torchyard.worker.catalog.huggingface_models import MODELS

_ABOUT = """\
The models that `--suite NAME` runs for suites that accept [any model name](workloads.md).

Default batch sizes: the first is for a GPU with at least 40 GB, the second for a server with at least 32 cores; smaller
devices get a proportional power of two. A dash: the whole suite skips the model on such a device. Models marked
*inference* are not trained when the whole suite is run.
"""
_HUGGINGFACE = """\
Names, sequence lengths and batch sizes follow PyTorch's own benchmark harness (smaller on CPUs for models with more than half a
billion parameters). Models named after a class have its default sizes, so Pegasus, mBART and the small Blenderbot are smaller than
the published ones. In the harness, Whisper and the models of 1000 tokens generate; here they process a prompt (Whisper: 30 s of
audio) once. The class is given where it differs from the name.
"""
_OTHERS = {
    "timm": """\
The two lists of PyTorch's own benchmark harness, 18 models on GPUs and 54 on CPUs. A name that timm
lacks gives a row that states its new name.
""",
}
_TORCHVISION = """\
All classification, detection and segmentation models of torchvision 0.21. `torchyard workloads --suite torchvision` prints
them with their batch sizes.
"""


def lists_page(written_by: str) -> str:
    """Return the page of all lists, with modes and batch sizes."""
    lines = [written_by, "# Suite lists\n", _ABOUT]
    lines += ["## `huggingface`\n", _HUGGINGFACE]
    by_length: dict[str, list[str]] = {}
    for model in MODELS:
        sizes = f"{model.length} tokens, {model.gpu_batch_size}/{model.cpu_batch_size}"
        about = f"{model.about}{_class(model.name, model.model_class)}{_only(model.modes)}"
        by_length.setdefault(sizes, []).append(f"`{model.name}` ({about})")
    lines += [f"- {sizes}: {', '.join(models)}" for sizes, models in by_length.items()]
    for suite, about in _OTHERS.items():
        lines += [f"\n## `{suite}`\n", about]
        groups: dict[str, dict[str, list[str]]] = {}
        for entry in LISTS[suite]:
            group = groups.setdefault(entry.about + _only(entry.modes), {})
            group.setdefault(_sizes(entry), []).append(f"`{entry.name}`")
        for what, by_size in groups.items():
            lines += [f"{what[0].upper()}{what[1:]}; batch sizes and names:\n"]
            lines += [f"- {sizes}: {', '.join(names)}" for sizes, names in by_size.items()]
            lines += [""]
    lines += ["\n## `torchvision`\n", _TORCHVISION]
    return "\n".join(lines).rstrip() + "\n"


def _sizes(entry: ListedWorkload) -> str:
    return "/".join(str(size or "-") for size in (entry.gpu_batch_size, entry.cpu_batch_size))


def _class(name: str, model_class: str) -> str:
    return "" if name == model_class else f", `{model_class}`"


def _only(modes: Sequence[str]) -> str:
    return f"; *{modes[0]}*" if len(modes) == 1 else ""
