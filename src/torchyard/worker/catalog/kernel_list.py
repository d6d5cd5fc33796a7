"""The workloads of the suite `kernels`, as data: no torch, so that the controller can list them too."""

from typing import Dict, List

from torchyard.worker.catalog.entry import BOTH, Entry

_IMAGES: Dict[str, int] = {"channels": 64, "size": 56}
_STEP: Dict[str, int] = {"layers": 8, "width": 256}
_STEP_FORM: Dict[str, int] = {"layers": 8, "width": 256, "foreach": 0, "fused": 0}

PRODUCTS: List[Entry] = [
    Entry("matmul", BOTH, "matrix product of two square matrices", None, {"size": 1000}),
    Entry(
        "matmul-tall",
        BOTH,
        "tall-and-skinny matrix times a small square matrix",
        None,
        {"height": 16384, "width": 64},
    ),
    Entry(
        "matmul-batched", BOTH, "batched matrix product of small square matrices", 64, {"size": 64}
    ),
    Entry("matmul-vector", BOTH, "matrix-vector product", None, {"size": 2048}),
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
        "chain of equal small layers; each extra layer adds exactly 1/layers of the work",
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
        "causal attention",
        2,
        {"heads": 8, "length": 256, "width": 64},
    ),
    Entry(
        "attention-grouped",
        BOTH,
        "grouped-query attention",
        2,
        {"heads": 8, "key_heads": 2, "length": 256, "width": 64},
    ),
    Entry(
        "attention-decode",
        BOTH,
        "attention of one query token over the KV cache, as in token generation",
        2,
        {"heads": 8, "length": 2048, "width": 64},
    ),
]

CONVOLUTIONS: List[Entry] = [
    Entry("conv2d", BOTH, "2D convolution", 4, {**_IMAGES, "kernel": 3}),
    Entry(
        "conv2d-columns",
        BOTH,
        "2D convolution by im2col and a matrix product; ones=1 fills the auxiliary buffer of an "
        "absent bias, as PyTorch did on GPUs until 2020",
        4,
        {**_IMAGES, "kernel": 3, "ones": 0},
    ),
    Entry("conv2d-depthwise", BOTH, "depthwise 2D convolution", 4, {**_IMAGES, "kernel": 3}),
    Entry("conv2d-1x1", BOTH, "1x1 convolution: a matrix product", 4, {**_IMAGES}),
    Entry(
        "conv2d-transposed",
        BOTH,
        "transposed 2D convolution (upsampling) without overlap",
        4,
        {"channels": 64, "size": 28, "stride": 2},
    ),
    Entry("conv3d", BOTH, "3D convolution", 1, {"channels": 16, "size": 24, "kernel": 3}),
]

ROWS: List[Entry] = [
    Entry(
        "embedding",
        BOTH,
        "embedding lookup",
        16,
        {"rows": 30522, "width": 256, "length": 128},
    ),
    Entry(
        "embedding-padded",
        BOTH,
        "embedding with padding_idx, a quarter of the tokens padding; PyTorch of 2020 and 2021 "
        "cleared rows that were zero already; training covers its backward",
        16,
        {"rows": 30522, "width": 256, "length": 128},
    ),
    Entry("layer-norm", BOTH, "layer normalisation", 8, {"length": 128, "width": 1024}),
    Entry("rms-norm", BOTH, "RMS normalisation", 8, {"length": 128, "width": 1024}),
    Entry("batch-norm", BOTH, "batch normalisation of images", 4, {**_IMAGES}),
    Entry("group-norm", BOTH, "group normalisation of images", 4, {**_IMAGES, "groups": 8}),
    Entry("softmax", BOTH, "softmax over rows", 8, {"length": 128, "width": 1024}),
    Entry("cross-entropy", BOTH, "cross-entropy of each row", 64, {"classes": 16384}),
    Entry("reduce-sum", BOTH, "sum of each row", 256, {"width": 4096}),
    Entry("reduce-max", BOTH, "maximum of each row", 256, {"width": 4096}),
]

GRIDS: List[Entry] = [
    Entry("constant-pad2d", BOTH, "zero padding of images", 4, {**_IMAGES, "pad": 2}),
    Entry("reflection-pad2d", BOTH, "reflection padding of images", 4, {**_IMAGES, "pad": 2}),
    Entry("replication-pad2d", BOTH, "replication padding of images", 4, {**_IMAGES, "pad": 2}),
    Entry(
        "replication-pad3d",
        BOTH,
        "replication padding of a volume; until 2020 its backward zeroed the gradient twice on "
        "GPUs; training covers its backward",
        2,
        {"channels": 8, "size": 32, "pad": 2},
    ),
    Entry("max-pool2d", BOTH, "max pooling", 4, {**_IMAGES, "kernel": 2}),
    Entry("avg-pool2d", BOTH, "average pooling", 4, {**_IMAGES, "kernel": 2}),
    Entry(
        "adaptive-avg-pool2d",
        BOTH,
        "average pooling to a fixed output size",
        4,
        {**_IMAGES, "output": 7},
    ),
    Entry(
        "interpolate-nearest",
        BOTH,
        "nearest-neighbour upsampling",
        4,
        {"channels": 64, "size": 28, "factor": 2},
    ),
    Entry(
        "interpolate-bilinear",
        BOTH,
        "bilinear upsampling",
        4,
        {"channels": 64, "size": 28, "factor": 2},
    ),
    Entry(
        "elementwise-chain",
        BOTH,
        "chain of elementwise products and sums of two tensors",
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
    Entry("sgd-step", ("inference",), "one SGD step, otherwise the same", None, _STEP_FORM),
    Entry(
        "momentum-step",
        ("inference",),
        "one SGD step with momentum, otherwise the same",
        None,
        _STEP_FORM,
    ),
    Entry("adam-step", ("inference",), "one Adam step, otherwise the same", None, _STEP_FORM),
    Entry(
        "adamw-step",
        ("inference",),
        "one AdamW step in the chosen implementation (foreach, fused)",
        None,
        _STEP_FORM,
    ),
]

KERNELS: List[Entry] = PRODUCTS + CONVOLUTIONS + ROWS + GRIDS + OPTIMIZERS
