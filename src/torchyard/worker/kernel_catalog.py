"""The workloads of the suite `kernels`, as data: no torch, so that the yard can list them too."""

from typing import List

from torchyard.worker.catalog_entry import BOTH, Entry

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
