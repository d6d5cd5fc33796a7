"""The suites and what is in them, as data: no torch, so that the yard can list them too.

An entry names a workload, the modes it offers, its default batch size and parameters, and one
line about it. The suites read their defaults from here, so that what is listed is what is built.
`huggingface`, `timm` and `file` take any name, so they have no entries here.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple


class Entry(NamedTuple):
    """One built-in workload. `batch_size` None: there is no batch unless one is asked for."""

    name: str
    modes: Tuple[str, ...]
    about: str
    batch_size: Optional[int]
    parameters: Dict[str, int]


BOTH = ("inference", "training")

KERNELS: List[Entry] = [
    Entry("matmul", BOTH, "product of two square matrices", None, {"size": 1000}),
    Entry(
        "mlp",
        BOTH,
        "three-layer perceptron 4096-4096-11008-10 over 64x64 inputs",
        16,
        {"size": 64, "width": 4096, "hidden": 11008, "classes": 10},
    ),
    Entry("conv2d", BOTH, "convolution over images", 4, {"channels": 64, "size": 56, "kernel": 3}),
    Entry(
        "attention",
        BOTH,
        "scaled dot-product attention",
        2,
        {"heads": 8, "length": 256, "width": 64, "causal": 0},
    ),
    Entry(
        "embedding",
        BOTH,
        "embedding look-up",
        16,
        {"rows": 30522, "width": 256, "length": 128},
    ),
    Entry("layer-norm", BOTH, "layer normalisation", 8, {"length": 128, "width": 1024}),
    Entry(
        "replication-pad3d",
        BOTH,
        "replication padding of a volume",
        2,
        {"channels": 8, "size": 32, "pad": 2},
    ),
    Entry(
        "optimizer-step",
        ("inference",),
        "one AdamW step over the parameters of a small network, with fixed gradients",
        None,
        {"layers": 8, "width": 256},
    ),
    Entry(
        "layered-mlp",
        BOTH,
        "a chain of equal small layers: each extra layer is exactly 1/layers more work",
        8,
        {"layers": 100, "extra_layers": 0, "width": 256},
    ),
]

MODELS: List[Entry] = [
    Entry(
        "resnet",
        BOTH,
        "residual network, half the usual width; layers=50,width=64 is a ResNet-50",
        4,
        {"layers": 18, "size": 64, "width": 32, "classes": 1000},
    ),
    Entry(
        "transformer-encoder",
        BOTH,
        "encoder-only transformer that classifies sequences",
        2,
        {"layers": 4, "width": 256, "heads": 8, "length": 64, "vocabulary": 8192, "classes": 16},
    ),
    Entry("unet", BOTH, "U-Net over images", 1, {"size": 64, "width": 16, "depth": 3}),
    Entry(
        "lstm",
        BOTH,
        "LSTM that classifies sequences",
        8,
        {"layers": 2, "width": 128, "length": 32, "vocabulary": 8192, "classes": 16},
    ),
    Entry(
        "gpt",
        BOTH,
        "decoder-only transformer that predicts the next token",
        1,
        {"layers": 4, "width": 256, "heads": 8, "length": 64, "vocabulary": 8192},
    ),
]

SUITES: Dict[str, List[Entry]] = {"kernels": KERNELS, "models": MODELS}
OPEN_SUITES: Dict[str, str] = {
    "huggingface": "any transformers model class, such as BertForMaskedLM, with random weights",
    "timm": "any timm model name, with random weights",
    "file": "a Python file of yours, given by path",
}


def entry_of(suite: str, name: str) -> Optional[Entry]:
    """The built-in workload of that name, or None."""
    for entry in SUITES.get(suite, []):
        if entry.name == name:
            return entry
    return None
