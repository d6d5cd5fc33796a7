"""The models of the suites `timm` and `torchvision`, as data: no torch, so that the controller can list them."""

from typing import Dict, List, Optional, Tuple

from torchyard.worker.catalog.entry import BOTH, ListedWorkload

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
