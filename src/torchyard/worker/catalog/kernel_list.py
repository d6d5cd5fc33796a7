"""The workloads of the suite `kernels`, as data: no torch, so that the yard can list them too."""

from typing import Dict, List

from torchyard.worker.catalog.entry import BOTH, Entry

_IMAGES: Dict[str, int] = {"channels": 64, "size": 56}
_STEP: Dict[str, int] = {"layers": 8, "width": 256}
_STEP_FORM: Dict[str, int] = {"layers": 8, "width": 256, "foreach": 0, "fused": 0}

PRODUCTS: List[Entry] = [
    Entry("matmul", BOTH, "product of two square matrices", None, {"size": 1000}),
    Entry(
        "matmul-tall",
        BOTH,
        "a tall matrix times a small square one",
        None,
        {"height": 16384, "width": 64},
    ),
    Entry("matmul-batched", BOTH, "many products of small square matrices", 64, {"size": 64}),
    Entry("matmul-vector", BOTH, "a square matrix times a vector", None, {"size": 2048}),
    Entry(
        "mlp",
        BOTH,
        "three-layer perceptron 4096-4096-11008-10 over 64x64 inputs",
        16,
        {"size": 64, "width": 4096, "hidden": 11008, "classes": 10},
    ),
    Entry(
        "layered-mlp",
        BOTH,
        "a chain of equal small layers: each extra layer is exactly 1/layers more work",
        8,
        {"layers": 100, "extra_layers": 0, "width": 256},
    ),
    Entry(
        "attention",
        BOTH,
        "scaled dot-product attention",
        2,
        {"heads": 8, "length": 256, "width": 64, "causal": 0},
    ),
    Entry(
        "attention-causal",
        BOTH,
        "attention in which no place sees a later one",
        2,
        {"heads": 8, "length": 256, "width": 64},
    ),
    Entry(
        "attention-grouped",
        BOTH,
        "attention in which several heads share a key and a value",
        2,
        {"heads": 8, "key_heads": 2, "length": 256, "width": 64},
    ),
    Entry(
        "attention-decode",
        BOTH,
        "one new place that looks at all earlier ones, as when text is generated",
        2,
        {"heads": 8, "length": 2048, "width": 64},
    ),
]

CONVOLUTIONS: List[Entry] = [
    Entry("conv2d", BOTH, "convolution over images", 4, {**_IMAGES, "kernel": 3}),
    Entry(
        "conv2d-columns",
        BOTH,
        "convolution by columns and a matrix product; ones=1 fills the auxiliary buffer for a bias "
        "that is not there, as PyTorch did on GPUs until 2020",
        4,
        {**_IMAGES, "kernel": 3, "ones": 0},
    ),
    Entry("conv2d-depthwise", BOTH, "each channel by itself", 4, {**_IMAGES, "kernel": 3}),
    Entry("conv2d-1x1", BOTH, "convolution of single pixels: a matrix product", 4, {**_IMAGES}),
    Entry(
        "conv2d-transposed",
        BOTH,
        "transposed convolution that makes images larger, without overlap",
        4,
        {"channels": 64, "size": 28, "stride": 2},
    ),
    Entry("conv3d", BOTH, "convolution over volumes", 1, {"channels": 16, "size": 24, "kernel": 3}),
]

ROWS: List[Entry] = [
    Entry(
        "embedding",
        BOTH,
        "embedding look-up",
        16,
        {"rows": 30522, "width": 256, "length": 128},
    ),
    Entry(
        "embedding-padded",
        BOTH,
        "embedding with padding_idx, a quarter of the places padding: in 2020 and 2021 it cleared "
        "rows that were zero; training is its backward",
        16,
        {"rows": 30522, "width": 256, "length": 128},
    ),
    Entry("layer-norm", BOTH, "layer normalisation", 8, {"length": 128, "width": 1024}),
    Entry("rms-norm", BOTH, "root-mean-square norm", 8, {"length": 128, "width": 1024}),
    Entry("batch-norm", BOTH, "batch normalisation of images", 4, {**_IMAGES}),
    Entry("group-norm", BOTH, "group normalisation of images", 4, {**_IMAGES, "groups": 8}),
    Entry("softmax", BOTH, "softmax of rows", 8, {"length": 128, "width": 1024}),
    Entry("cross-entropy", BOTH, "cross-entropy of each row", 64, {"classes": 16384}),
    Entry("reduce-sum", BOTH, "the sum of each row", 256, {"width": 4096}),
    Entry("reduce-max", BOTH, "the largest of each row", 256, {"width": 4096}),
]

GRIDS: List[Entry] = [
    Entry("constant-pad2d", BOTH, "images with a border of zeros", 4, {**_IMAGES, "pad": 2}),
    Entry("reflection-pad2d", BOTH, "images with a mirrored border", 4, {**_IMAGES, "pad": 2}),
    Entry("replication-pad2d", BOTH, "images with a repeated border", 4, {**_IMAGES, "pad": 2}),
    Entry(
        "replication-pad3d",
        BOTH,
        "replication padding of a volume: until 2020 its backward zeroed the gradient twice on "
        "GPUs; training is its backward",
        2,
        {"channels": 8, "size": 32, "pad": 2},
    ),
    Entry("max-pool2d", BOTH, "the largest of each window", 4, {**_IMAGES, "kernel": 2}),
    Entry("avg-pool2d", BOTH, "the mean of each window", 4, {**_IMAGES, "kernel": 2}),
    Entry("adaptive-avg-pool2d", BOTH, "means that give a fixed size", 4, {**_IMAGES, "output": 7}),
    Entry(
        "interpolate-nearest",
        BOTH,
        "images made larger by repeating pixels",
        4,
        {"channels": 64, "size": 28, "factor": 2},
    ),
    Entry(
        "interpolate-bilinear",
        BOTH,
        "images made larger by mixing pixels",
        4,
        {"channels": 64, "size": 28, "factor": 2},
    ),
    Entry(
        "elementwise-chain",
        BOTH,
        "products and sums of two tensors, one after the other",
        256,
        {"width": 4096, "operations": 8},
    ),
]

OPTIMIZERS: List[Entry] = [
    Entry(
        "optimizer-step",
        ("inference",),
        "one AdamW step over the parameters of a small network, with fixed gradients",
        None,
        _STEP,
    ),
    Entry("sgd-step", ("inference",), "the same with plain gradient descent", None, _STEP_FORM),
    Entry("momentum-step", ("inference",), "the same with momentum", None, _STEP_FORM),
    Entry("adam-step", ("inference",), "the same with Adam", None, _STEP_FORM),
    Entry(
        "adamw-step", ("inference",), "the same with AdamW, in a form you choose", None, _STEP_FORM
    ),
]

KERNELS: List[Entry] = PRODUCTS + CONVOLUTIONS + ROWS + GRIDS + OPTIMIZERS
