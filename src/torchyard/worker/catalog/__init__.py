"""The suites and their workloads, as data: no torch, so that the controller can list them.

An entry has the name of a workload, its modes, default batch size and parameters, and a one-line
description. The suites read their defaults from here, so that listing and build agree. Suites that
accept any name have a list instead: the workloads of the whole suite.
"""

from typing import Dict, List, Optional, Tuple

from torchyard.worker.catalog.entry import (
    BOTH,
    INFERENCE,
    PHASES,
    SCRIPT_SUITE,
    Entry,
    ListedWorkload,
    parameters,
    table_rows,
)
from torchyard.worker.catalog.huggingface_models import HUGGINGFACE


def _entries(table: str, modes: Tuple[str, ...] = BOTH) -> List[Entry]:
    return [
        Entry(
            name,
            modes,
            about,
            None if batch_size == "-" else int(batch_size),
            parameters(parameter_text),
        )
        for name, batch_size, parameter_text, about in table_rows(table)
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

_NETWORKS = """
resnet              | 4 | layers=18 size=64 width=32 classes=1000                         | residual network of half the usual width; layers=50,width=64 is a ResNet-50
transformer-encoder | 2 | layers=4 width=256 heads=8 length=64 vocabulary=8192 classes=16 | encoder-only transformer that classifies sequences
unet                | 1 | size=64 width=16 depth=3                                        | U-Net over images
lstm                | 8 | layers=2 width=128 length=32 vocabulary=8192 classes=16         | LSTM that classifies sequences
gpt                 | 1 | layers=4 width=256 heads=8 length=64 vocabulary=8192            | decoder-only transformer that predicts the next token
speech              | 1 | layers=4 width=256 heads=4 mels=80 frames=400 length=32 vocabulary=8192 | speech recognition: encoder over a spectrogram of 4 s and decoder of text, as in Whisper
diffusion           | 1 | size=32 width=64 depth=2 heads=4 length=77 context=256          | noise prediction of one step of latent diffusion: U-Net with embedded timesteps and cross-attention to a text
vision-language     | 4 | layers=4 width=256 heads=4 size=112 patch=16 length=32 vocabulary=8192 embedding=256 | image encoder and text encoder with a contrastive loss, as in CLIP
"""

KERNELS: List[Entry] = [
    *_entries(_PRODUCTS + _CONVOLUTIONS + _ROWS + _GRIDS),
    *_entries(_OPTIMIZERS, INFERENCE),
]
MODELS: List[Entry] = [
    entry._replace(modes=(*BOTH, *PHASES)) if entry.name == "gpt" else entry
    for entry in _entries(_NETWORKS)
]


BatchSizes = Tuple[Optional[int], Optional[int]]
Rows = Dict[BatchSizes, str]
"""Batch size on a large GPU and on a large server (None: not in that list) -> models."""

_TIMM: Rows = {
    (512, 128): "ghostnet_100",
    (512, 32): "mobilenetv3_large_100",
    (128, 128): (
        "adv_inception_v3 dm_nfnet_f0 inception_v3 nfnet_l0 repvgg_a2 tf_efficientnet_b0 "
        "visformer_small"
    ),
    (128, 32): "mobilenetv2_100",
    (128, None): (
        "convnextv2_nano.fcmae_ft_in22k_in1k deit_tiny_patch16_224.fb_in1k "
        "vit_base_patch14_dinov2.lvd142m vit_base_patch16_siglip_256"
    ),
    (64, 256): "mobilevit_s",
    (64, 64): "beit_base_patch16_224 deit_base_distilled_patch16_224 swin_base_patch4_window7_224",
    (None, 128): (
        "botnet26t_256 eca_botnext26ts_256 eca_halonext26ts gernet_l gluon_inception_v3 "
        "gmlp_s16_224 hrnet_w18 mixer_b16_224 mixnet_l res2net50_14w_8s res2next50 "
        "rexnet_100 selecsls42b"
    ),
    (None, 64): (
        "convit_base convnext_base cspdarknet53 lcnet_050 poolformer_m36 res2net101_26w_4s "
        "resnest101e sebotnet33ts_256 twins_pcpvt_base vit_base_patch16_224 volo_d1_224"
    ),
    (None, 32): (
        "coat_lite_mini crossvit_9_240 dpn107 fbnetc_100 fbnetv3_b jx_nest_base mnasnet_100 "
        "spnasnet_100 swsl_resnext101_32x16d tf_mixnet_l tnt_s_patch16_224"
    ),
    (None, 16): "gmixer_24_224 pnasnet5large",
    (None, 5): "xcit_large_24_p8_224",
    (None, 4): "cait_m36_384",
    (None, 2): "convmixer_768_32",
}

# Current timm names. Most timm versions still accept the old name with a warning; for others, the error
# message gives the new one.
RENAMED: Dict[str, str] = {
    "adv_inception_v3": "inception_v3.tf_adv_in1k",
    "gluon_inception_v3": "inception_v3.gluon_in1k",
    "jx_nest_base": "nest_base_jx",
    "swsl_resnext101_32x16d": "resnext101_32x16d.fb_swsl_ig1b_ft_in1k",
}

_CLASSIFICATION: Rows = {
    (1024, 128): "alexnet",
    (512, 256): "resnet18",
    (512, 64): "shufflenet_v2_x1_0",
    (512, 16): "squeezenet1_1",
    (256, 64): (
        "efficientnet_b0 mnasnet0_5 mnasnet0_75 mnasnet1_3 mobilenet_v3_small "
        "regnet_x_400mf regnet_x_800mf regnet_y_400mf regnet_y_800mf resnet34 "
        "shufflenet_v2_x0_5 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0"
    ),
    (256, 32): "mnasnet1_0 mobilenet_v3_large",
    (128, 256): "resnet50 resnext50_32x4d",
    (128, 64): "vgg16",
    (128, 32): (
        "convnext_small convnext_tiny densenet169 efficientnet_b1 efficientnet_b2 "
        "efficientnet_b3 efficientnet_v2_s googlenet inception_v3 regnet_x_1_6gf "
        "regnet_x_3_2gf regnet_x_8gf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf resnet101 "
        "swin_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 "
        "wide_resnet50_2"
    ),
    (128, 16): "mobilenet_v2",
    (64, 512): "densenet121",
    (64, 32): "resnet152",
    (64, 16): (
        "convnext_base convnext_large densenet161 densenet201 efficientnet_b4 "
        "efficientnet_v2_l efficientnet_v2_m maxvit_t regnet_x_16gf regnet_x_32gf "
        "regnet_y_16gf regnet_y_32gf resnext101_32x8d resnext101_64x4d swin_b swin_s "
        "swin_v2_b swin_v2_s swin_v2_t vit_l_16 vit_l_32 wide_resnet101_2"
    ),
    (16, 4): "efficientnet_b5 efficientnet_b6 efficientnet_b7 regnet_y_128gf vit_h_14",
}
_DETECTION: Rows = {
    (32, 8): "ssdlite320_mobilenet_v3_large",
    (16, 4): "fasterrcnn_mobilenet_v3_large_320_fpn ssd300_vgg16",
    (8, 2): "fasterrcnn_mobilenet_v3_large_fpn",
    (4, 1): (
        "fasterrcnn_resnet50_fpn fasterrcnn_resnet50_fpn_v2 fcos_resnet50_fpn "
        "keypointrcnn_resnet50_fpn maskrcnn_resnet50_fpn maskrcnn_resnet50_fpn_v2 "
        "retinanet_resnet50_fpn retinanet_resnet50_fpn_v2"
    ),
}
_SEGMENTATION: Rows = {
    (32, 8): "lraspp_mobilenet_v3_large",
    (16, 4): "deeplabv3_mobilenet_v3_large",
    (8, 2): "deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50",
}


def _listed(about: str, rows: Rows) -> List[ListedWorkload]:
    """Return the models of a table by name."""
    return sorted(
        ListedWorkload(name, BOTH, about, gpu, cpu)
        for (gpu, cpu), names in rows.items()
        for name in names.split()
    )


TIMM: List[ListedWorkload] = _listed("images, cross-entropy", _TIMM)
TIMM_BY_NAME: Dict[str, ListedWorkload] = {each.name: each for each in TIMM}
TORCHVISION: List[ListedWorkload] = [
    *_listed("classification, cross-entropy", _CLASSIFICATION),
    *_listed("detection, the model's own losses", _DETECTION),
    *_listed("segmentation, per-pixel cross-entropy", _SEGMENTATION),
]
TORCHVISION_BY_NAME: Dict[str, ListedWorkload] = {each.name: each for each in TORCHVISION}


__all__ = [
    "BOTH",
    "KERNELS",
    "LISTS",
    "MODELS",
    "OPEN_SUITES",
    "SUITES",
    "Entry",
    "ListedWorkload",
    "entry_of",
]

SUITES: Dict[str, List[Entry]] = {"kernels": KERNELS, "models": MODELS}
OPEN_SUITES: Dict[str, str] = {
    "huggingface": "any transformers model class, such as BertForMaskedLM, with random weights",
    "timm": "any timm model name, with random weights",
    "torchvision": "any torchvision classification, detection or segmentation model",
    "torchbench": "a model of a pytorch/benchmark checkout, such as resnet50:path=FOLDER",
    "file": "a Python file, given by path",
    "script": "a whole program, for `torchyard tune --program`",
    SCRIPT_SUITE: "the steps of a training script, for `torchyard bench --script`",
}
# The workloads of a whole suite, for the suites that accept any name.
LISTS: Dict[str, List[ListedWorkload]] = {
    "huggingface": HUGGINGFACE,
    "timm": TIMM,
    "torchvision": TORCHVISION,
}


def entry_of(suite: str, name: str) -> Optional[Entry]:
    """Return the built-in workload of that name, or None."""
    for entry in SUITES.get(suite, []):
        if entry.name == name:
            return entry
    return None
