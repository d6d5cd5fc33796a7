"""The suites and what is in them, as data: no torch, so that the yard can list them too.

An entry names a workload, the modes it offers and one line about it. `huggingface`, `timm` and
`file` take any name, so they have no entries here.
"""

from typing import Dict, List, NamedTuple, Tuple


class Entry(NamedTuple):
    """One built-in workload."""

    name: str
    modes: Tuple[str, ...]
    about: str


BOTH = ("inference", "training")

KERNELS: List[Entry] = [
    Entry("matmul", BOTH, "square matrix product; size=1000"),
    Entry("mlp", BOTH, "three-layer perceptron 4096-4096-11008-10 over 64x64 inputs"),
    Entry("conv2d", BOTH, "3x3 convolution; channels=64, size=56"),
    Entry("attention", BOTH, "scaled dot-product attention; heads=8, length=256, width=64"),
    Entry("embedding", BOTH, "embedding look-up; rows=30522, width=256, length=128"),
    Entry("layer-norm", BOTH, "layer normalisation; width=1024"),
    Entry("replication-pad3d", BOTH, "replication padding of a volume; size=32, pad=2"),
    Entry(
        "optimizer-step", ("inference",), "one AdamW step over the parameters of a small network"
    ),
    Entry("layered-mlp", BOTH, "a chain of small layers; layers=100, width=256 (exact slowdowns)"),
]

MODELS: List[Entry] = [
    Entry("resnet", BOTH, "residual network of 18 layers, 64x64 images"),
    Entry("transformer-encoder", BOTH, "4 encoder layers, width 256, length 64"),
    Entry("unet", BOTH, "U-Net of depth 3, 64x64 images"),
    Entry("lstm", BOTH, "two-layer LSTM over sequences of 32"),
    Entry("gpt", BOTH, "decoder-only transformer, 4 layers, width 256, length 64"),
]

SUITES: Dict[str, List[Entry]] = {"kernels": KERNELS, "models": MODELS}
OPEN_SUITES: Dict[str, str] = {
    "huggingface": "any transformers model class, such as BertForMaskedLM, with random weights",
    "timm": "any timm model name, with random weights",
    "file": "a Python file of yours, given by path",
}
