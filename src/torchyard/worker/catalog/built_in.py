"""The workloads of the suites `kernels` and `models`, as data: no torch, so that the controller can list them.

Columns: name, default batch size (-: no batch dimension), parameters with their defaults, description.
"""

from typing import List, Tuple

from torchyard.worker.catalog.entry import BOTH, INFERENCE, Entry, parameters, table_rows


def _entries(table: str, modes: Tuple[str, ...] = BOTH) -> List[Entry]:
    return [
        Entry(name, modes, about, None if batch_size == "-" else int(batch_size), parameters(given))
        for name, batch_size, given, about in table_rows(table)
    ]


_PRODUCTS = """
matmul            | -  | size=1000                                  | matrix product of two square matrices
matmul-tall       | -  | height=16384 width=64                      | tall-and-skinny matrix times a small square matrix
matmul-batched    | 64 | size=64                                    | batched matrix product of small square matrices
matmul-vector     | -  | size=2048                                  | matrix-vector product
mlp               | 16 | size=64 width=4096 hidden=11008 classes=10 | three-layer perceptron 4096-4096-11008-10 over 64x64 inputs
layered-mlp       | 8  | layers=100 extra_layers=0 width=256        | chain of equal small layers; each extra layer adds exactly 1/layers of the work
attention         | 2  | heads=8 length=256 width=64 causal=0       | scaled dot-product attention
attention-causal  | 2  | heads=8 length=256 width=64                | causal attention
attention-grouped | 2  | heads=8 key_heads=2 length=256 width=64    | grouped-query attention
attention-decode  | 2  | heads=8 length=2048 width=64               | attention of one query token over the KV cache, as in token generation
"""

_CONVOLUTIONS = """
conv2d            | 4 | channels=64 size=56 kernel=3        | 2D convolution
conv2d-columns    | 4 | channels=64 size=56 kernel=3 ones=0 | 2D convolution by im2col and a matrix product; ones=1 also fills the buffer of an absent bias
conv2d-depthwise  | 4 | channels=64 size=56 kernel=3        | depthwise 2D convolution
conv2d-1x1        | 4 | channels=64 size=56                 | 1x1 convolution: a matrix product
conv2d-transposed | 4 | channels=64 size=28 stride=2        | transposed 2D convolution (upsampling) without overlap
conv3d            | 1 | channels=16 size=24 kernel=3        | 3D convolution
"""

_ROWS = """
embedding        | 16  | rows=30522 width=256 length=128 | embedding lookup
embedding-padded | 16  | rows=30522 width=256 length=128 | embedding with padding_idx, a quarter of the tokens padding
layer-norm       | 8   | length=128 width=1024           | layer normalisation
rms-norm         | 8   | length=128 width=1024           | RMS normalisation
batch-norm       | 4   | channels=64 size=56             | batch normalisation of images
group-norm       | 4   | channels=64 size=56 groups=8    | group normalisation of images
softmax          | 8   | length=128 width=1024           | softmax over rows
cross-entropy    | 64  | classes=16384                   | cross-entropy of each row
reduce-sum       | 256 | width=4096                      | sum of each row
reduce-max       | 256 | width=4096                      | maximum of each row
"""

_GRIDS = """
constant-pad2d       | 4   | channels=64 size=56 pad=2    | zero padding of images
reflection-pad2d     | 4   | channels=64 size=56 pad=2    | reflection padding of images
replication-pad2d    | 4   | channels=64 size=56 pad=2    | replication padding of images
replication-pad3d    | 2   | channels=8 size=32 pad=2     | replication padding of a volume
max-pool2d           | 4   | channels=64 size=56 kernel=2 | max pooling
avg-pool2d           | 4   | channels=64 size=56 kernel=2 | average pooling
adaptive-avg-pool2d  | 4   | channels=64 size=56 output=7 | average pooling to a fixed output size
interpolate-nearest  | 4   | channels=64 size=28 factor=2 | nearest-neighbour upsampling
interpolate-bilinear | 4   | channels=64 size=28 factor=2 | bilinear upsampling
elementwise-chain    | 256 | width=4096 operations=8      | chain of elementwise products and sums of two tensors
"""

_OPTIMIZERS = """
optimizer-step | - | layers=8 width=256                   | one AdamW step over the parameters of a small network, with fixed gradients
sgd-step       | - | layers=8 width=256 foreach=0 fused=0 | one SGD step, otherwise the same
momentum-step  | - | layers=8 width=256 foreach=0 fused=0 | one SGD step with momentum, otherwise the same
adam-step      | - | layers=8 width=256 foreach=0 fused=0 | one Adam step, otherwise the same
adamw-step     | - | layers=8 width=256 foreach=0 fused=0 | one AdamW step in the chosen implementation (foreach, fused)
"""

_MODELS = """
resnet              | 4 | layers=18 size=64 width=32 classes=1000                         | residual network of half the usual width; layers=50,width=64 is a ResNet-50
transformer-encoder | 2 | layers=4 width=256 heads=8 length=64 vocabulary=8192 classes=16 | encoder-only transformer that classifies sequences
unet                | 1 | size=64 width=16 depth=3                                        | U-Net over images
lstm                | 8 | layers=2 width=128 length=32 vocabulary=8192 classes=16         | LSTM that classifies sequences
gpt                 | 1 | layers=4 width=256 heads=8 length=64 vocabulary=8192            | decoder-only transformer that predicts the next token
"""

KERNELS: List[Entry] = [
    *_entries(_PRODUCTS + _CONVOLUTIONS + _ROWS + _GRIDS),
    *_entries(_OPTIMIZERS, INFERENCE),
]
MODELS: List[Entry] = _entries(_MODELS)
