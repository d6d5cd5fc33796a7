# ruff: noqa: INP001  # beside the pages, not a package
"""The reference page about the lists of suites. Used by generate.py, which writes it."""

from __future__ import annotations

from torchyard.worker.catalog import LISTS, ListedWorkload
from torchyard.worker.catalog.huggingface_models import MODELS

_ABOUT = """\
What `--suite NAME` and `torchyard sweep --suites NAME` run of the suites that take any name; `torchyard workloads --suite
NAME` prints the same. Any other name of the suite can be named, see [workloads](workloads.md).

A batch size that is left out is the list's for the device: the first number for a GPU of 40 GB or more, the second for a
server of 32 cores or more. Smaller devices get the share that they are of those, as a power of two. A dash: not run on
such a device when the suite is run whole. What was run is in the report, the CSV and the JSON.
"""
_HUGGINGFACE = """\
The names, lengths and batch sizes are those of PyTorch's own benchmark harness (after its divisions; less on CPUs for models
over half a billion parameters). Sizes are written down in Torchyard, so they do not change with the version of transformers.
Names that are those of a class have the sizes that the class had by default when the list was made: a Pegasus, an mBART or
a small Blenderbot is smaller than the published one. The harness lets the last seven generate text or a transcript; here they
read a prompt (Whisper: 30 s of sound) once. Models over 3 billion parameters are not trained when the suite is run whole.
"""
_OTHERS = {
    "timm": """\
The two lists of PyTorch's own benchmark harness, 18 models on GPUs and 54 on CPUs. Old names are kept as long as timm takes
them; a name that it does not have is a row that says what it was renamed to.
""",
    "torchvision": """\
All models of classification, detection and segmentation that torchvision 0.21 registers.
""",
}


def lists_page(written_by: str) -> str:
    """Every list, with modes and batch sizes."""
    lines = [written_by, "# Lists of suites\n", _ABOUT]
    lines += ["## `huggingface`\n", _HUGGINGFACE]
    lines += ["| name | what it is | class | length | modes | batch on GPU | on CPU |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| `{model.name}` | {model.about} | `{model.model_class}` | {model.length} | "
        f"{', '.join(model.modes)} | {model.gpu_batch_size} | {model.cpu_batch_size} |"
        for model in MODELS
    ]
    for suite, about in _OTHERS.items():
        lines += [f"\n## `{suite}`\n", about]
        lines += ["| name | what it is | modes | batch on GPU | on CPU |", "|---|---|---|---|---|"]
        lines += [_row(entry) for entry in LISTS[suite]]
    return "\n".join(lines) + "\n"


def _row(entry: ListedWorkload) -> str:
    sizes = [str(size or "-") for size in (entry.gpu_batch_size, entry.cpu_batch_size)]
    return f"| `{entry.name}` | {entry.about} | {', '.join(entry.modes)} | {' | '.join(sizes)} |"
